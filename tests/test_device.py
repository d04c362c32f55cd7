"""What a real GPU computes against float64, and steps on it. On the CPU the same tests run, to be right when one is
there.

GPUs are hidden from the tests (conftest.py); to use one: CONFIDE_TEST_GPU=1 python -m pytest tests/test_device.py
tests/randomness/test_chacha_gpu.py
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from confide.clipping import ClippedSum
from confide.clipping.factors import Outer
from confide.clipping.rounding import TWO_PARTS
from confide.clipping.units import Units
from confide.distributed.ranks import Ranks
from confide.privacy.mechanisms.values import Aggregation
from confide.randomness.streams import RunKey
from confide.training import memory_fit as physical
from confide.training.optimisation import Optimisation
from confide.training.step import PrivateStep
from tests import small
from tests.training.test_step import Fixed, snapshot, some_draw

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(6, 21), (21, 6), (1, 1), (33, 20_001)])
@pytest.mark.parametrize("unit", [[0], [0, 1, 2, 3, 4], [0, 1, 1, 2, 2, 2], [0, 0, 0]])
def test_products_of_factors(dtype, shape, unit):
    """Norms from above by little, dense gradients and weighted sums to float32's precision, of factors as they are."""
    torch.manual_seed(0)
    rows, (p, q) = len(unit), shape
    left, right = (torch.randn(rows, 70, width).to(dtype) for width in shape)
    each = torch.einsum("bnp,bnq->bpq", left.double(), right.double())
    units, scale = Units.of(torch.tensor(unit)).on(DEVICE), torch.rand(rows)
    exact = torch.zeros(max(unit) + 1, p, q, dtype=torch.float64).index_add_(0, torch.tensor(unit), each)
    largest = float((left.double().norm(dim=2) * right.double().norm(dim=2)).sum())  # if nothing cancelled
    use = Outer(left.to(DEVICE), right.to(DEVICE))
    if use.has_half_products:
        assert torch.allclose(
            use.matrix_squares(units).cpu(), exact.square().sum((1, 2)), rtol=1e-4, atol=1e-5 * largest
        )
    for factors, near in ((use, 1e-5), (use.double(), 1e-12)):
        assert torch.allclose(
            factors.squares(units)[0].cpu(), exact.square().sum((1, 2)), rtol=near, atol=near * largest
        )
    for fresh in (True, False):
        dense = torch.full((len(exact), p, q), torch.nan if fresh else 0.0, device=DEVICE)
        use.add_to(dense, units, fresh)
        assert (dense.cpu() - exact).norm() < 1e-6 * largest
        total = torch.full((p, q), torch.nan if fresh else 0.0, device=DEVICE)
        use.add_scaled(total, scale.to(DEVICE), fresh)
        weighted = (scale.double()[:, None, None] * each).sum(0)
        assert (total.cpu() - weighted).norm() < (TWO_PARTS if use.has_half_products else 1e-6) * largest


@pytest.mark.parametrize(("bf16", "near"), [(False, 1e-4), (True, 0.03)])
def test_a_sum_of_clipped_gradients_is_that_of_the_cpu_in_float32(bf16, near):
    def taken(device: torch.device, autocast: bool) -> dict[str, torch.Tensor]:
        model = small.gpt2().to(device)
        task = replace(small.task(), autocast=autocast, device=device)
        clipped = ClippedSum(model, task.row_loss, 0.5)
        draw = some_draw()
        batch = task.collate(draw.rows)
        clipped.add(batch, torch.from_numpy(draw.group), torch.from_numpy(draw.weight))
        return {name: values.cpu() for name, values in clipped.take().items()}

    expected, found = taken(torch.device("cpu"), False), taken(DEVICE, bf16)
    off = sum(float((found[name] - values).square().sum()) for name, values in expected.items())
    assert off**0.5 < near * sum(float(values.square().sum()) for values in expected.values()) ** 0.5


@pytest.mark.parametrize("bf16", [False, True])
def test_steps_with_secure_noise_in_micro_batches_that_fit(bf16):
    """Twice the same, to rounding: noise is a function of the key; and halves change nothing but rounding."""
    ranks, moved = Ranks(device=DEVICE), []
    for share in (1, 2):
        model = small.gpt2().to(DEVICE)
        task = replace(small.task(), autocast=bf16, device=DEVICE)
        tokens = physical.fit(model, task, 12, ranks, 0)
        assert tokens >= 12
        step = PrivateStep(
            model,
            task,
            Fixed([some_draw()] * 3),
            Aggregation(0.5, 1.0, 0.25),
            Optimisation(3, 0.01),
            RunKey.from_text("device"),
            micro_tokens=max(12, min(tokens, 64) // share),
            ranks=ranks,
        )
        before = snapshot(model)
        for number in range(3):
            step(number)
        moved.append(torch.cat([(p - before[n]).flatten().cpu() for n, p in snapshot(model).items()]))
    assert moved[0].norm() > 0
    assert (moved[0] - moved[1]).norm() < (0.03 if bf16 else 1e-3) * moved[0].norm()
