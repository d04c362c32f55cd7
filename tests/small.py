"""Small models and graphs for tests: real architectures, a few thousand weights."""

from pathlib import Path

import numpy as np
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from confide.tasks import Task
from confide.units import GraphWriter, UnitGraph

VOCABULARY = 40


def gpt2(seed: int = 0) -> GPT2LMHeadModel:
    torch.manual_seed(seed)
    settings = GPT2Config(
        vocab_size=VOCABULARY,
        n_positions=32,
        n_embd=16,
        n_layer=2,
        n_head=2,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=0,
        eos_token_id=0,
    )
    return GPT2LMHeadModel(settings)


def task(kind: str = "causal-lm") -> Task:
    extra = frozenset({"position_ids"})
    return Task(kind, 0, 1, VOCABULARY, (0, 1), extra, False, torch.device("cpu"))


def graph(folder: Path, rows_per_unit: list[int], seed: int = 0, longest: int = 12) -> UnitGraph:
    """Rows of random tokens; unit u owns rows_per_unit[u] of them, rows of units interleaved."""
    generator = np.random.default_rng(seed)
    owners = generator.permutation(np.repeat(np.arange(len(rows_per_unit)), rows_per_unit))
    with GraphWriter(folder, vocabulary=VOCABULARY) as writer:
        for owner in owners:
            writer.add(generator.integers(2, VOCABULARY, generator.integers(2, longest)), [f"user{owner}"])
    return UnitGraph.open(folder)


def config_file(folder: Path) -> Path:
    """A config.json of a tiny GPT-2 for the bundled tokenizer, to start from scratch."""
    settings = GPT2Config(
        vocab_size=8192,
        n_positions=64,
        n_embd=16,
        n_layer=1,
        n_head=2,
        bos_token_id=0,
        eos_token_id=0,
        pad_token_id=1,
    )
    settings.save_pretrained(folder / "tiny")
    return folder / "tiny" / "config.json"
