"""One rule for each kind of layer: from a layer's input and output gradient to its parameters' gradients.

A rule is matched by the layer's forward method, not by its class: a subclass that computes something else
(a scaled embedding, a quantised linear layer) must not fall under its parent's rule in silence.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from confide.clipping.factors import Lookup, Outer, PerRow, Use
from confide.errors import InputError


class UnsupportedParameter(InputError):
    """A trainable parameter belongs to a layer that no rule covers."""


class UnsupportedModule(InputError):
    """A module lets rows influence each other, so that no row has a gradient of its own."""


@dataclass(frozen=True)
class Rule:
    """How one kind of layer yields per-row gradients.

    Attributes:
        parameters: names that the rule covers in such a layer.
        matches: is a layer of this kind?
        keeps_input: the trainable ones among the parameters -> must the input be kept for the backward?
        uses: (layer, trainable names, input [B, ...], output gradient [B, ...]) -> (name, use) pairs.
    """

    parameters: frozenset[str]
    matches: Callable[[nn.Module], bool]
    keeps_input: Callable[[frozenset[str]], bool]
    uses: Callable[[nn.Module, frozenset[str], Tensor | None, Tensor], Iterator[tuple[str, Use]]]


def _runs(module: nn.Module, kind: type[nn.Module]) -> bool:
    replaced = "forward" in vars(module) and not hasattr(module, "_hf_hook")  # accelerate's only moves inputs
    return type(module).forward is kind.forward and not replaced


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
    # by name, so that transformers, which is slow to import, need not be there
    return (type(module).__module__, type(module).__name__) == ("transformers.pytorch_utils", "Conv1D")


def _is_embedding(module: nn.Module) -> bool:
    if not isinstance(module, nn.Embedding) or not (_runs(module, nn.Embedding) or _is_scaled(module)):
        return False
    # max_norm rewrites weights as it reads them; scale_grad_by_freq counts indices over the whole batch
    return module.max_norm is None and not module.scale_grad_by_freq


def _is_scaled(module: nn.Embedding) -> bool:
    """An embedding whose output is the table's row times its `embed_scale`, as a probe shows (Gemma, BART)."""
    if getattr(module, "embed_scale", None) is None:
        return False
    weight, rows = module.weight, max(2, 1 + (module.padding_idx or 0))
    with torch.no_grad():  # on a table of its own: the module's may be split over ranks
        probe = torch.arange(rows, device=weight.device)[None]
        table = torch.linspace(-1.0, 2.0, rows * weight.shape[1], device=weight.device, dtype=weight.dtype)
        table = table.view(rows, -1)
        try:
            result = torch.func.functional_call(module, {"weight": table}, (probe,))
        except TypeError:
            return False
        return torch.equal(result, functional.embedding(probe, table) * _scale(module))


def _scale(module: nn.Embedding) -> Tensor | float:
    scale = getattr(module, "embed_scale", 1.0)
    return scale.to(module.weight.dtype) if isinstance(scale, Tensor) else scale


def _embedding(
    module: nn.Module, trainable: frozenset[str], kept: Tensor | None, grad: Tensor
) -> Iterator[tuple[str, Use]]:
    assert isinstance(module, nn.Embedding)
    assert kept is not None
    index, grad = kept.flatten(1) if kept.dim() > 1 else kept[:, None], _positions(grad)
    if module.padding_idx is not None:  # its row of the table takes no gradient
        grad = grad.masked_fill((index == module.padding_idx)[..., None], 0)
    if not _runs(module, nn.Embedding):
        grad = grad * _scale(module)
    yield "weight", Lookup(index, grad)


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


def _rms_epsilon(module: nn.Module, dtype: torch.dtype) -> float | None:
    for name in ("variance_epsilon", "eps"):
        if hasattr(module, name):
            value = getattr(module, name)
            return torch.finfo(dtype).eps if value is None else value
    return None


def _rms_normal(values: Tensor, epsilon: float) -> Tensor:
    values = values.float()
    return values * torch.rsqrt(values.square().mean(-1, keepdim=True) + epsilon)


def _is_rms_norm(module: nn.Module) -> bool:
    """A scale over the last axis whose output on a probe is n(x) w or n(x) (1 + w), n(x) = x / rms(x).

    The models that have one each define a class of their own: what it computes is what counts.
    """
    parameters = dict(module.named_parameters())
    if not type(module).__name__.endswith("RMSNorm") or list(parameters) != ["weight"]:
        return False
    weight = parameters["weight"]
    epsilon = _rms_epsilon(module, weight.dtype)
    if weight.dim() != 1 or epsilon is None:
        return False
    with torch.no_grad():
        probe = torch.linspace(-1.0, 2.0, 2 * weight.numel(), device=weight.device).view(2, 1, -1)
        probe[1] *= 1e-3  # small enough that a wrong epsilon shows
        probe = probe.to(weight.dtype)
        scale = torch.linspace(0.5, -1.5, weight.numel(), device=weight.device).to(weight.dtype)
        try:  # not with the weight it has: at 1 and 0, its usual initial values, formulas coincide
            result = torch.func.functional_call(module, {"weight": scale}, (probe,))
        except TypeError:  # a gated norm takes a second input
            return False
        normal = _rms_normal(probe, epsilon)
        tolerance = 16 * torch.finfo(weight.dtype).eps
        return any(
            torch.allclose(result.float(), normal * factor, rtol=tolerance, atol=tolerance)
            for factor in (scale.float(), 1 + scale.float())
        )


def _rms_norm(
    module: nn.Module, trainable: frozenset[str], kept: Tensor | None, grad: Tensor
) -> Iterator[tuple[str, Use]]:
    assert kept is not None
    epsilon = _rms_epsilon(module, kept.dtype)
    assert epsilon is not None
    yield "weight", _by_row(_rms_normal(kept, epsilon).mul_(grad), kept.shape[-1:])


RULES: tuple[Rule, ...] = (
    Rule(frozenset({"weight", "bias"}), lambda m: _runs(m, nn.Linear), _weight_only, _linear),
    Rule(frozenset({"weight", "bias"}), _is_conv1d, _weight_only, _conv1d),
    Rule(frozenset({"weight"}), _is_embedding, _weight_only, _embedding),
    Rule(frozenset({"weight", "bias"}), lambda m: _runs(m, nn.LayerNorm), _weight_only, _layer_norm),
    Rule(frozenset({"weight"}), _is_rms_norm, _weight_only, _rms_norm),
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


_MIXTURE = re.compile(r"Moe(?![a-z])|MoE|MOE|Experts?(?![a-z])|SparseMLP|Router(?![a-z])")


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
        if _MIXTURE.search(kind):
            raise UnsupportedModule(
                f"module {name or '(the model)'} ({kind}) is part of a mixture of experts, which routes rows "
                "together; choose a dense model"
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
