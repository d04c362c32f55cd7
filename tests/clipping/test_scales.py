"""Gradients of some tensors that are multiplied before they are clipped."""

from __future__ import annotations

import pytest
import torch

from confide.clipping import ClippedSum
from tests.clipping.brute_force import (
    UNITS,
    causal_loss,
    check,
    clipped_sum,
    compare,
    lora,
    masked_loss,
    rows,
    tiny,
)

torch.set_num_threads(1)

FACTORS = (3.0, 0.37, 1.0, 2.0)


def scales(model: torch.nn.Module) -> dict[str, float]:
    """Several factors over all kinds of tensors: tied embeddings, matrices, biases and norms."""
    names = [name for name, p in model.named_parameters() if p.requires_grad]
    return {name: FACTORS[number % len(FACTORS)] for number, name in enumerate(names)}


@pytest.mark.parametrize("units", UNITS)
@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_the_sum_is_that_of_a_loop(family: str, units: str) -> None:
    model = tiny(family)
    check(model, causal_loss, rows(family), torch.tensor(UNITS[units]), 1.0, scales=scales(model))


@pytest.mark.parametrize("units", UNITS)
@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_the_sum_is_that_of_a_loop_where_each_token_has_its_own_factor(family: str, units: str) -> None:
    """Tied embeddings, which are looked up and multiplied with; and a table and an output layer of their own."""
    model = tiny(family)
    generator = torch.Generator().manual_seed(3)
    tables = {
        name: 0.1 + 2 * torch.rand(len(p), 1, generator=generator)
        for name, p in model.named_parameters()
        if "wte" in name or "embed_tokens" in name or "lm_head" in name
    }
    assert tables
    own = scales(model) | tables
    check(model, causal_loss, rows(family), torch.tensor(UNITS[units]), 1.0, scales=own)


def test_the_sum_is_that_of_a_loop_with_adapters_and_with_masks() -> None:
    adapted, masked = lora(tiny("gpt2")), tiny("bert", "masked")
    units = torch.tensor(UNITS["ragged"])
    check(adapted, causal_loss, rows("gpt2"), units, 0.1, scales=scales(adapted))
    check(masked, masked_loss, rows("bert", "masked"), units, 1.0, scales=scales(masked))


def test_what_is_not_clipped_is_multiplied_too() -> None:
    model = tiny("gpt2")
    batch, units = rows("gpt2"), torch.tensor(UNITS["ragged"])
    weight = torch.ones(len(units))
    summed = ClippedSum(model, causal_loss, None, scales=scales(model))
    summed.add(batch, units, weight)
    expected, _ = clipped_sum(model, causal_loss, batch, units, weight, None, scales=scales(model))
    compare(summed.take(), expected)


def test_a_large_unit_is_clipped_as_a_small_one() -> None:
    model, batch = tiny("gpt2"), rows("gpt2")
    weight = torch.ones(len(batch["input_ids"]))
    whole, parts = (ClippedSum(model, causal_loss, 0.5, scales=scales(model)) for _ in range(2))
    norm = whole.add(batch, torch.zeros(len(weight), dtype=torch.int64), weight)
    pieces = [
        ({k: v[i : i + 3] for k, v in batch.items()}, weight[i : i + 3]) for i in range(0, len(weight), 3)
    ]
    # Norms are rounded up, each way by as much as its sums may be off.
    assert parts.add_large(pieces) == pytest.approx(float(norm), rel=1e-3)
    compare(parts.take(), whole.take(), 1e-3)


def test_no_unit_adds_more_than_the_clip_norm_whatever_the_scales() -> None:
    """Each unit alone: the norm of what it adds, over all tensors."""
    model, batch = tiny("gpt2"), rows("gpt2")
    summed = ClippedSum(model, causal_loss, 0.5, scales={"transformer.wte.weight": 50.0})
    for row in range(len(batch["input_ids"])):
        one = {name: values[row : row + 1] for name, values in batch.items()}
        [norm] = summed.add(one, torch.zeros(1, dtype=torch.int64), torch.ones(1)).tolist()
        added = sum(float(v.double().square().sum()) for v in summed.take().values()) ** 0.5
        assert norm > 0.5
        assert 0.499 < added <= 0.5
