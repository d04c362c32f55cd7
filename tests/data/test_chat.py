"""What of a conversation is predicted: every token against masks written by hand, and refusals."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from confide.data import chat
from confide.data.chat import ChatTemplate
from confide.data.loss_mask import ids_of, is_predicted
from confide.data.turn_cutting import ANSWERS_CUT, NOTHING_LEARNT, TURNS_CUT, TurnCutter
from confide.utils.errors import InputError
from tests.data import chat_templates as templates

USER, HELP = "  Wo bin ich? 🙂 ", "Sie sind hier. "
AGAIN, MORE = "Und jetzt?", "Immer noch\nhier."
SYSTEM = "Be kind."

# Each text by hand, in parts; what stands in brackets is what is predicted.
LLAMA = (
    "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nWo bin ich? 🙂<|eot_id|>"
    "<|start_header_id|>assistant<|end_header_id|>\n\n⟦Sie sind hier.<|eot_id|>⟧"
    "<|start_header_id|>user<|end_header_id|>\n\nUnd jetzt?<|eot_id|>"
    "<|start_header_id|>assistant<|end_header_id|>\n\n⟦Immer noch\nhier.<|eot_id|>⟧"
)
IM = (
    "<|im_start|>user\n  Wo bin ich? 🙂 <|im_end|>\n<|im_start|>assistant\n⟦Sie sind hier. <|im_end|>⟧\n"
    "<|im_start|>user\nUnd jetzt?<|im_end|>\n<|im_start|>assistant\n⟦Immer noch\nhier.<|im_end|>⟧\n"
)
BY_HAND = {
    "Llama 3": (templates.LLAMA_3, False, LLAMA),
    "Llama 3, system": (
        templates.LLAMA_3,
        True,
        LLAMA.replace(
            "<|begin_of_text|>",
            "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nBe kind.<|eot_id|>",
        ),
    ),
    "Qwen": (templates.QWEN, False, "<|im_start|>system\nYou help.<|im_end|>\n" + IM),
    "Qwen, system": (templates.QWEN, True, "<|im_start|>system\nBe kind.<|im_end|>\n" + IM),
    "Gemma": (
        templates.GEMMA,
        False,
        "<bos><start_of_turn>user\nWo bin ich? 🙂<end_of_turn>\n"
        "<start_of_turn>model\n⟦Sie sind hier.<end_of_turn>⟧\n"
        "<start_of_turn>user\nUnd jetzt?<end_of_turn>\n<start_of_turn>model\n⟦Immer noch\nhier.<end_of_turn>⟧\n",
    ),
    "Mistral": (
        templates.MISTRAL,
        False,
        "<s>[INST]   Wo bin ich? 🙂 [/INST] ⟦Sie sind hier.</s>⟧[INST] Und jetzt?[/INST] ⟦Immer noch\nhier.</s>⟧",
    ),
    "Phi": (
        templates.PHI,
        False,
        "<|user|>\n  Wo bin ich? 🙂 <|end|>\n<|assistant|>\n⟦Sie sind hier. <|end|>⟧\n"
        "<|user|>\nUnd jetzt?<|end|>\n<|assistant|>\n⟦Immer noch\nhier.<|end|>⟧\n<|endoftext|>",
    ),
    "ChatML": (templates.CHATML, False, IM),
    "ChatML, own": (chat.CHATML, True, "<|im_start|>system\nBe kind.<|im_end|>\n" + IM),
    "marked by itself": (templates.MARKED, False, IM),
}


def messages(system: bool) -> list[dict[str, str]]:
    said = [("user", USER), ("assistant", HELP), ("user", AGAIN), ("assistant", MORE)]
    return [{"role": role, "content": text} for role, text in ([("system", SYSTEM)] if system else []) + said]


def by_hand(tokenizer: Any, text: str) -> tuple[list[int], list[bool]]:
    """Tokens and mask of a text with brackets: each part is tokenised by itself."""
    ids: list[int] = []
    mask: list[bool] = []
    for part in re.split("(⟦.*?⟧)", text, flags=re.DOTALL):
        own = tokenizer(part.strip("⟦⟧"), add_special_tokens=False)["input_ids"]
        ids += own
        mask += [part.startswith("⟦")] * len(own)
    return ids, mask


def rows(
    tokenizer: Any, given: list[Any], length: int = 4096, loss_on: str = "assistant", **more: Any
) -> Any:
    template = ChatTemplate(tokenizer, {})
    found = template.conversation(template.messages(given, "a.jsonl line 1"), "a.jsonl line 1", **more)
    cutter = TurnCutter(tokenizer, length)
    return [row.tokens for row in cutter.rows(found.text, found.layout(loss_on))], cutter._counts


@pytest.mark.parametrize("name", BY_HAND)
def test_every_token_of_a_conversation_is_as_by_hand(name: str) -> None:
    template, system, text = BY_HAND[name]
    tokenizer = templates.tokenizer(template)
    [row], counts = rows(tokenizer, messages(system))
    ids, mask = by_hand(tokenizer, text)
    assert ids_of(row).tolist() == ids
    assert is_predicted(row).tolist() == mask
    assert not counts
    assert 0 < sum(mask) < len(mask)
    # What transformers itself makes of the conversation is the same text.
    assert tokenizer.apply_chat_template(messages(system), tokenize=False) == re.sub("[⟦⟧]", "", text)


@pytest.mark.parametrize("name", BY_HAND)
def test_loss_on_all_and_on_the_last_turn(name: str) -> None:
    template, system, text = BY_HAND[name]
    tokenizer = templates.tokenizer(template)
    [row], _ = rows(tokenizer, messages(system), loss_on="all")
    assert is_predicted(row).all()
    [row], _ = rows(tokenizer, messages(system), loss_on="completion")
    last = text.rindex("⟦")
    assert is_predicted(row).tolist() == by_hand(tokenizer, re.sub("[⟦⟧]", "", text[:last]) + text[last:])[1]


def test_turns_that_a_template_moves_are_found_all_the_same() -> None:
    """What the system says stands in the last of the user's turns: no beginning of the text is one of the whole."""
    tokenizer = templates.tokenizer(templates.MISTRAL)
    text = BY_HAND["Mistral"][2].replace("Und", "Be kind.\n\nUnd")
    [row], _ = rows(tokenizer, messages(True))
    ids, mask = by_hand(tokenizer, text)
    assert ids_of(row).tolist() == ids
    assert is_predicted(row).tolist() == mask
    template = ChatTemplate(tokenizer, {})
    found = template.conversation(template.messages(messages(True), ""), "")
    plain = re.sub("[⟦⟧]", "", text)
    assert [plain[start:] for start in found.layout("assistant").exchanges] == [
        plain[plain.rindex("[INST] Be") :]
    ]
    assert "".join(plain[a:b] for a, b in found.given()) == "<s>[INST] [/INST] </s>[INST] \n\n[/INST] </s>"


def test_thoughts_that_a_template_leaves_out_are_refused_or_predicted_as_it_writes_them() -> None:
    tokenizer = templates.tokenizer(templates.THINKING)
    given = messages(False)
    given[1]["content"] = "<think>hm</think>Hier."
    with pytest.raises(InputError, match="generation"):
        rows(tokenizer, given)
    given = [given[0], {"role": "assistant", "content": "<think>hm</think>Hier."}]
    [row], _ = rows(tokenizer, given)
    assert tokenizer.decode(ids_of(row)[is_predicted(row)]) == "<think>hm</think>Hier.<|im_end|>"


CALL = {"function": {"name": "weather", "arguments": {"city": "Ulm"}}}
WITH_TOOLS = [
    {"role": "user", "content": "Rain?"},
    {"role": "assistant", "tool_calls": [CALL]},
    {"role": "tool", "content": "none"},
    {"role": "assistant", "content": "No rain."},
]


def test_tool_calls_are_predicted_and_what_a_tool_says_is_not() -> None:
    tokenizer = templates.tokenizer(templates.TOOLS)
    [row], _ = rows(tokenizer, WITH_TOOLS, tools=[{"name": "weather"}])
    text = (
        '<|im_start|>system\n[{"name": "weather"}]<|im_end|>\n<|im_start|>user\nRain?<|im_end|>\n'
        '<|im_start|>assistant\n⟦<tool_call>{"name": "weather", "arguments": {"city": "Ulm"}}</tool_call><|im_end|>⟧\n'
        "<|im_start|>tool\nnone<|im_end|>\n<|im_start|>assistant\n⟦No rain.<|im_end|>⟧\n"
    )
    ids, mask = by_hand(tokenizer, text)
    assert ids_of(row).tolist() == ids
    assert is_predicted(row).tolist() == mask


def test_names_that_other_data_sets_give_to_roles() -> None:
    tokenizer = templates.tokenizer(templates.CHATML)
    given = [{"from": "human", "value": "Rain?"}, {"from": "gpt", "value": "No."}]
    [row], _ = rows(tokenizer, given)
    assert tokenizer.decode(ids_of(row)[is_predicted(row)]) == "No.<|im_end|>"
    parts = [{"role": "user", "content": [{"type": "text", "text": "Ra"}, {"type": "text", "text": "in?"}]}]
    [again], _ = rows(tokenizer, [*parts, given[1]])
    assert again.tolist() == row.tolist()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("text", "names no list of messages"),
        ([{"role": "user"}], "message 1: has no field text, content, value"),
        ([{"content": "a"}], "message 1: names no role"),
        ([{"role": "clown", "content": "a"}], "its role is none of system, developer, user"),
        (
            [{"role": "user", "content": [{"type": "image"}]}],
            "message 1: holds a part of type 'image', not text",
        ),
    ],
)
def test_what_is_no_conversation_is_refused(given: Any, message: str) -> None:
    with pytest.raises(InputError, match=re.escape("a.jsonl line 1") + ".*" + re.escape(message)) as caught:
        rows(templates.tokenizer(templates.CHATML), given)
    assert "clown" not in str(caught.value)  # it may be a person's name


def test_what_a_template_refuses_is_told_in_its_words() -> None:
    with pytest.raises(InputError, match=r"line 1: the chat template refuses .*: System role not supported"):
        rows(templates.tokenizer(templates.GEMMA), messages(True))


def test_a_tokenizer_without_a_template_is_refused() -> None:
    with pytest.raises(InputError, match="chat_template: chatml"):
        ChatTemplate(templates.tokenizer(None), {})


@pytest.mark.parametrize(
    ("template", "mark"),
    [
        (templates.LLAMA_3, "<|eot_id|>"),
        (templates.GEMMA, "<end_of_turn>"),
        (templates.MISTRAL, "</s>"),
        (templates.PHI, "<|end|>"),
        (templates.MARKED, "<|im_end|>"),
        ("{% for m in messages %}{{ m['role'] + ': ' + m['content'] + '\n' }}{% endfor %}", ""),
    ],
)
def test_the_mark_that_ends_a_turn(template: str, mark: str) -> None:
    assert ChatTemplate(templates.tokenizer(template), {}).end_mark() == mark


# --- rows


def talk(*lengths: int) -> list[dict[str, str]]:
    return [
        {"role": ("user", "assistant")[at % 2], "content": "x" * length} for at, length in enumerate(lengths)
    ]


# The marks of ChatML: a user's turn has 8 tokens more than what is said, an answer 13.
@pytest.mark.parametrize(
    ("lengths", "length", "sizes", "counted"),
    [
        ((10, 10, 10, 10), 82, [82], {}),
        ((10, 10, 10, 10), 81, [41, 41], {}),  # an exchange each
        ((10, 10, 10, 10), 41, [41, 41], {}),
        ((30, 10, 10, 10), 41, [23, 41], {NOTHING_LEARNT: 1}),  # the first question is a row of its own
        ((10, 40, 10, 10), 41, [41, 12, 41], {NOTHING_LEARNT: 1, ANSWERS_CUT: 1}),
        ((60, 10), 41, [23], {NOTHING_LEARNT: 2, TURNS_CUT: 1}),
    ],
)
def test_rows_end_between_turns(lengths, length, sizes, counted) -> None:
    found, counts = rows(templates.tokenizer(templates.CHATML), talk(*lengths), length)
    assert [len(row) for row in found] == sizes
    assert counts == counted


def test_rows_of_a_text_that_is_all_learnt_hold_every_token() -> None:
    tokenizer = templates.tokenizer(templates.CHATML)
    found, counts = rows(tokenizer, talk(60, 50, 10, 10), 41, "all")
    [whole], _ = rows(tokenizer, talk(60, 50, 10, 10), 4096, "all")
    assert np.concatenate(found).tolist() == whole.tolist()
    assert counts == {TURNS_CUT: 2}
