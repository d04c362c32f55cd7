"""Linear layers whose products oneDNN takes on a CPU, where that is faster than what torch calls by itself.

Torch multiplies float32 matrices by MKL, whose code for AMD's processors is slower than oneDNN's, which torch brings
along, too (`benchmarks/products.py`). Values are the same up to rounding.
"""

import functools
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

_NARROW = 256  # below this width, and below so many positions, not all layers gain
_FEW = 128
_LINE = 16  # float32 values of a cache line

_OWN = (Tensor, nn.Parameter)  # others, such as those split over ranks, compute in ways of their own


def exist() -> bool:
    """Whether this torch has oneDNN, and its product by a name that torch keeps for its own compiler."""
    return torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")


@functools.cache
def are_faster() -> bool:
    """Whether this is a processor of the kind on which they were measured to be."""
    return exist() and torch.backends.cpu.get_cpu_capability() == "AVX512" and _vendor() == "AuthenticAMD"


def _vendor() -> str | None:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return None
    return next((line.split(":")[1].strip() for line in lines if line.startswith("vendor_id")), None)


def product(given: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """given weight^T + bias, by oneDNN.

    Args:
        given: float32[..., k].
        weight: float32[n, k], in either order in memory.
        bias: float32[n].
    """
    found: Tensor = torch.ops.mkldnn._linear_pointwise(given, weight, bias, "none", [], "")
    return found


def _back(grad: Tensor, weight: Tensor) -> Tensor:
    """grad weight^T. MKL's is the faster where rows of grad begin anywhere in a cache line (GPT-2's vocabulary)."""
    return product(grad, weight) if grad.shape[-1] % _LINE == 0 else grad @ weight.T


class _Product(torch.autograd.Function):
    """`product` with a gradient; `across` for a weight of [k, n]."""

    @staticmethod
    def forward(ctx: Any, given: Tensor, weight: Tensor, bias: Tensor | None, across: bool) -> Tensor:
        needs_given, needs_weight, ctx.needs_bias, _ = ctx.needs_input_grad
        ctx.across = across
        ctx.save_for_backward(given if needs_weight else None, weight if needs_given else None)
        return product(given, weight.T if across else weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None, None]:
        given, weight = ctx.saved_tensors
        of_given = None if weight is None else _back(grad, weight if ctx.across else weight.T)
        flat, of_weight = grad.reshape(-1, grad.shape[-1]), None
        if given is not None:
            rows = given.reshape(-1, given.shape[-1])
            # Of these neither library is always the faster.
            of_weight = rows.T @ flat if ctx.across else flat.T @ rows
        return of_given, of_weight, flat.sum(0) if ctx.needs_bias else None, None


class Quick:
    """What such a layer has before its own class; that one computes wherever nothing is gained."""

    written: type[nn.Module]
    across = False
    weight: nn.Parameter
    bias: nn.Parameter | None

    def forward(self, given: Tensor) -> Tensor:
        weight = self.weight
        if not _gains(given, weight):
            return super().forward(given)  # type: ignore[misc]
        found: Tensor = _Product.apply(given, weight, self.bias, self.across)
        return found


def _gains(given: Tensor, weight: Tensor) -> bool:
    return (
        weight.device.type == "cpu"
        and given.dtype == weight.dtype == torch.float32
        and given.numel() >= _FEW * given.shape[-1]
        and type(given) in _OWN
        and type(weight) in _OWN
        and not torch.is_autocast_enabled("cpu")
    )


@functools.cache
def _quick(kind: Any) -> type[nn.Module] | None:
    """The class for layers of one; None for a kind that it does not exist for."""
    is_conv1d = (kind.__module__, kind.__name__) == ("transformers.pytorch_utils", "Conv1D")
    if kind is not nn.Linear and not is_conv1d:
        return None
    own = {"written": kind, "across": is_conv1d, "__module__": __name__, "__doc__": Quick.__doc__}
    return type(kind.__name__, (Quick, kind), own)


def quicken(module: nn.Module) -> None:
    """Let a linear layer compute so from now on, if it gains by that here. In place."""
    kind: Any = type(module)
    quick = _quick(kind) if are_faster() else None
    if quick is None or "forward" in vars(module):
        return
    assert isinstance(module.weight, Tensor)
    if min(module.weight.shape) >= _NARROW:
        module.__class__ = quick


def written(module: nn.Module) -> type[nn.Module]:
    """The class of a module as the model's author wrote it."""
    return module.written if isinstance(module, Quick) else type(module)
