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
    draft = drafted(
        table, "data.delimiter=';'", "privacy.epsilon=3", "train.learning_rate=1e-2", "canaries.count=50"
    )
    config = check(yaml.safe_load(draft.config))
    assert (config.data.delimiter, config.privacy.epsilon, config.train.learning_rate) == (";", 3, 0.01)
    assert (config.canaries.count, config.data.unit, config.privacy.mechanism) == (50, "customer", "uls")
    assert "  learning_rate: 0.01\n" in draft.config
    assert "# canaries" not in draft.config
    assert '  unit: "customer"   # whom to protect' in draft.config


def test_a_unit_that_is_given_decides_the_rest_and_is_not_asked_for(table, monkeypatch):
    monkeypatch.setattr(show_look, "at_terminal", lambda: True)
    monkeypatch.setattr("builtins.input", lambda _: pytest.fail("it asks"))
    found = look(table, given=Given.of(table, ["data.unit=team"]))
    draft = starter.draft(found, show_look.unit(found, yes=False))
    config = check(yaml.safe_load(draft.config))
    assert (config.data.unit, config.privacy.mechanism, config.train.batch) == ("team", "uls", 1)
    assert show_look.unit(look(table, given=Given.of(table, ["data.unit=null"])), yes=False) is None


def test_a_mechanism_that_is_given_takes_no_key_of_another(table):
    config = yaml.safe_load(drafted(table, "privacy.mechanism=dp-sgd").config)
    assert config["privacy"] == {"mechanism": "dp-sgd", "epsilon": 8}
    assert check(config).data.unit == "customer"


@pytest.mark.parametrize(
    ("values", "text"),
    [
        (("data.text={team}: {text}",), {"text": "{team}: {text}"}),
        (("data.text=team",), {"text": "team"}),
        (("data.prompt=team", "data.completion=text"), {"prompt": "team", "completion": "text"}),
    ],
)
def test_the_text_may_be_given(table, values, text):
    quoted = [f"{key}='{value}'" for key, _, value in (each.partition("=") for each in values)]
    draft = drafted(table, *quoted)
    config = yaml.safe_load(draft.config)
    check(config)
    assert {key: config["data"].get(key) for key in ("text", "prompt", "completion")} == {
        "text": None,
        "prompt": None,
        "completion": None,
    } | text
    assert not draft.warnings


def test_dialogues_may_be_given_as_messages_or_as_text(tmp_path):
    source = tmp_path / "chats.jsonl"
    turns = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "good day"}]
    source.write_text(
        "".join(json.dumps({"customer": f"c{n % 9}", "said": turns, "note": "x"}) + "\n" for n in range(30))
    )
    chats = yaml.safe_load(drafted(str(source), "data.messages=said").config)
    assert (chats["data"]["messages"], chats["chat_template"]) == ("said", "chatml")
    notes = yaml.safe_load(drafted(str(source), "data.text=note").config)
    check(notes)
    assert notes["data"]["text"] == "note"
    assert "chat_template" not in notes


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("data.train=other.csv", "data.train: give it as DATA"),
        ("model=gpt2", "model: give it as --model"),
        ("data.unit=nobody", r"no field is called 'nobody' \(fields: customer, team, text\)"),
        ("data.unit=text", "'text' is the text: give a field that says whose it is"),
        ("data.unit=[customer, team]", "give one field here"),
        ("data.delimiter=';;'", "';;' is not one character"),
        ("data.delimitr=x", "data.delimitr: no such key, did you mean data.delimiter"),
        ("data.prompt=team", "data.completion: data.prompt is given"),
        ("privacy.epsilon=many", "privacy.epsilon: 'many' is not valid"),
        ("train=3", r"train: is a section; give its keys, as train\.steps=\.\.\."),
        ("epsilon", "'epsilon': an override is key=value"),
    ],
)
def test_a_value_that_makes_no_config_is_refused_by_its_key(table, value, said):
    with pytest.raises(InputError, match=said):
        drafted(table, value)
