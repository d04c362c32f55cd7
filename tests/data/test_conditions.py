"""Public conditions in front of texts: how they are written, which list is taken, and what of it is refused."""

import json

import pytest

from confide.config.loading import check
from confide.data.conditions import FILE, Conditions
from confide.data.documents import UNLISTED, documents_of
from confide.data.readers import Counts
from confide.utils.errors import InputError

LIST = [{"topic": "billing", "channel": "mail", "share": 3}, {"topic": "login", "channel": "mail"}]


def config(path, **data):
    section = {"train": str(path), "eval": None, "condition": ["topic", "channel"], "conditions": LIST} | data
    return check({"data": section, "privacy": {"mechanism": "dp-sgd", "epsilon": 3.0}})


@pytest.fixture
def mails(tmp_path):
    rows = [
        {"text": "Hello there.", "topic": " billing\n", "channel": "mail"},
        {"text": "I forgot it.", "topic": "login", "channel": "phone"},
        {"text": "Again.", "topic": "login", "channel": "mail"},
    ]
    path = tmp_path / "mails.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_a_listed_condition_stands_in_front_and_another_does_not(mails):
    counts = Counts()
    found = list(documents_of(config(mails), str(mails), counts))
    assert [each.text for each in found] == [
        "topic: billing\nchannel: mail\n\nHello there.",
        "I forgot it.",
        "topic: login\nchannel: mail\n\nAgain.",
    ]
    first = "topic: billing\nchannel: mail\n\n"
    assert found[0].given == ((0, len(first)),)  # from the config, and so never sensitive
    assert counts[UNLISTED] == 1


def test_quotes_go_and_the_condition_stays(mails):
    mails.write_text(json.dumps({"text": "> said he\nNo.", "topic": "login", "channel": "mail"}) + "\n")
    (found,) = documents_of(config(mails, strip_quotes=True), str(mails), Counts())
    assert found.text.startswith("topic: login\nchannel: mail\n\n")
    assert "said he" not in found.text


def test_shares_add_up_and_a_release_gives_the_list_back(tmp_path, mails):
    found = Conditions.of(config(mails).data)
    assert found.shares == (0.75, 0.25)
    assert found.named(found.listed[1]) == {"topic": "login", "channel": "mail"}
    (tmp_path / FILE).write_text(json.dumps(found.to_json()))
    assert Conditions.load(tmp_path) == found
    assert Conditions.load(tmp_path / "none") is None
    for damaged in (
        "{",
        "[]",
        '{"fields": ["a"]}',
        '{"fields": ["a"], "conditions": [{"a": "x", "share": "y"}]}',
    ):
        (tmp_path / FILE).write_text(damaged)
        with pytest.raises(InputError):
            Conditions.load(tmp_path)


@pytest.mark.parametrize("name", ["list.csv", "list.jsonl"])
def test_the_list_may_be_a_table(tmp_path, mails, name):
    path = tmp_path / name
    if name.endswith("csv"):
        path.write_text("topic,share\nbilling,2\nlogin,6\n")
    else:
        path.write_text('{"topic": "billing", "share": 2}\n{"topic": "login", "share": 6}\n')
    found = Conditions.of(config(mails, condition="topic", conditions=str(path)).data)
    assert found.listed == (("billing",), ("login",))
    assert found.shares == (0.25, 0.75)


def test_of_one_field_the_values_are_enough(mails):
    found = Conditions.of(config(mails, condition="topic", conditions=["billing", "login"]).data)
    assert found.prefix(found.listed[0]) == "topic: billing\n\n"
    assert found.shares == (0.5, 0.5)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"conditions": None}, "data.conditions: say which values of topic, channel there are"),
        ({"conditions": []}, "data.conditions: say which values"),
        ({"condition": None}, "data.conditions: lists values of the fields in data.condition"),
        ({"condition": []}, "names no field"),
        ({"condition": ["topic", "topic"]}, "names a field twice"),
        ({"condition": "prompt"}, "prompt is the name of something else"),
        ({"messages": "messages"}, "data.condition: stands in front of data.text"),
        ({"conditions": {"topic": "x"}}, "data.conditions: .*must be a list of text or entries"),
        ({"conditions": [3]}, "data.conditions: .*must be a list of text or entries"),
    ],
)
def test_what_cannot_go_together_is_refused(mails, data, words):
    with pytest.raises(InputError, match=words):
        config(mails, **data)


@pytest.mark.parametrize(
    ("conditions", "words"),
    [
        ([{"topic": "x"}], "entry 1 has no channel"),
        (
            [*LIST, {"topic": "x", "channel": "y", "shares": 1}],
            "entry 3 has shares, and data.condition names",
        ),
        ([*LIST, LIST[1]], "entry 3 stands there twice"),
        ([{"topic": "x", "channel": "y", "share": 0}], "entry 1: share must be a number above 0"),
        ([{"topic": "x", "channel": "y", "share": "often"}], "entry 1: share must be a number above 0"),
        (["billing"], "entry 1 is one value, and data.condition names topic, channel"),
        ("nowhere.csv", "data.conditions: nowhere.csv"),
    ],
)
def test_a_list_that_is_none_is_refused(mails, conditions, words):
    with pytest.raises(InputError, match=words):
        Conditions.of(config(mails, conditions=conditions).data)


def test_a_record_without_the_field_is_named(mails):
    mails.write_text(json.dumps({"text": "Hello", "topic": "billing"}) + "\n")
    with pytest.raises(InputError, match=r"line 1.*channel"):
        list(documents_of(config(mails), str(mails), Counts()))
