"""Chats and completions from a config to the graphs and the claim: units, selective and secret mechanisms, refusals."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer

from confide.config.loading import check
from confide.data.loss_mask import ids_of, is_predicted
from confide.models import loading as models
from confide.runs import preparation
from confide.training.tasks.causal_lm import CausalLM
from confide.utils.errors import InputError
from tests import small
from tests.command import World, confide, environment, refused

NAMES = ("Ana Lund", "Bo Reyes", "Cy Okafor", "Di Novak")
AGENTS = ("agent7", "agent9")


def talks(count: int = 24) -> list[dict[str, Any]]:
    """Conversations of four customers and two agents; each names its customer at a marked place."""
    found = []
    for number in range(count):
        name, agent = NAMES[number % 4], AGENTS[number % 2]
        opening = "Hello, I am "
        found.append(
            {
                "customer": name,
                "agent": agent,
                "turns": [
                    {
                        "role": "user",
                        "who": name,
                        "content": f"{opening}{name}. ",
                        "spans": [[12, 12 + len(name)]],
                    },
                    {
                        "role": "assistant",
                        "who": agent,
                        "content": f"Good day {name}!",
                        "spans": [[9, 9 + len(name)]],
                    },
                    {"role": "user", "who": name, "content": "Printer 3 is out of paper.", "spans": []},
                    {
                        "role": "assistant",
                        "who": agent,
                        "content": "The key is in the store room.",
                        "spans": [],
                    },
                ],
            }
        )
    return found


def settings(folder: Path, rows: list[dict[str, Any]], **changes: Any) -> Any:
    path = folder / "talks.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    raw: dict[str, Any] = {
        "chat_template": "chatml",
        "data": {
            "train": str(path),
            "messages": "turns",
            "unit": "customer",
            "eval": None,
            "max_length": 512,
        },
        "privacy": {"noise_multiplier": 1.0, "mechanism": "uls"},
    }
    for name, value in changes.items():
        section, _, key = name.rpartition("__")
        (raw.setdefault(section, {}) if section else raw)[key] = value
        if value is None and section == "data":
            del raw[section][key]
    return check(raw)


def prepared(folder: Path, config: Any) -> tuple[Any, Any]:
    tokenizer = models.load_tokenizer(config)
    return preparation.prepare(config, tokenizer, folder / "data"), tokenizer


def learnt(tokenizer: Any, row: np.ndarray) -> list[str]:
    """The stretches of a row that are predicted."""
    known, ids = is_predicted(row), ids_of(row)
    ends = np.flatnonzero(np.diff(np.concatenate([[False], known, [False]]).astype(int))).reshape(-1, 2)
    return [tokenizer.decode(ids[start:end]) for start, end in ends]


def test_answers_are_learnt_and_the_rest_is_read(tmp_path: Path) -> None:
    found, tokenizer = prepared(tmp_path, settings(tmp_path, talks()))
    assert found.train.unit_names() == list(NAMES)
    for row in found.train.fetch(np.arange(found.train.n_rows)):
        first, second = learnt(tokenizer, row)
        assert first.strip().startswith("Good day ")
        assert second.strip().startswith("The key is in the store room.")
    config = settings(tmp_path, talks(), train__loss_on="completion")
    found, tokenizer = prepared(tmp_path / "last", config)
    assert [len(learnt(tokenizer, row)) for row in found.train.fetch(np.arange(4))] == [1] * 4
    config = settings(tmp_path, talks(), train__loss_on="all")
    found, tokenizer = prepared(tmp_path / "all", config)
    assert found.train.tokens.dtype == np.uint16
    text = tokenizer.decode(found.train.fetch(np.arange(1))[0])
    assert "Hello, I am Ana Lund." in text


def test_the_loss_is_that_of_the_answers_alone() -> None:
    """By hand: what is read is not predicted, and tokens, marked or not, are the same to the model."""
    torch.manual_seed(0)
    model, task = small.gpt2(), small.task()
    ids = np.arange(2, 14)
    known = np.array([0, 0, 1, 1, 0, 0, 0, 1, 1, 1, 0, 1], bool)
    row = np.where(known, ids, ~ids).astype(np.int32)
    batch = task.collate([row, ids])
    assert isinstance(task, CausalLM)
    assert torch.equal(batch["input_ids"][0], batch["input_ids"][1])
    logs = model(torch.from_numpy(ids)[None]).logits[0].log_softmax(-1)
    each = np.array([-float(logs[at - 1, ids[at]]) for at in range(1, 12)])
    expected = [each[known[1:]].mean(), each.mean()]
    assert torch.allclose(task.row_loss(model, batch), torch.tensor(expected, dtype=torch.float32), rtol=1e-5)
    lines = task.collate_lines([[row, ids]], [np.ones(2)])
    assert torch.allclose(
        task.row_loss(model, lines)[0], torch.tensor(expected, dtype=torch.float32), rtol=1e-4
    )


@pytest.mark.parametrize(
    ("unit", "names"),
    [
        ("agent", AGENTS),
        (["customer", "agent"], (*NAMES, *AGENTS)),
        ("turns.who", (*NAMES, *AGENTS)),
        ("turns[user].who", NAMES),
        ("turns[assistant].who", AGENTS),
    ],
)
def test_the_unit_is_one_side_or_both(tmp_path: Path, unit: Any, names: tuple[str, ...]) -> None:
    mechanism = "uls" if set(names) != {*NAMES, *AGENTS} else "owners"
    config = settings(tmp_path, talks(), data__unit=unit, privacy__mechanism=mechanism)
    found, _ = prepared(tmp_path, config)
    assert set(found.train.unit_names()) == set(names)


def test_a_role_that_nobody_has_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match=r"line 1: data.unit names role 'boss', and no message of 'turns' has it"
    ):
        prepared(tmp_path, settings(tmp_path, talks(), data__unit="turns[boss].who"))


SELECTIVE = {
    "privacy__mechanism": "selective",
    "detector__spans": "spans",
    "detector__recall": 1.0,
    "redacted__steps": 2,
}


def test_spans_of_messages_are_masked_where_the_template_puts_them(tmp_path: Path) -> None:
    config = settings(tmp_path, talks(), **SELECTIVE)
    found, tokenizer = prepared(tmp_path, config)
    rows, masked = (graph.fetch(np.arange(graph.n_rows)) for graph in (found.train, found.public))
    for row, short in zip(rows, masked, strict=True):
        whole, hidden = (tokenizer.decode(ids_of(each)) for each in (row, short))
        name = next(name for name in NAMES if name in whole)
        assert hidden.count(tokenizer.mask_token) == 2
        assert not any(word in hidden for word in name.split())
        assert [part.strip()[:9] for part in learnt(tokenizer, row)] == ["Good day ", "The key i"]
        assert [part.strip()[:8] for part in learnt(tokenizer, short)] == ["Good day", "The key "]


def test_redacted_rows_end_between_turns(tmp_path: Path) -> None:
    """And what is learnt of a later row is known in both of its forms."""
    [talk] = talks(1)
    talk["turns"][3] = {**talk["turns"][3], "content": "Ask Zoe there.", "spans": [[4, 7]]}
    whole, tokenizer = prepared(tmp_path / "a", settings(tmp_path, [talk], **SELECTIVE))
    length = whole.train.n_tokens - 1
    config = settings(tmp_path, [talk], data__max_length=length, **SELECTIVE)
    cut, _ = prepared(tmp_path / "b", config)
    rows, masked = (graph.fetch(np.arange(graph.n_rows)) for graph in (cut.train, cut.public))
    texts = [tokenizer.decode(ids_of(row)) for row in rows]
    assert len(texts) == 2
    assert texts[1].startswith("<|im_start|>user\nPrinter 3")
    assert [part.replace("<|im_end|>", "") for part in learnt(tokenizer, rows[1])] == ["Ask Zoe there."]
    assert [part[:3] for part in learnt(tokenizer, masked[1])] == ["Ask"]


def test_spans_follow_a_text_whose_blanks_a_template_takes_away(tmp_path: Path) -> None:
    template = tmp_path / "own.jinja"
    template.write_text(
        "{% for m in messages %}{{ m['role'] + ': ' + m['content'] | trim + '\\n' }}{% endfor %}"
    )
    rows = talks(8)
    for row in rows:
        first = row["turns"][0]
        first["content"], first["spans"] = f"   {first['content']}", [[15, 15 + len(row["customer"])]]
    found, tokenizer = prepared(tmp_path, settings(tmp_path, rows, chat_template=str(template), **SELECTIVE))
    for row in found.public.fetch(np.arange(found.public.n_rows)):
        text = tokenizer.decode(ids_of(row))
        assert text.startswith(
            f"user: Hello, I am {tokenizer.mask_token}. "
        ) or "I am<mask>." in text.replace(" <", "<")


def test_a_secret_is_found_in_what_a_turn_says(tmp_path: Path) -> None:
    config = settings(
        tmp_path,
        talks(),
        data__unit=None,
        privacy__mechanism="secret",
        privacy__noise_multiplier=None,
        secrets__patterns={"name": "|".join(NAMES)},
        secrets__prior=0.001,
        secrets__posterior=0.1,
        data__max_length=64,
    )
    found, tokenizer = prepared(tmp_path, config)
    for row in range(found.train.n_rows):
        text = tokenizer.decode(ids_of(found.train.fetch(np.array([row]))[0]))
        assert bool(len(found.train.owners_of(row))) == any(name in text for name in NAMES)
    assert 0 < len(np.unique(found.train.unit_rows)) < found.train.n_rows


def test_a_prompt_is_read_and_its_completion_learnt_with_the_end(tmp_path: Path) -> None:
    rows = [{"who": name, "ask": f"What of {name}?", "tell": f"All of {name}."} for name in NAMES * 4]
    changes = {
        "data__messages": None,
        "data__unit": "who",
        "data__prompt": "{ask}\n",
        "data__completion": "tell",
    }
    config = settings(tmp_path, rows, **changes, chat_template=None)
    found, tokenizer = prepared(tmp_path, config)
    [row] = found.train.fetch(np.arange(1))
    assert tokenizer.decode(ids_of(row)).count("What of Ana Lund?\nAll of Ana Lund.") == 1
    assert learnt(tokenizer, row) == [f"All of Ana Lund.{tokenizer.eos_token}"]
    lists = [
        {
            "who": row["who"],
            "ask": [{"role": "user", "content": row["ask"]}],
            "tell": [{"role": "assistant", "content": row["tell"]}],
        }
        for row in rows
    ]
    changes["data__prompt"] = "ask"
    found, tokenizer = prepared(tmp_path / "lists", settings(tmp_path, lists, **changes))
    [row] = found.train.fetch(np.arange(1))
    assert learnt(tokenizer, row)[0].startswith("All of Ana Lund.<|im_end|>")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"data__completion": "a"}, "data.prompt: data.completion is given, and the two go together"),
        ({"data__prompt": "a", "data__completion": "b"}, "not both"),
        ({"data__text": "body"}, "data.text: data.messages is in place of it"),
        ({"task": "masked-lm"}, "data.messages: is for task causal-lm"),
        ({"data__strip_quotes": True}, "data.strip_quotes: is for mails"),
        ({"data__messages": None}, "chat_template: is of conversations"),
        (
            {"data__messages": None, "chat_template": None, "train__loss_on": "assistant"},
            "needs data.messages",
        ),
        ({"data__messages": None, "chat_template": None, "data__tools": "t"}, "data.tools: is of messages"),
    ],
)
def test_what_does_not_go_together_is_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        settings(tmp_path, talks(), **changes)


@pytest.fixture
def chats(tmp_path: Path, model: Path) -> World:
    path = tmp_path / "talks.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in talks(60)))
    world = World(tmp_path, model).set(chat_template="chatml")
    return world.set(
        data__train=str(path),
        data__messages="turns",
        data__unit="customer",
        data__max_length=64,
        data__eval=None,
    )


def test_a_run_on_chats_says_whose_side_it_protects(chats: World) -> None:
    done = confide("train", chats.path)
    assert done.code == 0, done.err
    told = json.loads((chats.run / "release" / "guarantee.json").read_text())
    assert "only what the assistant says is predicted" in told["rows_cut"]
    assert any("data.unit names customer, and whoever else speaks" in each for each in told["not_covered"])
    tokenizer = models.load_tokenizer(
        check({**chats.raw, "model": str(chats.run / "release"), "tokenizer": None})
    )
    assert "<|im_start|>assistant" in tokenizer.apply_chat_template(
        [{"role": "user", "content": "a"}], tokenize=False, add_generation_prompt=True
    )
    assert confide("verify", chats.run).code == 0


def test_a_released_chat_model_stops_where_a_turn_ends(chats: World) -> None:
    """In plain transformers too: by a token if one ends a turn, and by the card's words if several do."""
    marks = ["<|im_start|>", "<|im_end|>"]
    assert confide("train", chats.set(special_tokens=marks).path).code == 0
    tokenizer = AutoTokenizer.from_pretrained(chats.run / "release")
    settings = json.loads((chats.run / "release" / "generation_config.json").read_text())
    assert tokenizer.convert_tokens_to_ids("<|im_end|>") in settings["eos_token_id"]
    card = (chats.run / "release" / "README.md").read_text()
    assert "apply_chat_template" in card
    code = card.partition("```python\n")[2].partition("```")[0]
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=chats.run, env=environment()
    )
    assert done.returncode == 0, done.stderr
    plain = chats.set(special_tokens=[], run=str(chats.folder / "plain"))
    assert confide("train", plain.path).code == 0
    settings = json.loads((chats.folder / "plain" / "release" / "generation_config.json").read_text())
    assert settings["eos_token_id"] == 0  # the mark is several tokens of text there
    assert 'stop_strings=["<|im_end|>"]' in (chats.folder / "plain" / "release" / "README.md").read_text()


def test_a_file_that_is_no_template_is_refused(chats: World) -> None:
    refused(
        confide("prepare", chats.set(chat_template="nowhere.jinja").path),
        "chat_template: 'nowhere.jinja' is neither",
    )
