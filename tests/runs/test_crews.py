"""Whoever reads the text, the graphs are the same, byte for byte, and so is the first error."""

import json
import random

import pytest

from confide.config.loading import check
from confide.models import loading as models
from confide.runs import reading
from confide.runs.folder import Run
from confide.runs.preparation import prepare
from confide.utils.errors import InputError
from confide.utils.workers import Crew
from tests.command import WORDS, confide, files_below

pytestmark = pytest.mark.subprocess  # started by what is tested
QUOTE = "\n\nOn Monday ann@example.com wrote:\n> it is the printer again\n> and nobody has a key\n"
NOISE = {"mechanism": "uls", "noise_multiplier": 1.0}
SENSITIVE = {"expressions": {"number": r"\d{4}"}, "recall": 1.0}
CONFIGS = {
    "quotes and duplicates": {"data": {"strip_quotes": True, "duplicates": True}},
    "as many as fit": {"data": {"strip_quotes": True, "duplicates": True, "max_documents": 31}},
    "classes": {"data": {"label": "kind"}, "task": "classification"},
    "masked": {"task": "masked-lm"},
    "another file held out": {"data": {"eval": "more.jsonl", "strip_quotes": True}},
    "secrets": {
        "data": {"unit": None, "eval": None, "strip_quotes": True},
        "privacy": {"mechanism": "secret"},
        "secrets": {"patterns": {"number": r"\d{4}"}, "column": "user", "prior": 1e-3, "posterior": 0.5},
    },
    "redacted": {"privacy": {"mechanism": "redacted"}, "detector": SENSITIVE},
    "selective": {
        "privacy": {"mechanism": "selective", "noise_multiplier": 1.0},
        "detector": SENSITIVE,
        "redacted": {"steps": 2},
        "data": {"duplicates": True},
    },
    "crt": {"privacy": {"mechanism": "crt", "noise_multiplier": 1.0}, "detector": SENSITIVE},
    "canaries": {
        "canaries": {"count": 6, "digits": 3},
    },
    "chats": {
        "chat_template": "chatml",
        "data": {"messages": "messages", "max_length": 32, "duplicates": True},
    },
}


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("texts")
    draws = random.Random(5)
    for name, number in (("text", 60), ("more", 9)):
        with open(folder / f"{name}.jsonl", "w") as stream:
            for at in range(number):
                said = " ".join(draws.choices(WORDS, k=draws.randint(3, 60)))
                said += f" {draws.randint(1000, 1020)}" if at % 3 else ""
                said = ["", said, said + QUOTE, QUOTE.strip()][min(draws.randint(0, 9), 3) if at else 1]
                messages = [{"role": role, "content": said or "yes"} for role in ("user", "assistant")]
                row = {
                    "user": f"u{draws.randint(0, 20)}",
                    "kind": ("a", "b")[at % 2],
                    "text": said,
                    "messages": messages,
                }
                stream.write(json.dumps(row) + "\n")
    return folder


def settings(texts, model, run, changes):
    data = {"train": str(texts / "text.jsonl"), "unit": "user", "eval": 0.5, "max_length": 16}
    data |= changes.get("data", {})
    if data["eval"] == "more.jsonl":
        data["eval"] = str(texts / "more.jsonl")
    if "messages" not in data:
        data["text"] = "text"
    return check(
        {
            "model": str(model),
            "tokenizer": "bundled",
            "data": data,
            "train": {"steps": 2, "batch": 4.0},
            "run": str(run),
            "privacy": {"published_key": "for a test"} | changes.get("privacy", NOISE),
        }
        | {name: own for name, own in changes.items() if name not in ("data", "privacy")}
    )


def prepared(config, crew):
    run = Run(config)
    run.root.mkdir(parents=True)
    tokenizer = models.load_tokenizer(config)
    found = prepare(config, tokenizer, run.data, key=run.data_key(), given=run.given, crew=crew)
    return found.facts, files_below(run.data)


@pytest.mark.parametrize("name", CONFIGS)
def test_several_processes_make_the_bytes_that_one_makes(texts, model, tmp_path, monkeypatch, name):
    monkeypatch.setattr(reading, "BATCH", 7)
    facts, files = prepared(settings(texts, model, tmp_path / "one", CONFIGS[name]), Crew())
    others, same = prepared(settings(texts, model, tmp_path / "two", CONFIGS[name]), Crew(2))
    assert json.dumps(others) == json.dumps(facts)  # in the same order, too
    assert same.keys() == files.keys()
    assert [each for each in files if files[each] != same[each]] == []
    assert facts["rows"] > 5


def test_the_size_of_a_batch_changes_nothing(texts, model, tmp_path, monkeypatch):
    config = CONFIGS["quotes and duplicates"]
    facts, files = prepared(settings(texts, model, tmp_path / "one", config), None)
    monkeypatch.setattr(reading, "BATCH", 3)
    monkeypatch.setattr(reading, "_HELD", 5)
    assert prepared(settings(texts, model, tmp_path / "two", config), None) == (facts, files)


def test_an_error_is_the_same_and_leaves_nothing(texts, model, tmp_path, monkeypatch):
    monkeypatch.setattr(reading, "BATCH", 2)
    lines = (texts / "text.jsonl").read_text().splitlines()
    lines[20] = "5"
    (tmp_path / "text.jsonl").write_text("\n".join(lines))
    told = set()
    for crew in (Crew(), Crew(2)):
        config = settings(tmp_path, model, tmp_path / f"run-{crew.processes}", {})
        with pytest.raises(InputError, match=r"text\.jsonl line 21: a number, where") as caught:
            prepared(config, crew)
        told.add(str(caught.value))
        assert not list((tmp_path / f"run-{crew.processes}").glob("*data*"))
    assert len(told) == 1


def test_the_command_takes_a_number_of_processes(texts, model, tmp_path):
    world = tmp_path / "mail.yaml"
    config = settings(texts, model, tmp_path / "run", {})
    world.write_text(json.dumps(config.model_dump(mode="json", exclude_defaults=True)))
    one = confide("prepare", world, "--json")
    two = confide("prepare", world, f"run={tmp_path / 'two'}", "--processes", "2", "--json")
    assert (one.code, two.code) == (0, 0)
    assert json.loads(one.out) == json.loads(two.out)
    wrong = confide("prepare", world, "--processes", "2", "--ray", "local")
    assert (wrong.code, wrong.err.count("--processes is for this machine")) == (2, 1)
