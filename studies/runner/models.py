"""The models that studies start from."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer

from confide.config.loading import check
from confide.models.names import BUNDLED, location
from confide.runs.folder import Run
from confide.runs.loop import fine_tune
from confide.utils.files import write_text
from studies.runner import corpora
from studies.runner.study import Scale, Work


def stories(work: Work) -> Path:
    """Return stories260K; at `full`, the name of GPT-2 small on the hub, which the papers train."""
    if work.scale is Scale.FULL:
        return Path("gpt2")
    work.source("20newsgroups")
    assert work.data is not None
    return corpora.stories(work.data, work.folder / "models" / "stories260K")


_SHAPE = {
    "hidden_size": 128,
    "intermediate_size": 344,
    "head_dim": 16,
}  # in place of stories260K's 64, 172, 8


def one_million(work: Work) -> Path:
    """Pretrain a model of a million weights on WikiText-2, or find it: as stories260K, but twice as wide.

    It takes 1,500 steps of 64 rows; at `tiny`, two.
    """
    is_tiny = work.scale is Scale.TINY
    data = work.source("wikitext-2").parent
    folder = work.folder / "models" / "one-million"
    text = corpora.written(corpora.wikitext(data, "train"), folder / "text.jsonl", 20 if is_tiny else None)
    raw = {
        "model": str(_wider(stories(work), folder / "start")),
        "data": {"train": str(text), "eval": None, "max_length": 64, "duplicates": False},
        "privacy": {"mechanism": "none", "published_key": "study one-million"},
        "train": {
            "steps": 2 if is_tiny else 1500,
            "batch": 64.0,
            "learning_rate": 2e-3,
            "warmup": 1 if is_tiny else 100,
            "schedule": "linear",
            "micro_tokens": 4096,
            "checkpoint_every": 250,
        },
        "run": str(folder / "run"),
    }
    return pretrained(raw, "a model of a million weights on WikiText-2", work)


def pretrained(raw: dict[str, Any], what: str, work: Work) -> Path:
    """Train a config, or go on with it, or find what it has released: a folder.

    Raises:
        KeyboardInterrupt: somebody interrupted it.
    """
    run = Run(check(raw, f"a study's pretraining of {what}"))
    if not run.release.is_dir():
        work.console.say(f"pretraining {what}")
        if not fine_tune(run, work.console).finished:
            raise KeyboardInterrupt
    return run.release


def _wider(narrow: Path, folder: Path) -> Path:
    """Write the config.json of a wider model, with the tokenizer of the narrow one beside it."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(narrow / name, folder / name)
    made = folder / "config.json"
    made.write_text(json.dumps(json.loads((narrow / "config.json").read_text("utf-8")) | _SHAPE), "utf-8")
    return made


def bundled(work: Work) -> Path:
    """Return the bundled model's name; stories260K at `tiny`; at `full`, the name of GPT-2 small on the hub."""
    return stories(work) if work.scale is not Scale.SMALL else Path(BUNDLED)


def own(work: Work) -> Path:
    """Return the bundled model's name, at `full` too, for studies of confide alone; stories260K at `tiny`."""
    return stories(work) if work.scale is Scale.TINY else Path(BUNDLED)


def gemma(work: Work, settings: Mapping[str, int]) -> Path:
    """Return the config.json of a small Gemma-2, to be trained from scratch, for the bundled tokenizer.

    Args:
        settings: keys of its config.
    """
    tokenizer = AutoTokenizer.from_pretrained(location(BUNDLED))
    name = "-".join(str(value) for value in settings.values())
    path = work.folder / "models" / f"gemma2-{name}" / "config.json"
    made = {
        "model_type": "gemma2",
        "architectures": ["Gemma2ForCausalLM"],
        "vocab_size": len(tokenizer),
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": settings["hidden_size"] // 4,
        "query_pre_attn_scalar": settings["hidden_size"] // 4,
        "max_position_embeddings": 256,
        "sliding_window": 64,
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
        **settings,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, json.dumps(made, indent=1) + "\n")
    return path
