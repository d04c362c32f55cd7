"""Rules for norm layers: torch's own, and any layer that normalises by the root mean square or after centring."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from confide.clipping import probes
from confide.clipping.factors import Use
from confide.clipping.rule import Rule, by_row, runs, weight_only


def _layer_norm(
    module: nn.Module, trainable: frozenset[str], kept: Tensor | None, grad: Tensor
) -> Iterator[tuple[str, Use]]:
    assert isinstance(module, nn.LayerNorm)
    shape = torch.Size(module.normalized_shape)
    if kept is not None:
        normal = functional.layer_norm(kept.float(), shape, eps=module.eps)
        yield "weight", by_row(normal.mul_(grad), shape)
    if "bias" in trainable:
        yield "bias", by_row(grad, shape)


def _norm(
    normal: probes.Normal, module: nn.Module, trainable: frozenset[str], kept: Tensor | None, grad: Tensor
) -> Iterator[tuple[str, Use]]:
    weight = module._parameters["weight"]
    assert weight is not None
    if kept is not None:
        epsilon = probes.norm_epsilon(module, kept.dtype)
        assert epsilon is not None
        yield "weight", by_row(normal(kept, epsilon).mul_(grad), weight.shape)
    if "bias" in trainable:
        yield "bias", by_row(grad, weight.shape)


def _norm_rule(normal: probes.Normal) -> Rule:
    return Rule(
        frozenset({"weight", "bias"}),
        partial(probes.is_norm, normal=normal),
        weight_only,
        partial(_norm, normal),
    )


LAYER_NORM = Rule(frozenset({"weight", "bias"}), lambda m: runs(m, nn.LayerNorm), weight_only, _layer_norm)
OVER_RMS = _norm_rule(probes.over_rms)
CENTRED = _norm_rule(probes.centred)
