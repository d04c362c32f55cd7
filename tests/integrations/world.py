"""A tiny model, its tokenizer and a few users' texts, as the trainers' tests use them."""

from pathlib import Path

import numpy as np
import torch
from datasets import Dataset
from transformers import AutoTokenizer, GPT2Config, GPT2LMHeadModel, TrainingArguments

from confide.models.names import location

WORDS = "the printer on floor three is out of paper again and nobody has a key to the store room".split()
PRIVACY = {
    "mechanism": "uls",
    "epsilon": 8,
    "unit": "author",
    "max_length": 64,
    "published_key": "for a test",
}


def tokenizer():
    return AutoTokenizer.from_pretrained(location("bundled"))


def made(seed: int = 0) -> GPT2LMHeadModel:
    torch.manual_seed(seed)
    sizes = {"n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 64}
    return GPT2LMHeadModel(
        GPT2Config(vocab_size=8192, bos_token_id=0, eos_token_id=0, pad_token_id=1, **sizes)
    )


def rows(number: int = 90, authors: int = 30, seed: int = 1) -> list[dict]:
    draws = np.random.default_rng(seed)
    return [{"text": " ".join(draws.choice(WORDS, 20)), "author": f"a{at % authors}"} for at in range(number)]


def dataset(**how) -> Dataset:
    return Dataset.from_list(rows(**how))


def tokens(**how) -> Dataset:
    made_of = tokenizer()
    found = dataset(**how)
    return found.map(lambda row: {"input_ids": made_of(row["text"])["input_ids"]}, remove_columns="text")


def arguments(folder: Path, kind: type = TrainingArguments, **changes):
    settings = {
        "max_steps": 4,
        "per_device_train_batch_size": 8,
        "learning_rate": 1e-2,
        "logging_steps": 2,
        "save_steps": 2,
        "use_cpu": True,
        "disable_tqdm": True,
    }
    return kind(str(folder), **settings | changes)


def weights(model) -> dict[str, torch.Tensor]:
    return {name: values.detach().clone() for name, values in model.state_dict().items()}


def furthest(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    return max(float((one[name] - other[name]).abs().max()) for name in one)
