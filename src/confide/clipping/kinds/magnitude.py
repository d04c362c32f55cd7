"""Rule for a layer that multiplies each place of the last axis by a weight: the magnitude of DoRA."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor, nn

from confide.clipping import probes
from confide.clipping.factors import Use
from confide.clipping.rule import Rule, by_row, weight_only
from confide.models.dora import times


def _is_magnitude(module: nn.Module) -> bool:
    forward: object = type(module).forward
    return forward is times and probes.is_its_own(module)


def _magnitude(
    module: nn.Module, trainable: frozenset[str], kept: Tensor | None, grad: Tensor
) -> Iterator[tuple[str, Use]]:
    if kept is not None:
        yield "weight", by_row(kept.float() * grad, grad.shape[-1:])


MAGNITUDE = Rule(frozenset({"weight"}), _is_magnitude, weight_only, _magnitude)
