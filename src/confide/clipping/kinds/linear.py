"""Rules for linear layers: torch's own, GPT-2's with a transposed weight, and any layer that answers a probe as one."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor, nn

from confide.clipping import probes
from confide.clipping.factors import Outer, Use
from confide.clipping.rule import Rule, by_row, positions, runs, weight_only
from confide.models.fast.onednn import is_conv1d, written


def _linear(
    module: nn.Module, trainable: frozenset[str], kept: Tensor | None, grad: Tensor
) -> Iterator[tuple[str, Use]]:
    if kept is not None:
        yield "weight", Outer(positions(grad), positions(kept))
    if "bias" in trainable:
        yield "bias", by_row(grad, grad.shape[-1:])


def _conv1d(
    module: nn.Module, trainable: frozenset[str], kept: Tensor | None, grad: Tensor
) -> Iterator[tuple[str, Use]]:
    if kept is not None:
        yield "weight", Outer(positions(kept), positions(grad))
    if "bias" in trainable:
        yield "bias", by_row(grad, grad.shape[-1:])


def _is_conv1d(module: nn.Module) -> bool:
    return is_conv1d(written(module)) and probes.is_its_own(module)


LINEAR = Rule(frozenset({"weight", "bias"}), lambda m: runs(m, nn.Linear), weight_only, _linear)
CONV1D = Rule(frozenset({"weight", "bias"}), _is_conv1d, weight_only, _conv1d)
PROBED = Rule(frozenset({"weight", "bias"}), probes.is_linear, weight_only, _linear)
