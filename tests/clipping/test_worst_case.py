"""A search for the unit that adds most: |added| / C, where rounding errors all point one way."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from hypothesis import HealthCheck, given, settings, target
from hypothesis import strategies as st
from peft import LoraConfig, get_peft_model
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from confide.clipping import ClippedSum, engine
from confide.clipping import slot as slots
from confide.clipping.factors import Outer
from tests.clipping.as_on_a_gpu import take_half_products

torch.set_num_threads(1)

MOST = 1 + 1e-6
VOCABULARY = 11


class Tied(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.table = nn.Embedding(VOCABULARY, width)
        self.head = nn.Linear(width, VOCABULARY, bias=False)
        self.head.weight = self.table.weight

    def forward(self, ids: Tensor) -> Tensor:
        hidden = self.table(ids)
        return torch.cat([hidden, self.head(hidden)], -1)


class Adapted(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        inner = nn.Sequential(nn.Linear(width, width))
        self.inner = get_peft_model(inner, LoraConfig(r=3, target_modules=["0"], init_lora_weights=False))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.inner(x)
        return out


KINDS: dict[str, Callable[[int], nn.Module]] = {
    "linear": lambda width: nn.Linear(width, width, bias=False),
    "linear and bias": lambda width: nn.Linear(width, width),
    "conv1d": lambda width: Conv1D(width, width),
    "embedding": lambda width: nn.Embedding(VOCABULARY, width),
    "tied": Tied,
    "layer norm": nn.LayerNorm,
    "rms norm": nn.RMSNorm,
    "lora": Adapted,
}
OF_TOKENS = {"embedding", "tied"}
ORDERS = ("equal, then taken back", "taken back first", "by turns", "in the middle", "halves")


def signs(order: str, count: int) -> Tensor:
    """[count], how often each position gives the same gradient; in all about nothing."""
    values = torch.ones(count)
    if order == "equal, then taken back":
        values[-1] = 1.0 - count
    elif order == "taken back first":
        values[0] = 1.0 - count
    elif order == "in the middle":
        values[count // 2] = 1.0 - count
    elif order == "by turns":
        values[1::2] = -1
    else:
        values[count // 2 :] = -1
    return values


def product(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    """A loss whose gradient by the output is what the batch says."""
    return (model(batch["x"]).float() * batch["g"]).sum((1, 2))


def added(
    model: nn.Module, x: Tensor, g: Tensor, clip: float, half: bool = False, calls: int = 1
) -> tuple[float, float]:
    """What one unit's rows add, by plain float64 measure, in clip norms; and the norm that the engine gives it."""
    clipped = ClippedSum(model, product, clip)
    for _ in range(calls):
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            [norm] = clipped.add({"x": x, "g": g}, torch.zeros(len(x), dtype=torch.long), torch.ones(len(x)))
    total = torch.cat([values.flatten() for values in clipped.take().values()]).double().norm()
    return float(total) / clip / calls, float(norm)


@settings(max_examples=400, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    kind=st.sampled_from(list(KINDS)),
    rows=st.integers(1, 5),
    tokens=st.integers(2, 300),
    width=st.integers(2, 40),
    order=st.sampled_from(ORDERS),
    left=st.floats(0.5, 1.0, exclude_max=True, width=32),
    right=st.floats(0.5, 1.0, exclude_max=True, width=32),
    spread=st.sampled_from([0.0, 1e-7, 1e-3, 1.0]),
    rest=st.sampled_from([0.0, 1e-7, 1e-5, 1e-3]),
    clip=st.sampled_from([1e-6, 1e-4, 1e-2, 1.0]),
    half=st.sampled_from([False, True, "as on a GPU"]),
    is_dense=st.booleans(),
    is_held=st.booleans(),
    seed=st.integers(0, 1 << 20),
)
def test_no_unit_adds_more_than_c(
    kind, rows, tokens, width, order, left, right, spread, rest, clip, half, is_dense, is_held, seed
) -> None:
    torch.manual_seed(seed)
    model = KINDS[kind](width)
    out = width + VOCABULARY if kind == "tied" else width
    one = left * (1 + spread * torch.rand(out))
    g = (signs(order, rows * tokens)[:, None] * one + rest * torch.randn(rows * tokens, out)).view(
        rows, tokens, out
    )
    if kind in OF_TOKENS:
        x = torch.full((rows, tokens), seed % VOCABULARY)
        x[torch.rand(rows, tokens) < rest] = 0
    else:
        x = (right * (1 + spread * torch.rand(width))).expand(rows, tokens, width).contiguous()
    with pytest.MonkeyPatch.context() as patch:
        if half == "as on a GPU":
            take_half_products(patch)
        patch.setattr(slots, "dense_is_faster", lambda *given: is_dense)
        patch.setattr(slots.Allowance, "covers", lambda *given: is_held)
        found, _ = added(model, x, g, clip, bool(half))
    target(found)
    assert found <= MOST


def test_what_cancels_beyond_a_thousand_positions(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sum in float64 that was rounded on the way, between pieces, would be none: the search found 1.0001."""
    monkeypatch.setattr(slots, "dense_is_faster", lambda *given: False)
    tokens = 287
    model = KINDS["linear"](2)
    g = (signs("equal, then taken back", 4 * tokens)[:, None] * torch.full((2,), 0.75)).view(4, tokens, 2)
    found, _ = added(model, torch.full((4, tokens, 2), 0.5), g, 1e-6, True)
    assert found <= MOST


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("order", ORDERS[:2])
@pytest.mark.parametrize(("rows", "tokens"), [(16, 32), (1, 1024), (4, 1024)])
def test_one_token_repeated_and_taken_back(rows: int, tokens: int, order: str, half: bool) -> None:
    """Once up to 12.8 C."""
    torch.manual_seed(0)
    model = nn.Embedding(VOCABULARY, 768)
    g = (signs(order, rows * tokens)[:, None] * torch.rand(768)).view(rows, tokens, 768)
    found, _ = added(model, torch.full((rows, tokens), 5), g, 1e-3, half)
    assert found <= MOST


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("kind", ["linear", "lora", "tied"])
@pytest.mark.parametrize(("rows", "tokens"), [(16, 32), (1, 1024)])
def test_wide_layers_from_their_factors(
    rows: int, tokens: int, kind: str, half: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slots, "dense_is_faster", lambda *given: False)
    torch.manual_seed(0)
    model = KINDS[kind](768)
    out = 768 + VOCABULARY if kind == "tied" else 768
    g = (signs(ORDERS[0], rows * tokens)[:, None] * torch.rand(out)).view(rows, tokens, out)
    x = torch.full((rows, tokens), 5) if kind == "tied" else torch.rand(768).expand(rows, tokens, 768)
    found, _ = added(model, x, g, 1e-3, half)
    assert found <= MOST


def test_what_cancels_is_not_clipped_much_more_than_it_has_to_be(monkeypatch: pytest.MonkeyPatch) -> None:
    """Norm and sum are taken in float64: of 500 gradients what is left of one is found."""
    monkeypatch.setattr(slots, "dense_is_faster", lambda *given: False)
    torch.manual_seed(0)
    g = signs("by turns", 500)[None, :, None] * torch.rand(64)
    g[0, 0] *= 1 + 1e-2
    x = torch.rand(64).expand(1, 500, 64)
    true = float((g[0].double().T @ x[0].double()).norm())
    found, norm = added(nn.Linear(64, 64, bias=False), x, g, true / 10)
    assert true < 1e-4 * float((g.norm(dim=-1) * x.norm(dim=-1)).sum())
    assert true <= norm <= true * 1.001
    assert 0.999 < found <= MOST


def test_equal_parts_of_many_micro_batches_round_the_same_way(monkeypatch: pytest.MonkeyPatch) -> None:
    # So that no other bound covers it.
    monkeypatch.setattr(slots, "dense_is_faster", lambda *given: True)
    monkeypatch.setattr(slots.Allowance, "covers", lambda *given: True)
    monkeypatch.setattr(slots.Slot, "lift", lambda given: None)

    def found() -> Iterator[float]:
        model, one = nn.Linear(4, 4, bias=False), torch.ones(1, 1, 4)
        return (added(model, one, one, 1 + seed / 14, calls=400)[0] for seed in range(8))

    assert max(found()) <= MOST
    monkeypatch.setattr(engine, "last_error", lambda units, before, ranks: 0.0)
    assert any(each > MOST for each in found()), "the sum does not round as it did"


def test_the_norm_of_equal_elements() -> None:
    """Their squares round the same way in the runs that a norm is summed in."""
    for width in (1024, 4096):
        for seed in range(6):
            g = torch.full((1, 1, width), 0.5 + seed / 13)
            found, norm = added(nn.LayerNorm(width), torch.zeros(1, 1, width), g, 1e-3)
            assert norm >= float(g.double().norm())
            assert found <= MOST


@pytest.mark.parametrize("as_on_a_gpu", [False, True])
def test_a_units_norm_does_not_depend_on_the_units_beside_it(
    as_on_a_gpu: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On how many, how long or how cancelling they are: else more than C would hang on one of them."""
    monkeypatch.setattr(slots, "dense_is_faster", lambda *given: False)
    if as_on_a_gpu:
        take_half_products(monkeypatch)
    torch.manual_seed(0)
    model, x, g = nn.Linear(48, 48, bias=False), torch.randn(9, 60, 48), torch.randn(9, 60, 48)
    x[-1], g[-1] = x[-1, 0], signs(ORDERS[0], 60)[:, None] * g[-1, 0]

    def norms(rows: int) -> Tensor:
        batch = {"x": x[:rows], "g": g[:rows]}
        with torch.autocast("cpu", torch.bfloat16, enabled=as_on_a_gpu):
            return ClippedSum(model, product, 1.0).add(batch, torch.arange(rows), torch.ones(rows))

    if as_on_a_gpu:
        x, g = x.bfloat16().float(), g.bfloat16().float()
    true = torch.stack([(b.double().T @ a.double()).norm() for a, b in zip(x, g, strict=True)])
    lifted = norms(8)[:4] / true[:4]
    assert (lifted > 1 + 1e-4).all(), "nothing is rounded up that could differ"
    whole = norms(8)[:4]
    for others in (norms(4), norms(9)[:4]):
        assert torch.allclose(others, whole, rtol=2e-6)
    # A long row beside it makes dense gradients the faster way.
    monkeypatch.setattr(slots, "dense_is_faster", lambda *given: True)
    for is_held in (True, False):
        monkeypatch.setattr(slots.Allowance, "covers", lambda *given, is_held=is_held: is_held)
        for others in (norms(4), norms(8)[:4], norms(9)[:4]):
            assert torch.allclose(others, whole, rtol=2e-6)


@pytest.mark.parametrize("is_dense", [False, True])
def test_what_cancels_on_a_gpu_is_measured_by_its_matrix(
    is_dense: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not in float64, which is slow there, unless more than that cancels."""
    monkeypatch.setattr(slots, "dense_is_faster", lambda *given: is_dense)
    monkeypatch.setattr(slots.Allowance, "covers", lambda *given: False)
    take_half_products(monkeypatch)
    again: list[bool] = []
    double = Outer.double
    monkeypatch.setattr(Outer, "double", lambda use: again.append(True) or double(use))
    torch.manual_seed(0)
    for positions, cancels in ((600, False), (20_000, True)):
        x, g = (torch.randn(1, positions, 12).bfloat16().float() for _ in range(2))
        true = float((g[0].double().T @ x[0].double()).norm())
        length = float((g.norm(dim=-1) * x.norm(dim=-1)).sum())
        assert length > 20 * true
        found, norm = added(nn.Linear(12, 12, bias=False), x, g, true / 10, True)
        assert bool(again) is cancels
        assert true <= norm <= true * 1.03
        assert 0.97 < found <= MOST
