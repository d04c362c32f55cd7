"""A rule as an outside contributor writes it: one file. Its line is put into the registry by the test."""

from collections.abc import Iterator

from torch import Tensor, nn

from confide.clipping import probes
from confide.clipping.factors import Use
from confide.clipping.rule import Rule, by_row, weight_only


def is_gain(module: nn.Module) -> bool:
    """Is it x w, a factor for each place of the last axis?"""
    weight = module._parameters.get("weight")
    if weight is None or weight.dim() != 1 or not probes.has_only(module, "weight"):
        return False
    factors = probes.line(-1.0, 0.7, weight.shape, weight.device)
    probe = probes.line(-1.0, 2.0, (8, 1, len(weight)), weight.device)
    return probes.gives(module, {"weight": factors}, probe, probe * factors, 1e-6)


def _gain(
    module: nn.Module, trainable: frozenset[str], kept: Tensor | None, grad: Tensor
) -> Iterator[tuple[str, Use]]:
    assert kept is not None
    yield "weight", by_row(kept * grad, grad.shape[-1:])


GAIN = Rule(frozenset({"weight"}), is_gain, weight_only, _gain)
