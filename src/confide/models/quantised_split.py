"""Quantised layers whose packed weights can be split over ranks.

FSDP2 splits plain tensors along their first axis. Those of bitsandbytes are none: their scales hang on the parameter,
and are gone once it was split and put together again. Here a layer's packed weight is plain bytes, with the scales
beside it, and the layer multiplies by the same function of bitsandbytes. The bytes are held as bfloat16, for three
reasons: some versions of torch split floating-point parameters alone; a policy that borrows weights in bfloat16 leaves
them as they are; and autograd takes them for no weight that could train, since they never require a gradient. Nobody
computes with them as numbers.
"""

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from confide.models.quantised import Int8Linear, SplitLayer, bits, product_of_8_bits, quantised

_HELD = torch.bfloat16


class _Bytes:
    """A tensor as a parameter of bytes, and back.

    Attributes:
        parameter: one axis of two bytes each, filled up with a zero if their number is odd.
    """

    def __init__(self, values: Tensor) -> None:
        self.shape, self.dtype = values.shape, values.dtype
        plain = values.detach().as_subclass(Tensor).contiguous().view(-1).view(torch.uint8)
        self.count = plain.numel()
        even = functional.pad(plain, (0, self.count % _HELD.itemsize))
        self.parameter = nn.Parameter(even.view(_HELD), requires_grad=False)

    def values(self, borrowed: Tensor) -> Tensor:
        """Return the tensor from its bytes, once they are whole, as a view of them.

        Autograd keeps views, and FSDP fills their memory again before the backward pass.
        """
        plain = borrowed.detach().view(torch.uint8)[: self.count]
        return plain.view(self.dtype).view(self.shape)


class SplitNF4(SplitLayer):
    """A layer of 4 bits as bitsandbytes computes it.

    Attributes:
        weight: the packed weight, as bytes.
        absmax: the scales of its blocks, as bytes: an eighth of a bit for each weight.
    """

    bits = 4
    absmax: nn.Parameter
    compute_dtype: torch.dtype | None

    def forward(self, given: Tensor) -> Tensor:
        from bitsandbytes import matmul_4bit

        state = copy.copy(self.scales)
        state.absmax = self.bytes_of_scales.values(self.absmax)
        own = given if self.compute_dtype is None else given.to(self.compute_dtype)
        bias = None if self.bias is None else self.bias.to(own.dtype)
        weight = self.bytes_of_weight.values(self.weight)
        found: Tensor = matmul_4bit(own, weight, bias=bias, quant_state=state)
        return found.to(given.dtype)

    @classmethod
    def of(cls, layer: Any, device: torch.device) -> None:
        state = layer.weight.quant_state
        state.to(device)
        weight, scales = _Bytes(layer.weight.data), _Bytes(state.absmax.cpu())
        state.absmax = None
        layer.__class__ = cls
        layer.weight, layer.absmax = weight.parameter, scales.parameter
        layer.bytes_of_weight, layer.bytes_of_scales, layer.scales = weight, scales, state
        layer.quant_state = None


class SplitInt8(SplitLayer):
    """A layer of 8 bits as bitsandbytes computes it.

    Attributes:
        weight: int8[outputs, inputs], as bytes.
        scale: float32[outputs], whole on every rank.
    """

    bits = 8
    scale: Tensor

    def forward(self, given: Tensor) -> Tensor:
        from bitsandbytes import MatmulLtState, matmul

        weight = self.bytes_of_weight.values(self.weight)
        state = MatmulLtState()
        state.CB, state.SCB = weight, self.scale
        state.has_fp16_weights, state.is_training = False, self.training
        bias = None if self.bias is None else self.bias.to(given.dtype)
        found: Tensor = matmul(given, weight, bias=bias, state=state)
        return found

    @classmethod
    def of(cls, layer: Any, device: torch.device) -> None:
        scale = layer.state.SCB if layer.state.SCB is not None else layer.weight.SCB
        weight = _Bytes(layer.weight.data)
        layer.__class__ = cls
        layer.weight, layer.bytes_of_weight, layer.state = weight.parameter, weight, None
        layer.register_buffer("scale", scale.detach().clone(), persistent=False)


class SplitInt8Linear(SplitLayer):
    """An `Int8Linear`: the weight is int8[outputs, inputs], as bytes; the scales are whole on every rank."""

    bits = 8
    scale: Tensor

    def forward(self, given: Tensor) -> Tensor:
        weight = self.bytes_of_weight.values(self.weight)
        return product_of_8_bits(given, weight, self.scale, self.bias)

    @classmethod
    def of(cls, layer: Any, device: torch.device) -> None:
        weight = _Bytes(layer.weight)
        layer.__class__ = cls
        layer.weight, layer.bytes_of_weight = weight.parameter, weight


def make_splittable(model: nn.Module, device: torch.device) -> None:
    """Let every quantised layer hold its packed weight in plain parameters. In place; what it computes stays the same.

    Args:
        device: where the layers will compute.
    """
    for _, layer in list(quantised(model)):
        if not isinstance(layer, SplitLayer):
            kind = (
                SplitInt8Linear
                if isinstance(layer, Int8Linear)
                else SplitNF4
                if bits(layer) == 4
                else SplitInt8
            )
            kind.of(layer, device)
