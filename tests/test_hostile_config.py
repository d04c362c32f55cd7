"""No config, however it is damaged, gives more than a config or one sentence that names the fault."""

# ruff: noqa: E501 - one case a line

import os
import time

import pytest

from confide.config import loading as configs
from confide.config import yaml_text
from confide.utils.errors import InputError
from tests import hostile_configs
from tests.command import Result, World, confide, tiny_model

_PYTHON = ("Traceback", "<class", "datetime", "object at 0x", "Error(", "NoneType", "pydantic", "ruff")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny_model(tmp_path_factory.mktemp("model"))


def sentence(error: InputError) -> str:
    """The message, once it was seen to be one: on a line, or a list of faults with a line each; nothing of Python's."""
    text = str(error)
    first, *more = text.split("\n")
    assert text.isascii() or text.replace("\n", " ").isprintable(), ascii(text)
    assert text.replace("\n", "").isprintable(), ascii(text)
    assert len(more) <= 21
    assert all(line.startswith("  ") for line in more), text
    assert max(map(len, [first, *more])) < 500, text
    assert not [word for word in _PYTHON if word in text], text
    return text


def outcome(load) -> str:
    try:
        load()
    except InputError as error:
        return sentence(error)
    return ""


@pytest.mark.parametrize("seed", range(5))
def test_a_mutated_config_is_prepared_or_refused_in_a_sentence(tmp_path, monkeypatch, model, seed):
    """Of 500: what loads is prepared by the command, which ends with exit code 0 or 2."""
    monkeypatch.chdir(tmp_path)
    world, codes = World(tmp_path, model), []
    for made in hostile_configs.configs(seed, 100):
        world.path.write_bytes(made)
        found = outcome(lambda: configs.load(world.path))
        assert not found or found.startswith(str(world.path)), found
        if not found:
            codes.append(
                ended(confide("prepare", world.path, f"model={model}", "tokenizer=bundled", "run=run"))
            )
    assert 5 < len(codes) < 60  # else the mutations show nothing
    assert set(codes) == {0, 2}


def ended(result: Result) -> int:
    """The exit code, once it was seen to be 0, or 2 with one sentence."""
    assert result.code in (0, 2), result
    assert not [word for word in _PYTHON if word in result.err], result
    said = [line for line in result.err.splitlines() if line.startswith("confide: ")]
    assert len(said) == (result.code == 2), result
    return result.code


def test_a_mutated_override_applies_or_is_refused_in_a_sentence(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text("data: {train: text.jsonl, unit: user}\nprivacy: {epsilon: 8}\n")
    for override in hostile_configs.overrides(1, 300):
        outcome(lambda override=override: configs.load(path, [override]))


# what each of these must say, at the line where it stands
FRAGMENTS = {
    "? [a]\n: b": r"line 3: a key is a name, and neither a list nor a section",
    "a: {[1]: 2}": r"line 3: a key is a name",
    "a: !!int abc": r"line 3: 'abc' is not a whole number",
    "a: !!float x": r"line 3: 'x' is not a number",
    "a: !!bool maybe": r"line 3: 'maybe' is not a true or false",
    "a: !!timestamp 2001-99-99": r"line 3: '!!timestamp' is not a tag that a config can use",
    "a: !!python/object/apply:os.system [id]": r"line 3: '!!python/object/apply:os.system' is not a tag",
    "run: 2001-99-99\nx: 1": r"x: no such key",
    "a: " + "9" * 5000: r"line 3: '9{60}'\.\.\. is not a whole number",
    "a: 0x" + "f" * 5000: r"line 3: '0xf{58}'\.\.\. has more digits than any key takes",
    "a: 9223372036854775808": r"line 3: '9223372036854775808' has more digits than any key takes",
    "a: " + "[" * 900 + "]" * 900: r"line 3: more than 40 lists or sections within one another",
    "a: &x [*x]": r"line 3: an alias stands within what it names",
    "on: 1": r"line 3: key 'on' is not text: put it in quotes",
    "a: 1\na: 2": r"key 'a' stands twice, again at line 4",
    'run: "a\\0b"': r"run: holds the character NUL",
    'data: {train: "\\ud800"}': r"data\.train: holds half a character",
    "a: \x00": r"line 3: not valid YAML: the character U\+0000",
    "train: {steps: .inf}": r"train\.steps: \.inf is not valid",
    "train: {steps: .nan}": r"train\.steps: \.nan is not valid",
    "train: {betas: [.nan, 0.9]}": r"train\.betas",
    "train: {weight_decay: .inf}": r"train\.weight_decay: \.inf is not valid",
}


@pytest.mark.parametrize("fragment", FRAGMENTS, ids=lambda text: ascii(text[:30]))
def test_the_fault_is_named_at_its_line(tmp_path, fragment):
    path = tmp_path / "config.yaml"
    data = "" if fragment.startswith("data") else "data: {train: text.jsonl, unit: user}"
    path.write_text(f"{data}\nprivacy: {{epsilon: 8}}\n{fragment}\n")
    with pytest.raises(InputError, match=FRAGMENTS[fragment]) as caught:
        configs.load(path)
    assert "\n" not in sentence(caught.value)


def test_aliases_that_name_a_billion_values_are_refused_at_once():
    levels = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    levels += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 12)]
    began = time.monotonic()
    with pytest.raises(InputError, match=r"more than 200,000 values, with all aliases written out"):
        yaml_text.read("\n".join(levels))
    assert time.monotonic() - began < 1


def test_ordinary_yaml_is_read_as_before():
    text = "a: 1e-5\nb: [1, 0x10, 2.5, true, null, ~]\nc: &x {d: 'y'}\ne: *x\nf: {<<: *x, g: 1}\nh: 2001-01-31\ni: '1'\n"
    assert yaml_text.read(text) == {
        "a": 1e-5,
        "b": [1, 16, 2.5, True, None, None],
        "c": {"d": "y"},
        "e": {"d": "y"},
        "f": {"d": "y", "g": 1},
        "h": "2001-01-31",
        "i": "1",
    }


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "null"), (True, "true"), (float("-inf"), "-.inf"), ("a\x1b", r"'a\x1b'"), ([1, "b", None], "[1, 'b', null]"),
     ({"a": False}, "{a: false}"), (0.5, "0.5"), ("y" * 99, "'" + "y" * 60 + "'...")],
)  # fmt: skip
def test_a_value_is_shown_as_yaml(value, text):
    assert yaml_text.shown(value) == text


# paths -----------------------------------------------------------------------------------------------
def test_a_pipe_a_device_a_loop_and_a_folder_are_no_configs(tmp_path):
    os.mkfifo(tmp_path / "pipe.yaml")
    (tmp_path / "loop.yaml").symlink_to("loop.yaml")
    (tmp_path / "folder").mkdir()
    (tmp_path / "large.yaml").write_bytes(b"a: 1\n" * 1_000_000)
    for name, said in (
        ("pipe.yaml", r"is not a file \(it is a pipe or a device\)"),
        ("loop.yaml", r"symbolic links"),
        ("folder", r"folder: this folder holds no config\.yaml"),
        ("large.yaml", r"too large|too many"),
    ):
        with pytest.raises(InputError, match=said) as caught:
            configs.load(tmp_path / name)
        sentence(caught.value)
    with pytest.raises(InputError, match=r"/dev/zero: is not a file"):
        configs.load(type(tmp_path)("/dev/zero"))
    with pytest.raises(InputError, match="NUL"):
        configs.load(tmp_path / "a\0b")
