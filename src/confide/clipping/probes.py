"""Find out what a layer computes by probing it: run it with weights and inputs for which the answer is known.

Every family of models has its own classes for the same few layers. The computation of a class counts, neither its
name nor its parent. A layer is probed in train mode and in eval mode, since dropout, for example, acts in train mode
only. A rule of `kinds` that needs a probe of its own builds it from `has_only`, `line` and `gives`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from confide.utils.memory import ran_out

# Relative rounding by which a float32 answer may differ from the expected one.
_TOLERANCE = 16 * torch.finfo(torch.float32).eps

_ROWS = 8  # rows of a probe: enough values that random draws, such as dropout's, show among them


def is_its_own(module: nn.Module) -> bool:
    """Return True if the forward method is the class's own. accelerate replaces `forward`, but only moves inputs."""
    return "forward" not in vars(module) or hasattr(module, "_hf_hook")


def _answer(
    module: nn.Module,
    weights: Mapping[str, Tensor],
    args: Any,
    kwargs: Mapping[str, Any] | None = None,
    training: bool = False,
) -> Tensor | None:
    """Return the output of a module with other weights, or None if it cannot take such weights or inputs.

    The module's own weights, which may be split, and its hooks are not used.
    """
    twin = object.__new__(type(module))  # FSDP's classes cannot be copied by `copy.copy`
    vars(twin).update(vars(module))
    twin.training = training
    twin._parameters = module._parameters | {
        name: nn.Parameter(weight, requires_grad=weight.requires_grad) for name, weight in weights.items()
    }
    try:
        result = type(module).forward(twin, *args, **(kwargs or {}))
    except (AttributeError, IndexError, RuntimeError, TypeError, ValueError) as error:
        if ran_out(error):  # with more memory, it might have answered
            raise
        return None
    return result if isinstance(result, Tensor) else None


def gives(
    module: nn.Module, weights: Mapping[str, Tensor], probe: Tensor, expected: Tensor, atol: Tensor | float
) -> bool:
    """Return True if a module with these weights answers the probe as expected, within `atol` and float32 rounding."""
    for training in (False, True):
        with torch.no_grad():
            found = _answer(module, weights, (probe,), training=training)
        if found is None or found.shape != expected.shape:
            return False
        if not bool(((found.float() - expected).abs() <= atol + _TOLERANCE * expected.abs()).all()):
            return False
    return True


def line(start: float, end: float, shape: torch.Size | tuple[int, ...], device: torch.device) -> Tensor:
    """Return values from `start` to `end` in equal steps: weights or inputs that all differ."""
    count = torch.Size(shape).numel()
    return torch.linspace(start, end, count, device=device).view(shape)


def has_only(module: nn.Module, *parameters: str) -> bool:
    """Return True if the class computes from these parameters and its input alone."""
    own = {name for name, p in module._parameters.items() if p is not None}
    return is_its_own(module) and own <= set(parameters) and not any(module.children())


def is_linear(module: nn.Module) -> bool:
    """Return True if the layer, of any class, computes x W^T + b (Falcon)."""
    if not isinstance(module, nn.Linear) or not has_only(module, "weight", "bias"):
        return False
    out, width = module.weight.shape if module.weight.dim() == 2 else (0, 0)
    if (out, width) != (
        module.out_features,
        module.in_features,
    ):  # packed or split: it cannot be replaced by a matrix
        return False
    device = module.weight.device
    weights = {"weight": line(-1.0, 0.7, (out, width), device)}
    if module.bias is not None:
        weights["bias"] = line(3.0, -2.0, (out,), device)
    probe = line(-1.0, 2.0, (_ROWS, 1, width), device)
    expected = functional.linear(probe, weights["weight"], weights.get("bias"))
    largest = functional.linear(probe.abs(), weights["weight"].abs())
    return gives(module, weights, probe, expected, _TOLERANCE * largest)


def is_scaled_embedding(module: nn.Embedding) -> bool:
    """Return True if the output is the table's row times its `embed_scale` (Gemma, BART)."""
    if getattr(module, "embed_scale", None) is None or not is_its_own(module):
        return False
    weight, rows = module.weight, max(2, 1 + (module.padding_idx or 0))
    probe = torch.arange(rows, device=weight.device)[None]
    table = line(-1.0, 2.0, (rows, weight.shape[1]), weight.device).to(weight.dtype)
    with torch.no_grad():
        result = _answer(module, {"weight": table}, (probe,))
        return result is not None and torch.equal(
            result, functional.embedding(probe, table) * embed_scale(module)
        )


def embed_scale(module: nn.Embedding) -> Tensor | float:
    """Return the factor that the layer multiplies its table's rows by."""
    scale = getattr(module, "embed_scale", 1.0)
    return scale.to(module.weight.dtype) if isinstance(scale, Tensor) else scale


def looked_up(module: nn.Embedding, args: Any, kwargs: Mapping[str, Any]) -> Tensor | None:
    """Return the indices of the table rows that an embedding returns for a call: int64[B, ...].

    Return None if the output is anything but rows of the table. The embedding is run with two tables of one column:
    one holds the row numbers, the other the row numbers counted from the end. Only a plain look-up gives the same
    indices for both. This serves embeddings that compute the indices themselves, such as the positions of OPT and
    BART.
    """
    given = [value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)]
    last = module.num_embeddings - 1
    up = torch.arange(last + 1, dtype=torch.float32, device=given[0].device if given else None)[:, None]
    with torch.enable_grad():  # a look-up without a gradient would not be trained
        found = _answer(module, {"weight": up.requires_grad_()}, args, kwargs, module.training)
    with torch.no_grad():
        other = _answer(module, {"weight": last - up.detach()}, args, kwargs, module.training)
    if found is None or other is None or not found.requires_grad or found.shape[-1:] != (1,):
        return None
    index = found.detach()[..., 0].long()
    alike = torch.equal(index[..., None].float(), found) and torch.equal(last - found, other)
    return index if alike else None


Normal = Callable[[Tensor, float], Tensor]


def over_rms(values: Tensor, epsilon: float) -> Tensor:
    """Compute n(x) = x / rms(x) over the last axis, in float32."""
    values = values.float()
    return values * torch.rsqrt(values.square().mean(-1, keepdim=True) + epsilon)


def centred(values: Tensor, epsilon: float) -> Tensor:
    """Compute n(x) = (x - mean(x)) / std(x) over the last axis, in float32."""
    return functional.layer_norm(values.float(), values.shape[-1:], eps=epsilon)


def norm_epsilon(module: nn.Module, dtype: torch.dtype) -> float | None:
    """Return the epsilon of a norm layer, or None if it has none; torch's default for `dtype` if it is unset."""
    for name in ("variance_epsilon", "eps"):
        if hasattr(module, name):
            value = getattr(module, name)
            return torch.finfo(dtype).eps if value is None else value
    return None


def is_norm(module: nn.Module, normal: Normal) -> bool:
    """Return True if the layer is n(x) w + b or n(x) (1 + w) + b, with or without b."""
    own = {name: p for name, p in module._parameters.items() if p is not None}
    if "Norm" not in type(module).__name__ or "weight" not in own or not has_only(module, "weight", "bias"):
        return False
    shape, device = own["weight"].shape, own["weight"].device
    epsilon = norm_epsilon(module, torch.float32)
    if epsilon is None or not shape or any(p.shape != shape for p in own.values()):
        return False
    probe = line(-1.0, 2.0, (_ROWS, 1, *shape), device)
    probe[1::2] *= 1e-3  # small enough that a wrong epsilon shows
    # Not its present weights: at 1 and 0, the usual initial values, different formulas coincide.
    weights = {"weight": line(0.5, -1.5, shape, device), "bias": line(3.0, -2.0, shape, device)}
    shift = weights["bias"] if "bias" in own else 0.0
    asked = {name: weights[name] for name in own}
    return any(
        gives(module, asked, probe, normal(probe, epsilon) * factor + shift, 4 * _TOLERANCE)
        for factor in (weights["weight"], 1 + weights["weight"])
    )
