"""The models that studies start from."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from transformers import AutoTokenizer

from confide.models.names import BUNDLED, location
from confide.utils.files import write_text
from studies import corpora
from studies.runner.study import Scale, Work


def stories(work: Work) -> Path:
    """Return stories260K; at `full`, the name of GPT-2 small on the hub, which the papers train."""
    if work.scale is Scale.FULL:
        return Path("gpt2")
    work.source("20newsgroups")
    assert work.data is not None
    return corpora.stories(work.data, work.folder / "models" / "stories260K")


def bundled(work: Work) -> Path:
    """Return the bundled model's name; stories260K at `tiny`; at `full`, the name of GPT-2 small on the hub."""
    return stories(work) if work.scale is not Scale.SMALL else Path(BUNDLED)


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
