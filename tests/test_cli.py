"""The command line from outside: exit codes, JSON, what leaves the house, stopping and resuming."""

import json
import os
import re
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load_file

from confide.distributed import ranks
from confide.planning import of_run
from confide.privacy.guarantee import Guarantee
from confide.utils.rounding import at_most
from tests.command import MARKER, Result, World, command, confide, environment, files_below, tiny_model
from tests.places import ROOT


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def world(tmp_path, model) -> World:
    return World(tmp_path, model)


def trained(folder: Path, model: Path, **changes) -> tuple[World, dict[str, Result]]:
    """A world where every verb was run with --json, and the twin as well."""
    world = World(folder, model).set(**changes)
    said = {verb: confide(verb, world.path, "--json") for verb in ("prepare", "plan", "verify", "train")}
    said["twin"] = confide("train", world.path, "--twin", "--json")
    said["eval"] = confide("eval", world.run, "--json")
    said["base"] = confide("eval", world.run, "--base", "--json")
    said["eval twin"] = confide("eval", world.run, "--twin", "--json")
    said |= {f"{verb} in words": confide(verb, world.path) for verb in ("prepare", "verify", "train")}
    said["eval in words"] = confide("eval", world.run)
    return world, said


@pytest.fixture(scope="module")
def full(tmp_path_factory, model) -> tuple[World, dict[str, Result]]:
    world, said = trained(tmp_path_factory.mktemp("full"), model)
    said["plan in words"] = confide("plan", world.path)
    return world, said


@pytest.fixture(scope="module")
def lora(tmp_path_factory, model) -> tuple[World, dict[str, Result]]:
    return trained(tmp_path_factory.mktemp("lora"), model, adapter={"kind": "lora", "rank": 2})


@pytest.fixture(params=["full", "lora"])
def either(request) -> tuple[World, dict[str, Result]]:
    return request.getfixturevalue(request.param)


# speed ---------------------------------------------------------------------------------------------
def processor_time(*arguments: str) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command(*arguments), env=environment(), capture_output=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


@pytest.mark.parametrize("arguments", [("--help",), ("train", "--help")])
def test_help_is_instant(arguments):
    assert min(processor_time(*arguments) for _ in range(5)) < 0.3


def test_help_loads_nothing_heavy():
    probe = "import sys, confide.cli; print([m for m in ('torch', 'numpy', 'pydantic') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", probe], env=environment(), capture_output=True, text=True)
    assert done.stdout.strip() == "[]"


def test_a_mistake_in_a_config_is_told_before_anything_heavy_is_loaded(tmp_path):
    path = tmp_path / "mail.yaml"
    path.write_text(
        "data: {train: mail.jsonl, unit: user, max_lenght: 3}\nprivacy: {mechanism: uls, epsilon: 8}\n"
    )
    probe = (
        "import sys, confide.cli.base as base, confide.cli\n"
        "for verb in (['prepare'], ['plan'], ['train'], ['verify'], ['tune'], ['redact'], ['secrets', 'tag']):\n"
        "    try: base.app([*verb, sys.argv[1]])\n"
        "    except SystemExit as ended: assert ended.code == 2, verb\n"
        "    assert 'torch' not in sys.modules, verb\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", probe, str(path)], env=environment(), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("max_lenght") == 7


def test_help_names_every_verb_whole():
    found = confide("--help")
    assert found.code == 0
    for verb in ("prepare", "plan", "train", "eval", "verify", "quickstart"):
        assert f"  {verb} " in found.out
    assert not [line for line in found.out.splitlines() if line.startswith("  ") and line.endswith("...")]


VERBS = (
    *((verb,) for verb in "init schema prepare plan train eval verify quickstart redact account".split()),
    *((verb,) for verb in "tune audit report generate synthesize export study".split()),
    ("secrets", "tag"),
    ("secrets", "solve"),
)


@pytest.mark.parametrize("verb", VERBS, ids=" ".join)
def test_every_verb_shows_an_example_with_options_that_it_has(verb):
    found = confide(*verb, "--help").out
    [example] = re.findall(r"^  Example: (.*(?:\n  \S.*)*)", found, re.MULTILINE)
    words = example.split()
    assert words[: len(verb) + 1] == ["confide", *verb]
    for option in [word for word in words if word.startswith("--")]:
        assert re.search(rf"(?<![\w-]){option}(?![\w-])", found.partition("Options:")[2]), option


def test_every_verb_of_the_command_line_is_listed_here():
    from confide.cli import base

    names = {command.name or command.callback.__name__.strip("_") for command in base.app.registered_commands}
    assert {verb[0] for verb in VERBS} == names | {"secrets"}


def test_the_shell_completes_verbs():
    asked = environment() | {
        "_CONFIDE_COMPLETE": "complete_bash",
        "COMP_WORDS": "confide qu",
        "COMP_CWORD": "1",
    }
    done = subprocess.run(
        [sys.executable, "-c", "from confide.cli import main; main()"],
        env=asked,
        capture_output=True,
        text=True,
    )
    assert done.stdout.split() == ["quickstart"]


# exit codes ----------------------------------------------------------------------------------------
def test_done_is_0(full):
    assert {name: result.code for name, result in full[1].items()} == dict.fromkeys(full[1], 0)


def test_a_failed_check_is_1(world, monkeypatch):
    from confide.randomness import streams as noise

    real = noise._Room.normal
    monkeypatch.setattr(noise._Room, "normal", lambda room, *given: real(room, *given) * 0.5)
    found = confide("verify", world.path, "--json")
    assert found.code == 1
    assert json.loads(found.out)["ok"] is False
    assert found.err.splitlines()[-1] == "confide: a check failed; do not trust this setting"


def test_wrong_input_is_2(world):
    assert confide("train", world.path, "train.steps=0").code == 2


@pytest.mark.parametrize("asked", ["train.steps=0", "train.steps=0 train.batch=-1"])
def test_a_program_that_asks_for_json_gets_what_went_wrong_too(world, asked):
    found = confide("train", world.path, *asked.split(), "--json")
    told = json.loads(found.out)["error"]
    assert (found.code, told["exit_code"]) == (2, 2)
    assert found.err == f"confide: {told['message']}\n"
    assert "train.steps" in told["message"]


def test_only_the_first_rank_tells_it_in_json(world, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    assert confide("train", world.path, "train.steps=0", "--json").out == ""


def test_a_fault_of_confide_is_3(world, monkeypatch):
    def fail(*arguments):
        raise RuntimeError("a fault put in")

    monkeypatch.setattr(of_run, "plan", fail)
    found = confide("plan", world.path, "--json")
    assert found.code == 3
    said = json.loads(found.out)["error"]
    assert said["exit_code"] == 3
    assert said["message"].startswith(
        "internal error: this is a fault of confide, not of your input. Please report"
    )
    assert confide("plan", world.path).out == ""
    assert "Traceback" in found.err
    assert "a fault put in" in found.err
    assert found.err.splitlines()[-1].startswith("confide: internal error")


def test_memory_that_runs_out_anywhere_is_no_fault_of_confide(world, monkeypatch):
    def fail(*arguments):
        raise torch.OutOfMemoryError("out of memory, in a place where nothing is tried again")

    monkeypatch.setattr(of_run, "plan", fail)
    found = confide("plan", world.path)
    assert found.code == 2
    assert found.err.splitlines()[-1].startswith("confide: memory ran out: set train.micro_tokens lower")
    assert "Traceback" not in found.err


@pytest.mark.parametrize(("backend", "leaves"), [("nccl", [2]), ("gloo", []), (None, [])])
def test_a_rank_on_a_gpu_does_not_wait_for_those_that_wait_for_it(world, monkeypatch, backend, leaves):
    """NCCL's group would keep the interpreter from ending; the message has been said by then."""
    left = []
    monkeypatch.setattr(ranks.dist, "is_initialized", lambda: backend is not None)
    monkeypatch.setattr(ranks.dist, "get_backend", lambda: backend)
    monkeypatch.setattr(ranks.os, "_exit", left.append)
    found = confide("plan", world.path, "train.steps=0")
    assert (found.code, left) == (2, leaves)
    assert "train.steps" in found.err


@pytest.mark.parametrize(("more", "code"), [((), 141), (("train.steps=0", "--json"), 2)])
def test_a_reader_that_goes_away_is_no_fault(world, more, code):
    assert confide("prepare", world.path).code == 0
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as gone:
        done = subprocess.run(
            command("prepare", world.path, *more),
            env=environment(),
            stdout=gone,
            stderr=subprocess.PIPE,
            text=True,
        )
    assert done.returncode == code
    assert "internal error" not in done.stderr
    assert "Traceback" not in done.stderr


STEPS = 200


def test_stopped_is_130_and_the_same_command_resumes(world):
    world.set(train__steps=STEPS, train__checkpoint_every=STEPS)
    process = subprocess.Popen(
        command("train", world.path),
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    ledger = world.run / "ledger.jsonl"
    deadline = time.monotonic() + 500
    while not (ledger.exists() and ledger.read_bytes().count(b"\n") > 5):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline, "no step was taken"
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 130, err
    assert out == ""
    assert "Traceback" not in err
    last = err.splitlines()[-1]
    assert last.startswith("confide: stopped after step ")
    assert last.endswith(f" of {STEPS}; the same command resumes")
    taken = int(last.split()[4])
    assert 5 <= taken < STEPS
    assert ledger.read_bytes().count(b"\n") == taken + 1
    assert not (world.run / "release").exists()

    again = confide("train", world.path, "--json")
    assert again.code == 0
    assert f"resuming after step {taken}" in again.err
    assert json.loads(again.out)["steps"] == STEPS
    steps = [json.loads(line)["step"] for line in ledger.read_text().splitlines()[1:]]
    assert steps == list(range(STEPS))


def test_a_run_that_is_done_says_so_and_gives_the_same(world):
    whole = confide("train", world.path, "--json")
    again = confide("train", world.path, "--json")
    assert whole.code == again.code == 0
    assert "time          told after the first steps" in whole.err
    assert "time          short: no step is left to take" in again.err
    assert "all 4 steps are taken already" in again.err
    first, second = json.loads(whole.out), json.loads(again.out)
    first["guarantee"], second["guarantee"] = undated(first["guarantee"]), undated(second["guarantee"])
    assert first == second


# --json --------------------------------------------------------------------------------------------
GUARANTEE = {"notion", "theorem", "unit", "adjacency", "epsilon", "delta", "noise_multiplier", "clip_norm",
             "steps", "sampling"}  # fmt: skip
WHOLE = GUARANTEE | {"rows_per_unit", "accountant", "not_covered"}
KEYS = {
    "prepare": {"rows", "units", "tokens", "rows_per_unit", "counts", "eval"},
    "plan": {"chosen", "neighbours", "memory_bytes", "guarantee"},
    "verify": {"ok", "max_relative_error", "checks"},
    "train": {"steps", "base", "final", "guarantee"},
    "eval": {"loss", "perplexity", "accuracy", "tokens", "rows", "units"},
}
KEYS |= {"base": KEYS["eval"], "eval twin": KEYS["eval"], "twin": KEYS["train"]}


def undated(guarantee: dict) -> dict:
    """Without the day on which it was stated: midnight may lie between two statements."""
    return guarantee | {"provenance": guarantee["provenance"] | {"date": None}}


@pytest.mark.parametrize("verb", KEYS)
def test_one_json_document_with_the_stable_keys(either, verb):
    said = either[1][verb]
    found = json.loads(said.out, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert set(found) >= KEYS[verb]
    if "guarantee" in found:
        assert set(found["guarantee"]) >= (GUARANTEE if verb == "plan" else WHOLE)
    if verb == "prepare":
        assert set(found["rows_per_unit"]) == {"min", "median", "mean", "max"}
    if verb == "verify":
        assert found["ok"] is True
        assert found["checks"]


def test_plan_train_and_release_state_the_same(full):
    world, said = full
    planned, stated = (json.loads(said[verb].out)["guarantee"] for verb in ("plan", "train"))
    released, kept = (json.loads((world.run / at / "guarantee.json").read_text()) for at in ("release", "."))
    assert {key: planned[key] for key in GUARANTEE} == {key: stated[key] for key in GUARANTEE}
    assert released == kept
    assert undated(released) == undated(stated)


def test_messages_are_on_standard_error_and_begin_with_what_is_asked_for_and_where_all_settings_are(either):
    world, said = either
    for name in ("train", "train in words", "twin"):
        folder = world.run / "twin" if name == "twin" else world.run
        opening = re.search(
            r"  who +(.*)\n  how strongly +(.*)\n  cost +(.*)\n  time +(.*)\n  where +(.*)\n", said[name].err
        )
        who, strength, cost, _, where = opening.groups()
        rest = said[name].err[opening.end() :]
        assert said[name].err.startswith("training ")
        assert who.startswith("nobody" if name == "twin" else "all text of one")
        assert strength == ("no privacy" if name == "twin" else "uls, delta 0.001, noise multiplier 0.8")
        assert cost.startswith("4 steps, about 4 units")
        assert where == f"{folder}; all settings are in config.yaml"
        resolved = yaml.safe_load((folder / "config.yaml").read_text())
        assert resolved["train"]["batch"] == 4.0
        assert resolved["privacy"]["mechanism"] == "uls"  # a default
        assert len(rest.splitlines()) <= 7
        assert "held out: loss" in rest or "taken already" in rest
    for name, result in said.items():
        assert "Writing model shards" not in result.err
        assert "Warning" not in result.err, name


# what leaves the house -----------------------------------------------------------------------------
BESIDE = {"README.md", "guarantee.json", "tokenizer.json", "tokenizer_config.json"}
RELEASED = {
    "full": BESIDE | {"config.json", "generation_config.json", "model.safetensors"},
    "lora": BESIDE | {"adapter_config.json", "adapter_model.safetensors"},
}


@pytest.mark.parametrize("kind", RELEASED)
def test_a_release_holds_what_the_guarantee_covers_and_nothing_else(request, kind):
    world, _ = request.getfixturevalue(kind)
    release = world.run / "release"
    assert {path.name for path in release.iterdir()} == RELEASED[kind]
    key = (world.run / "key").read_bytes()
    private = [str(world.folder), key.hex(), *(line["user"] for line in map(json.loads, world.text.open()))]
    for name, content in files_below(release).items():
        assert key not in content
        if name != "tokenizer.json":  # holds every word there is
            for word in private:
                assert f'"{word}"'.encode() not in content, (name, word)
            assert str(world.folder).encode() not in content, name
    assert (world.run / "key").stat().st_mode & 0o777 == 0o600
    assert world.run.stat().st_mode & 0o077 == 0  # ledger, metrics, checkpoints: the owner's alone
    assert all(path.stat().st_mode & 0o044 == 0o044 for path in release.iterdir())
    assert (world.run / "data" / "train").stat().st_mode & 0o077 == 0


def test_the_guarantee_reads_back(either):
    world, _ = either
    stated = json.loads((world.run / "release" / "guarantee.json").read_text())
    read = Guarantee.from_json(stated)
    assert json.loads(json.dumps(read.to_json())) == stated
    assert read.notion == "user-level DP"
    assert read.theorem
    for sentence in read.sentences():
        assert sentence in (world.run / "release" / "README.md").read_text()


def test_train_ends_with_the_claim_and_where_the_model_is_and_then_what_was_measured(either):
    world, said = either
    guarantee = Guarantee.from_json(json.loads((world.run / "release" / "guarantee.json").read_text()))
    out = said["train in words"].out
    lines = out.splitlines()
    questions = ("Who is protected?", "From whom?", "How strongly?", "What did it cost?")
    assert [line[2:20].strip() for line in lines[:4]] == list(questions)
    assert guarantee.unit[1:] in lines[0]
    assert f"epsilon {at_most(guarantee.epsilon)} at delta {at_most(guarantee.delta, 3)}" in lines[2]
    assert lines[4].strip() == f"the figures are about {guarantee.protected_output}"
    weak = 1 + len(guarantee.weakness())
    assert [line.strip() for line in lines[5 : 4 + weak]] == guarantee.weakness()
    assert lines[4 + weak : 7 + weak] == [
        "",
        f"released: {world.run / 'release'}",
        f"the whole claim: {world.run / 'report.html'}",
    ]
    assert lines[8 + weak].startswith("held out")
    assert len(lines) <= 14
    assert len(out) < 2000


def test_a_classifier_is_measured_by_accuracy_and_not_by_tokens(world):
    world.set(task="classification", data__label="kind", train__eval_every=2)
    said = [confide("train", world.path), confide("eval", world.run), confide("eval", world.run, "--json")]
    assert [result.code for result in said] == [0, 0, 0], said
    assert "held out  loss  accuracy  rows" in re.sub(" {3,}", "  ", said[0].out)
    assert "model, held out: loss" in said[0].err
    assert ", accuracy" in said[0].err
    assert set(json.loads(said[2].out)) == {"loss", "accuracy", "rows", "units"}
    for result in said:
        assert "perplexity" not in result.out + result.err
    assert "token" not in said[1].out


def test_a_released_model_loads_and_generates(full):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    release = full[0].run / "release"
    found = AutoModelForCausalLM.from_pretrained(release)
    tokenizer = AutoTokenizer.from_pretrained(release)
    assert generated(found, tokenizer)
    weights = load_file(release / "model.safetensors")
    state = found.state_dict()
    assert all(torch.equal(state[name], weight) for name, weight in weights.items())


def test_a_released_adapter_loads_and_generates(lora):
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, AutoTokenizer

    world = lora[0]
    release = world.run / "release"
    base = AutoModelForCausalLM.from_pretrained(world.raw["model"])
    before = base(torch.tensor([[5, 6, 7]])).logits
    found = PeftModel.from_pretrained(base, release)
    assert generated(found, AutoTokenizer.from_pretrained(release))
    assert not torch.equal(found(torch.tensor([[5, 6, 7]])).logits, before)
    moved = [
        tensor
        for name, tensor in load_file(release / "adapter_model.safetensors").items()
        if "lora_B" in name
    ]
    assert moved
    assert all(bool(tensor.any()) for tensor in moved)


def test_the_model_card_says_how_to_load_it(either, tmp_path, monkeypatch):
    world, _ = either
    (tmp_path / "model").symlink_to(world.raw["model"])
    (tmp_path / "release").symlink_to(world.run / "release")
    monkeypatch.chdir(tmp_path)
    card = (world.run / "release" / "README.md").read_text()
    names: dict = {}
    exec(card.partition("```python\n")[2].partition("```")[0], names)
    assert names["model"](torch.tensor([[5, 6, 7]])).logits.isfinite().all()


def generated(model, tokenizer) -> str:
    ids = tokenizer("the printer on", return_tensors="pt").input_ids
    return tokenizer.decode(
        model.generate(input_ids=ids, max_new_tokens=8, min_new_tokens=8)[0, ids.shape[1] :]
    )


@pytest.mark.parametrize(
    "verb",
    [
        ("export", "--merge", "out"),
        ("generate", "hello"),
        ("synthesize", "--documents", "1", "--out", "out.jsonl"),
    ],
)
def test_the_folder_of_a_twin_is_no_run_whose_model_may_leave(full, verb):
    name, *rest = verb
    for folder in ("twin", "twin/release"):
        found = confide(name, full[0].run / folder, *rest)
        assert found.code == 2
        assert "is the non-private twin of" in found.err


def test_the_twin_says_that_nothing_is_protected(full):
    world, said = full
    stated = json.loads(said["twin"].out)["guarantee"]
    assert (stated["notion"], stated["epsilon"], stated["noise_multiplier"]) == ("none", "inf", 0.0)
    assert "Nothing is protected" in (world.run / "twin" / "release" / "README.md").read_text()
    words = confide("train", world.path, "--twin")
    assert "taken already" in words.err
    assert "Nothing is protected" in words.out
    assert "(not private)" in words.out
    assert json.loads(said["eval twin"].out) == json.loads(said["twin"].out)["final"]
    assert said["eval twin"].out != said["eval"].out
    assert "taken already" not in said["twin"].err
    assert json.loads(said["base"].out) == json.loads(said["train"].out)["base"]


def test_no_text_of_any_row_is_anywhere_else(either):
    world, said = either
    assert MARKER in world.text.read_text()
    for name, result in said.items():
        assert MARKER not in result.out + result.err, name
    for name, content in files_below(world.run).items():
        if not name.startswith("data/"):
            assert MARKER.encode() not in content, name


# moving about --------------------------------------------------------------------------------------
def test_a_run_folder_stands_for_its_config_wherever_it_lies(world):
    assert confide("train", world.path).code == 0
    moved = world.run.rename(world.folder / "moved")
    found = confide("train", moved)
    assert found.code == 0
    assert "all 4 steps are taken already" in found.err
    assert confide("eval", moved).code == 0
    assert not world.run.exists()


def test_no_shard_bar_even_where_only_the_release_is_made(tmp_path, model, capfd):
    """transformers draws one unless it is told not to."""
    probe = (
        "import sys; from transformers import AutoModelForCausalLM, AutoTokenizer; from pathlib import Path\n"
        "from confide.models.loading import save\n"
        "a, b = sys.argv[1:]\n"
        "m, t = AutoModelForCausalLM.from_pretrained(a), AutoTokenizer.from_pretrained(a)\n"
        "print('LOADED', file=sys.stderr); save(m, t, Path(b), a)"
    )
    done = subprocess.run(
        [sys.executable, "-c", probe, str(model), str(tmp_path / "out")],
        env=environment(), capture_output=True, text=True, check=True, cwd=ROOT,
    )  # fmt: skip
    assert done.stderr.partition("LOADED\n")[2] == ""
