"""Bases held in bf16, fp16, 8 or 4 bits, and the clipped sum over them beside a loop over the rows."""

from __future__ import annotations

import copy
import importlib.util
from collections.abc import Iterator

import pytest
import torch
from torch import nn

from confide.clipping import ClippedSum
from confide.config.loading import check
from confide.config.schema import Config
from confide.models import base as bases
from confide.models import loading as models
from confide.models.fast.activations import original_layers
from confide.models.quantised import Int8Linear, quantised, weight_of
from tests.models.test_loading import batch_of, task_of

WIDE = {"hidden_size": 64, "intermediate_size": 96}
UNITS = torch.tensor([0, 1, 0])


def needs(package: str) -> pytest.MarkDecorator:
    missing = importlib.util.find_spec(package) is None
    return pytest.mark.skipif(missing, reason=f"{package} is not installed")


NEEDS, NEEDS_TORCHAO = needs("bitsandbytes"), needs("torchao")
NF4 = pytest.param({"quantise": "nf4"}, marks=NEEDS, id="nf4")
INT8 = pytest.param({"quantise": "int8"}, marks=NEEDS, id="int8")
NF4_BF16 = pytest.param({"quantise": "nf4", "precision": "bf16"}, marks=NEEDS, id="nf4-bf16")
INT8_BF16 = pytest.param({"quantise": "int8", "precision": "bf16"}, marks=NEEDS, id="int8-bf16")
BY_TORCHAO = {"quantise": "int8", "quantiser": "torchao"}
TORCHAO = pytest.param(BY_TORCHAO, marks=NEEDS_TORCHAO, id="torchao")
TORCHAO_BF16 = pytest.param(BY_TORCHAO | {"precision": "bf16"}, marks=NEEDS_TORCHAO, id="torchao-bf16")
TORCHAO_FP16 = pytest.param(BY_TORCHAO | {"precision": "fp16"}, marks=NEEDS_TORCHAO, id="torchao-fp16")


def held(kinds: list[str], bases: list) -> list:
    """Each kind of model in each base, but GPT-2 by torchao, which knows no Conv1D."""
    pairs = [
        (kind, base if isinstance(base, tuple) else pytest.param(base)) for kind in kinds for base in bases
    ]
    return [
        pytest.param(
            kind, *base.values, marks=base.marks, id=f"{kind}-{base.id or base.values[0]['precision']}"
        )
        for kind, base in pairs
        if not (kind == "gpt2" and "quantiser" in base.values[0])
    ]


def settings(model: object, task: str = "causal-lm", **more: object) -> Config:
    data = {"train": "x", "unit": "user", "max_length": 32}
    if task == "classification":
        data["label"] = "label"
    raw = {"model": str(model), "tokenizer": "bundled", "task": task, "data": data}
    return check(raw | {"privacy": {"epsilon": 4.0}} | more)


def shaken(model: nn.Module) -> nn.Module:
    """Move what trains away from where it starts: half of LoRA is zero there."""
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for p in models.trainable(model).values():
            p.add_(0.05 * torch.randn(p.shape, generator=generator))
    return model.train()


def loaded(saved, kind: str, adapter: dict | None = None, **more: object):
    path, task = saved(kind)
    config = settings(path, task, adapter={"kind": "lora", "rank": 3} | (adapter or {}), **more)
    precision = config.train.precision
    model = models.load_model(config, 3 if task == "classification" else None)
    return shaken(model), task_of(model, task, precision)


class Plain(nn.Linear):
    """A linear layer whose output has the type of its input, under autocast too, as that of bitsandbytes."""

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return super().forward(values).to(values.dtype)


def plain_copy(model: nn.Module, dtype: torch.dtype = torch.float32) -> nn.Module:
    """The model with an ordinary linear layer for every quantised one, of the weights that this multiplies with."""
    twin = copy.deepcopy(model)
    for name, layer in list(quantised(model)):
        kind = nn.Linear if isinstance(layer, Int8Linear) else Plain
        own = kind(layer.in_features, layer.out_features, layer.bias is not None)
        own.weight = nn.Parameter(weight_of(layer).to(dtype), requires_grad=False)
        if layer.bias is not None:
            own.bias = nn.Parameter(layer.bias.detach().to(dtype), requires_grad=False)
        place = twin.get_submodule(name.rpartition(".")[0])
        setattr(place, name.rpartition(".")[2], own)
    return twin


def of_each(model: nn.Module, task, batch: dict, parameters: list) -> Iterator[tuple[torch.Tensor, ...]]:
    """Each row's gradient: of a pass of its own, by the model as written.

    In bf16 a row's own pass is rounded otherwise than one of all rows, so there each goes back from a pass of all.
    """
    if is_coarse(model, task):
        for row in range(len(UNITS)):
            yield torch.autograd.grad(task.row_loss(model, batch)[row], parameters)
        return
    with original_layers(model):
        for row in range(len(UNITS)):
            one = {name: values[row : row + 1] for name, values in batch.items()}
            yield torch.autograd.grad(task.row_loss(model, one).sum(), parameters)


def is_coarse(model: nn.Module, task) -> bool:
    return task.autocast or bases.computes_coarsely(model)


def by_rows(model: nn.Module, task, norms: torch.Tensor, clip: float) -> tuple[dict, torch.Tensor]:
    """The clipped sum by autograd alone, row by row; with the norms of units before clipping."""
    parameters, batch = models.trainable(model), batch_of(task)
    parts: dict[int, dict[str, torch.Tensor]] = {}
    for row, grads in enumerate(of_each(model, task, batch, list(parameters.values()))):
        own = parts.setdefault(int(UNITS[row]), {name: torch.zeros_like(p) for name, p in parameters.items()})
        for name, grad in zip(parameters, grads, strict=True):
            own[name] += grad
    total = {name: torch.zeros_like(p, dtype=torch.float64) for name, p in parameters.items()}
    found = []
    for unit, own in sorted(parts.items()):
        found.append(sum(float(g.double().square().sum()) for g in own.values()) ** 0.5)
        for name, grad in own.items():
            total[name] += grad.double() * min(1.0, clip / float(norms[unit]))
    return total, torch.tensor(found)


def error(model: nn.Module, task, beside: nn.Module | None = None, clip: float = 0.05) -> float:
    """How far the clipped sum is from a loop over the rows of a model, the same if no other is given."""
    clipped = ClippedSum(model, task.row_loss, clip)
    norms = clipped.add(batch_of(task), UNITS, torch.ones(3))
    found = clipped.take()
    expected, plain = by_rows(beside or model, task, norms, clip)
    assert (plain > clip).all(), "the test clips nothing"
    assert found.keys() == expected.keys()
    assert all(float(values.abs().max()) > 0 for values in expected.values())
    near = 0.01 if is_coarse(model, task) else 1e-4
    assert (norms >= plain * (1 - near)).all()
    gap = sum(float((found[name] - values).square().sum()) for name, values in expected.items())
    return (gap / sum(float(values.square().sum()) for values in expected.values())) ** 0.5
