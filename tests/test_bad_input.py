"""What is wrong with the input is said in one sentence that names file, row or key; exit code 2.

No traceback, no text of anybody, nothing half-written; and the same command works once the fault is mended.
"""

# ruff: noqa: E501 - one fault a line

import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.command import (
    SECRET,
    World,
    confide,
    confide_apart,
    nothing_half_written,
    recorded,
    refused,
)


@pytest.fixture
def world(tmp_path, model, monkeypatch) -> World:
    monkeypatch.chdir(tmp_path)
    return World(tmp_path, model)


def row(**fields) -> str:
    return (
        json.dumps({"user": "ann", "text": f"{SECRET} and some more words", "kind": "good"} | fields) + "\n"
    )


# the text ------------------------------------------------------------------------------------------
DATA: dict[str, tuple[Callable[[World], object], str]] = {
    "file missing": (lambda w: w.set(data__train="txet.jsonl"), r"txet\.jsonl: no such file.*did you mean 'text\.jsonl'"),
    "folder missing": (lambda w: w.set(data__train="nowhere/text.jsonl"), r"nowhere/text\.jsonl: no such file.*no.* folder nowhere"),
    "empty file": (lambda w: w.write(""), r"text\.jsonl: is empty"),
    "broken line": (lambda w: w.write(row() * 2 + '{"user": "ann", "text": "zugzwang'), r"text\.jsonl line 3: not valid JSON"),
    "not UTF-8": (lambda w: w.write(row().encode() + b'{"user": "ann", "text": "zugzwang \xff"}\n'), r"text\.jsonl line 2: not valid UTF-8"),
    "a line that is no object": (lambda w: w.write(row() + '["zugzwang"]\n'), r"text\.jsonl line 2: a list, where an object"),
    "text field missing": (lambda w: w.set(data__text="body"), r"text\.jsonl line 1: data\.text names 'body'.*fields are user, text"),
    "template with a missing field": (lambda w: w.set(data__text="{subject}\n{text}"), r"line 1: data\.text names 'subject'"),
    "template with a brace too many": (lambda w: w.set(data__text="{text"), r"data\.text: .*braces"),
    "unit field missing": (lambda w: w.set(data__unit="usr"), r"line 1: data\.unit names 'usr'.*did you mean 'user'"),
    "a row without a unit": (lambda w: w.write(row() + row(user=None)), r"line 2: no unit, since the field 'user' is empty"),
    "a row with a blank unit": (lambda w: w.write(row() + row(user="  ")), r"line 2: no unit"),
    "a unit that is an object": (lambda w: w.write(row(user={"name": SECRET})), r"line 1: data\.unit field 'user' holds an object"),
    "a text that is an object": (lambda w: w.write(row(text={"a": SECRET})), r"line 1: field 'text' holds an object, not text"),
    "all texts empty": (lambda w: w.write(row(text="") + row(text="  ")), r"all 2 texts up to .*text\.jsonl line 2 are empty.*data\.text"),
    "texts of one token": (lambda w: w.write(row(text="a") + row(text="b")).set(tokenizer=str(bare_tokenizer(w))), r"text\.jsonl: no text was left to train on"),
    "empty folder": (lambda w: ((w.folder / "mails").mkdir(), w.set(data__train="mails")), r"mails: the folder is empty"),
    "glob without a match": (lambda w: w.set(data__train="*.jsnol"), r"\*\.jsnol: no file matches the pattern"),
    "CSV without the column": (lambda w: w.write(f"user,body\nann,{SECRET}\n", "t.csv"), r"t\.csv line 2: data\.text names 'text'.*user, body"),
    "CSV without a header": (lambda w: w.write(f"ann,{SECRET} said a lot of words here\nbob,{SECRET}\n", "t.csv"), r"t\.csv line 2: data\.(text|unit) names"),
    "CSV with a field too many": (lambda w: w.write(f"user,text\nann,{SECRET},more\n", "t.csv"), r"t\.csv line 2: 3 fields, where the header has 2; put a field in quotes if it holds a separator"),
    "a spreadsheet": (lambda w: w.write("PK\x03\x04", "mail.xlsx"), r"mail\.xlsx: is a spreadsheet, which is not read as it is; save it as CSV first"),
    "one JSON list as JSONL": (lambda w: w.write('[{"user": "ann", "text": "x"}]\n', "list.jsonl"), r"a list, where .*; a file that is one list of objects has data\.format: json"),
    "damaged gzip": (lambda w: w.write(b"\x1f\x8b\x08\x00broken", "t.jsonl.gz"), r"t\.jsonl\.gz: .*damaged|cannot be read"),
    "no Parquet": (lambda w: w.write(b"PAR1" + b"x" * 40, "t.parquet"), r"t\.parquet: not a readable Parquet file"),
    "a picture": (lambda w: w.write(b"\x89PNG\r\n\x00\x00\x00", "t.png"), r"t\.png: is neither text nor a known format"),
    "evaluation file missing": (lambda w: w.set(data__eval="held.jsonl"), r"held\.jsonl: no such file"),
    "a share that holds nobody out": (lambda w: w.write(row() * 3 + row(user="bob")).set(data__eval=0.001), r"data\.eval: a share of 0\.001 .*set a larger share"),
    "a share that leaves nobody": (lambda w: w.write(row() * 3).set(data__eval=0.999), r"held out every unit and left none to train on; lower it"),
    "no label": (lambda w: w.set(task="classification", data__label="kind").write(row() * 9 + row(kind=None)), r"line 10: data\.label field 'kind' holds no label"),
    "label field missing": (lambda w: w.set(task="classification", data__label="knd"), r"line 1: data\.label names 'knd'.*did you mean 'kind'"),
    "a label in the evaluation file alone": (lambda w: (w.rows(w.folder / "held.jsonl", kind="ugly"), w.set(task="classification", data__label="kind", data__eval=str(w.folder / "held.jsonl"))), r"held\.jsonl line 1: no training row has the class of this held-out row \(field 'kind'\)"),
    "one label alone": (lambda w: (w.rows(w.text, kind="good"), w.set(task="classification", data__label="kind")), r"data\.label: field 'kind' holds one class alone"),
}  # fmt: skip


def bare_tokenizer(world: World) -> Path:
    """One that adds nothing to a text: no start, no end."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = "[UNK] [PAD] the quick brown fox jumps over lazy dog a b".split()
    inner = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    made = PreTrainedTokenizerFast(tokenizer_object=inner, unk_token="[UNK]", pad_token="[PAD]")
    made.save_pretrained(world.folder / "bare")
    return world.folder / "bare"


@pytest.mark.parametrize("verb", ["prepare", "train"])
@pytest.mark.parametrize("name", DATA)
def test_text(world, name, verb):
    spoil, pattern = DATA[name]
    spoil(world)
    refused(confide(verb, world.path), pattern)
    nothing_half_written(world.run)
    assert not (world.run / "data").exists()
    assert not (world.run / "ledger.jsonl").exists()
    if verb == "prepare":
        world.rows(world.text)
        world.raw["data"] = {"train": str(world.text), "unit": "user", "eval": 0.3, "max_length": 16}
        world.set(task="causal-lm", tokenizer="bundled")
        assert confide("prepare", world.path).code == 0


# the model -----------------------------------------------------------------------------------------
def copied(world: World) -> Path:
    folder = world.folder / "copy"
    if not folder.exists():
        shutil.copytree(world.raw["model"], folder)
    world.set(model=str(folder), tokenizer=None)
    return folder


def weights(world: World, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    path = copied(world) / "model.safetensors"
    found = load_file(path)
    change(found)
    save_file(found, path, metadata={"format": "pt"})


def settings(world: World, **changes) -> None:
    path = copied(world) / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def pickled(world: World) -> None:
    folder = copied(world)
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()


def scratch(world: World, **changes) -> None:
    """From a config.json, without weights."""
    settings(world, **changes)
    world.set(model=str(world.folder / "copy" / "config.json"), tokenizer="bundled")


def speechless(world: World) -> None:
    """A tokenizer that encodes every text to nothing: vocabulary without its merges and pre-tokenizer."""
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    made = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.BPE()), pad_token="<pad>", eos_token="<pad>"
    )
    made.save_pretrained(world.folder / "speechless")
    world.set(tokenizer=str(world.folder / "speechless"))


def tokenizer_without(world: World, *names: str) -> None:
    folder = copied(world)
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps({k: v for k, v in json.loads(path.read_text()).items() if k not in names}))


MODEL: dict[str, tuple[Callable[[World], object], str]] = {
    "folder missing": (lambda w: w.set(model="models/nowhere", tokenizer=None), r"model: 'models/nowhere'.*no such folder"),
    "folder empty": (lambda w: ((w.folder / "e").mkdir(), w.set(model="e", tokenizer=None)), r"model: 'e'"),
    "no weights": (lambda w: (copied(w) / "model.safetensors").unlink(), r"model: .*copy'.*safetensors"),
    "a pickle alone": (pickled, r"model: .*copy'.*safetensors"),
    "no config": (lambda w: (copied(w) / "config.json").unlink(), r"model: .*copy'"),
    "damaged config": (lambda w: (copied(w) / "config.json").write_text('{"model_type": '), r"model: .*copy/config\.json is not valid JSON"),
    "damaged weights": (lambda w: (copied(w) / "model.safetensors").write_bytes(b"\x10" * 500), r"model: .*copy/model\.safetensors is damaged"),
    "weights cut short": (lambda w: os.truncate(copied(w) / "model.safetensors", 30_000), r"model: .*copy/model\.safetensors is damaged or cut short"),
    "of an unknown kind": (lambda w: settings(w, model_type="gpt9"), r"model: .*copy'.*gpt9"),
    "weights missing for a part": (lambda w: weights(w, lambda t: t.pop("transformer.h.0.attn.c_attn.weight")), r"model: .*c_attn"),
    "NaN in the weights": (lambda w: weights(w, lambda t: t["transformer.h.0.mlp.c_fc.weight"].fill_(float("nan"))), r"model: the weights of .*copy' are damaged, transformer\.h\.0\.mlp\.c_fc\.weight holds values"),
    "tokenizer missing": (lambda w: w.set(tokenizer="tok/nowhere"), r"tokenizer: 'tok/nowhere'"),
    "tokenizer that encodes to nothing": (speechless, r"tokenizer: .*speechless'.*encodes a plain sentence to 0 tokens"),
    "no token to pad with": (lambda w: tokenizer_without(w, "pad_token", "eos_token", "unk_token", "bos_token"), r"model: the tokenizer of .*copy' has no padding token"),
    "no token to hide with": (lambda w: w.set(task="masked-lm", tokenizer=str(bare_tokenizer(w))), r"tokenizer: task masked-lm needs a mask token"),
    "of another task": (lambda w: w.set(task="masked-lm"), r"model: .*AutoModelForMaskedLM"),
    "more tokens than embeddings": (lambda w: scratch(w, vocab_size=500), r"the tokenizer has 8192 entries, and .* has embeddings for 500"),
    "rows longer than its positions": (lambda w: w.set(data__max_length=65), r"data\.max_length: 65 tokens are more than the 64"),
    "classifier without a pad token": (lambda w: (settings(w, pad_token_id=None), w.set(task="classification", data__label="kind")), r"model: .*pad_token_id"),
    "LoRA targets that match nothing": (lambda w: w.set(adapter={"kind": "lora", "targets": ["q_porj"]}), r"adapter\.targets: .*q_porj"),
    "modules that match nothing": (lambda w: w.set(adapter={"kind": "modules", "targets": ["q_porj"]}), r"adapter\.targets: .*no module named q_porj"),
    "LoRA without linear layers": (lambda w: (saved_without_layers(w), w.set(adapter={"kind": "lora"})), r"adapter\.targets"),
    "LoRA on random weights": (lambda w: (scratch(w), w.set(adapter={"kind": "lora"})), r"adapter\.kind: an adapter to a model from scratch"),
    "biases of a model without any": (lambda w: (llama(w), w.set(adapter={"kind": "bias"})), r"adapter\.kind: bias leaves nothing to train"),
}  # fmt: skip


def saved_without_layers(world: World) -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    folder = world.folder / "bare"
    GPT2LMHeadModel(
        GPT2Config(vocab_size=8192, n_positions=64, n_embd=16, n_layer=0, n_head=2)
    ).save_pretrained(folder)
    world.set(model=str(folder))


def llama(world: World) -> None:
    from transformers import LlamaConfig

    shape = LlamaConfig(
        vocab_size=8192, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2
    )
    shape.save_pretrained(world.folder / "llama")
    world.set(model=str(world.folder / "llama" / "config.json"))


@pytest.mark.parametrize("name", MODEL)
def test_model(world, name):
    spoil, pattern = MODEL[name]
    spoil(world)
    refused(confide("train", world.path), pattern)
    nothing_half_written(world.run)
    assert not (world.run / "ledger.jsonl").exists() or not recorded(world.run)
    assert not (world.run / "release").exists()


def test_a_tokenizer_without_a_padding_token_pads_with_its_end(world):
    tokenizer_without(world, "pad_token")
    assert confide("train", world.path).code == 0


# what is asked for ---------------------------------------------------------------------------------
ASKED: dict[str, tuple[Callable[[World], object], str]] = {
    "more units a step than there are": (lambda w: w.set(train__batch=500.0), r"train\.batch: 500 units a step are more than the \d+"),
    "two owners under uls": (lambda w: w.set(data__unit=["user", "kind"]), r"data\.unit: user sampling needs rows with one owner"),
    "a single unit": (lambda w: (w.rows(w.text, users=1), w.set(data__eval=None)), r"data\.unit: there is a single unit, and one alone cannot be hidden"),
    "two owners in one field under uls": (lambda w: w.write("".join(row(user=[f"u{i}", f"v{i % 3}"]) for i in range(30))), r"data\.unit: user sampling needs rows with one owner"),
    "epsilon out of reach": (lambda w: (w.drop("privacy", "noise_multiplier"), w.set(privacy__epsilon=1e-9, privacy__delta=1e-12)), r"no noise meets privacy\.epsilon 1e-09 at privacy\.delta 1e-12"),
    "no privacy stated": (lambda w: w.drop("privacy", "noise_multiplier"), r"privacy\.epsilon: say how much privacy"),
    "no unit for uls": (lambda w: w.set(data__unit=None), r"data\.unit: mechanism uls protects a unit"),
    "a key misspelt": (lambda w: w.set(train__stpes=5), r"train\.stpes: no such key, did you mean train\.steps\?"),
    "a key in another section": (lambda w: w.set(train__epsilon=5), r"train\.epsilon: no such key, did you mean privacy\.epsilon\?"),
    "a number in words": (lambda w: w.set(train__steps="many"), r"train\.steps: 'many' is not valid, must be a whole number"),
    "a mechanism misspelt": (lambda w: w.set(privacy__mechanism="usl"), r"privacy\.mechanism: 'usl'.*did you mean uls\?"),
    "a share of nothing": (lambda w: w.set(data__eval=1.5), r"data\.eval: 1\.5 is not valid"),
    "labels without classification": (lambda w: w.set(data__label="kind"), r"data\.label: task: causal-lm has no classes"),
    "classification without labels": (lambda w: w.set(task="classification"), r"data\.label: task: classification needs the field"),
    "a learning rate that explodes": (lambda w: w.set(train__learning_rate=1e30), r"learning_rate: the training diverged, lower it"),
    "a data section that is a file name": (lambda w: w.set(data="text.jsonl"), r"data: 'text\.jsonl' is not valid, must be a section"),
    "no data section": (lambda w: (w.raw.pop("data"), w.save()), r"data: is missing"),
    "a run folder that is a file": (lambda w: (w.write("x", "file"), w.set(data__train=str(w.text), run=str(w.folder / "file"))), r"run: .*file is not a folder that can be made: it, or a part of its path, is a file"),
    "a run folder below a file": (lambda w: (w.write("x", "file"), w.set(data__train=str(w.text), run=str(w.folder / "file" / "run"))), r"run: .*file/run is not a folder that can be made: it, or a part of its path, is a file"),
}  # fmt: skip


@pytest.mark.parametrize("name", ASKED)
def test_what_is_asked(world, name):
    spoil, pattern = ASKED[name]
    spoil(world)
    refused(confide("train", world.path), pattern)
    nothing_half_written(world.folder)
    assert not (world.run / "release").exists()


# what a tired person types -------------------------------------------------------------------------
TYPED: dict[str, tuple[tuple[str, ...], str]] = {
    "a config that is not there": (("train", "mails.toml"), r"mails\.toml: no such config file$"),
    "another ending": (("train", "config.yml"), r"config\.yml: no such config file, did you mean config\.yaml\?"),
    "a config that nobody wrote": (("train", "text.yaml"), r"text\.yaml: no such config file; `confide init text\.jsonl --out text\.yaml` writes one"),
    "a run folder that cannot be": (("prepare", "config.yaml", "run=/proc/nowhere/run"), r"run: /proc/nowhere/run cannot be made: No such file"),
    "a folder that is not there": (("plan", "runs/config.yaml"), r"runs/config\.yaml: no such config file \(nor is there a folder runs\)"),
    "the text for the config": (("train", "text.jsonl"), r"text\.jsonl"),
    "an override without =": (("train", "config.yaml", "privacy.epsilon", "3"), r"'privacy\.epsilon': an override is key=value, for example privacy\.epsilon=3"),
    "an override of nothing": (("train", "config.yaml", "privacy.epsilno=3"), r"privacy\.epsilno: no such key, did you mean privacy\.epsilon\?"),
    "a key twice": (("train", "config.yaml", "train.steps=3", "train.steps=4"), r"train\.steps is given twice on the command line: leave one out"),
    "a config for the text": (("init", "config.yaml", "--out", "new.yaml"), r"config\.yaml: is a config already: `confide plan config\.yaml` tells"),
    "an override below a value": (("plan", "config.yaml", "train.steps.more=3"), r"'train\.steps\.more=3': steps is not a section"),
    "a number that is none": (("train", "config.yaml", "train.steps=ten"), r"train\.steps: 'ten' is not valid"),
    "eval of a config": (("eval", "config.yaml"), r"config\.yaml is a config; give its run folder, which is .*run"),
    "eval of nothing": (("eval", "nowhere"), r"nowhere: not a run folder: there is no such folder"),
    "eval of some folder": (("eval", "."), r"\.: nothing was trained here yet"),
    "eval of a twin that is not there": (("eval", "run", "--twin"), r"run: no twin was trained here"),
    "quickstart in a file": (("quickstart", "--folder", "text.jsonl"), r"text\.jsonl"),
}  # fmt: skip


@pytest.mark.parametrize("name", TYPED)
def test_typed(world, name):
    arguments, pattern = TYPED[name]
    if "--twin" in arguments:
        assert confide("train", world.path).code == 0
    if arguments == ("eval", "."):
        world.set(run=str(world.folder))
        (world.folder / "run").mkdir()
    refused(confide(*arguments), pattern)


@pytest.mark.parametrize("base", [(), ("--base",)])
def test_eval_of_what_was_only_prepared(world, base):
    assert confide("prepare", world.path).code == 0
    refused(confide("eval", world.run, *base), r"run: nothing was trained here yet")


def test_a_folder_of_runs_names_them(world):
    runs = world.folder / "runs"
    (runs / "mail").mkdir(parents=True)
    (runs / "mail" / "config.yaml").write_bytes(world.path.read_bytes())
    for verb in ("report", "eval", "audit"):
        refused(
            confide(verb, runs), r"runs: not a run folder, but one that holds runs: mail; give one of them"
        )


def test_a_run_in_the_home_folder_lies_there(world, monkeypatch):
    """A shell leaves the tilde of `run=~/mail` as it is."""
    monkeypatch.setenv("HOME", str(world.folder / "home"))
    assert confide("prepare", world.path, "run=~/mail").code == 0
    assert (world.folder / "home" / "mail" / "data").is_dir()
    assert not (world.folder / "~").exists()


def test_eval_without_anything_held_out(world):
    world.set(data__eval=None)
    assert confide("train", world.path).code == 0
    refused(confide("eval", world.run), r"run: this run held out no text \(data\.eval\)")


USAGE: dict[str, tuple[tuple[str, ...], str]] = {
    "no config": (("train",), r"Usage: confide train .*Missing argument 'CONFIG'"),
    "a verb misspelt": (("trian", "config.yaml"), r"No such command 'trian'. Did you mean 'train'\?"),
    "the config for the verb": (("config.yaml",), r"No such command 'config\.yaml'"),
    "an option misspelt": (("train", "config.yaml", "--jsno"), r"No such option.*--jsno.*--json"),
    "an option of another verb": (("prepare", "config.yaml", "--twin"), r"No such option.*--twin"),
    "text for a config": (("plan", "text.jsonl"), r"If this is text to train on, .confide init text\.jsonl. writes"),
    "nothing": ((), r"Usage: confide .*prepare .*train "),
}  # fmt: skip


@pytest.mark.parametrize("name", USAGE)
def test_usage(world, name):
    arguments, pattern = USAGE[name]
    found = confide(*arguments)
    assert found.code == 2
    assert re.search(pattern, " ".join((found.err + found.out).split())), found
    assert "Traceback" not in found.err


@pytest.mark.parametrize("arguments", [("train",), ("prepare", "config.yaml", "data.unit=usr")])
def test_as_a_command_of_its_own(world, arguments):
    found = confide_apart(*arguments, cwd=world.folder)
    assert found.code == 2
    assert found.out == ""
    assert "Traceback" not in found.err
    assert (
        len([line for line in found.err.splitlines() if "rror" in line or line.startswith("confide: ")]) == 1
    )
