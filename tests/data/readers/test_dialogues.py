"""Turns as one text, with their spans where they stand in it."""

import json

import pytest
import yaml

from confide.cli import starter
from confide.data.readers import Record, documents, records
from confide.utils.errors import InputError

PROMPTS = {"USER": "USR:", "SYSTEM": "SYS:"}
TURNS = [
    {"speaker": "USER", "text": "I am Ann.", "spans": [[5, 8, "name"]]},
    {"speaker": "SYSTEM", "text": "Hello\r\n", "spans": []},
    {"speaker": "USER", "text": "call 555\r\nor\x00 777", "spans": [[5, 8, "phone"], (14, 17)]},
]


def one(turns, speakers=None, spans=None, text="turns"):
    (document,) = documents([Record({"turns": turns}, "here")], text, None, None, None, speakers, spans)
    return document


@pytest.mark.parametrize(
    ("turns", "speakers", "text"),
    [
        (TURNS[:2], None, "USER: I am Ann.\nSYSTEM: Hello\n"),
        (TURNS[:2], PROMPTS, "USR: I am Ann.\nSYS: Hello\n"),
        (TURNS[:2], {"USER": "<u>\n", "SYSTEM": ""}, "<u>\nI am Ann.\nHello\n"),
        (
            [{"role": "assistant", "content": "Yes"}, {"from": "human", "value": "No"}],
            None,
            "assistant: Yes\nhuman: No",
        ),
        (["Hi", "there"], None, "Hi\nthere"),
        ([{"role": "a", "content": None}, {"role": "b", "content": "x\r\ny"}], None, "a: \nb: x\ny"),
    ],
)
def test_turns_are_lines_after_their_speakers_prompts(turns, speakers, text):
    assert one(turns, speakers).text == text


def test_spans_of_turns_are_those_of_the_text():
    """Through carriage returns and characters that cleaning drops."""
    for speakers in (None, PROMPTS, {"USER": "", "SYSTEM": "a longer prompt"}):
        document = one(TURNS, speakers, "spans")
        found = [(document.text[start:end], *kind) for start, end, *kind in document.fields["spans"]]
        assert found == [("Ann", "name"), ("555", "phone"), ("777",)]
    assert "spans" not in one(TURNS).fields
    assert len(TURNS[0]["spans"]) == 1


@pytest.mark.parametrize("span", [[1, 2], [2, 3], [1, 3]])
def test_a_line_end_of_two_characters_is_sensitive_if_one_of_them_is(span):
    document = one([{"speaker": "a", "text": "x\r\ny", "spans": [span]}], None, "spans")
    ((start, end),) = document.fields["spans"]
    assert document.text[start:end] == "\n"


def test_a_dialogue_in_which_nothing_is_said_is_an_empty_text():
    turns = [{"turns": []}, {"turns": [{"role": "a", "content": " "}]}, {"turns": TURNS}]
    found = list(documents([Record(fields, "here") for fields in turns], "turns", None))
    assert [document.number for document in found] == [2]


@pytest.mark.parametrize(
    ("turns", "speakers", "spans", "message"),
    [
        (
            TURNS,
            {"USER": "U"},
            None,
            r"^here: turn 2: its speaker is not in data\.speakers \(USER\)",
        ),
        ([{"text": "x"}], None, None, r"^here: turn 1: names no speaker"),
        ([*TURNS, "plain"], PROMPTS, None, r"^here: turn 4: names no speaker"),
        (
            [{"speaker": "a", "said": "x"}],
            None,
            None,
            r"turn 1: has no field text, content, value; .* speaker, said",
        ),
        ([{"speaker": "a", "text": 3}], None, None, "turn 1: holds a number, not text"),
        (TURNS, None, "span", r"turn 1: detector\.spans names 'span'"),
        ([*TURNS, {"speaker": "a", "text": "b"}], None, "spans", "turn 4: detector.spans names 'spans'"),
        *(
            (
                [{"speaker": "a", "text": "abc", "spans": [span]}],
                None,
                "spans",
                r"turn 1: detector\.spans: an entry",
            )
            for span in (
                [0, 4],
                [3, 2],
                [-1, 2],
                [0],
                [0, 2, 3],
                [0, 1, "a", "b"],
                "ab",
                [0, 1.5],
                [False, 2],
            )
        ),
    ],
)
def test_faulty_turns_are_named(turns, speakers, spans, message):
    with pytest.raises(InputError, match=message):
        one(turns, speakers, spans)


def test_prompts_for_a_text_that_is_no_dialogue_are_refused():
    with pytest.raises(InputError, match=r"data\.speakers is for dialogues, and data\.text \('body'\)"):
        list(documents([Record({"body": "x"}, "here")], "body", None, speakers=PROMPTS))


def test_a_list_in_a_template_is_as_ever():
    assert one(["a", "b"], text="to {turns}").text == "to a, b"


def test_a_first_config_names_the_turns(tmp_path):
    path = tmp_path / "chats.jsonl"
    path.write_text(
        json.dumps({"dialogue": "7", "services": ["a long list of words"] * 20, "said": TURNS}) + "\n"
    )
    assert yaml.safe_load(starter.write(str(path)))["data"]["messages"] == "said"


def test_real_dialogues(shared):
    """Every annotated span of a turn says the same in the whole text."""
    source = shared / "data" / "sgd-dialogues" / "dev.jsonl.xz"
    found = compared = 0
    read = documents(records(source), "turns", "dialogue_id", None, None, PROMPTS, "spans")
    for document, record in zip(read, records(source), strict=True):
        turns = record.fields["turns"]
        said = [(turn["text"][start:end], kind) for turn in turns for start, end, kind in turn["spans"]]
        assert [(document.text[start:end], kind) for start, end, kind in document.fields["spans"]] == said
        assert document.text.count("\n") == len(turns) - 1
        assert document.text.startswith("USR: ")
        found, compared = found + 1, compared + len(said)
    assert found == 2098
    assert compared > 20_000
