"""Quantised layers, of bitsandbytes and of torchao: which they are, and what weights they multiply with."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

OF_8_BITS, OF_4_BITS = "Linear8bitLt", "Linear4bit"


class Int8Linear(nn.Linear):
    """A frozen linear layer of weights that torchao has rounded to 8 bits, with a scale for each output.

    It computes what `nn.Linear` does with `weight_of` the layer, under autocast too. Autograd keeps nothing for it but
    the 8 bits: torchao's own layer keeps a copy of its weights in float32 until the backward pass. Its weight is a
    plain tensor, so that bytes, digests and comparisons are those of the 8 bits.

    Attributes:
        weight: int8[outputs, inputs].
        scale: float32[outputs, 1].
    """

    scale: Tensor

    def forward(self, given: Tensor) -> Tensor:
        return product_of_8_bits(given, self.weight, self.scale, self.bias)

    @property
    def W_q(self) -> Tensor:
        """Return the weight, by the name that tells peft to ask `dequantize` for the plain one: DoRA begins with it."""
        return self.weight

    def dequantize(self) -> Tensor:
        """Return the plain weight, float32[outputs, inputs]."""
        return _scaled(self.weight, self.scale)


class SplitLayer(nn.Linear):
    """A quantised layer whose packed weight may be split over ranks; see `quantised_split`.

    Attributes:
        bits: in how many bits it holds its weight.
    """

    bits: int
    bytes_of_weight: Any
    bytes_of_scales: Any
    scales: Any


class _Product(torch.autograd.Function):
    """Multiply by weights of 8 bits, with a gradient of the input alone; it makes the plain weights in each pass."""

    @staticmethod
    def forward(ctx: Any, given: Tensor, weight: Tensor, scale: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(weight, scale)
        return functional.linear(given, _scaled(weight, scale).to(given.dtype), bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        return grad @ _scaled(*ctx.saved_tensors).to(grad.dtype), None, None, None


def product_of_8_bits(given: Tensor, weight: Tensor, scale: Tensor, bias: Tensor | None) -> Tensor:
    """Compute what an `Int8Linear` does."""
    found: Tensor = _Product.apply(given, weight, scale, bias)  # type: ignore[no-untyped-call]
    return found


def _scaled(weight: Tensor, scale: Tensor) -> Tensor:
    return weight.float() * scale


def is_of_torchao(values: Tensor) -> bool:
    """Return True for a tensor of torchao's own classes. Few operations work on these."""
    return type(values).__module__.partition(".")[0] == "torchao"


def take_from_torchao(model: nn.Module) -> str | None:
    """Turn each linear layer that torchao has quantised into an `Int8Linear` of the same weights. In place.

    Returns:
        The name of a weight that torchao holds in any other way; None if there is none.
    """
    for name, module in model.named_modules():
        for own, values in module._parameters.items():
            if values is None or not is_of_torchao(values):
                continue
            if own != "weight" or type(module) is not nn.Linear or not _is_scaled_by_output(values):
                return f"{name}.{own}"
            module.__class__ = Int8Linear
            vars(module).pop("extra_repr", None)  # torchao's own, which names the class of its tensor
            module.weight = nn.Parameter(values.qdata, requires_grad=False)
            module.register_buffer("scale", values.scale.float())
    return None


def _is_scaled_by_output(values: Any) -> bool:
    """Return True if a tensor of torchao is 8 bits times a scale for each output, with its inputs left as they are."""
    zero = getattr(values, "zero_point", None)
    return (
        type(values).__name__ == "Int8Tensor"
        and values.qdata.dtype == torch.int8
        and values.scale.shape == (len(values), 1)
        and (zero is None or not bool(zero.any()))
        and values.act_quant_kwargs is None
        and values.act_pre_scale is None
    )


def bits(module: nn.Module) -> int:
    """Return in how many bits a quantised layer holds its weight; 0 for any other module."""
    kind = type(module)
    if isinstance(module, SplitLayer):
        return module.bits
    if kind is Int8Linear:
        return 8
    if not kind.__module__.startswith("bitsandbytes."):  # peft's layers around them have the same names
        return 0
    return {OF_8_BITS: 8, OF_4_BITS: 4}.get(kind.__name__, 0)


def quantised(model: nn.Module) -> Iterator[tuple[str, Any]]:
    """Yield the quantised layers of a model, with their names."""
    for name, module in model.named_modules():
        if bits(module):
            yield name, module


@torch.no_grad()
def weight_of(layer: Any) -> Tensor:
    """Return the weight that a layer multiplies with, in a plain tensor.

    It is [outputs, inputs], but [inputs, outputs] of a `Conv1D` that is not quantised. The layer stays as it is:
    peft's function would give it a new parameter.
    """
    if not bits(layer):
        plain: Tensor = layer.weight.detach()
        return plain
    weight = layer.weight
    if isinstance(layer, Int8Linear):
        return layer.dequantize()
    if bits(layer) == 4:
        from bitsandbytes.functional import dequantize_4bit

        found: Tensor = dequantize_4bit(weight.data, weight.quant_state).as_subclass(Tensor)
        return found
    # The first pass moves the scales of the outputs from the weight to the layer's state.
    scale = layer.state.SCB if layer.state.SCB is not None else weight.SCB
    whole: Tensor = weight.data.as_subclass(Tensor).float() * (scale.float() / 127.0).unsqueeze(1)
    return whole
