"""Chats and completions in a Trainer: they are read, learnt and evaluated as `confide train` does it."""

import json

import pytest
import torch
from datasets import Dataset
from transformers import GPT2LMHeadModel

import confide
from confide.data.chat import CHATML
from confide.integrations import PrivateTrainer
from confide.utils.errors import InputError
from tests.integrations.world import PRIVACY, arguments, furthest, made, rows, tokenizer


def chatting():
    own = tokenizer()
    own.chat_template = CHATML
    return own


def chats(**how):
    return [
        {
            "messages": [
                {"role": "user", "content": row["text"][:40]},
                {"role": "assistant", "content": row["text"][40:]},
            ],
            "author": row["author"],
        }
        for row in rows(**how)
    ]


def completions(**how):
    return [
        {"prompt": row["text"][:40], "completion": row["text"][40:], "author": row["author"]}
        for row in rows(**how)
    ]


def trainer(folder, data, privacy=PRIVACY, model=None, **given):
    return PrivateTrainer(
        model=made() if model is None else model,
        args=arguments(folder),
        train_dataset=Dataset.from_list(data),
        processing_class=chatting(),
        privacy=privacy,
        **given,
    )


@pytest.mark.parametrize("data", [chats(), completions()], ids=["messages", "prompt and completion"])
def test_the_weights_are_those_of_confide_train(tmp_path, data):
    base = tmp_path / "base"
    made().save_pretrained(base)
    chatting().save_pretrained(base)
    own = trainer(tmp_path / "own", data, model=GPT2LMHeadModel.from_pretrained(base))
    own.train()
    text = tmp_path / "text.jsonl"
    text.write_text("".join(json.dumps(row) + "\n" for row in data))
    raw = own.confide_config.model_dump(mode="json")
    raw["data"]["train"], raw["run"] = str(text), str(tmp_path / "run")
    confide.train(raw)
    released = GPT2LMHeadModel.from_pretrained(tmp_path / "run" / "release").state_dict()
    assert furthest(own.model.state_dict(), released) < 1e-6
    assert furthest(made().state_dict(), released) > 1e-3


def test_only_answers_are_learnt_unless_all_is_asked_for(tmp_path):
    """Questions that change nothing but what is read leave no gradient of their own."""
    answers = trainer(tmp_path / "answers", chats())
    everything = trainer(tmp_path / "all", chats(), PRIVACY | {"loss_on": "all"})
    assert (answers.confide_config.train.loss_on, everything.confide_config.train.loss_on) == (None, "all")
    for each in (answers, everything):
        each.train()
    assert furthest(answers.model.state_dict(), everything.model.state_dict()) > 1e-4


def test_the_evaluation_counts_the_tokens_that_are_learnt(tmp_path):
    found = trainer(tmp_path / "out", chats(), eval_dataset=Dataset.from_list(chats(number=3, seed=9)))
    measured = found.evaluate()["eval_loss"]
    own, model, losses = chatting(), found.model.eval(), []
    for chat in chats(number=3, seed=9):
        question, answer = (
            own(text, add_special_tokens=False)["input_ids"]
            for text in (
                f"<|im_start|>user\n{chat['messages'][0]['content']}<|im_end|>\n<|im_start|>assistant\n",
                f"{chat['messages'][1]['content']}<|im_end|>",
            )
        )
        after = own("\n", add_special_tokens=False)["input_ids"]
        ids = torch.tensor([question + answer + after])
        scores = torch.log_softmax(model(input_ids=ids).logits[0].double(), dim=1)
        places = range(len(question), len(question) + len(answer))
        losses += [-scores[place - 1, ids[0, place]].item() for place in places]
    assert measured == pytest.approx(sum(losses) / len(losses), abs=1e-5)


def test_speakers_are_units(tmp_path):
    data = chats()
    for chat in data:
        chat["messages"][0]["name"], chat["messages"][1]["name"] = chat["author"], "agent 1"
    found = trainer(tmp_path / "out", data, PRIVACY | {"unit": "messages[user].name"})
    found.train()
    assert "messages[user].name" in " ".join(found.guarantee.sentences())
    assert found.guarantee.public_facts


def test_tools_and_empty_lists_of_tools_are_read(tmp_path):
    tool = {"type": "function", "function": {"name": "open_ticket", "parameters": {"type": "object"}}}
    data = [{**chat, "tools": [tool] if at % 2 else None} for at, chat in enumerate(chats())]
    found = trainer(tmp_path / "out", data)
    assert found.confide_config.data.tools == "tools"
    found.train()
    assert found.guarantee.steps == 4


def test_without_a_chat_template_messages_are_a_dialogue(tmp_path):
    found = PrivateTrainer(
        model=made(),
        args=arguments(tmp_path / "out"),
        train_dataset=Dataset.from_list(chats()),
        processing_class=tokenizer(),
        privacy=PRIVACY,
    )
    assert (found.confide_config.data.messages, found.confide_config.data.text) == (None, "messages")
    found.train()


def test_a_message_of_an_unknown_role_is_refused_by_its_row(tmp_path):
    data = chats()
    data[7]["messages"][0]["role"] = "narrator"
    found = trainer(tmp_path / "out", data)
    with pytest.raises(
        InputError, match=r"document 7: message 1: its role is none of .* data\.speakers"
    ) as caught:
        found.train()
    assert "narrator" not in str(caught.value)  # it may be a person's name
