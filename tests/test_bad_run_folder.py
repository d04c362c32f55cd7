"""A run folder that is damaged, another's, or on a full disk is refused in one sentence, and left as it was."""

# ruff: noqa: E501 - one fault a line

import errno
import json
import os
import shutil
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from confide.randomness.seal import Seal
from confide.randomness.streams import RunKey
from tests.command import (
    World,
    confide,
    confide_apart,
    files_below,
    nothing_half_written,
    recorded,
    refused,
)


@pytest.fixture
def world(tmp_path, model) -> World:
    return World(tmp_path, model)


@pytest.fixture(scope="module")
def trained(tmp_path_factory, model) -> Path:
    """A world whose run has come to its end."""
    folder = tmp_path_factory.mktemp("trained")
    assert confide("train", World(folder, model).path).code == 0
    return folder


@pytest.fixture
def begun(world, trained) -> World:
    """A copy of it: the same config and text, for another folder."""
    shutil.copytree(trained / "run", world.run)
    config, prepared = world.run / "config.yaml", world.run / "data/prepared.json"
    config.write_text(config.read_text().replace(str(trained), str(world.folder)))
    seal = Seal(RunKey.load(world.run / "key"))
    facts = json.dumps(seal.read_json(prepared, prepared.name)).replace(str(trained), str(world.folder))
    seal.write_json(prepared, prepared.name, json.loads(facts))
    return world


def edit(path: Path, change: Callable[[bytes], bytes]) -> None:
    path.write_bytes(change(path.read_bytes()))


def state(world: World) -> Path:
    return next((world.run / "checkpoints").glob("*/state.pt"))


def half(data: bytes) -> bytes:
    return data[: len(data) // 2]


def only_release(run: Path) -> None:
    """Delete the rest of a run's folder, as `docs/leaving.md` allows; the lock is made again by whoever asks."""
    for path in run.iterdir():
        if path.name not in ("release", ".lock"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def without_line(number: int) -> Callable[[bytes], bytes]:
    return lambda data: b"".join(line for i, line in enumerate(data.splitlines(True)) if i != number)


FOLDER: dict[str, tuple[Callable[[World], object], str]] = {
    "another config": (lambda w: w.set(train__learning_rate=0.5), r"holds a run with another config \(differs in train\.learning_rate\)"),
    "other rows": (lambda w: w.set(data__max_length=8), r"holds a run with another config \(differs in data\.max_length\)"),
    "a damaged ledger line": (lambda w: edit(w.run / "ledger.jsonl", lambda d: d.replace(b'"step": 1', b'"step": ', 1)), r"ledger\.jsonl line 3 is damaged"),
    "a ledger of something else": (lambda w: (w.run / "ledger.jsonl").write_bytes(b"\xff\xfe\x00\n"), r"ledger\.jsonl line 1 is damaged"),
    "a ledger with a step taken out": (lambda w: edit(w.run / "ledger.jsonl", without_line(2)), r"ledger\.jsonl does not record every step"),
    "a checkpoint cut short": (lambda w: edit(state(w), half), r"state\.pt is damaged, or not what this run saved after step 4: remove .*step-00000004"),
    "an empty checkpoint": (lambda w: edit(state(w), lambda d: b""), r"state\.pt is damaged"),
    "a checkpoint without its state": (lambda w: state(w).unlink(), r"state\.pt is damaged"),
    "a damaged config": (lambda w: (w.run / "config.yaml").write_text("train: {steps"), r"run/config\.yaml line 1: not valid YAML"),
    "a config of something else": (lambda w: (w.run / "config.yaml").write_text("- 1\n"), r"run/config\.yaml: a config is keys with values"),
    "tokens cut short": (lambda w: edit(w.run / "data/train/tokens.bin", half), r"tokens\.bin has \d+ bytes where \d+ were written.*remove .*data first"),
    "a graph without its description": (lambda w: (w.run / "data/train/meta.json").unlink(), r"data/train is not a unit graph.*remove .*data first"),
    "a damaged description": (lambda w: edit(w.run / "data/eval/meta.json", half), r"data/eval/meta\.json is damaged"),
    "no held-out graph": (lambda w: shutil.rmtree(w.run / "data/eval"), r"data/eval is not a unit graph"),
    "a damaged record of the data": (lambda w: edit(w.run / "data/prepared.json", half), r"prepared\.json is damaged, or was made under another key: remove .*data"),
    "changed tokens": (lambda w: edit(w.run / "data/train/tokens.bin", lambda d: d[2:] + d[:2]), r"tokens\.bin is damaged: remove .*data"),
    "a flipped byte of the rows' offsets": (lambda w: edit(w.run / "data/train/row_offsets.bin", lambda d: d[:16] + bytes([d[16] ^ 1]) + d[17:]), r"row_offsets\.bin is damaged: remove .*data"),
    "a changed fact of the data": (lambda w: edit(w.run / "data/prepared.json", lambda d: d.replace(b'"units": ', b'"units": 1', 1)), r"prepared\.json is damaged, or was made under another key: remove .*data"),
    "a release and nothing else": (lambda w: only_release(w.run), r"holds a release and no ledger of its run.*Choose another `run` folder"),
    "no key": (lambda w: (w.run / "key").unlink(), r"run/key is missing"),
    "a key cut short": (lambda w: edit(w.run / "key", half), r"run/key is damaged: a run key has 32 bytes, this one has 16"),
    "another key": (lambda w: edit(w.run / "key", lambda d: bytes(32)), r"prepared\.json is damaged, or was made under another key"),
    "a key that all can read": (lambda w: (w.run / "key").chmod(0o644), r"key can be read by others.*chmod 600"),
}  # fmt: skip


@pytest.mark.parametrize("name", FOLDER)
def test_run_folder(begun, name):
    spoil, pattern = FOLDER[name]
    spoil(begun)
    before = files_below(begun.run)
    refused(confide("train", begun.path), pattern)
    assert files_below(begun.run) == before


def test_a_run_killed_while_it_wrote_its_metrics_goes_on(begun):
    with open(begun.run / "metrics.jsonl", "ab") as stream:
        stream.write(b'{"done": 4, "eval\xff')
    assert confide("train", begun.path).code == 0


def test_a_removed_checkpoint_is_taken_again(begun):
    """What the message of a damaged checkpoint advises."""
    ledger = (begun.run / "ledger.jsonl").read_bytes()
    shutil.rmtree(state(begun).parent)
    assert confide("train", begun.path).code == 0
    assert (begun.run / "ledger.jsonl").read_bytes() == ledger


def test_other_rows_are_not_prepared_over_a_run_that_has_begun(begun):
    before = files_below(begun.run)
    for verb in ("prepare", "plan"):
        refused(
            confide(verb, begun.path, "data.max_length=8"), r"holds a run on other data.*choose another `run`"
        )
    assert files_below(begun.run) == before


def test_a_run_that_another_process_works_on(world):
    import fcntl

    world.run.mkdir()
    with open(world.run / ".lock", "w") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        for verb in ("prepare", "train", "verify"):
            refused(confide(verb, world.path), r"run: another process is working on this run")


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser can write anywhere")
@pytest.mark.parametrize("verb", ["prepare", "train"])
def test_a_folder_that_cannot_be_written(world, verb):
    world.run.mkdir(mode=stat.S_IRUSR | stat.S_IXUSR)
    refused(confide(verb, world.path), r"run.*: Permission denied")


def full(monkeypatch, module: str, name: str, after: int = 0) -> None:
    """Make a function fail as on a full disk, from its call number `after` on."""
    import importlib

    home = importlib.import_module(module)
    real, calls = getattr(home, name), []

    def fail(*arguments, **settings):
        calls.append(1)
        if len(calls) > after:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(*arguments, **settings)

    monkeypatch.setattr(home, name, fail)


@pytest.mark.parametrize(
    ("module", "name", "after"),
    [
        ("confide.randomness.seal", "write_text", 0),
        ("confide.data.unit_graph", "sync", 3),
        ("torch", "save", 0),
        ("torch", "save", 1),
        ("confide.models.loading", "save", 0),
        ("confide.runs.release", "write_text", 0),
        ("confide.privacy.ledger.os", "fsync", 2),
    ],
)
def test_a_full_disk(world, monkeypatch, module, name, after):
    if "." in module and module.endswith(".os"):
        module = "os"
    with monkeypatch.context() as patch:
        full(patch, module, name, after)
        refused(confide("train", world.path), r"No space left on device|no space left on device")
    nothing_half_written(world.folder)
    assert not (world.run / "release").exists()
    assert confide("train", world.path).code == 0  # once there is room again
    assert recorded(world.run) == [0, 1, 2, 3]


def test_a_disk_that_is_really_full(world, tmp_path):
    small_disk = tmp_path / "disk"
    small_disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=900k", "tmpfs", str(small_disk)], capture_output=True
    )
    if mounted.returncode:
        pytest.skip("no small disk can be mounted here")
    try:
        world.set(run=str(small_disk / "run"))
        refused(confide_apart("train", world.path), r"[Nn]o space left on device")
        nothing_half_written(small_disk)
        subprocess.run(["mount", "-o", "remount,size=20m", str(small_disk)], check=True)
        assert confide("train", world.path).code == 0
    finally:
        subprocess.run(["umount", "-l", str(small_disk)], check=True)  # graphs are still mapped
