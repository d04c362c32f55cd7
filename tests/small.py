"""Small models and graphs for tests: real architectures, a few thousand weights."""

from pathlib import Path

import numpy as np
import torch
import transformers
from transformers import GPT2Config, GPT2LMHeadModel

from confide.config import registry
from confide.data.unit_graph import GraphWriter, UnitGraph
from confide.training.tasks import Task

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
    return registry.task(kind)(0, 1, VOCABULARY, (0, 1), extra, False, torch.device("cpu"))


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


TOKENS = 8192  # of the bundled tokenizer
FAMILIES = ("bert", "roberta", "gpt2", "llama", "qwen2", "gemma2")


def family(kind: str, **changes) -> transformers.PretrainedConfig:
    """The config of a tiny model of a family, for the bundled tokenizer; with the dropout of its real kin."""
    if kind == "gpt2":
        sizes = {"n_positions": 64, "n_embd": 16, "n_layer": 2, "n_head": 2}
        special = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 1}
        return GPT2Config(**({"vocab_size": TOKENS} | sizes | special | changes))
    common = {
        "vocab_size": TOKENS,
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 32,
        "max_position_embeddings": 66,
        "pad_token_id": 1,
    }
    own = {
        "bert": {"type_vocab_size": 2},
        "roberta": {"type_vocab_size": 1},
        "llama": {"num_key_value_heads": 1, "attention_dropout": 0.1},
        "qwen2": {"num_key_value_heads": 1, "attention_dropout": 0.1},
        "gemma2": {
            "num_key_value_heads": 1,
            "head_dim": 8,
            "attention_dropout": 0.1,
            "sliding_window": 8,
            "bos_token_id": 0,
            "eos_token_id": 0,
        },
    }
    classes = {"bert": "Bert", "roberta": "Roberta", "llama": "Llama", "qwen2": "Qwen2", "gemma2": "Gemma2"}
    settings: transformers.PretrainedConfig = getattr(transformers, classes[kind] + "Config")(
        **(common | own[kind] | changes)
    )
    return settings


_HEADS = {
    "causal-lm": transformers.AutoModelForCausalLM,
    "masked-lm": transformers.AutoModelForMaskedLM,
    "classification": transformers.AutoModelForSequenceClassification,
}


def saved(folder: Path, kind: str, task: str = "causal-lm", seed: int = 0, **changes) -> Path:
    """A tiny model of a family as a folder in the format of the hub."""
    torch.manual_seed(seed)
    model = _HEADS[task].from_config(family(kind, **changes))
    with torch.no_grad():  # initial weights are so small, and biases so even, that much would not show
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    model.save_pretrained(folder)
    return folder
