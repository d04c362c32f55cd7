"""The engine against plain autograd on shapes that nobody chose: every kind of layer, ragged units, padding, tied
weights, adapters, bf16."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional
from transformers.models.llama.modeling_llama import LlamaRMSNorm
from transformers.pytorch_utils import Conv1D

from confide.clipping import ClippedSum
from confide.runs.verify import ROUNDED_UP
from tests.clipping.brute_force import Batch, lora, shaken

torch.set_num_threads(1)


@dataclass(frozen=True)
class Shape:
    """What is drawn."""

    vocabulary: int
    width: int
    inner: int
    tokens: int
    unit: tuple[int, ...]  # of each row
    bias: bool
    tied: bool
    adapter: bool
    padding: bool  # has the table a row that takes no gradient?
    seed: int


def _units(wanted: list[int]) -> tuple[int, ...]:
    """The same rows together, numbered without a gap."""
    numbers = {unit: place for place, unit in enumerate(dict.fromkeys(wanted))}
    return tuple(numbers[unit] for unit in wanted)


SHAPES = st.builds(
    Shape,
    vocabulary=st.integers(3, 40),
    width=st.integers(4, 24),
    inner=st.integers(2, 40),
    tokens=st.integers(2, 70),
    unit=st.lists(st.integers(0, 6), min_size=1, max_size=10).map(_units),
    bias=st.booleans(),
    tied=st.booleans(),
    adapter=st.booleans(),
    padding=st.booleans(),
    seed=st.integers(0, 1 << 30),
)


class Net(nn.Module):
    """One layer of every kind that has a rule of its own, and a head that may share the table."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.table = nn.Embedding(shape.vocabulary, shape.width, padding_idx=0 if shape.padding else None)
        self.norm = nn.LayerNorm(shape.width, bias=shape.bias)
        self.up = nn.Linear(shape.width, shape.inner, bias=shape.bias)
        self.rms = LlamaRMSNorm(shape.inner)
        self.down = Conv1D(shape.width, shape.inner)
        self.head = nn.Linear(shape.width, shape.vocabulary, bias=False)
        if shape.tied:
            self.head.weight = self.table.weight

    def forward(self, ids: Tensor) -> Tensor:
        values = self.table(ids)
        values = values + self.down(torch.tanh(self.rms(self.up(self.norm(values)))))
        return self.head(values)


def _loss(model: nn.Module, batch: Batch) -> Tensor:
    logits = model(batch["ids"][:, :-1]).float()
    each = functional.cross_entropy(logits.mT, batch["ids"][:, 1:], reduction="none")
    real = batch["real"][:, 1:]
    return (each * real).sum(1) / real.sum(1)


def _loss_in_bf16(model: nn.Module, batch: Batch) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        return _loss(model, batch)


def _made(shape: Shape) -> tuple[nn.Module, Batch, Tensor, Tensor]:
    """A model, rows of unequal length, the unit of each and its weight."""
    torch.manual_seed(shape.seed)
    model = shaken(Net(shape))
    if shape.adapter:
        model = lora(model, ["up", "down"])
    lengths = torch.randint(2, shape.tokens + 1, (len(shape.unit), 1))
    real = torch.arange(shape.tokens)[None] < lengths
    ids = torch.randint(shape.vocabulary, real.shape) * real
    return model, {"ids": ids, "real": real}, torch.tensor(shape.unit), torch.rand(len(shape.unit)) + 0.5


def _gradients(model, loss, batch: Batch, unit: Tensor, weight: Tensor) -> list[dict[str, Tensor]]:
    """Each unit's, by plain autograd, one row at a time."""
    named = {name: p for name, p in model.named_parameters() if p.requires_grad}
    found = [{name: torch.zeros_like(p) for name, p in named.items()} for _ in range(int(unit.max()) + 1)]
    for row, own in enumerate(unit.tolist()):
        alone = loss(model, {name: values[row : row + 1] for name, values in batch.items()})[0] * weight[row]
        for name, grad in zip(named, torch.autograd.grad(alone, list(named.values())), strict=True):
            found[own][name] += grad
    return found


def _length(gradient: dict[str, Tensor]) -> float:
    return float(torch.stack([g.double().square().sum() for g in gradient.values()]).sum().sqrt())


def _hold(shape: Shape, loss, tolerance: float) -> None:
    model, batch, unit, weight = _made(shape)
    gradients = _gradients(model, loss, batch, unit, weight)
    lengths = torch.tensor([_length(gradient) for gradient in gradients])
    clip = max(float(lengths.median()) * 0.9, 1e-3)
    engine = ClippedSum(model, loss, clip)
    norms = engine.add(batch, unit, weight)
    assert (norms >= lengths * (1 - tolerance)).all(), "a unit would add more than C"
    assert (norms <= lengths * (1 + ROUNDED_UP + tolerance)).all()
    scales = (clip / norms).clamp(max=1)
    expected = {
        name: sum(scale * gradient[name] for scale, gradient in zip(scales, gradients, strict=True))
        for name in gradients[0]
    }
    found = engine.take()
    assert _length({name: found[name] - expected[name] for name in expected}) <= tolerance * _length(expected)


@settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck))
@given(shape=SHAPES)
def test_any_shape(shape: Shape) -> None:
    _hold(shape, _loss, 2e-5)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(shape=SHAPES)
def test_any_shape_in_bf16(shape: Shape) -> None:
    _hold(shape, _loss_in_bf16, 0.03)
