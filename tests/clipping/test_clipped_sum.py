"""The engine against a loop over units with plain autograd, over model families, heads and adapters."""

from __future__ import annotations

import math

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import nn

from confide.clipping import ClippedSum, engine, factors, slot
from confide.clipping.factors import Outer
from confide.clipping.rounding import exact
from confide.clipping.slot import Allowance, dense_is_faster
from confide.clipping.units import Units
from confide.config.model_sections import Adapter
from confide.models import adapters
from confide.models import loading as models
from tests.clipping.brute_force import (
    ABOVE,
    LOSSES,
    ROWS,
    UNITS,
    causal_loss,
    check,
    clipped_sum,
    compare,
    lora,
    rows,
    shaken,
    tiny,
)

torch.set_num_threads(1)

CAUSAL = ("gpt2", "llama", "gemma2", "qwen2", "qwen3")
MIXTURES = ("mixtral", "qwen3-moe", "gpt-oss")
OWN_CLASSES = ("falcon", "cohere", "nemotron", "biogpt", "opt", "bart")


def only(model: nn.Module, *parts: str) -> nn.Module:
    for name, p in model.named_parameters():
        p.requires_grad_(any(part in name for part in parts))
    return model


@pytest.mark.parametrize("units", UNITS)
@pytest.mark.parametrize("family", CAUSAL)
def test_full_fine_tuning(family: str, units: str) -> None:
    model = tiny(family, attention="eager" if units == "3" else "sdpa")
    check(model, causal_loss, rows(family), torch.tensor(UNITS[units]), clip_norm=1.0)


@pytest.mark.parametrize("units", ["1", "ragged"])
@pytest.mark.parametrize("family", OWN_CLASSES)
def test_families_with_linear_layers_norms_and_positions_of_their_own_class(family: str, units: str) -> None:
    # Norms are rounded up by what cancels: BioGPT's by 1.1e-5.
    check(tiny(family), causal_loss, rows(family), torch.tensor(UNITS[units]), clip_norm=1.0, tolerance=2e-5)


@pytest.mark.parametrize("family", OWN_CLASSES)
def test_adapters_of_families_with_classes_of_their_own(family: str) -> None:
    model = get_peft_model(tiny(family), LoraConfig(r=3, target_modules="all-linear")).eval()
    for units in ("1", "ragged"):  # as it begins, with half of it zero, and later on
        check(model, causal_loss, rows(family), torch.tensor(UNITS[units]), clip_norm=0.1, tolerance=2e-5)
        shaken(model)


@pytest.mark.parametrize("family", MIXTURES)
def test_adapters_of_mixtures_of_experts(family: str) -> None:
    model = shaken(adapters.adapt(tiny(family), Adapter(kind="lora", rank=3), "causal-lm"))
    trained = {name.split(".lora_")[0].rpartition(".")[2] for name in models.trainable(model)}
    assert trained == {"q_proj", "k_proj", "v_proj", "o_proj"}
    for units in ("1", "3", "ragged"):
        check(model, causal_loss, rows(family), torch.tensor(UNITS[units]), clip_norm=0.1)


@pytest.mark.parametrize("family", ["gpt2", "llama", "bert"])
@pytest.mark.parametrize("tied", [True, False])
def test_tied_and_untied_head(family: str, tied: bool) -> None:
    head = "masked" if family == "bert" else "causal"
    model = tiny(family, head, tie_word_embeddings=tied)
    if family == "bert" and not tied:  # an untied head leaves this one behind, used by nothing
        model.cls.predictions.bias.requires_grad_(False)
    for units in ("1", "8", "ragged"):
        check(model, LOSSES[head], rows(family, head), torch.tensor(UNITS[units]), clip_norm=1.0)


@pytest.mark.parametrize("units", UNITS)
@pytest.mark.parametrize("head", ["masked", "classify"])
@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_encoders(family: str, head: str, units: str) -> None:
    model = tiny(family, head)
    check(model, LOSSES[head], rows(family, head), torch.tensor(UNITS[units]), clip_norm=1.0)


@pytest.mark.parametrize("family", ["gpt2", "llama", "qwen3"])
def test_sequence_classification_of_decoders(family: str) -> None:
    check(
        tiny(family, "classify"),
        LOSSES["classify"],
        rows(family, "classify"),
        torch.tensor(UNITS["ragged"]),
        clip_norm=0.5,
    )


@pytest.mark.parametrize("family", [*CAUSAL, "bert", "roberta"])
def test_lora_on_all_linear_layers(family: str) -> None:
    head = "masked" if family in ("bert", "roberta") else "causal"
    model = lora(tiny(family, head))
    for units in ("1", "3", "ragged"):
        check(model, LOSSES[head], rows(family, head), torch.tensor(UNITS[units]), clip_norm=1.0)


def test_rank_stabilised_lora_with_a_head_of_its_own() -> None:
    model = lora(
        tiny("bert", "classify"), ["query", "value"], use_rslora=True, modules_to_save=["classifier"]
    )
    assert any("modules_to_save" in name for name, p in model.named_parameters() if p.requires_grad)
    batch = rows("bert", "classify")
    check(model, LOSSES["classify"], batch, torch.tensor(UNITS["ragged"]), clip_norm=0.5)


def test_a_frozen_embedding_needs_no_position_ids() -> None:
    batch = {name: v for name, v in rows("gpt2").items() if name != "position_ids"}
    check(lora(tiny("gpt2")), causal_loss, batch, torch.tensor(UNITS["3"]), clip_norm=1.0)


@pytest.mark.parametrize(
    ("family", "parts"),
    [
        ("gpt2", ["h.1.mlp", "ln_f"]),
        ("llama", ["norm"]),
        ("qwen3", ["q_norm", "k_norm"]),
        ("gpt2", ["bias"]),
        ("bert", ["bias"]),
        ("llama", ["embed_tokens"]),
        ("bert", ["LayerNorm.weight", "token_type"]),
    ],
)
def test_some_modules_and_biases_only(family: str, parts: list[str]) -> None:
    head = "masked" if family == "bert" else "causal"
    model = only(tiny(family, head), *parts)
    for units in ("1", "ragged"):
        check(model, LOSSES[head], rows(family, head), torch.tensor(UNITS[units]), clip_norm=0.02)


@pytest.mark.parametrize("adapter", ["full", "lora"])
@pytest.mark.parametrize("family", ["gpt2", "qwen3"])
def test_gradient_checkpointing(family: str, adapter: str) -> None:
    model = tiny(family) if adapter == "full" else lora(tiny(family))
    batch, unit, weight = rows(family), torch.tensor(UNITS["ragged"]), torch.ones(ROWS)
    plain = ClippedSum(model, causal_loss, 1.0)
    norms = plain.add(batch, unit, weight)
    model.train()
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    check(model, causal_loss, batch, unit, clip_norm=1.0)
    again = ClippedSum(model, causal_loss, 1.0)
    assert torch.allclose(again.add(batch, unit, weight), norms, rtol=1e-6)
    compare(again.take(), plain.take(), 1e-6)


def test_without_clipping_the_sum_is_the_plain_gradient() -> None:
    model, batch = tiny("gpt2"), rows("gpt2")
    engine = ClippedSum(model, causal_loss, None)
    norms = engine.add(batch, torch.tensor(UNITS["3"]), torch.ones(ROWS))
    assert len(norms) == len(set(UNITS["3"]))
    assert bool(norms.isnan().all())  # nobody's own norm is measured
    causal_loss(model, batch).sum().backward()
    compare(engine.take(), {n: p.grad for n, p in model.named_parameters() if p.grad is not None})


@pytest.mark.parametrize(
    ("positions", "p", "q", "of_rows", "expected"),
    [
        (128, 256, 1024, [1] * 16, True),  # a thin layer: its gradient is no larger than a Gram matrix or two
        (128, 768, 3072, [1] * 16, False),
        (128, 768, 3072, [8, 8], True),  # many positions a unit
        (128, 32, 768, [1] * 16, True),  # a LoRA factor
        (16, 32, 768, [1] * 16, False),
    ],
)
def test_the_cost_model(positions, p, q, of_rows, expected) -> None:
    units = Units.of(torch.repeat_interleave(torch.arange(len(of_rows)), torch.tensor(of_rows)))
    assert dense_is_faster(units, positions, p, q) is expected


def test_dense_gradients_take_no_more_than_they_are_allowed() -> None:
    allowance = Allowance(100)
    assert allowance.covers(150, 60)  # 90 more than before
    assert not allowance.covers(80, 60)
    assert allowance.covers(20, 40)  # less than before leaves more for others
    assert allowance.covers(80, 60)


@pytest.mark.parametrize("touched", [0, slot._TOUCHED, math.inf])
@pytest.mark.parametrize("units", ["1", "3", "8"])
@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_both_sides_of_the_cost_model_agree(monkeypatch, touched, units, family) -> None:
    """All dense, as the model says, all factors; each also of a tied embedding and over several strips."""
    monkeypatch.setattr(slot, "_TOUCHED", touched)
    monkeypatch.setattr(factors, "_STRIP", 5)
    if touched == 0:
        monkeypatch.setattr(Allowance, "covers", lambda *given: True)
    batch = rows(family, tokens=12)
    # Norms from factors are rounded up, the more the more positions a unit has.
    check(tiny(family), causal_loss, batch, torch.tensor(UNITS[units]), clip_norm=1.0, tolerance=5e-5)


@pytest.mark.parametrize("units", UNITS.values())
def test_norms_of_long_units_from_half_a_gram_matrix(units: list[int]) -> None:
    torch.manual_seed(0)
    grouped = Units.of(torch.tensor(units))
    use = Outer(torch.randn(ROWS, 150, 5), torch.randn(ROWS, 150, 3))
    dense = torch.full((grouped.count, 5, 3), math.nan)
    use.add_to(dense, grouped, fresh=True)
    squares, lengths = use.squares(grouped)
    assert torch.allclose(squares, dense.double().square().sum((1, 2)), rtol=1e-5)
    apart = use.left.double().norm(dim=2) * use.right.double().norm(dim=2)
    assert torch.allclose(lengths, grouped.total(apart.sum(1)), rtol=1e-5)
    rows_each = torch.einsum("bnp,bnq->bpq", use.left.double(), use.right.double())
    expected = torch.zeros_like(dense, dtype=torch.float64).index_add_(0, grouped.of_row, rows_each)
    assert torch.allclose(dense.double(), expected, rtol=1e-4, atol=1e-4)


def test_norms_are_exact_whatever_the_caller_has_switched_on() -> None:
    device, values = torch.device("cpu"), torch.randn(1, 3, 5)
    torch.set_float32_matmul_precision("medium")
    try:
        with torch.autocast("cpu", torch.bfloat16), exact(device):
            assert torch.get_float32_matmul_precision() == "highest"
            assert torch.bmm(values, values.mT).dtype == torch.float32
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision("highest")


def test_one_unit_over_several_micro_batches() -> None:
    model, batch = tiny("gpt2"), rows("gpt2")
    weight = torch.linspace(0.5, 1.5, ROWS)
    parts = [slice(0, 4), slice(4, 5), slice(5, 9)]
    engine = ClippedSum(model, causal_loss, 1.0)
    norm = engine.add_large(({k: v[p] for k, v in batch.items()}, weight[p]) for p in parts)
    together = torch.zeros(ROWS, dtype=torch.int64)
    expected, norms = clipped_sum(model, causal_loss, batch, together, weight, 1.0, torch.tensor([norm]))
    assert float(norms[0]) * (1 - 1e-6) <= norm <= float(norms[0]) * (1 + ABOVE)
    compare(engine.take(), expected)


@pytest.mark.parametrize("way", ["factors", "dense"])
@pytest.mark.parametrize("adapter", ["full", "lora"])
def test_a_unit_that_begins_in_one_batch_and_ends_in_the_next(adapter, way, monkeypatch) -> None:
    """Of gpt2, whose table is tied. In between, neither batch adds anything of it; then it is clipped as a whole."""
    monkeypatch.setattr(slot, "dense_is_faster", lambda *sizes: way == "dense")
    model, batch = tiny("gpt2"), rows("gpt2")
    model = lora(model) if adapter == "lora" else model
    weight, clip = torch.linspace(0.5, 1.5, ROWS), 0.3
    unit = torch.tensor([0, 0, 1, 2, 2, 2, 3, 4, 4])
    engine, begun, norms = ClippedSum(model, causal_loss, clip), {}, torch.zeros(5)
    for part, numbers, number in ((slice(0, 5), [0, 0, 1, 2, 2], 2), (slice(5, 9), [2, 0, 1, 1], 2)):
        found = engine.add(
            {k: v[part] for k, v in batch.items()}, torch.tensor(numbers), weight[part], {number: begun}
        )
        norms[[0, 1] if part.start == 0 else [3, 4]] = found[:2]
    norms[2] = engine.add_gradient(begun)
    expected, exact_norms = clipped_sum(model, causal_loss, batch, unit, weight, clip, norms)
    assert (norms <= exact_norms * (1 + ABOVE)).all()
    assert (norms > clip).any()
    compare(engine.take(), expected)


def test_calls_add_up_and_take_starts_anew() -> None:
    model, batch = lora(tiny("llama")), rows("llama")
    unit, weight = torch.tensor(UNITS["1"]), torch.ones(ROWS)
    engine, taken = ClippedSum(model, causal_loss, 0.1), []
    for part in (slice(0, 4), slice(4, 9)):
        rows_of_part = {k: v[part] for k, v in batch.items()}
        taken.append(engine.add(rows_of_part, torch.arange(part.stop - part.start), weight[part]))
    expected, _ = clipped_sum(model, causal_loss, batch, unit, weight, 0.1, torch.cat(taken))
    compare(engine.take(), expected)
    assert all(not v.any() for v in engine.take().values())


def test_an_empty_batch_adds_nothing() -> None:
    model, batch = tiny("llama"), rows("llama")
    engine = ClippedSum(model, causal_loss, 1.0)
    none = {k: v[:0] for k, v in batch.items()}
    assert engine.add(none, torch.zeros(0, dtype=torch.int64), torch.zeros(0)).shape == (0,)
    assert engine.add_large([]) == 0.0
    assert all(not v.any() for v in engine.take().values())


def test_a_layer_used_twice() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.square, self.head = nn.Embedding(20, 6), nn.Linear(6, 6), nn.Linear(6, 20)
            self.head.weight = self.table.weight

        def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            hidden = self.table(a) + self.table(b).mean(1, keepdim=True)
            return self.head(self.square(torch.tanh(self.square(hidden))))

    def loss(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        return model(batch["a"], batch["b"]).logsumexp(-1).mean(1)

    torch.manual_seed(3)
    model = Twice()
    for tokens in (2, 30):
        batch = {"a": torch.randint(20, (ROWS, tokens)), "b": torch.randint(20, (ROWS, 3))}
        for units in UNITS.values():
            check(model, loss, batch, torch.tensor(units), clip_norm=0.05)


def test_a_layers_output_may_be_changed_in_place() -> None:
    class InPlace(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.square, self.head = nn.Embedding(20, 6), nn.Linear(6, 6), nn.Linear(6, 20)

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            before = self.table(tokens)
            hidden = self.square(before)
            hidden += before
            return self.head(hidden.relu_()).mul_(2)

    def loss(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        return model(batch["tokens"]).logsumexp(-1).mean(1)

    torch.manual_seed(3)
    batch = {"tokens": torch.randint(20, (ROWS, 12))}
    for units in UNITS.values():
        check(InPlace(), loss, batch, torch.tensor(units), clip_norm=0.05)


def test_module_kinds_of_torch_itself() -> None:
    torch.manual_seed(3)
    model = shaken(
        nn.Sequential(
            nn.Embedding(20, 6, padding_idx=2), nn.RMSNorm(6), nn.Linear(6, 5, bias=False), nn.LayerNorm(5)
        )
    )

    def loss(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        return model(batch["ids"]).logsumexp(-1).sum(1)

    batch = {"ids": torch.randint(4, (ROWS, 5))}
    check(model, loss, batch, torch.tensor(UNITS["3"]), clip_norm=1.0)
    engine = ClippedSum(model, loss, 1.0)
    engine.add(batch, torch.tensor(UNITS["3"]), torch.ones(ROWS))
    assert not engine.take()["0.weight"][2].any()


def test_a_rank_that_only_takes_part_adds_nothing_of_a_row_that_is_not_finite(monkeypatch) -> None:
    """Where sums are spread, a rank without rows of a unit computes a row of somebody else, with weight 0."""
    model = tiny("gpt2")
    clipped = ClippedSum(model, lambda model, batch: causal_loss(model, batch) * math.nan, 1.0)
    monkeypatch.setattr(clipped._sums, "are_spread", True)
    monkeypatch.setattr(engine, "added_up", lambda whole, parameter: whole)
    batch = {name: values[:1] for name, values in rows("gpt2").items()}
    gradient = clipped.gradient([(batch, torch.zeros(1))])
    assert all(bool((values == 0).all()) for values in gradient.values())
    with_weight = clipped.gradient([(batch, torch.ones(1))])
    assert not all(bool(values.isfinite().all()) for values in with_weight.values())
