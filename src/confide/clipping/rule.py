"""Define rules for one kind of layer each, and what the rules in `kinds` have in common.

A rule is matched by the layer's forward method, or by what the layer answers when asked (`probes`), not by its class: a
subclass that computes something else (a scaled embedding, a quantised linear layer) must not fall under its parent's
rule in silence.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from confide.clipping import probes
from confide.clipping.factors import PerRow, Use
from confide.models.fast.onednn import written
from confide.utils.errors import InputError


class UnsupportedParameter(InputError):
    """A trainable parameter belongs to a layer that no rule covers."""


class UnsupportedModule(InputError):
    """A module lets rows influence each other, so that no row has a gradient of its own."""


def _first(layer: Layer, args: Any, kwargs: Mapping[str, Any]) -> Tensor:
    given: Tensor = args[0] if args else next(iter(kwargs.values()))
    return given


@dataclass(frozen=True)
class Rule:
    """Rule by which one kind of layer yields per-row gradients.

    Attributes:
        parameters: names that the rule covers in such a layer.
        matches: is a layer of this kind?
        keeps_input: the trainable ones among the parameters -> must the input be kept for the backward?
        uses: (layer, trainable names, input [B, ...], output gradient [B, ...]) -> (name, use) pairs.
        reads: (layer, args, kwargs of a call) -> what counts as its input; its first argument.
    """

    parameters: frozenset[str]
    matches: Callable[[nn.Module], bool]
    keeps_input: Callable[[frozenset[str]], bool]
    uses: Callable[[nn.Module, frozenset[str], Tensor | None, Tensor], Iterator[tuple[str, Use]]]
    reads: Callable[[Layer, Any, Mapping[str, Any]], Tensor] = _first


@dataclass(frozen=True)
class Layer:
    """A module with a rule and at least one trainable parameter.

    Attributes:
        name: the module's, as in `model.named_modules()`.
        parameters: parameter name in the module -> name in `model.named_parameters()`, trainable ones.
    """

    name: str
    module: nn.Module
    rule: Rule
    parameters: dict[str, str]

    @property
    def trainable(self) -> frozenset[str]:
        return frozenset(self.parameters)


def runs(module: nn.Module, kind: type[nn.Module]) -> bool:
    """Tell whether a module computes by the `forward` of this class, unpatched."""
    return written(module).forward is kind.forward and probes.is_its_own(module)


def positions(values: Tensor) -> Tensor:
    """[B, ..., width] -> [B, n, width]."""
    return values.unsqueeze(1) if values.dim() == 2 else values.flatten(1, -2)


def by_row(values: Tensor, shape: torch.Size) -> PerRow:
    """[B, ..., *shape] -> the sum over positions, float32[B, *shape]."""
    between = list(range(1, values.dim() - len(shape)))
    if not between:
        return PerRow(values.float())
    if values.dtype != torch.float32 or values.is_cuda:
        return PerRow(values.sum(between, dtype=torch.float32))
    flat = values.flatten(1, len(between)).flatten(2)
    ones = flat.new_ones(1, 1, flat.shape[1]).expand(len(flat), 1, -1)
    return PerRow(
        torch.bmm(ones, flat).view(-1, *shape)
    )  # twice as fast as a sum over an axis that is not the last


def weight_only(trainable: frozenset[str]) -> bool:
    """Tell whether the weight trains."""
    return "weight" in trainable
