"""The estimate of a step's memory, held against what the allocator gives out in one."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from confide.config.loading import check
from confide.models import loading as models
from confide.models.fast import chunked_loss
from confide.planning.cost import Size
from confide.planning.memory import Kept, kept, memory
from confide.privacy.mechanisms.values import Aggregation
from confide.privacy.sampling import Draw
from confide.randomness.streams import RunKey
from confide.training.memory_fit import optimizer_copies
from confide.training.optimisation import Optimisation
from confide.training.step import PrivateStep
from tests import small
from tests.models.bases import INT8, NF4, NF4_BF16, TORCHAO, TORCHAO_BF16
from tests.models.test_loading import task_of

ROWS, TOKENS = 16, 48
LLAMA = {"hidden_size": 128, "intermediate_size": 344, "num_hidden_layers": 3}
GPT2 = {"n_embd": 128, "n_layer": 3, "n_positions": 64}


class Same:
    def __init__(self) -> None:
        rows = [np.random.default_rng(i).integers(2, small.TOKENS, TOKENS) for i in range(ROWS)]
        self.batch = Draw(rows, np.arange(ROWS) // 2, np.full(ROWS, 0.5, np.float32))

    def draw(self, step: int) -> Draw:
        return self.batch


def peak(work) -> int:
    sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
    try:
        import _measure
    finally:
        sys.path.pop(0)
    return _measure.peak(work, torch.device("cpu"))


@pytest.mark.parametrize(
    ("kind", "base", "train"),
    [
        ("llama", {}, {}),
        ("gpt2", {}, {}),
        ("llama", {"precision": "bf16"}, {}),
        pytest.param("llama", *NF4.values, {}, marks=NF4.marks),
        pytest.param("gpt2", *NF4_BF16.values, {}, marks=NF4.marks),
        pytest.param("llama", *TORCHAO.values, {}, marks=TORCHAO.marks),
        pytest.param("llama", *TORCHAO_BF16.values, {}, marks=TORCHAO.marks),
        ("llama", {}, {"gradient_checkpointing": True}),
        ("llama", {}, {"precision": "bf16"}),
    ],
)
def test_a_lora_step_takes_what_the_plan_says_within_a_fifth(tmp_path, kind, base, train):
    path = small.saved(tmp_path / kind, kind, "causal-lm", **(GPT2 if kind == "gpt2" else LLAMA))
    settings = check(
        {
            "model": str(path),
            "tokenizer": "bundled",
            "data": {"train": "x", "unit": "u", "max_length": TOKENS},
            "privacy": {"epsilon": 4.0},
            "adapter": {"kind": "lora", "rank": 8},
            "base": base,
            "train": {"micro_tokens": ROWS * TOKENS} | train,
        }
    )
    model = models.load_model(settings)
    task = task_of(model, precision=settings.train.precision)
    size = Size.of(model)
    planned = memory(settings, size, kept(model, task, TOKENS))
    key, how = RunKey.from_text("x"), Optimisation(5, 1e-3)
    step = PrivateStep(model, task, Same(), Aggregation(1.0, 1.0, 1.0), how, key, micro_tokens=ROWS * TOKENS)
    step(0)
    measured = peak(lambda: step(1))
    assert planned.weights == sum(p.nbytes for p in model.parameters())
    # Weights and the optimiser's state lie there already.
    estimate = planned.whole - planned.weights - 4 * optimizer_copies(settings) * size.trainable
    assert 0.8 < estimate / measured < 1.2, (estimate, measured, planned)


@pytest.mark.parametrize("base", [NF4, TORCHAO])
def test_autograd_keeps_no_plain_weights_beside_a_quantised_base(tmp_path, base):
    path = small.saved(tmp_path / "llama", "llama", "causal-lm", **LLAMA)
    raw = {
        "model": str(path),
        "tokenizer": "bundled",
        "data": {"train": "x", "unit": "u", "max_length": TOKENS},
    }
    raw |= {"privacy": {"epsilon": 4.0}, "adapter": {"kind": "lora", "rank": 8}}
    once = {}
    for how, held in (("whole", {}), ("quantised", base)):
        model = models.load_model(check(raw | {"base": held}))
        once[how] = kept(model, task_of(model), TOKENS).once
    assert once["quantised"] < once["whole"] + 4 * 128 * 128, "the weights of one small layer"


def test_logits_in_chunks_are_counted_by_the_chunk(tmp_path, monkeypatch):
    """On a GPU; here a CPU is tried in its place. Whole logits would be most of the estimate."""
    monkeypatch.setattr(chunked_loss, "_LOGITS", {"cpu": 64 * 8192})
    path = small.saved(tmp_path / "llama", "llama", "causal-lm", **LLAMA)
    raw = {
        "model": str(path),
        "tokenizer": "bundled",
        "data": {"train": "x", "unit": "u", "max_length": TOKENS},
        "privacy": {"epsilon": 4.0},
        "adapter": {"kind": "lora", "rank": 8},
        "train": {"micro_tokens": ROWS * TOKENS},
    }
    settings = check(raw)
    model = models.load_model(settings)
    chunk, size = chunked_loss.chunk_of(model, torch.device("cpu")), Size.of(model)
    assert chunk == 64
    task = replace(task_of(model), chunk=chunk)
    planned = memory(settings, size, kept(model, task, TOKENS), chunk)
    step = PrivateStep(
        model, task, Same(), Aggregation(1.0, 1.0, 1.0), Optimisation(5, 1e-3), RunKey.from_text("x"),
        micro_tokens=ROWS * TOKENS,
    )  # fmt: skip
    step(0)
    measured = peak(lambda: step(1))
    estimate = planned.whole - planned.weights - 4 * optimizer_copies(settings) * size.trainable
    assert 0.8 < estimate / measured < 1.2, (estimate, measured, planned)
    plain = memory(settings, size, kept(model, replace(task, chunk=0), TOKENS))
    assert plain.whole - planned.whole > measured


def test_the_parts_add_up_and_grow_with_what_they_are_made_of():
    size = Size(1000, 10, 2, 16, 100, held_bytes=500)
    config = {"data": {"train": "x", "unit": "u", "max_length": 10}, "privacy": {"epsilon": 1.0}}
    config |= {"adapter": {"kind": "lora"}, "train": {"micro_tokens": 40, "optimizer": "sgd"}}
    found = memory(check(config), size, Kept(1000.0, 10.0, 1.0))
    assert (found.weights, found.trained) == (500, 4 * 10 * 2)
    assert found.activations == 1000 + 4 * (10 * 10 + 10**2)
    assert found.logits == 4 * 100 * 40
    assert found.whole == 500 + 80 + 1800 + 16000
    held = check(config | {"base": {"precision": "bf16"}})
    assert memory(held, size, Kept(0.0, 0.0, 0.0)).logits == 6 * 100 * 40


@pytest.mark.parametrize("base", [NF4, INT8, TORCHAO])
def test_a_quantised_base_counts_its_weights_and_not_its_bytes(tmp_path, base):
    path = small.saved(tmp_path / "llama", "llama", "causal-lm", **LLAMA)
    raw = {
        "model": str(path),
        "tokenizer": "bundled",
        "data": {"train": "x", "unit": "u", "max_length": 32},
        "privacy": {"epsilon": 4.0},
    }
    raw |= {"adapter": {"kind": "lora", "rank": 8}, "privacy": {"epsilon": 4.0}}
    whole = Size.of(models.load_model(check(raw)))
    packed = Size.of(models.load_model(check(raw | {"base": base})))
    assert packed.parameters == whole.parameters
    linear = 3 * (2 * 128 * 128 + 2 * 128 * 64 + 3 * 128 * 344)
    saved = 7 / 2 if base["quantise"] == "nf4" else 3  # bytes of each weight
    assert whole.weights_bytes - packed.weights_bytes == saved * linear
