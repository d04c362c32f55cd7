"""Hooks of the user's on layers that train: gradients are autograd's all the same, or the hook is refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules import module as every

from confide.clipping import ClippedSum
from confide.utils.errors import InputError
from tests.clipping.brute_force import Batch, check
from tests.clipping.nets import EACH, IDS, ONES, RAGGED, TestNet, ids_loss

torch.set_num_threads(1)


def multiply(module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> Tensor:
    return torch.tanh(3 * output)


def net() -> TestNet:
    torch.manual_seed(0)
    return TestNet(nn.Sequential(nn.Linear(6, 6), nn.LayerNorm(6)))


HOOKS: dict[str, Callable[[nn.Module], object]] = {
    "forward": lambda m: m.register_forward_hook(multiply),
    "forward, first": lambda m: m.register_forward_hook(multiply, prepend=True),
    "forward, in place": lambda m: m.register_forward_hook(lambda m, args, out: out.mul_(3)),
    "forward, before": lambda m: m.register_forward_pre_hook(lambda m, args: (args[0] * 1,)),
    "backward": lambda m: m.register_full_backward_hook(lambda m, inner, outer: None),
    "backward, before": lambda m: m.register_full_backward_pre_hook(lambda m, outer: (3 * outer[0],)),
}


@pytest.mark.parametrize("hook", HOOKS)
@pytest.mark.parametrize("where", ["table", "layer.0", "layer.1", "head"])
def test_gradients_with_a_hook_are_those_of_autograd(where: str, hook: str) -> None:
    if where == "table" and hook in ("backward", "forward, before"):
        pytest.skip("its input has no gradient, or is no number to multiply")
    model = net()
    HOOKS[hook](model.get_submodule(where))
    check(model, ids_loss, IDS, RAGGED, clip_norm=0.1)


@pytest.mark.parametrize(
    "register",
    [
        lambda: every.register_module_forward_hook(multiply),
        lambda: every.register_module_forward_pre_hook(lambda m, args: None),
        lambda: every.register_module_full_backward_hook(lambda m, inner, outer: None),
        lambda: every.register_module_full_backward_pre_hook(lambda m, outer: None),
    ],
)
@pytest.mark.parametrize("clip_norm", [1.0, None])
def test_a_hook_on_all_modules_is_refused(register: Callable[[], object], clip_norm: float | None) -> None:
    clipped = ClippedSum(net(), ids_loss, clip_norm)
    handle = register()
    try:
        with pytest.raises(InputError, match="registered on all modules"):
            clipped.add(IDS, EACH, ONES)
    finally:
        handle.remove()  # type: ignore[attr-defined]
        every._global_is_full_backward_hook = None
    clipped.add(IDS, EACH, ONES)


def test_a_hook_that_changes_gradients_inside_a_layer_is_refused() -> None:
    model = net()
    model.head.register_backward_hook(lambda m, inner, outer: None)
    with pytest.raises(InputError, match=r"module head has a hook by register_backward_hook"):
        ClippedSum(model, ids_loss, 1.0).add(IDS, EACH, ONES)


def test_a_hook_that_comes_before_the_tap_is_refused() -> None:
    def loss(model: nn.Module, batch: Batch) -> Tensor:
        with model.head.register_forward_hook(multiply, prepend=True):
            return ids_loss(model, batch)

    with pytest.raises(InputError, match=r"module head got a forward hook"):
        ClippedSum(net(), loss, 1.0).add(IDS, EACH, ONES)
