"""Layers of bitsandbytes: which they are, and what weights they multiply with."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

OF_8_BITS, OF_4_BITS = "Linear8bitLt", "Linear4bit"


def bits(module: nn.Module) -> int:
    """Return in how many bits a layer of bitsandbytes holds its weight; 0 for any other module."""
    kind = type(module)
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
    if bits(layer) == 4:
        from bitsandbytes.functional import dequantize_4bit

        found: Tensor = dequantize_4bit(weight.data, weight.quant_state).as_subclass(Tensor)
        return found
    # The first pass moves the scales of the outputs from the weight to the layer's state.
    scale = layer.state.SCB if layer.state.SCB is not None else weight.SCB
    whole: Tensor = weight.data.as_subclass(Tensor).float() * (scale.float() / 127.0).unsqueeze(1)
    return whole
