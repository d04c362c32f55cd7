"""Nothing of names and texts reaches a terminal that it would obey: no escape sequence, no mark that turns text."""

# ruff: noqa: E501 - one case a line

import io
import json
import sys

import pytest

from confide.utils import console
from tests.command import World, confide, confide_apart, tiny_model

EVIL = "\x1b]0;owned\x07\x1b[2J\r\u202e\x9b31m\u2028"
QUOTED = json.dumps(EVIL)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def world(tmp_path, model, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return World(tmp_path, model)


def harmless(text: str) -> None:
    assert text.replace("\n", "").replace("\t", "").isprintable(), ascii(text)


def named(world, **fields):
    """Every row with the evil name among its fields, or as a value."""
    return world.set(data__train=str(world.rows(world.folder / "named.jsonl", **fields)))


def in_file_name(world):
    path = world.folder / f"t{EVIL}.jsonl"
    path.write_text('{"user": "a"\n')
    world.set(data__train=str(path))
    return "prepare", world.path


def in_field_name(world):
    named(world, **{EVIL: "x"}).set(data__unit="usr")
    return "prepare", world.path


def in_secret_name(world):
    world.raw |= {"privacy": {"mechanism": "secret"}, "secrets": {"patterns": {EVIL: "printer|floor"}, "prior": 0.1, "posterior": 0.5}}  # fmt: skip
    world.save()
    return "secrets", "tag", world.path


def in_text_beside_a_secret(world):
    path = world.folder / "beside.jsonl"
    path.write_text("".join(json.dumps({"user": f"u{n}", "text": f"the {EVIL} printer {EVIL} is out of paper {n}"}) + "\n" for n in range(40)))  # fmt: skip
    world.raw |= {"privacy": {"mechanism": "secret"}, "secrets": {"patterns": {"place": "printer"}, "prior": 0.1, "posterior": 0.5}}  # fmt: skip
    world.set(data__train=str(path))
    return "secrets", "tag", world.path


def in_span_kind(world):
    world.raw |= {"privacy": {"mechanism": "selective", "epsilon": 8}, "detector": {"spans": "spans"}}
    named(world, spans=[[0, 4, EVIL]])
    return "redact", world.path


CASES = {
    "a config's name": (lambda w: ("plan", f"x{EVIL}.yaml"), 2),
    "an override's key": (lambda w: ("plan", w.path, f"a{EVIL}=1"), 2),
    "an override's value": (lambda w: ("plan", w.path, f"task={QUOTED}"), 2),
    "a field that is not there": (lambda w: ("prepare", w.path, f"data.unit={QUOTED}"), 2),
    "a model": (lambda w: ("plan", w.path, f"model={QUOTED}"), 2),
    "a run folder": (lambda w: ("prepare", w.path, f"run={QUOTED}"), 0),
    "a verb": (lambda w: (f"pl{EVIL}an", w.path), 2),
    "an option": (lambda w: ("plan", w.path, f"--{EVIL}"), 2),
    "a run that is none": (lambda w: ("eval", EVIL), 2),
    "what init writes": (lambda w: ("init", w.text, f"--out=o{EVIL}.yaml"), 0),
    "a data file": (in_file_name, 2),
    "a field": (in_field_name, 2),
    "a secret": (in_secret_name, 0),
    "the text beside a secret": (in_text_beside_a_secret, 0),
    "a kind of span": (in_span_kind, 0),
}


@pytest.mark.parametrize("name", CASES)
def test_the_terminal_gets_plain_text(world, name):
    make, code = CASES[name]
    found = confide(*make(world))
    assert found.code == code, found
    assert "owned" in found.out + found.err  # else the case shows nothing
    harmless(found.out)
    harmless(found.err)
    if code == 2 and name not in ("a verb", "an option"):
        assert found.err.splitlines()[-1].startswith("confide: ")


def test_as_a_command_of_its_own(world):
    found = confide_apart("plan", f"x{EVIL}.yaml", cwd=world.folder)
    assert found.code == 2
    assert found.err == "confide: x" + console.on_one_line(EVIL) + ".yaml: no such config file\n"


def test_what_is_made_plain_and_what_is_left():
    assert console.plain("Zürich\t½ 東京 👍\nعربى") == "Zürich\t½ 東京 👍\nعربى"
    assert console.plain(EVIL) == r"\x1b]0;owned\x07\x1b[2J\r\u202e\x9b31m\u2028"
    assert console.plain("\ud800\U000e0041\ufeff\x7f") == r"\ud800\U000e0041\ufeff\x7f"
    assert console.on_one_line("a\nb") == r"a\nb"


def test_a_bar_is_drawn_of_plain_text(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "200")
    with console.guarded(), console.Console().track(f"reading {EVIL} [bold]", 2) as track:
        track(note=EVIL)
        track(note=EVIL)
    drawn = terminal.getvalue()
    assert r"reading \x1b]0;owned\x07\x1b[2J" in drawn
    assert "[bold]" in drawn
    assert "\x07" not in drawn
    assert "\x1b[2J" not in drawn
    assert "\u202e" not in drawn


def test_a_terminal_of_few_characters_gets_those(monkeypatch):
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii"))
    with console.guarded():
        print("Zürich 👍")
        sys.stdout.flush()
    assert raw.getvalue() == b"Z\\xfcrich \\U0001f44d\n"
