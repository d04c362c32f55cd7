"""A damaged or hostile model folder is refused in one sentence, within seconds, and none of its code runs."""

# ruff: noqa: E501 - one fault a line

import json
import os
import shutil
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import huggingface_hub
import pytest
import torch
from huggingface_hub.errors import RepositoryNotFoundError
from safetensors.torch import load_file, save_file

from confide.models import files as model_files
from tests.command import World, confide, refused


@pytest.fixture
def world(tmp_path, model, monkeypatch) -> World:
    monkeypatch.chdir(tmp_path)
    world = World(tmp_path, model)
    shutil.copytree(model, tmp_path / "copy")
    return world.set(model=str(tmp_path / "copy"), tokenizer=None)


WEIGHTS, CONFIG, TOKENIZER = "model.safetensors", "config.json", "tokenizer.json"


def settings(folder: Path, **changes: Any) -> None:
    path = folder / CONFIG
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def tokenizer(folder: Path, name: str = "tokenizer_config.json", **changes: Any) -> None:
    path = folder / name
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def header(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Another header before the same bytes."""
    data = (folder / WEIGHTS).read_bytes()
    length = struct.unpack("<Q", data[:8])[0]
    found = json.loads(data[8 : 8 + length])
    change(found)
    text = json.dumps(found).encode()
    (folder / WEIGHTS).write_bytes(struct.pack("<Q", len(text)) + text + data[8 + length :])


def entry(folder: Path, **changes: Any) -> None:
    header(folder, lambda found: found["transformer.h.0.mlp.c_fc.weight"].update(changes))


def tensors(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    found = load_file(folder / WEIGHTS)
    change(found)
    save_file(found, folder / WEIGHTS, metadata={"format": "pt"})


def sharded(folder: Path, names: dict[str, str] | None = None, index: Any = None) -> None:
    """As two shards with an index; `names`: another file for a shard, in the index alone."""
    found = load_file(folder / WEIGHTS)
    shards = {f"model-0000{n + 1}-of-00002.safetensors": dict(list(found.items())[n::2]) for n in range(2)}
    places = {}
    for shard, part in shards.items():
        save_file(part, folder / shard, metadata={"format": "pt"})
        places |= dict.fromkeys(part, (names or {}).get(shard, shard))
    (folder / WEIGHTS).unlink()
    whole = {"metadata": {"total_size": 1}, "weight_map": places} if index is None else index
    (folder / "model.safetensors.index.json").write_text(json.dumps(whole))


FIRST = "model-00001-of-00002.safetensors"


def outside(folder: Path, absolute: bool = False) -> None:
    sharded(
        folder, {FIRST: str(folder.parent / "outside.safetensors") if absolute else "../outside.safetensors"}
    )
    (folder / FIRST).rename(folder.parent / "outside.safetensors")


def own_code(folder: Path, where: str = CONFIG, kind: str = "gpt2") -> None:
    """Code that leaves a file behind if it runs."""
    (folder / "theirs.py").write_text("import pathlib\npathlib.Path('ran').touch()\nclass Theirs: pass\n")
    if where == CONFIG:
        settings(
            folder,
            model_type=kind,
            auto_map={"AutoConfig": "theirs.Theirs", "AutoModelForCausalLM": "theirs.Theirs"},
        )
    else:
        tokenizer(
            folder, auto_map={"AutoTokenizer": ["theirs.Theirs", "theirs.Theirs"]}, tokenizer_class="Theirs"
        )


def pickled(folder: Path) -> None:
    torch.save(load_file(folder / WEIGHTS), folder / "pytorch_model.bin")
    (folder / WEIGHTS).unlink()


def deep(folder: Path) -> None:
    (folder / CONFIG).write_text('{"a":' * 5000 + "1" + "}" * 5000)


MODEL: dict[str, tuple[Callable[[Path], object], str]] = {
    "weights cut short": (lambda f: os.truncate(f / WEIGHTS, 30_000), r"model\.safetensors.*(cut short|damaged)"),
    "weights of eight bytes": (lambda f: os.truncate(f / WEIGHTS, 8), r"model\.safetensors"),
    "weights empty": (lambda f: os.truncate(f / WEIGHTS, 0), r"model\.safetensors"),
    "weights that are text": (lambda f: (f / WEIGHTS).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"), r"model\.safetensors"),
    "a header of all memory": (lambda f: (f / WEIGHTS).write_bytes(struct.pack("<Q", 1 << 62) + b"{}" * 50), r"model\.safetensors"),
    "a header that is a list": (lambda f: (f / WEIGHTS).write_bytes(struct.pack("<Q", 2) + b"[]"), r"model\.safetensors"),
    "an unknown dtype": (lambda f: entry(f, dtype="F37"), r"model\.safetensors"),
    "another dtype than the bytes": (lambda f: entry(f, dtype="F16"), r"model\.safetensors"),
    "whole numbers for weights": (lambda f: entry(f, dtype="I32"), r"stores transformer\.h\.0\.mlp\.c_fc\.weight as whole numbers"),
    "another shape": (lambda f: entry(f, shape=[1, 2]), r"model\.safetensors"),
    "a negative shape": (lambda f: entry(f, shape=[-16, -64]), r"model\.safetensors"),
    "a shape that overflows": (lambda f: entry(f, shape=[1 << 40, 1 << 40]), r"model\.safetensors"),
    "offsets beyond the end": (lambda f: entry(f, data_offsets=[0, 1 << 50]), r"model\.safetensors"),
    "offsets the wrong way": (lambda f: entry(f, data_offsets=[4096, 0]), r"model\.safetensors"),
    "a weight of another shape": (lambda f: tensors(f, lambda t: t.update({"transformer.h.0.mlp.c_fc.weight": torch.zeros(3, 3)})), r"no fitting weights"),
    "a weight missing": (lambda f: tensors(f, lambda t: t.pop("transformer.h.0.attn.c_attn.weight")), r"no fitting weights"),
    "no weight at all": (lambda f: save_file({}, f / WEIGHTS, metadata={"format": "pt"}), r"no fitting weights"),
    "NaN": (lambda f: tensors(f, lambda t: t["transformer.wte.weight"].fill_(float("nan"))), r"transformer\.wte\.weight holds values that are infinite or not a number"),
    "infinity in a bias": (lambda f: tensors(f, lambda t: t["transformer.ln_f.bias"].fill_(float("inf"))), r"ln_f\.bias holds values"),
    "a pickle alone": (pickled, r"safetensors"),
    "weights that are a folder": (lambda f: ((f / WEIGHTS).unlink(), (f / WEIGHTS).mkdir()), r"model\.safetensors"),
    "weights that are a pipe": (lambda f: ((f / WEIGHTS).unlink(), os.mkfifo(f / WEIGHTS)), r"model\.safetensors"),
    "a link to itself": (lambda f: ((f / WEIGHTS).unlink(), (f / WEIGHTS).symlink_to(WEIGHTS)), r"model\.safetensors"),
    "a shard missing": (lambda f: (sharded(f), (f / FIRST).unlink()), r"model-00001-of-00002\.safetensors.*(missing|not there)"),
    "a shard cut short": (lambda f: (sharded(f), os.truncate(f / FIRST, 100)), r"model-00001-of-00002\.safetensors"),
    "an index that names the folder above": (outside, r"index.*'\.\./outside\.safetensors'.*outside"),
    "an index that names a whole path": (lambda f: outside(f, True), r"index.*outside"),
    "an index that is a list": (lambda f: sharded(f, index=[]), r"model\.safetensors\.index\.json"),
    "an index without a map": (lambda f: sharded(f, index={"metadata": {}}), r"model\.safetensors\.index\.json.*weight_map"),
    "an index of numbers": (lambda f: sharded(f, index={"metadata": {}, "weight_map": {"a": 3}}), r"model\.safetensors\.index\.json"),
    "a config that is a list": (lambda f: (f / CONFIG).write_text("[]"), r"config\.json"),
    "a config that is a number": (lambda f: (f / CONFIG).write_text("3"), r"config\.json"),
    "a config that is null": (lambda f: (f / CONFIG).write_text("null"), r"config\.json"),
    "a config that is empty": (lambda f: (f / CONFIG).write_text(""), r"config\.json"),
    "a config that is cut short": (lambda f: (f / CONFIG).write_text('{"model_type": "gp'), r"config\.json"),
    "a config that is no text": (lambda f: (f / CONFIG).write_bytes(b"\xff\xfe\x00"), r"config\.json"),
    "a config of 5,000 braces": (deep, r"config\.json"),
    "a config without a type": (lambda f: (f / CONFIG).write_text('{"n_layer": 1}'), r"config\.json"),
    "a type that is a list": (lambda f: settings(f, model_type=["gpt2"]), r"config\.json"),
    "a type that is a path": (lambda f: settings(f, model_type="../../gpt2"), r"\.\./\.\./gpt2"),
    "100,000 layers": (lambda f: settings(f, n_layer=100_000), r"100,?000 layers"),
    "a million million layers": (lambda f: settings(f, n_layer=10**12), r"layers"),
    "a width of a million": (lambda f: settings(f, n_embd=1_000_000), r"GB"),
    "a vocabulary of 10^12": (lambda f: settings(f, vocab_size=10**12), r"GB"),
    "10^12 positions": (lambda f: settings(f, n_positions=10**12), r"GB"),
    "a width that overflows": (lambda f: settings(f, n_embd=2**62), r"model: "),
    "a negative width": (lambda f: settings(f, n_embd=-16), r"model: "),
    "no heads": (lambda f: settings(f, n_head=0), r"model: "),
    "a width of no heads' number": (lambda f: settings(f, n_head=3), r"model: "),
    "a negative number of layers": (lambda f: settings(f, n_layer=-1), r"model: "),
    "a width in words": (lambda f: settings(f, n_embd="wide"), r"model: "),
    "a number of layers in words": (lambda f: settings(f, n_layer="many"), r"model: "),
    "positions in words": (lambda f: settings(f, n_positions="many"), r"model: "),
    "a vocabulary that is a list": (lambda f: settings(f, vocab_size=[1]), r"model: "),
    "an activation that is none": (lambda f: settings(f, activation_function="xyzzy"), r"model: "),
    "a pad token that is text": (lambda f: settings(f, pad_token_id="x"), r"model: "),
    "a dtype that is none": (lambda f: settings(f, dtype="float37"), r"model: "),
    "quantised weights": (lambda f: settings(f, quantization_config={"quant_method": "xyzzy"}), r"model: "),
    "code of its own, known kind": (own_code, r"code of its own.*trust_remote_code"),
    "code of its own, unknown kind": (lambda f: own_code(f, kind="theirs"), r"code of its own.*trust_remote_code"),
    "code of its own, tokenizer": (lambda f: own_code(f, "tokenizer"), r"code of its own.*trust_remote_code"),
    "no tokenizer": (lambda f: ((f / TOKENIZER).unlink(), (f / "tokenizer_config.json").unlink()), r"has no tokenizer.*tokenizer:"),
    "a tokenizer that is cut short": (lambda f: os.truncate(f / TOKENIZER, 5000), r"tokenizer\.json"),
    "a tokenizer that is a list": (lambda f: (f / TOKENIZER).write_text("[]"), r"tokenizer"),
    "a tokenizer that is null": (lambda f: (f / TOKENIZER).write_text("null"), r"tokenizer"),
    "a tokenizer without a model": (lambda f: tokenizer(f, TOKENIZER, model=None), r"tokenizer"),
    "a tokenizer of an unknown kind": (lambda f: tokenizer(f, TOKENIZER, model={"type": "Xyzzy"}), r"tokenizer"),
    "a tokenizer config that is a list": (lambda f: (f / "tokenizer_config.json").write_text("[]"), r"tokenizer_config\.json"),
    "special tokens that are numbers": (lambda f: tokenizer(f, pad_token=3), r"its tokenizer is damaged"),
    "empty folder": (lambda f: (shutil.rmtree(f), f.mkdir()), r"the folder is empty"),
    "a folder of text": (lambda f: (shutil.rmtree(f), f.mkdir(), (f / "notes.txt").write_text("x")), r"has no tokenizer"),
}  # fmt: skip


@pytest.mark.parametrize("name", MODEL)
def test_a_damaged_folder_is_refused(world, name):
    spoil, pattern = MODEL[name]
    spoil(world.folder / "copy")
    began = time.process_time()
    refused(confide("plan", world.path), r"(model|tokenizer): .*" + pattern.removeprefix("model: "))
    assert time.process_time() - began < 15
    assert not (world.folder / "ran").exists()


def test_code_in_a_folder_runs_where_the_config_says_so_and_nowhere_else(world):
    """Else the tests of code that does not run would show nothing."""
    own_code(world.folder / "copy", kind="theirs")
    confide("plan", world.path, "trust_remote_code=true")
    assert (world.folder / "ran").exists()


def test_code_beside_a_config_json_alone_does_not_run(world):
    own_code(world.folder / "copy")
    (world.folder / "copy" / CONFIG).rename(world.folder / "copy" / "small.json")
    world.set(model=str(world.folder / "copy" / "small.json"), tokenizer="bundled")
    refused(confide("plan", world.path), r"model: .*small\.json' brings code of its own.*trust_remote_code")
    assert not (world.folder / "ran").exists()


def test_a_scorer_is_looked_at_as_a_model_is(world):
    own_code(world.folder / "copy", kind="theirs")
    world.set(
        privacy={"mechanism": "adaptive", "noise_multiplier": 1.0, "delta": 1e-3},
        adaptive={"scorer": str(world.folder / "copy")},
        model="bundled",
    )
    refused(confide("train", world.path), r"adaptive\.scorer: .*brings code of its own.*trust_remote_code")
    assert not (world.folder / "ran").exists()
    world.set(adaptive={"scorer": "nobody/nothing"})
    refused(confide("train", world.path), r"adaptive\.scorer: 'nobody/nothing': no such folder here, and no")


# a name that is no folder --------------------------------------------------------------------------------
@pytest.fixture
def hub(monkeypatch):
    """What the hub does when it is asked, and how often it was."""
    asked: list[str] = []

    def answers(does: Callable[[], object]) -> list[str]:
        def model_info(self, name, **_):
            asked.append(name)
            return does()

        monkeypatch.setattr(huggingface_hub.HfApi, "model_info", model_info)
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
        return asked

    monkeypatch.setattr(model_files, "_PATIENCE", 0.3)
    model_files.on_hub.cache_clear()
    yield answers
    model_files.on_hub.cache_clear()


def failing(error: Exception) -> Callable[[], object]:
    def fail() -> None:
        raise error

    return fail


@pytest.mark.parametrize(
    ("does", "said"),
    [
        (failing(ConnectionError("[Errno -3] Temporary failure in name resolution")), r"and no hub in reach"),
        (lambda: time.sleep(30), r"and no hub in reach"),
        (failing(RepositoryNotFoundError("404", response=mock.Mock())), r"and no such model on the hub"),
    ],
    ids=["no network", "no answer", "unknown"],
)
def test_a_name_without_a_hub_is_one_sentence_after_one_question(world, hub, does, said):
    asked = hub(does)
    world.set(model="nobody/nothing", tokenizer=None)
    began = time.monotonic()
    refused(confide("plan", world.path), rf"model: 'nobody/nothing': no such folder here, {said}")
    assert time.monotonic() - began < 20
    assert asked == ["nobody/nothing"]


def test_what_was_kept_of_a_hub_is_used_without_it(hub, monkeypatch, model):
    hub(failing(ConnectionError()))
    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", lambda name, file: str(model / file))
    assert model_files.on_hub("somebody/something") == str(model)


def test_what_can_be_no_name_is_not_asked_for(world, hub):
    asked = hub(lambda: None)
    for name in ("models/of/mine", "../nowhere", "a b"):
        world.set(model=name, tokenizer=None)
        refused(confide("plan", world.path), rf"model: '{name}': no such folder$")
    assert asked == []
