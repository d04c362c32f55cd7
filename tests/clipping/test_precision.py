"""Pitfalls 12 and 25: what is float32, or wider, whatever the model computes in."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

from confide.clipping import ClippedSum, factors, products
from confide.clipping.rounding import TWO_PARTS
from confide.clipping.rules import rules
from confide.clipping.units import Units
from tests.clipping.as_on_a_gpu import take_half_products
from tests.clipping.brute_force import (
    ROWS,
    UNITS,
    Batch,
    causal_loss,
    check,
    compare,
    rows,
    tiny,
)

torch.set_num_threads(1)

ONES = torch.ones(ROWS)
EACH = torch.arange(ROWS)


# --- pitfall 12: norms in bf16


def autocast_loss(model: nn.Module, batch: Batch) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        return causal_loss(model, batch)


@pytest.mark.parametrize("family", ["gpt2", "llama", "gemma2"])
def test_bf16_autocast(family: str) -> None:
    check(tiny(family), autocast_loss, rows(family), torch.tensor(UNITS["3"]), clip_norm=1.0, tolerance=0.03)


def bf16_norms(tokens: int) -> tuple[Tensor, Tensor]:
    """The engine's norms, and the same in float64 from the very factors that bf16 layers hand out."""
    torch.manual_seed(2)
    model = nn.Sequential(nn.Linear(48, 40, bias=False), nn.Tanh(), nn.Linear(40, 44, bias=False))
    seen: list[tuple[Tensor, Tensor]] = []

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return model(batch["x"]).float().square().mean((1, 2))

    def keep(module: nn.Module, args: tuple[Tensor], output: Tensor) -> None:
        given = args[0].bfloat16()
        output.register_hook(lambda grad: seen.append((grad, given)))

    batch = {"x": torch.randn(ROWS, tokens, 48)}
    handles = [layer.register_forward_hook(keep) for layer in (model[0], model[2])]
    loss(model, batch).sum().backward()
    for handle in handles:
        handle.remove()
    assert seen[0][0].dtype == torch.bfloat16
    squares = [torch.einsum("bto,bti->boi", g.double(), x.double()).square().sum((1, 2)) for g, x in seen]
    model.zero_grad()
    return ClippedSum(model, loss, 1.0).add(batch, EACH, ONES), torch.stack(squares).sum(0).sqrt()


@pytest.mark.parametrize("tokens", [3, 60])
def test_norms_of_bf16_layers_are_float32(tokens: int, monkeypatch: pytest.MonkeyPatch) -> None:
    found, expected = bf16_norms(tokens)
    right = found.double()
    # From factors they are rounded up, by what 60 positions may add up to.
    assert (right >= expected * (1 - 2e-5)).all()
    assert (right <= expected * (1 + 5e-4)).all()
    monkeypatch.setattr(
        factors,
        "inner_products",
        lambda first, second, dtype: torch.bmm(first.bfloat16(), second.mT.bfloat16()).float(),
    )
    monkeypatch.setattr(
        factors.Outer, "add_to", lambda self, dense, *_: dense.copy_(torch.bmm(self.left.mT, self.right))
    )
    found, _ = bf16_norms(tokens)
    assert not torch.allclose(found.double(), right, rtol=1e-4)


def test_gradients_by_row_of_bf16_layers_are_summed_in_float32() -> None:
    """Those of biases and norms: 500 positions in bf16, whose sum rounded to bf16 is off by a part in 500."""
    torch.manual_seed(0)
    grad = torch.rand(4, 500, 6).bfloat16()
    for layer in (nn.Linear(6, 6), nn.LayerNorm(6)):
        rule = next(rule for rule in rules() if rule.matches(layer))
        [(_, use)] = rule.uses(layer, frozenset({"bias"}), None, grad)
        assert use.grad.dtype == torch.float32
        assert torch.allclose(use.grad.double(), grad.double().sum(1), rtol=1e-6)


@pytest.mark.parametrize("shape", [(6, 20), (20, 6)])
@pytest.mark.parametrize("units", ["1", "3", "8"])
def test_products_of_bf16_factors_as_a_gpu_takes_them(shape, units, monkeypatch: pytest.MonkeyPatch) -> None:
    """The arithmetic around the GPU's own product, which is emulated: exact products, float32 sums."""
    torch.manual_seed(0)
    p, q = shape
    use = factors.Outer(torch.randn(ROWS, 40, p).bfloat16(), torch.randn(ROWS, 40, q).bfloat16())
    grouped, scale = Units.of(torch.tensor(UNITS[units])), torch.rand(ROWS)

    def everything() -> list[Tensor]:
        dense, total = torch.full((grouped.count, p, q), torch.nan), torch.full((p, q), torch.nan)
        for fresh in (True, False):
            use.add_to(dense, grouped, fresh)
            use.add_scaled(total, scale, fresh)
        return [*use.squares(grouped), dense, total]

    expected, taken = everything(), []
    take_half_products(monkeypatch, taken)
    monkeypatch.setattr(products, "_HALF_BLOCK", 8)
    largest = torch.einsum("b,bnp,bnq->pq", scale, use.left.float().abs(), use.right.float().abs())
    *found, summed = everything()
    for values, wanted in zip(found, expected, strict=False):
        assert torch.allclose(values, wanted, rtol=1e-5, atol=1e-5)
    assert ((summed - expected[-1]).abs() < TWO_PARTS * 2 * largest).all()  # it was added up twice
    assert {dtype for dtype, _ in taken} == {torch.bfloat16}
    assert use.width == 8
    assert use.double().width == 20
    taken.clear()
    use.squares(grouped)
    assert max(terms for _, terms in taken) == 8, "a longer sum than the rounding that is allowed for"
    once = lambda values: iter([values.bfloat16()])  # noqa: E731 - the scaled factor rounded to bf16
    monkeypatch.setattr(factors, "two_parts", once)
    assert ((everything()[-1] - expected[-1]).abs() > TWO_PARTS * 2 * largest).any()


@pytest.mark.parametrize("piece", [1, 7, 50, 10_000])
@pytest.mark.parametrize("together", [7, 1024])
@pytest.mark.parametrize("units", ["1", "3", "8"])
def test_norms_of_matrices_formed_a_piece_at_a_time(units, together, piece, monkeypatch) -> None:
    torch.manual_seed(0)
    use = factors.Outer(torch.randn(ROWS, 40, 6).bfloat16(), torch.randn(ROWS, 40, 5).bfloat16())
    unit, taken = torch.tensor(UNITS[units]), []
    grouped = Units.of(unit)
    each = torch.einsum("bnp,bnq->bpq", use.left.double(), use.right.double())
    dense = torch.zeros(grouped.count, 6, 5, dtype=torch.float64).index_add_(0, unit, each)
    use = factors.Outer(grouped.sort(use.left), grouped.sort(use.right))
    take_half_products(monkeypatch, taken)
    monkeypatch.setattr(factors, "PIECE", piece)
    monkeypatch.setattr(factors, "_TOGETHER", together)
    squares = use.matrix_squares(grouped)[grouped.number]
    exact = dense.square().sum((1, 2))
    assert torch.allclose(squares, exact, rtol=1e-5)
    assert max(terms for _, terms in taken) <= together, "a longer sum than the rounding that is allowed for"


def test_bounds_hold_if_a_gpu_rounds_as_badly_as_it_may() -> None:
    """The norm is of a matrix that is too small, the sum too large: of 1,024 positions, the longest of a sum."""
    torch.manual_seed(0)
    left, right = torch.rand(8, 128, 2).add(0.5).bfloat16(), torch.rand(8, 128, 3).add(0.5).bfloat16()
    exact = torch.einsum("bnp,bnq->pq", left.double(), right.double())
    use, units = factors.Outer(left, right), Units.one(8)
    length = float((left.double().norm(dim=-1) * right.double().norm(dim=-1)).sum())
    with pytest.MonkeyPatch.context() as patch:
        take_half_products(patch, worst=-1)
        norm = float(use.matrix_squares(units).sqrt())
        assert norm < exact.norm() <= norm + use.matrix_error() * length
        # No part of the allowance is idle: half of it would not do.
        assert exact.norm() > norm + use.matrix_error() * length / 2
    with pytest.MonkeyPatch.context() as patch:
        take_half_products(patch, worst=1)
        total = torch.empty(2, 3)
        use.add_scaled(total, torch.full((8,), 1 / 3), True)
        off = (total - exact / 3).norm()
        assert use.sum_error(1) * length / 6 < off <= use.sum_error(1) * length / 3
        patch.setattr(factors, "gamma", lambda terms, roundoff: 0.0)
        assert use.sum_error(1) >= TWO_PARTS


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_norms_are_taken_again_in_float64_without_a_copy_of_wide_factors(
    dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    use = factors.Outer(torch.randn(ROWS, 5, 50).to(dtype), torch.randn(ROWS, 5, 6).to(dtype))
    unit, seen = torch.tensor(UNITS["3"]).sort().values, []
    grouped = Units.of(unit)
    each = torch.einsum("bnp,bnq->bpq", use.left.double(), use.right.double())
    dense = torch.zeros(3, 50, 6, dtype=torch.float64).index_add_(0, unit, each)
    monkeypatch.setattr(products, "BLOCK", 16)
    monkeypatch.setattr(factors, "BLOCK", 16)
    blocks = products.blocks

    def watched(*given: object) -> Iterator[tuple[slice, Tensor]]:
        return (seen.append(block) or (columns, block) for columns, block in blocks(*given))

    for module in (factors, products):
        monkeypatch.setattr(module, "blocks", watched)
    squares, _ = use.double().squares(grouped)
    assert torch.allclose(squares[grouped.number], dense.square().sum((1, 2)), rtol=1e-12)
    assert {block.dtype for block in seen} == {torch.float64}
    assert max(block.shape[-1] for block in seen) == 16


HIGH = 1e9  # a clip norm that clips nothing, so that norms are measured


def test_autocast_around_the_call_does_not_reach_the_norms() -> None:
    model, batch = tiny("llama"), rows("llama")
    with torch.autocast("cpu", torch.bfloat16):
        inside = ClippedSum(model, causal_loss, HIGH)
        norms = inside.add(batch, EACH, ONES)
    gradient = inside.take()
    outside = ClippedSum(model, autocast_loss, HIGH)
    assert torch.equal(norms, outside.add(batch, EACH, ONES))
    compare(gradient, outside.take(), 1e-6)

    def float32_loss(model: nn.Module, batch: Batch) -> Tensor:
        with torch.autocast("cpu", enabled=False):
            return causal_loss(model, batch)

    short = rows("llama", tokens=4)  # so that norms come from Gram matrices
    with torch.autocast("cpu", torch.bfloat16):
        norms = ClippedSum(model, float32_loss, HIGH).add(short, EACH, ONES)
    assert torch.equal(norms, ClippedSum(model, causal_loss, HIGH).add(short, EACH, ONES))


# --- pitfall 25: float32 norm over one long run


def test_the_norm_of_a_large_matrix_is_not_biased() -> None:
    values = torch.randn(1, 3000, 4000, generator=torch.Generator().manual_seed(0)).mul_(1e-3)
    exact = sum(float(part.double().square().sum()) for part in values[0].split(500))
    assert float(factors.row_squares(values)) == pytest.approx(exact, rel=1e-7)
    long = float(torch.linalg.vector_norm(values.flatten())) ** 2
    assert long != pytest.approx(exact, rel=1e-5), "the fault this guards against is gone from torch"


def test_the_norm_of_a_wide_bias_is_not_biased() -> None:
    values = torch.rand(2, 1_000_000, generator=torch.Generator().manual_seed(0))
    assert torch.allclose(factors.row_squares(values), values.double().square().sum(1), rtol=1e-9)


def test_an_empty_part_has_no_norm() -> None:
    """What a rank has of a bias with fewer entries than there are ranks."""
    assert factors.row_squares(torch.zeros(1, 0)).tolist() == [0.0]
    assert factors.row_squares(torch.zeros(2, 0, 4)).tolist() == [0.0, 0.0]
