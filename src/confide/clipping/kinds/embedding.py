"""Rules for embeddings: torch's own, scaled ones, and those that compute their indices themselves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeGuard

from torch import Tensor, nn

from confide.clipping import probes
from confide.clipping.factors import Lookup, Use
from confide.clipping.rule import Layer, Rule, UnsupportedModule, positions, runs, weight_only


def _reads_table(module: nn.Module) -> TypeGuard[nn.Embedding]:
    if not isinstance(module, nn.Embedding):
        return False
    # max_norm rewrites weights as it reads them; scale_grad_by_freq counts indices over the whole batch
    return module.max_norm is None and not module.scale_grad_by_freq


def _is_embedding(module: nn.Module) -> bool:
    return _reads_table(module) and (runs(module, nn.Embedding) or probes.is_scaled_embedding(module))


def _embedding(
    module: nn.Module, trainable: frozenset[str], kept: Tensor | None, grad: Tensor
) -> Iterator[tuple[str, Use]]:
    assert isinstance(module, nn.Embedding)
    if not runs(module, nn.Embedding):
        grad = grad * probes.embed_scale(module)
    yield from _look_up(module, trainable, kept, grad)


def _look_up(
    module: nn.Module, trainable: frozenset[str], kept: Tensor | None, grad: Tensor
) -> Iterator[tuple[str, Use]]:
    assert isinstance(module, nn.Embedding)
    assert kept is not None
    index, grad = kept.flatten(1) if kept.dim() > 1 else kept[:, None], positions(grad)
    if module.padding_idx is not None:  # its row of the table takes no gradient
        grad = grad.masked_fill((index == module.padding_idx)[..., None], 0)
    yield "weight", Lookup(index, grad)


def _looked_up(layer: Layer, args: Any, kwargs: Mapping[str, Any]) -> Tensor:
    assert isinstance(layer.module, nn.Embedding)
    index = probes.looked_up(layer.module, args, kwargs)
    if index is None:
        raise UnsupportedModule(
            f"module {layer.name} ({type(layer.module).__name__}) does more than look rows of its table up, or does it "
            "without a gradient, so that its gradient cannot be clipped by unit: freeze it, or choose another adapter"
        )
    return index


EMBEDDING = Rule(frozenset({"weight"}), _is_embedding, weight_only, _embedding)
LOOK_UP = Rule(
    frozenset({"weight"}),
    lambda m: _reads_table(m) and probes.is_its_own(m),
    weight_only,
    _look_up,
    _looked_up,
)
