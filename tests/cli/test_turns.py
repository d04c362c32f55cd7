"""Conversations that a model writes by turns: the template's places, lengths that differ, and where they end."""

import json

import pytest
from transformers import AutoTokenizer

from confide.data.chat import CHATML
from confide.models.names import location
from confide.models.released import load_alone
from confide.runs.generate import Options, Prompter, Said, Voice
from confide.synthesis.turns import ALL, Conversations
from confide.utils.errors import InputError
from tests.command import confide, refused

END = "<|im_end|>"


@pytest.fixture
def voice(whole) -> Voice:
    model, tokenizer = load_alone(whole.run / "release")
    tokenizer.chat_template = CHATML
    return Voice(
        "it", model, Prompter(tokenizer, Options(max_new_tokens=8, temperature=1.0, top_p=1.0, chat=True))
    )


def test_each_side_speaks_in_its_place(voice, monkeypatch):
    asked = []

    def each(rows, seed, mark):
        asked.append([voice.prompter.tokenizer.decode(row) for row in rows])
        assert mark == END
        return [Said(f" turn {len(asked)} of {at} ", 3, "end of turn") for at in range(len(rows))]

    monkeypatch.setattr(voice, "each", each)
    monkeypatch.setattr(voice, "longest", None)
    first, second = Conversations(voice, 4).drawn("", 2, 1)
    assert [message["role"] for message in first["messages"]] == ["user", "assistant"] * 2
    assert second["text"] == "turn 1 of 1\n\nturn 2 of 1\n\nturn 3 of 1\n\nturn 4 of 1"
    assert first["ended"] == ALL
    assert asked[0][0].endswith("user\n")
    assert asked[1][1].endswith(f"turn 1 of 1{END}\n<|im_start|>assistant\n")
    asked.clear()
    given = Conversations(voice, 2).drawn("Hello", 1, 1)[0]
    assert given["messages"][0] == {"role": "user", "content": "Hello"}
    assert len(asked) == 1


def test_a_conversation_ends_where_somebody_falls_silent_or_has_no_room(voice, monkeypatch):
    says = iter([[Said("a", 1, "end of turn"), Said(" ", 1, "end of turn"), Said("b", 8, "max-new-tokens")]])
    monkeypatch.setattr(
        voice, "each", lambda rows, seed, mark: next(says, [Said("c", 1, "end of turn")] * len(rows))
    )
    found = Conversations(voice, 2).drawn("", 3, 1)
    assert [len(each["messages"]) for each in found] == [2, 0, 1]
    assert [each["ended"] for each in found] == [ALL, "end of turn", "max-new-tokens"]
    monkeypatch.setattr(voice, "longest", 3)
    assert Conversations(voice, 2).drawn("Hello", 1, 1)[0]["ended"] == "longest row"


def test_prompts_of_several_lengths_are_continued_as_each_alone(voice, monkeypatch):
    tokenizer = voice.prompter.tokenizer
    rows = [
        tokenizer(text, add_special_tokens=False)["input_ids"]
        for text in ("the key", "nobody has a key to it again")
    ]
    likeliest = Options(max_new_tokens=6, temperature=0.0, chat=True)
    monkeypatch.setattr(voice.prompter, "options", likeliest)
    together = voice.each(rows, 1, END)
    for row, found in zip(rows, together, strict=True):
        assert found == voice.each([row], 1, END)[0]
    given = []
    monkeypatch.setattr(voice.model, "generate", lambda **asked: given.append(asked) or asked["input_ids"])
    voice.each(rows, 1, END)
    (asked,) = given
    for ids, real, row in zip(asked["input_ids"], asked["attention_mask"], rows, strict=True):
        assert ids[real.bool()].tolist() == row
        assert real[-1]  # what is written follows the prompt at once


def test_a_mark_ends_a_turn(voice):
    tokenizer = voice.prompter.tokenizer
    ids = tokenizer(f"so it is{END} and on", add_special_tokens=False)["input_ids"]
    assert voice._turn(ids, END) == Said("so it is", len(ids), "end of turn")
    assert voice._turn([*ids[:2], voice.ends[0]], END).stopped == "end of text"
    assert voice._turn(ids[:2], END).stopped == "max-new-tokens"


def test_templates_without_places_are_refused(voice):
    voice.prompter.tokenizer.chat_template = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
    with pytest.raises(InputError, match="does not mark where a turn ends"):
        Conversations(voice, 2)
    voice.prompter.tokenizer.chat_template = "nothing"
    with pytest.raises(InputError, match="does not show what a user says"):
        Conversations(voice, 2)


def test_the_command_writes_messages(whole, tmp_path):
    import shutil

    release = shutil.copytree(whole.run / "release", tmp_path / "release")
    tokenizer = AutoTokenizer.from_pretrained(location("bundled"))
    tokenizer.chat_template = CHATML
    tokenizer.save_pretrained(release)
    out = tmp_path / "s.jsonl"
    options = ("--documents", "3", "--max-new-tokens", "5", "--seed", "3", "--temperature", "4", "--out", out)
    refused(confide("synthesize", release, *options, "--turns", "4"), "give --chat")
    refused(confide("synthesize", release, *options, "--chat", "--turns", "1"), "2 or more")
    done = confide("synthesize", release, *options, "--chat", "--turns", "4")
    assert done.code == 0, done
    for line in out.read_text().splitlines():
        found = json.loads(line)
        assert found["messages"][0]["role"] == "user"
        assert found["text"] == "\n\n".join(message["content"] for message in found["messages"])
    assert "| turns at most | 4 |" in (tmp_path / "s.md").read_text()
