"""Define the rule of one kind of layer, and helpers that the rules in `kinds` share.

A rule is matched by the layer's forward method, or by the layer's answer to a probe (`probes`), not by its class. A
subclass that computes something else, such as a scaled embedding or a quantised linear layer, must not silently fall
under its parent's rule.
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
    """The rule by which one kind of layer yields per-row gradients.

    Attributes:
        parameters: names that the rule covers in such a layer.
        matches: module -> True if the layer is of this kind.
        keeps_input: names of the trainable parameters -> True if the backward pass needs the layer's input.
        uses: (layer, trainable names, input [B, ...], output gradient [B, ...]) -> (name, use) pairs.
        reads: (layer, args, kwargs of a call) -> the tensor that counts as its input; default: the first argument.
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
        name: the module's name, as in `model.named_modules()`.
        parameters: name in the module -> name in `model.named_parameters()`, of the trainable parameters.
    """

    name: str
    module: nn.Module
    rule: Rule
    parameters: dict[str, str]

    @property
    def trainable(self) -> frozenset[str]:
        return frozenset(self.parameters)


def runs(module: nn.Module, kind: type[nn.Module]) -> bool:
    """Return True if the module's forward method is that of `kind`."""
    return written(module).forward is kind.forward and probes.is_its_own(module)


def positions(values: Tensor) -> Tensor:
    """Join the axes between rows and width: [B, ..., width] -> [B, n, width]."""
    return values.unsqueeze(1) if values.dim() == 2 else values.flatten(1, -2)


def by_row(values: Tensor, shape: torch.Size) -> PerRow:
    """Sum over positions: [B, ..., *shape] -> float32[B, *shape]."""
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
    """Return True if the weight is trainable: the `keeps_input` of layers whose other parameters need no input."""
    return "weight" in trainable
