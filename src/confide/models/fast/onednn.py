"""Compute linear layers by oneDNN on a CPU, where that is faster than torch's default.

Torch multiplies float32 matrices by MKL, whose code for AMD's processors is slower than oneDNN's, which torch
contains as well (`benchmarks/products.py`). Values are the same up to rounding.
"""

import functools
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from confide.models.fast.switch import is_on

_NARROW = 256  # below this width, and below so many positions, not all layers gain
_FEW = 128
LINE = 16  # float32 values of a cache line
_CPUINFO = Path("/proc/cpuinfo")

_OWN = (Tensor, nn.Parameter)  # other types, such as those split over ranks, compute in ways of their own


def exist() -> bool:
    """Return True if this torch has oneDNN, and its product under a name that torch keeps for its own compiler."""
    return torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")


@functools.cache
def are_faster() -> bool:
    """Return True if this processor is of the kind on which oneDNN was measured to be faster."""
    is_as_measured = torch.backends.mkl.is_available() and torch.backends.cpu.get_cpu_capability() == "AVX512"
    return exist() and is_as_measured and _vendor(_CPUINFO) == "AuthenticAMD"


def _vendor(path: Path) -> str | None:
    """Return the vendor of the processor; None if the system does not say."""
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return None
    return next((line.split(":")[1].strip() for line in lines if line.startswith("vendor_id")), None)


def product(given: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Compute given weight^T + bias, by oneDNN.

    Args:
        given: float32[..., k].
        weight: float32[n, k], in either order in memory.
        bias: float32[n].
    """
    found: Tensor = torch.ops.mkldnn._linear_pointwise(given, weight, bias, "none", [], "")
    return found


def _back(grad: Tensor, weight: Tensor) -> Tensor:
    """Compute grad weight^T. MKL is faster if rows of grad begin anywhere in a cache line (GPT-2's vocabulary)."""
    return product(grad, weight) if grad.shape[-1] % LINE == 0 else grad @ weight.T


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
            # Neither library is always the faster for these.
            of_weight = rows.T @ flat if ctx.across else flat.T @ rows
        return of_given, of_weight, flat.sum(0) if ctx.needs_bias else None, None


class OneDNNLayer:
    """Layer that computes products by oneDNN, and leaves to its original class whatever gains nothing.

    Its output can be differentiated once.

    Attributes:
        written: the layer's class as its author wrote it.
        across: the weight is [inputs, outputs].
    """

    written: type[nn.Module]
    across = False
    weight: Any
    bias: Any

    def forward(self, *args: Tensor, **kwargs: Tensor) -> Tensor:  # their classes call the input differently
        (given,) = args or kwargs.values()
        weight = self.weight
        if not is_on() or not _gains(given, weight, self.across):
            usual: Tensor = super().forward(given)  # type: ignore[misc]
            return usual
        found: Tensor = _Product.apply(given, weight, self.bias, self.across)  # type: ignore[no-untyped-call]
        return found


def _gains(given: Tensor, weight: Tensor, across: bool) -> bool:
    return (
        weight.device.type == "cpu"
        and given.dtype == weight.dtype == torch.float32
        and given.shape[-1:] == (weight.shape[:1] if across else weight.shape[1:])
        and given.numel() >= _FEW * given.shape[-1]
        and type(given) in _OWN
        and type(weight) in _OWN
        and not torch.is_autocast_enabled("cpu")
    )


class Linear(OneDNNLayer, nn.Linear):
    """`nn.Linear` by oneDNN."""

    written = nn.Linear


def is_conv1d(kind: type) -> bool:
    """Return True for `Conv1D`, by name, so that transformers, which is slow to import, need not be loaded."""
    return (kind.__module__, kind.__name__) == ("transformers.pytorch_utils", "Conv1D")


@functools.cache
def _conv1d(kind: Any) -> type[nn.Module]:
    return type("Conv1D", (OneDNNLayer, kind), {"written": kind, "across": True, "__module__": __name__})


def __getattr__(name: str) -> Any:
    """Return `Conv1D`, for pickle."""
    if name != "Conv1D":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from transformers.pytorch_utils import Conv1D

    return _conv1d(Conv1D)


def use_onednn(module: nn.Module) -> None:
    """Let a linear layer compute by oneDNN from now on, if it gains by that here. In place."""
    kind: Any = type(module)
    if "forward" in vars(module) or not (kind is nn.Linear or is_conv1d(kind)) or not are_faster():
        return
    assert isinstance(module.weight, Tensor)
    if min(module.weight.shape) >= _NARROW:
        module.__class__ = Linear if kind is nn.Linear else _conv1d(kind)


def written(module: nn.Module) -> type[nn.Module]:
    """Return a module's class as its author wrote it; its own class if a `OneDNNLayer` was changed once more."""
    kind = type(module)
    return module.written if isinstance(module, OneDNNLayer) and kind.forward is OneDNNLayer.forward else kind
