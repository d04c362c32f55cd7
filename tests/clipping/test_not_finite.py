"""A unit whose gradient is infinite or not a number adds nothing, changes nothing of the others, and ends no run."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from confide.clipping import ClippedSum, NonFiniteGradient, slot
from tests.clipping.brute_force import Batch, causal_loss, rows, tiny
from tests.clipping.nets import EACH, IDS, ONES, RAGGED, TestNet, ids_loss

torch.set_num_threads(1)

BAD = 3
"""A row, and its unit where each row is one."""


def spoilt(loss):
    """The same loss, but for a row `BAD`, if the batch says so, whose loss has a gradient that is no number."""

    def of(model: nn.Module, batch: Batch) -> Tensor:
        found = loss(model, {name: values for name, values in batch.items() if name != "factor"})
        return found * batch["factor"]

    return of


def without(batch: Batch, unit: Tensor, weight: Tensor, bad: int) -> tuple[Batch, Tensor, Tensor]:
    """The batch without a unit."""
    kept = unit != bad
    _, renumbered = torch.unique(unit[kept], return_inverse=True)
    return {name: values[kept] for name, values in batch.items()}, renumbered, weight[kept]


def sums(
    net: nn.Module, loss, batch: Batch, unit: Tensor, weight: Tensor
) -> tuple[dict[str, Tensor], Tensor]:
    summed = ClippedSum(net, loss, 1.0)
    norms = summed.add(batch, unit, weight)
    return summed.take(), norms


@pytest.fixture(params=["factors", "dense"])
def way(request, monkeypatch):
    """Norms from factors, or from a gradient of every unit."""
    monkeypatch.setattr(slot, "dense_is_faster", lambda *sizes: request.param == "dense")


CASES = {
    "linear": lambda: (TestNet(nn.Linear(6, 6)), ids_loss, IDS),
    "norm": lambda: (TestNet(nn.LayerNorm(6)), ids_loss, IDS),
    "tied": lambda: (tiny("gpt2"), causal_loss, rows("gpt2", tokens=4)),
    "llama": lambda: (tiny("llama"), causal_loss, rows("llama")),
}


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("unit", [EACH, RAGGED], ids=["rows", "ragged"])
@pytest.mark.parametrize("name", CASES)
def test_the_sum_is_what_it_would_be_without_that_unit(name, unit, value, way):
    torch.manual_seed(0)
    net, loss, batch = CASES[name]()
    factor = ONES.clone()
    factor[BAD] = value
    bad = int(unit[BAD])
    batch = batch | {"factor": factor}
    found, norms = sums(net, spoilt(loss), batch, unit, ONES)
    expected, others = sums(net, spoilt(loss), *without(batch, unit, ONES, bad))
    assert math.isinf(norms[bad])
    kept = torch.arange(len(norms)) != bad
    assert torch.allclose(norms[kept], others, rtol=1e-5)
    for parameter, values in expected.items():
        assert torch.allclose(found[parameter], values, rtol=1e-4, atol=1e-6), parameter


def test_a_large_unit_adds_nothing_either():
    net = TestNet(nn.Linear(6, 6))
    factor = ONES.clone()
    factor[BAD] = math.nan
    summed = ClippedSum(net, spoilt(ids_loss), 1.0)
    assert math.isinf(summed.add_large([(IDS | {"factor": factor}, ONES), (IDS | {"factor": ONES}, ONES)]))
    assert not any(values.any() for values in summed.take().values())


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("bad", [0, 1, 2])
def test_units_that_begin_or_end_in_a_batch_do_not_spoil_each_other(name, bad, way):
    """Three units, the first and the last of which have rows in other batches: one of the three is not finite."""
    torch.manual_seed(0)
    net, loss, batch = CASES[name]()
    unit = torch.arange(len(ONES)) * 3 // len(ONES)
    found = []
    for value in (1.0, math.nan):
        factor = torch.where(unit == bad, value, 1.0)
        summed, first, last = ClippedSum(net, spoilt(loss), 1.0), {}, {}
        summed.add(batch | {"factor": factor}, unit, ONES, {0: first, 2: last})
        found.append((first, summed.take(), last))
    for number, (fine, spoilt_one) in enumerate(zip(*found, strict=True)):
        for parameter, values in fine.items():
            if number != bad:
                assert torch.allclose(spoilt_one[parameter], values, rtol=1e-4, atol=1e-6), parameter
            elif number == 1:
                assert not spoilt_one[parameter].any(), parameter
    if bad != 1:
        assert any(not values.isfinite().all() for values in found[1][bad].values())


def test_a_unit_alone_adds_nothing():
    found, norms = sums(
        TestNet(nn.Linear(6, 6)), spoilt(ids_loss), IDS | {"factor": ONES * math.nan}, EACH, ONES
    )
    assert norms.isinf().all()
    assert not any(values.any() for values in found.values())


def test_without_a_clip_norm_no_unit_is_measured_and_a_sum_that_is_no_number_is_refused():
    net = TestNet(nn.Linear(6, 6))
    summed = ClippedSum(net, spoilt(ids_loss), None)
    summed.add(IDS | {"factor": ONES * math.nan}, EACH, ONES)
    with pytest.raises(NonFiniteGradient):
        summed.take()
