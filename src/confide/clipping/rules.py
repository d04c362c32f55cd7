"""One rule for each kind of layer: from a layer's input and output gradient to its parameters' gradients.

A rule is matched by the layer's forward method, or by what the layer answers when asked (`probes`), not by its class: a
subclass that computes something else (a scaled embedding, a quantised linear layer) must not fall under its parent's
rule in silence.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn
from torch.nn import functional

from confide.clipping import probes
from confide.clipping.factors import Lookup, Outer, PerRow, Use
from confide.models.fast.onednn import is_conv1d, written
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
    """How one kind of layer yields per-row gradients.

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


def _runs(module: nn.Module, kind: type[nn.Module]) -> bool:
    return written(module).forward is kind.forward and probes.is_its_own(module)


def _positions(values: Tensor) -> Tensor:
    """[B, ..., width] -> [B, n, width]."""
    return values.unsqueeze(1) if values.dim() == 2 else values.flatten(1, -2)


def _by_row(values: Tensor, shape: torch.Size) -> PerRow:
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


def _weight_only(trainable: frozenset[str]) -> bool:
    return "weight" in trainable


def _linear(
    module: nn.Module, trainable: frozenset[str], kept: Tensor | None, grad: Tensor
) -> Iterator[tuple[str, Use]]:
    if kept is not None:
        yield "weight", Outer(_positions(grad), _positions(kept))
    if "bias" in trainable:
        yield "bias", _by_row(grad, grad.shape[-1:])


def _conv1d(
    module: nn.Module, trainable: frozenset[str], kept: Tensor | None, grad: Tensor
) -> Iterator[tuple[str, Use]]:
    if kept is not None:
        yield "weight", Outer(_positions(kept), _positions(grad))
    if "bias" in trainable:
        yield "bias", _by_row(grad, grad.shape[-1:])


def _is_conv1d(module: nn.Module) -> bool:
    return is_conv1d(written(module)) and probes.is_its_own(module)


def _reads_table(module: nn.Module) -> TypeGuard[nn.Embedding]:
    if not isinstance(module, nn.Embedding):
        return False
    # max_norm rewrites weights as it reads them; scale_grad_by_freq counts indices over the whole batch
    return module.max_norm is None and not module.scale_grad_by_freq


def _is_embedding(module: nn.Module) -> bool:
    return _reads_table(module) and (_runs(module, nn.Embedding) or probes.is_scaled_embedding(module))


def _embedding(
    module: nn.Module, trainable: frozenset[str], kept: Tensor | None, grad: Tensor
) -> Iterator[tuple[str, Use]]:
    assert isinstance(module, nn.Embedding)
    if not _runs(module, nn.Embedding):
        grad = grad * probes.embed_scale(module)
    yield from _look_up(module, trainable, kept, grad)


def _look_up(
    module: nn.Module, trainable: frozenset[str], kept: Tensor | None, grad: Tensor
) -> Iterator[tuple[str, Use]]:
    assert isinstance(module, nn.Embedding)
    assert kept is not None
    index, grad = kept.flatten(1) if kept.dim() > 1 else kept[:, None], _positions(grad)
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


def _layer_norm(
    module: nn.Module, trainable: frozenset[str], kept: Tensor | None, grad: Tensor
) -> Iterator[tuple[str, Use]]:
    assert isinstance(module, nn.LayerNorm)
    shape = torch.Size(module.normalized_shape)
    if kept is not None:
        normal = functional.layer_norm(kept.float(), shape, eps=module.eps)
        yield "weight", _by_row(normal.mul_(grad), shape)
    if "bias" in trainable:
        yield "bias", _by_row(grad, shape)


def _norm(
    normal: probes.Normal, module: nn.Module, trainable: frozenset[str], kept: Tensor | None, grad: Tensor
) -> Iterator[tuple[str, Use]]:
    weight = module._parameters["weight"]
    assert weight is not None
    if kept is not None:
        epsilon = probes.norm_epsilon(module, kept.dtype)
        assert epsilon is not None
        yield "weight", _by_row(normal(kept, epsilon).mul_(grad), weight.shape)
    if "bias" in trainable:
        yield "bias", _by_row(grad, weight.shape)


def _norm_rule(normal: probes.Normal) -> Rule:
    return Rule(
        frozenset({"weight", "bias"}),
        partial(probes.is_norm, normal=normal),
        _weight_only,
        partial(_norm, normal),
    )


RULES: tuple[Rule, ...] = (
    Rule(frozenset({"weight", "bias"}), lambda m: _runs(m, nn.Linear), _weight_only, _linear),
    Rule(frozenset({"weight", "bias"}), _is_conv1d, _weight_only, _conv1d),
    Rule(frozenset({"weight"}), _is_embedding, _weight_only, _embedding),
    Rule(frozenset({"weight", "bias"}), lambda m: _runs(m, nn.LayerNorm), _weight_only, _layer_norm),
    _norm_rule(probes.over_rms),
    _norm_rule(probes.centred),
    Rule(frozenset({"weight", "bias"}), probes.is_linear, _weight_only, _linear),
    Rule(
        frozenset({"weight"}),
        lambda m: _reads_table(m) and probes.is_its_own(m),
        _weight_only,
        _look_up,
        _looked_up,
    ),
)


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


_LIMITED = {"capacity", "expert_capacity", "capacity_factor"}  # of tokens that an expert takes, over all rows


def refuse_mixing(model: nn.Module) -> None:
    """Refuse modules in which a row's loss depends on the other rows.

    Raises:
        UnsupportedModule: naming the first such module.
    """
    for name, module in model.named_modules():
        kind = type(module).__name__
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and (
            module.training or not module.track_running_stats
        ):
            raise UnsupportedModule(
                f"module {name} ({kind}) normalises over the rows of a batch, so that no row has a gradient "
                "of its own: put it in eval mode or use a layer norm instead"
            )
        if limits := _LIMITED & vars(module).keys():
            raise UnsupportedModule(
                f"module {name or '(the model)'} ({kind}) gives an expert only so many tokens ({min(limits)}), so "
                "that one row can take another's place: choose a mixture without that limit, or a dense model"
            )


def _is_compiled(module: nn.Module) -> bool:
    """By `module.compile()`, or by `torch.compile(module)`, which wraps it."""
    return module._compiled_call_impl is not None or type(module).__name__ == "OptimizedModule"


def layers(model: nn.Module) -> list[Layer]:
    """The layers to watch, so that every trainable parameter is covered by a rule.

    Raises:
        UnsupportedParameter: naming the first parameter that is not, and the class of its module.
        UnsupportedModule: a module that trains is compiled.
    """
    names = {id(p): name for name, p in model.named_parameters() if p.requires_grad}
    found: list[Layer] = []
    owner: dict[str, str] = {}
    for module_name, module in model.named_modules():
        if _is_compiled(module) and any(id(p) in names for p in module.parameters()):
            raise UnsupportedModule(
                f"module {module_name or '(the model)'} is compiled, which hides its layers from the clipping: "
                "give the model as it is"
            )
        own = {n: names[id(p)] for n, p in module._parameters.items() if p is not None and id(p) in names}
        if not own:
            continue
        for name in own.values():
            owner.setdefault(name, type(module).__name__)
        rule = next((rule for rule in RULES if rule.matches(module)), None)
        covered = {} if rule is None else {n: name for n, name in own.items() if n in rule.parameters}
        if rule is not None and covered:
            found.append(Layer(module_name, module, rule, covered))
    covered_names = {name for layer in found for name in layer.parameters.values()}
    for name in names.values():
        if name not in covered_names:
            raise UnsupportedParameter(
                f"parameter {name} is trainable, but its layer ({owner.get(name, 'unknown')}) is of no kind "
                "whose gradients can be clipped by unit: freeze it, or choose another adapter"
            )
    return found
