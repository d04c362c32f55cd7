"""Faults seen in other libraries: each is put in, and the checks that guard against it must then fail."""

from __future__ import annotations

import weakref
from collections.abc import Iterator

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from confide.clipping import (
    ClippedSum,
    UnsupportedModule,
    engine,
    factors,
    slot,
)
from confide.clipping.units import Units
from confide.utils.errors import InputError
from tests.clipping.brute_force import (
    ABOVE,
    ROWS,
    UNITS,
    Batch,
    causal_loss,
    check,
    clipped_sum,
    compare,
    norm,
    rows,
    tiny,
)
from tests.clipping.nets import EACH, IDS, ONES, TestNet, ids_loss

torch.set_num_threads(1)


# --- pitfall 4: tied weights


def test_tied_weights_need_the_cross_term(monkeypatch: pytest.MonkeyPatch) -> None:
    model, batch = tiny("gpt2"), rows("gpt2", tokens=4)
    check(model, causal_loss, batch, EACH, clip_norm=1.0)
    monkeypatch.setattr(
        factors.Lookup, "cross", lambda self, other, units: torch.zeros(units.count, dtype=torch.float64)
    )
    with pytest.raises(AssertionError):
        check(model, causal_loss, batch, EACH, clip_norm=1.0)


# --- pitfalls 5 and 7: what is clipped to C is all of a unit: all its layers, all its rows


@pytest.mark.parametrize("k", [1, 3, 9])
def test_a_clipped_unit_has_norm_c_over_all_layers_and_rows(k: int) -> None:
    model, batch = tiny("llama"), rows("llama")
    one = {name: v[:k] for name, v in batch.items()}
    summed = ClippedSum(model, causal_loss, 0.01)
    assert summed.add(one, torch.zeros(k, dtype=torch.int64), torch.ones(k)) > 0.01
    assert 0.01 * (1 - ABOVE) <= norm(summed.take()) <= 0.01 * (1 + 1e-6)


def test_clipping_each_layer_or_each_row_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    model, batch, unit = tiny("llama"), rows("llama"), torch.tensor(UNITS["3"])
    with monkeypatch.context() as fault:

        def add_scaled(self: slot.Slot, total: Tensor, scale: Tensor, fresh: bool) -> None:
            norms = self.norms()
            assert norms is not None
            original(self, total, (1.0 / norms.double().norm(dim=1)).clamp(max=1).float(), fresh)

        original = slot.Slot.add_scaled
        fault.setattr(slot.Slot, "add_scaled", add_scaled)
        with pytest.raises(AssertionError):
            check(model, causal_loss, batch, unit, clip_norm=1.0)
    with monkeypatch.context() as fault:
        of = Units.of
        fault.setattr(Units, "of", lambda unit: of(torch.arange(len(unit))))
        expected, _ = clipped_sum(model, causal_loss, batch, unit, ONES, 1.0)
        summed = ClippedSum(model, causal_loss, 1.0)
        summed.add(batch, unit, ONES)
        with pytest.raises(AssertionError):
            compare(summed.take(), expected)


# --- pitfall 9: LoRA weights that never move


def test_lora_moves_and_learns() -> None:
    torch.manual_seed(0)
    model = get_peft_model(tiny("gpt2"), LoraConfig(r=3, target_modules="all-linear"))
    batch = rows("gpt2")
    before = {name: p.detach().clone() for name, p in model.named_parameters() if p.requires_grad}
    first = float(causal_loss(model, batch).mean())
    summed = ClippedSum(model, causal_loss, 1.0)
    for _ in range(10):
        summed.add(batch, EACH, ONES)
        with torch.no_grad():
            for name, gradient in summed.take().items():
                model.get_parameter(name).sub_(gradient, alpha=0.1)
    assert all((model.get_parameter(name) != value).any() for name, value in before.items())
    assert float(causal_loss(model, batch).mean()) < first - 0.1


# --- uses that no tap sees


def test_a_weight_used_outside_its_layer_is_named() -> None:
    def loss(model: nn.Module, batch: Batch) -> Tensor:
        return ids_loss(model, batch) + nn.functional.linear(
            model.table(batch["ids"]), model.layer.weight
        ).sum((1, 2))

    with pytest.raises(InputError, match=r"layer\.weight is used outside"):
        ClippedSum(TestNet(nn.Linear(6, 6)), loss, 1.0).add(IDS, EACH, ONES)


class Block(nn.Module):
    """Two layers, the second checkpointed if asked for; its weight is used once more, outside the layer, somewhere."""

    def __init__(self, where: str, checkpointed: bool) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.where, self.checkpointed = where, checkpointed

    def inner(self, x: Tensor) -> Tensor:
        if self.where == "in the block, before the layer":
            x = x + torch.tanh(x @ self.second.weight)
        y = self.second(x)
        if self.where == "in the block, after the layer":
            y = y + torch.tanh(y @ self.second.weight)
        return torch.tanh(y)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        if self.where == "before the block":
            x = x + x @ self.second.weight
        x = checkpoint(self.inner, x, use_reentrant=False) if self.checkpointed else self.inner(x)
        return x + x @ self.second.weight if self.where == "after the block" else x


@pytest.mark.parametrize("checkpointed", [False, True])
@pytest.mark.parametrize(
    "where",
    [
        "before the block",
        "in the block, before the layer",
        "in the block, after the layer",
        "after the block",
    ],
)
def test_a_weight_used_outside_its_layer_is_found_wherever_it_is(where: str, checkpointed: bool) -> None:
    def loss(model: nn.Module, batch: Batch) -> Tensor:
        return model(batch["x"]).square().sum(1)

    batch = {"x": torch.randn(ROWS, 4)}
    ClippedSum(Block("nowhere", checkpointed), loss, 1.0).add(batch, EACH, ONES)
    with pytest.raises(InputError, match=r"second\.weight is used outside"):
        ClippedSum(Block(where, checkpointed), loss, 1.0).add(batch, EACH, ONES)


@pytest.mark.parametrize("checkpointed", [False, True])
def test_a_bias_used_outside_its_layer_is_found_where_only_biases_train(checkpointed: bool) -> None:
    """A checkpoint that needs no input again ends before the layer is left."""

    class Net(nn.Module):
        def __init__(self, outside: bool) -> None:
            super().__init__()
            self.first, self.second, self.outside = nn.Linear(4, 4), nn.Linear(4, 4), outside
            for layer in (self.first, self.second):
                layer.weight.requires_grad_(False)

        def forward(self, x: Tensor) -> Tensor:
            x = torch.tanh(self.first(x))
            x = x + self.second.bias if self.outside else x
            return checkpoint(self.second, x, use_reentrant=False) if checkpointed else self.second(x)

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        return model(batch["x"]).square().sum(1)

    batch = {"x": torch.randn(ROWS, 4)}
    ClippedSum(Net(False), loss, 1.0).add(batch, EACH, ONES)
    with pytest.raises(InputError, match=r"second\.bias is used outside"):
        ClippedSum(Net(True), loss, 1.0).add(batch, EACH, ONES)


@pytest.mark.parametrize("create_graph", [False, True])
@pytest.mark.parametrize("biases_only", [False, True])
def test_a_loss_that_takes_gradients_itself_is_refused(create_graph: bool, biases_only: bool) -> None:
    """What it takes would arrive beside the gradient that is clipped: a contribution of 112 at C = 1, once."""
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    for layer in (model[0], model[2]):
        layer.weight.requires_grad_(not biases_only)

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        x = batch["x"].clone().requires_grad_(True)
        (slope,) = torch.autograd.grad(1e-6 * model(x).sum(), x, create_graph=create_graph)
        moved = slope if create_graph else slope.sign()
        return 100 * model(batch["x"] + 0.1 * moved).square().sum(1)

    with pytest.raises(InputError, match=r"takes a gradient by itself, through module 2"):
        ClippedSum(model, loss, 1.0).add({"x": torch.randn(ROWS, 4)}, EACH, ONES)


def test_a_use_behind_the_last_one_is_no_part_of_a_sum() -> None:
    units = Units.of(EACH)
    taken = slot.Slot(torch.Size([3]), units, 1, slot.Allowance(0))
    taken.receive(factors.PerRow(torch.ones(ROWS, 3)))
    with pytest.raises(AssertionError, match="norm would be left out"):
        taken.receive(factors.PerRow(torch.ones(ROWS, 3)))


def test_a_layer_left_out_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    layers = engine.layers
    monkeypatch.setattr(engine, "layers", lambda model: layers(model)[1:])
    with pytest.raises(InputError, match=r"table\.weight is used outside"):
        ClippedSum(TestNet(nn.Linear(6, 6)), ids_loss, 1.0).add(IDS, EACH, ONES)


def test_a_compiled_model_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TORCHDYNAMO_DISABLE", raising=False)
    model = tiny("gpt2")
    model.transformer.h[0].mlp.compile()
    with pytest.raises(UnsupportedModule, match=r"transformer\.h\.0\.mlp is compiled"):
        ClippedSum(model, causal_loss, 1.0)
    wrapped: nn.Module = torch.compile(tiny("gpt2"), backend="eager")  # type: ignore[assignment]
    with pytest.raises(UnsupportedModule, match=r"\(the model\) is compiled"):
        ClippedSum(wrapped, causal_loss, 1.0)


# --- pitfall 21: gradient checkpointing runs hooks twice


@pytest.mark.parametrize("checkpointing", [False, True])
def test_each_use_arrives_once(checkpointing: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny("llama")
    arrived: list[bool] = []
    receive = slot.Slot.receive

    def counted(self: slot.Slot, use: factors.Use) -> None:
        arrived.append(any(p.grad is not None for p in model.parameters()))
        receive(self, use)

    monkeypatch.setattr(slot.Slot, "receive", counted)
    if checkpointing:
        model.train()
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    summed = ClippedSum(model, causal_loss, 1.0)
    summed.add(rows("llama"), EACH, ONES)
    assert arrived == [False] * len(summed.trainable)


def test_reentrant_checkpointing_is_refused() -> None:
    model = tiny("llama").train()
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": True})
    with pytest.raises(InputError, match="use_reentrant"):
        ClippedSum(model, causal_loss, 1.0).add(rows("llama"), EACH, ONES)


# --- pitfall 22: one huge unit


def test_a_huge_unit_takes_the_memory_of_one_micro_batch() -> None:
    model = tiny("llama")
    live: list[weakref.ref[Tensor]] = []

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        logits = model(**batch, use_cache=False).logits
        live.append(weakref.ref(logits))
        return logits.logsumexp(-1).mean(1)

    def batches() -> Iterator[tuple[Batch, Tensor]]:
        for seed in range(20):
            assert len(live) == seed, "a batch was asked for before the one before it was used"
            assert sum(ref() is not None for ref in live) <= 1
            batch = rows("llama", seed=seed)
            del batch["labels"]
            yield batch, torch.full((ROWS,), 1 / 180)

    summed = ClippedSum(model, loss, 0.01)
    assert summed.add_large(batches()) > 0.01
    assert len(live) == 20
    assert 0.01 * (1 - ABOVE) <= norm(summed.take()) <= 0.01 * (1 + 1e-6)


# --- what the model looks like meanwhile and afterwards


def test_the_backward_pass_forms_no_weight_gradient_and_the_model_is_restored() -> None:
    net = TestNet(nn.Linear(6, 6))
    net.head.bias.requires_grad_(False)
    flags = [p.requires_grad for p in net.parameters()]
    inside: list[bool] = []

    def look(module: nn.Module, inputs: object) -> None:  # runs after the tap's own
        inside.extend(p.requires_grad for p in module.parameters())

    before = [torch.full_like(p, 7.0) for p in net.parameters()]
    for parameter, grad in zip(net.parameters(), before, strict=True):
        parameter.grad = grad

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        with model.layer.register_forward_pre_hook(look):
            return model(batch["ids"]).sum((1, 2))

    ClippedSum(net, loss, 1.0).add(IDS, EACH, ONES)
    assert inside == [False, False]
    assert [p.requires_grad for p in net.parameters()] == flags
    assert all(p.grad is grad for p, grad in zip(net.parameters(), before, strict=True))


@pytest.mark.parametrize("where", ["forward", "backward"])
@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_the_model_is_restored_after_an_interruption(where: str, error: type[BaseException]) -> None:
    net = TestNet(nn.Linear(6, 6))

    def fail(*_: object) -> None:
        raise error

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        out = model.layer(model.table(batch["ids"]))
        if where == "forward":
            fail()
        out.register_hook(fail)
        return out.sum((1, 2))

    summed = ClippedSum(net, loss, 1.0)
    with pytest.raises(error):
        summed.add(IDS, EACH, ONES)
    assert all(p.requires_grad for p in net.parameters())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in net.modules())
    assert not any(v.any() for v in summed.take().values())


def test_wrong_calls_are_refused() -> None:
    net = TestNet(nn.Linear(6, 6))
    summed = ClippedSum(net, ids_loss, 1.0)
    for unit in (EACH + 1, EACH - 1, EACH.float(), torch.tensor([0, 2, 2, 0, 2, 2, 0, 2, 2])):
        with pytest.raises(ValueError, match="unit"):
            summed.add(IDS, unit, ONES)
    with pytest.raises(ValueError, match="weight"):
        summed.add(IDS, EACH, ONES[:3])
    with pytest.raises(InputError, match="ids"):
        summed.add({"ids": IDS["ids"][:3]}, EACH, ONES)
    for clip_norm in (0.0, -1.0, float("inf"), float("nan")):
        with pytest.raises(InputError, match="clip_norm"):
            ClippedSum(net, ids_loss, clip_norm)
    net.table.weight.requires_grad_(False)
    with pytest.raises(ValueError, match="changed"):
        summed.add(IDS, EACH, ONES)
    net.table.weight.requires_grad_(True)
    net.later = nn.Linear(6, 6)  # nobody would clip it
    with pytest.raises(ValueError, match="changed"):
        summed.add(IDS, EACH, ONES)
    for p in net.parameters():
        p.requires_grad_(False)
    with pytest.raises(InputError, match="no trainable"):
        ClippedSum(net, ids_loss, 1.0)


def test_a_loss_without_the_adapter_is_noticed() -> None:
    net = TestNet(nn.Linear(6, 6))
    with pytest.raises(InputError, match="depends on no trainable"):
        ClippedSum(net, lambda m, b: b["ids"].float().sum(1), 1.0).add(IDS, EACH, ONES)
