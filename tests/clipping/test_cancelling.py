"""Gradients that nearly cancel: no rounding lifts what a unit contributes above the clip norm."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from confide.clipping import ClippedSum
from confide.clipping import slot as slots
from confide.clipping.slot import Slot

CLIP = 1e-2
ALONE = torch.zeros(1, dtype=torch.long)
ONE = torch.ones(1)


def product(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    """A loss whose gradient by the output is what the batch says."""
    return (model(batch["x"]) * batch["g"]).sum((1, 2))


def contributed(model: nn.Module, batch: dict[str, Tensor]) -> float:
    """The norm of what one unit adds, in clip norms."""
    clipped = ClippedSum(model, product, CLIP)
    clipped.add(batch, ALONE, ONE)
    return float(torch.cat([values.flatten() for values in clipped.take().values()]).double().norm()) / CLIP


@pytest.mark.parametrize(("positions", "width"), [(60, 256), (200, 1024), (500, 1024), (1000, 512)])
@pytest.mark.parametrize("apart", [1e-1, 3e-2, 1e-2, 3e-3, 1e-3, 0.0])
def test_positions_that_repeat_and_cancel(positions, width, apart, monkeypatch):
    """Their rounding errors are all the same, and add up."""
    monkeypatch.setattr(slots, "dense_is_faster", lambda *given: False)
    generator = torch.Generator().manual_seed(positions)
    left, right = (nn.functional.normalize(torch.rand(width, generator=generator) + 0.1, dim=0) for _ in "ab")
    aside = torch.randn(width, generator=generator)
    aside = nn.functional.normalize(aside - (aside @ right) * right, dim=0)
    other = right + apart * aside
    g = torch.stack([left if t % 2 else -left for t in range(positions)])[None]
    x = torch.stack([right if t % 2 else other for t in range(positions)])[None]
    model = nn.Linear(width, width, bias=False)
    found = contributed(model, {"x": x, "g": g})
    true = float((g[0].double().T @ x[0].double()).norm())
    assert found <= 1 + 1e-6
    if true > 1e-4 * positions:  # enough is left to be measured: not clipped much more than it has to be
        assert found > 0.9 * min(1.0, true / CLIP)


class Tied(nn.Module):
    def __init__(self, vocabulary: int, width: int) -> None:
        super().__init__()
        self.table = nn.Embedding(vocabulary, width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.table.weight

    def forward(self, ids: Tensor) -> Tensor:
        out: Tensor = self.head(self.table(ids))
        return out


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
def test_tied_tables_are_measured_again_too(tied, precision, monkeypatch):
    """Gradients of one entry that cancel but for a little."""
    monkeypatch.setattr(slots, "dense_is_faster", lambda *given: False)
    torch.manual_seed(0)
    model = Tied(30, 8) if tied else nn.Embedding(30, 8)
    g = torch.randn(1, 1, 30 if tied else 8)
    batch = {"x": torch.full((1, 2), 5), "g": torch.cat([g, -g * (1 + 1e-5)], 1)}
    again = []
    resolve = Slot.resolve
    monkeypatch.setattr(Slot, "resolve", lambda slot, doubt: again.append(doubt) or resolve(slot, doubt))
    with torch.autocast("cpu", torch.bfloat16, enabled=precision == torch.bfloat16):
        found = contributed(model, batch)
    assert found <= 1 + 1e-6
    # A table alone is measured and added as one tensor: there is nothing to doubt.
    assert again == ([True] if tied else [])


@given(
    seed=st.integers(0, 10**6),
    rows=st.integers(1, 6),
    tokens=st.integers(1, 40),
    width=st.integers(1, 48),
    out=st.integers(1, 48),
    users=st.integers(1, 6),
    cancelling=st.sampled_from([0.0, 0.9, 0.999, 1.0]),
    is_dense=st.booleans(),
    clip=st.sampled_from([1e-3, 1.0, 1e3]),
)
def test_any_layer_against_float64(seed, rows, tokens, width, out, users, cancelling, is_dense, clip):
    """Norms from above, by little; and each unit's part of the sum within the clip norm."""
    torch.manual_seed(seed)
    unit = torch.unique(torch.randint(users, (rows,)), return_inverse=True)[1]
    weight, x, g = torch.rand(rows), torch.randn(rows, tokens, width), torch.randn(rows, tokens, out)
    if tokens > 1:  # the second half takes back what the first one gives
        half = tokens // 2
        x[:, half : 2 * half], g[:, half : 2 * half] = x[:, :half], -cancelling * g[:, :half]
    each = torch.einsum("b,bto,bti->boi", weight.double(), g.double(), x.double())
    true = torch.zeros(int(unit.max()) + 1, out, width, dtype=torch.float64).index_add_(0, unit, each)
    norms = true.flatten(1).norm(dim=1)
    layer = nn.Linear(width, out, bias=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(slots, "dense_is_faster", lambda *given: is_dense)
        patch.setattr(slots.Allowance, "covers", lambda *given: True)
        clipped = ClippedSum(layer, product, clip)
        found = clipped.add({"x": x, "g": g}, unit, weight).double()
        total = clipped.take()["weight"].double()
    size = torch.zeros_like(norms).index_add_(
        0, unit, weight.double() * (x.norm(dim=2) * g.norm(dim=2)).sum(1)
    )
    assert torch.all(found >= norms - 1e-6 * size - 1e-12)
    assert torch.all(found <= norms + 2e-3 * size + 1e-12)
    scale = (clip / norms.clamp(min=1e-300)).clamp(max=1)
    rounding = 2e-3 * float((scale * size).sum()) + 1e-6
    assert float((total - torch.einsum("u,uoi->oi", scale, true)).norm()) <= rounding
    assert float(total.norm()) <= clip * len(norms) * (1 + 1e-5)
