"""Each config of the how-to pages of mechanisms and tasks trains as it stands, on a few made-up texts.

Only sizes, steps and where a model lies are changed. What the pages call `mail.jsonl` and so on is made here.
"""

import json
import random
from pathlib import Path
from typing import Any

import pytest
import yaml

from confide.config.train_section import Train
from tests import small
from tests.command import WORDS, confide
from tests.pages import DOCS, Page

MECHANISMS, TASKS = Page(DOCS / "mechanisms.md"), Page(DOCS / "tasks.md")
CONFIGS = [
    pytest.param(block, id=f"{page.path.stem}-{key(yaml.safe_load(block))}")
    for page, key in (
        (MECHANISMS, lambda raw: raw["privacy"]["mechanism"]),
        (TASKS, lambda raw: raw.get("task", "")),
    )
    for block in page.blocks("yaml")
]

FEWER = {
    "train.steps": 1,
    "train.batch": 4,
    "redacted.steps": 1,
    "data.max_length": 16,
    "data.eval": 0.5,
    "train.eval_on_start": "false",
    "privacy.delta": 1e-3,
}
"""What is changed. The first three only where a config has them, and delta only where it has an epsilon."""


def fewer(raw: dict[str, Any]) -> list[str]:
    lacks = {key for key in ("train.steps", "train.batch", "redacted.steps") if not has(raw, key)}
    lacks |= set() if has(raw, "privacy.epsilon") else {"privacy.delta"}
    return [f"{key}={value}" for key, value in FEWER.items() if key not in lacks]


def has(raw: dict[str, Any], key: str) -> bool:
    section, _, name = key.partition(".")
    return name in raw.get(section, {})


@pytest.fixture
def texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The files that the configs name: texts of 20 people, with addresses, numbers and a code word."""
    monkeypatch.chdir(tmp_path)
    generator = random.Random(3)
    rows = []
    for number in range(60):
        body = " ".join(generator.choices(WORDS, k=12))
        who, other = f"p{number % 20}@example.org", f"p{number % 20 ^ (number % 20 < 6)}@example.org"
        text = f"{body} zugzwang {number}, or write to {who}"
        rows.append(
            {
                "body": text,
                "text": text,
                "from": who,
                "to": other,
                "customer": who,
                "team": ("a", "b")[number % 2],
            }
        )
    for name in ("mail", "reviews", "notes", "chats", "tickets"):
        Path(f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    Path("words.txt").write_text("zugzwang\n")
    return tmp_path


@pytest.mark.parametrize("block", CONFIGS)
def test_the_config_of_a_how_to_trains(block: str, texts: Path, model: Path) -> None:
    raw = yaml.safe_load(block)
    Path("shown.yaml").write_text(block)
    base = small.saved(texts / "base", "bert", "masked-lm") if raw.get("task") == "masked-lm" else model
    done = confide("train", "shown.yaml", f"model={base}", "tokenizer=bundled", *fewer(raw))
    assert done.code == 0, done.err
    claim = json.loads((texts / raw["run"] / "release" / "guarantee.json").read_text())
    assert (claim["notion"] == "none") == (raw["privacy"]["mechanism"] == "none")


def test_the_learning_rate_that_the_page_names_is_the_default() -> None:
    told = f"`train.learning_rate: {Train.model_fields['learning_rate'].default}`"
    assert told in MECHANISMS.text
