"""A checkpoint is of one run and one step: no other model is trained on, evaluated or released. Pitfall 33."""

import json
import random
import shutil
import stat
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from tests.command import World, confide, files_below, refused, tiny_model

MENDED = r"state\.pt is damaged, or not what this run saved after step {}: remove .*step-0000000{}"


@pytest.fixture(scope="module")
def world(tmp_path_factory) -> World:
    """A private run under a secret key, its twin, and another run of the same config."""
    folder = tmp_path_factory.mktemp("world")
    made = World(folder, tiny_model(tmp_path_factory.mktemp("model")))
    for arguments in ((), ("--twin",), (f"run={folder / 'other'}",)):
        assert confide("train", made.path, *arguments).code == 0
    return made


@pytest.fixture
def run(world, tmp_path) -> Path:
    """The run folder, as it was when the test is over."""
    shutil.copytree(world.run, tmp_path / "kept", symlinks=True)
    yield world.run
    shutil.rmtree(world.run)
    shutil.copytree(tmp_path / "kept", world.run)


def last(run: Path) -> Path:
    (found,) = (run / "checkpoints").glob("step-*")
    return found


def refuses(world: World, run: Path, pattern: str) -> None:
    """Nothing is released, evaluated or attacked, and nothing changes."""
    shutil.rmtree(run / "release")
    before = files_below(run)
    refused(confide("train", world.path), pattern)
    refused(confide("eval", run), pattern)
    refused(confide("audit", run, "--attacks", "extraction"), pattern)
    after = files_below(run)
    assert after == before


@pytest.mark.parametrize("files", [("state.pt",), ("state.pt", "seal")], ids=str)
@pytest.mark.parametrize("source", ["twin", "../other"])
def test_the_state_of_another_run_is_refused(world, run, source, files):
    """The non-private twin of the same key and draws, and another private run of the same config and data."""
    for name in files:
        shutil.copy(last(run / source) / name, last(run) / name)
    refuses(world, run, MENDED.format(4, 4))


def test_a_state_under_the_name_of_another_step_is_refused(world, run):
    """Steps would be taken again on other weights with the same noise: their difference would be free of it."""
    last(run).rename(run / "checkpoints" / "step-00000002")
    refuses(world, run, MENDED.format(2, 2))


def test_a_state_beyond_the_ledger_is_refused(world, run):
    last(run).rename(run / "checkpoints" / "step-00000009")
    refuses(world, run, r"ledger\.jsonl does not record every step up to 9")


def test_no_bit_of_a_state_may_change(world, run):
    """The seal is read before the state: no damaged pickle is opened."""
    generator, state = random.Random(3), last(run) / "state.pt"
    whole = state.read_bytes()
    for place in [0, len(whole) - 1, *(generator.randrange(len(whole)) for _ in range(4))]:
        state.write_bytes(
            whole[:place] + bytes([whole[place] ^ 1 << generator.randrange(8)]) + whole[place + 1 :]
        )
        refused(confide("train", world.path), MENDED.format(4, 4))
    state.write_bytes(whole)
    assert confide("train", world.path).code == 0


def test_a_state_is_of_the_steps_that_the_ledger_records(world, run):
    """A ledger with other noise in one of its lines is not the one that the state was saved under."""
    ledger = run / "ledger.jsonl"
    lines = ledger.read_text().splitlines(True)
    lines[1] = json.dumps(json.loads(lines[1]) | {"noise_multiplier": 8.0}) + "\n"
    ledger.write_text("".join(lines))
    refuses(world, run, MENDED.format(4, 4))


def test_a_state_without_a_seal_is_refused(world, run):
    (last(run) / "seal").unlink()
    refuses(world, run, MENDED.format(4, 4))


@pytest.mark.parametrize("damage", ["weights", "guarantee"])
def test_evidence_is_not_written_into_a_release_of_something_else(world, run, damage):
    """An audit puts its result beside the weights that were released: they must be the ones that it attacked."""
    if damage == "weights":
        path = run / "release" / "model.safetensors"
        save_file({name: 2 * values for name, values in load_file(path).items()}, path, {"format": "pt"})
    else:
        path = run / "release" / "guarantee.json"
        path.write_text(path.read_text().replace('"epsilon": ', '"epsilon": 0'))
    refused(confide("audit", run, "--attacks", "extraction"), r"release does not hold what this run released")
    shutil.rmtree(run / "release")  # as the message advises
    assert confide("train", world.path).code == 0
    assert confide("audit", run, "--attacks", "extraction").code == 0


def test_words_may_be_added_to_the_card(world, run):
    with open(run / "release" / "README.md", "a") as stream:
        stream.write("Contact: privacy@example.com\n")
    assert confide("audit", run, "--attacks", "extraction").code == 0


def test_evidence_of_another_run_does_not_enter_a_claim(world, run):
    (run / "evidence.json").write_text(
        json.dumps({"model": "x", "steps": 4, "lines": ["audit: all is well"]})
    )
    refused(confide("train", world.path), r"evidence\.json is damaged, or of another run: remove it")


# who may read -------------------------------------------------------------------------------------------------
def test_a_folder_that_was_open_is_closed(world, run):
    for path in (run, *run.rglob("*")):
        if path.name != "key":
            path.chmod(0o755 if path.is_dir() else 0o644)
    assert confide("train", world.path).code == 0
    open_ones = [path for path in run.rglob("*") if path.stat().st_mode & 0o077]
    assert stat.S_IMODE(run.stat().st_mode) == 0o700
    assert all("release" in path.relative_to(run).parts for path in open_ones), open_ones
    assert stat.S_IMODE((run / "release" / "guarantee.json").stat().st_mode) == 0o644


def test_what_a_run_writes_is_closed_from_the_start(world, run):
    shutil.rmtree(run)
    assert confide("train", world.path, "canaries.count=4", "canaries.digits=3").code == 0
    assert confide("audit", run, "--attacks", "claim").code == 0
    for path in (run, *run.rglob("*")):
        if "release" not in path.relative_to(run).parts:
            assert not path.stat().st_mode & 0o077, path
    assert {path.name for path in run.iterdir()} >= {
        "audit.json",
        "data",
        "metrics.jsonl",
        "key",
        "tensorboard",
    }


def test_an_empty_folder_that_was_open_is_closed(world, tmp_path):
    (tmp_path / "run").mkdir(mode=0o755)
    assert confide("prepare", world.path, f"run={tmp_path / 'run'}").code == 0
    assert stat.S_IMODE((tmp_path / "run").stat().st_mode) == 0o700


def test_a_folder_of_something_else_is_left_as_it_is(world, tmp_path):
    """Closing it would lock others out, and leaving it open would show them private rows."""
    folder = tmp_path / "project"
    folder.mkdir(mode=0o755)
    (folder / "notes.txt").write_text("ours")
    refused(confide("prepare", world.path, f"run={folder}"), r"run: .*project holds other files")
    assert stat.S_IMODE(folder.stat().st_mode) == 0o755
    assert [path.name for path in folder.iterdir()] == ["notes.txt"]
    folder.chmod(0o700)
    assert confide("prepare", world.path, f"run={folder}").code == 0


@pytest.mark.parametrize("mode", [0o755, 0o700])
@pytest.mark.parametrize("verb", ["prepare", "plan", "train"])
def test_data_of_the_users_own_in_the_run_folder_are_never_removed(world, tmp_path, verb, mode):
    folder = tmp_path / "project"
    (folder / "data").mkdir(parents=True)
    (folder / "data/mails.jsonl").write_text("ours")
    (folder / "config.yaml").write_text("# ours")
    folder.chmod(mode)
    refused(
        confide(verb, world.path, f"run={folder}"), r"config.yaml is not of a run, and would be written over"
    )
    assert (folder / "config.yaml").read_text() == "# ours"
    (folder / "config.yaml").unlink()
    message = "holds files that confide did not write" if mode == 0o700 else "holds other files"
    refused(confide(verb, world.path, f"run={folder}"), rf"run: .*project.* {message}")
    assert (folder / "data/mails.jsonl").read_text() == "ours"


# versions -----------------------------------------------------------------------------------------------------
def test_the_ledger_names_the_code_of_each_step_and_the_guarantee_all_of_it(world, run, monkeypatch):
    from confide.runs import loop as finetuning

    shutil.rmtree(run)
    assert confide("train", world.path, "train.steps=4", "train.checkpoint_every=10").code == 0
    own = json.loads((run / "ledger.jsonl").read_text().splitlines()[1])["confide"]
    assert own.startswith("0.1.0+")
    shutil.rmtree(run / "checkpoints")
    monkeypatch.setattr(finetuning, "code_version", lambda: "9.9.9")
    result = confide("train", world.path)
    assert result.code == 0
    assert f"the steps of this run were taken by confide {own}, 9.9.9" in result.err
    lines = [json.loads(line) for line in (run / "ledger.jsonl").read_text().splitlines()]
    assert [line for line in lines if "again" in line] == [
        {"again": n, "confide": "9.9.9"} for n in range(1, 5)
    ]
    stated = json.loads((run / "release" / "guarantee.json").read_text())
    assert stated["provenance"]["confide"] == f"{own}, 9.9.9"
    assert confide("eval", run).code == 0  # lines of steps taken again are no steps
