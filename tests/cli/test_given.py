"""Values on the command line of `confide init`."""

import json

import pytest
import yaml

from confide.cli import show_look, starter
from confide.cli.given import Given
from confide.cli.look import look
from confide.config.loading import check
from confide.utils.errors import InputError


@pytest.fixture
def table(tmp_path):
    """A table whose columns stand apart by semicolons, as Excel writes them in Europe."""
    source = tmp_path / "mail.csv"
    rows = [f'c{n % 9};{n % 3};"first, second; and {n}"' for n in range(40)]
    source.write_text("customer;team;text\n" + "\n".join(rows) + "\n")
    return str(source)


def drafted(source, *values):
    found = look(source, given=Given.of(source, values))
    return starter.draft(found, show_look.unit(found, yes=True))


def test_values_stand_in_the_config_and_lose_comments_that_were_about_others(table):
    draft = drafted(table, "data.delimiter=;", "privacy.epsilon=3", "data.eval=other.csv")
    config = check(yaml.safe_load(draft.config))
    assert (config.data.delimiter, config.privacy.epsilon, config.data.eval) == (";", 3, "other.csv")
    assert (config.data.unit, config.privacy.mechanism) == ("customer", "uls")
    assert "  eval: other.csv\n" in draft.config
    assert '  unit: "customer"   # whom to protect' in draft.config
    assert "eval_within: 0.1" in (within := drafted(table, "data.eval_within=0.1").config)
    assert "  eval: null   " in within


def test_a_unit_that_is_given_decides_the_rest_and_is_not_asked_for(table, monkeypatch):
    monkeypatch.setattr(show_look, "at_terminal", lambda: True)
    monkeypatch.setattr("builtins.input", lambda _: pytest.fail("it asks"))
    found = look(table, given=Given.of(table, ["data.unit=team"]))
    draft = starter.draft(found, show_look.unit(found, yes=False))
    config = check(yaml.safe_load(draft.config))
    assert (config.data.unit, config.privacy.mechanism, config.train.batch) == ("team", "uls", 1)


def test_nobody_may_be_given_as_the_unit_and_the_warning_says_who_said_so(table):
    draft = drafted(table, "data.unit=null")
    assert check(yaml.safe_load(draft.config)).privacy.mechanism == "dp-sgd"
    assert "  unit: null   # ROW-LEVEL PROTECTION ONLY" in draft.config
    (warning,) = draft.warnings
    assert warning.startswith("data.unit is null, as you said: ROW-LEVEL PROTECTION ONLY.")
    assert "'customer' (9 values)" in warning


@pytest.mark.parametrize(
    ("values", "text"),
    [
        (("data.text={customer}: {text}",), {"text": "{customer}: {text}"}),
        (('data.text="{customer}: {text}"',), {"text": "{customer}: {text}"}),
        (("data.text=team",), {"text": "team"}),
        (("data.prompt=customer", "data.completion=text"), {"prompt": "customer", "completion": "text"}),
        (("data.prompt=null",), {"text": "text"}),
    ],
)
def test_the_text_may_be_given_and_may_name_the_unit_too(table, values, text):
    draft = drafted(table, *values)
    config = yaml.safe_load(draft.config)
    check(config)
    assert {
        key: value for key in ("text", "prompt", "completion") if (value := config["data"].get(key))
    } == text
    assert config["data"]["unit"] == "customer"
    assert not draft.warnings


def test_dialogues_may_be_given_as_messages_or_as_text(tmp_path):
    source = tmp_path / "chats.jsonl"
    turns = [{"role": "alice", "content": "hello"}, {"role": "bob", "content": "good day"}]
    source.write_text(
        "".join(json.dumps({"customer": f"c{n % 9}", "said": turns, "note": "x"}) + "\n" for n in range(30))
    )
    for speakers in ((), ("data.speakers={alice: user, bob: assistant}",)):
        chats = yaml.safe_load(drafted(str(source), "data.messages=said", *speakers).config)
        check(chats)
        assert (chats["data"]["messages"], chats["chat_template"]) == ("said", "chatml")
        assert chats["data"].get("speakers") == ({"alice": "user", "bob": "assistant"} if speakers else None)
    notes = yaml.safe_load(drafted(str(source), "data.text=note").config)
    check(notes)
    assert notes["data"]["text"] == "note"
    assert "chat_template" not in notes


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("data.train=other.csv", "data.train: `confide init` takes keys of data"),
        ("model=gpt2", "model: `confide init` takes keys of data, privacy.epsilon and task; write others"),
        ("train.steps=3", "train.steps: `confide init` takes keys of data"),
        ("data.unit.x=3", "data.unit.x: `confide init` takes keys of data"),
        ("data.unit=nobody", r"no field is called 'nobody' \(fields: customer, team, text\)"),
        ("data.unit=2020", "no field is called '2020'"),
        ("data.unit=text", "'text' is the text: give a field that says whose it is"),
        ("data.unit=[customer, team]", "give one field here"),
        ("data.unit=", "data.unit: no value stands behind the =; write null if you mean none"),
        ("data.delimiter=;;", "';;' is not one character"),
        ("data.delimitr=x", r"takes keys of data.* \(did you mean 'data.delimiter'\?\)"),
        ("data.prompt=team", "data.completion: data.prompt is given"),
        ("data.speakers={c1: [user]}", "data.speakers"),
        ("privacy.epsilon=many", "privacy.epsilon: 'many' is not valid"),
        ("epsilon", "'epsilon': DATA is one file or folder; behind it stands key=value"),
    ],
)
def test_a_value_that_makes_no_config_is_refused_by_its_key(table, value, said):
    with pytest.raises(InputError, match=said):
        drafted(table, value)


def test_a_key_is_given_once(table):
    with pytest.raises(InputError, match=r"data\.unit is given twice"):
        drafted(table, "data.unit=customer", "data.unit=team")
