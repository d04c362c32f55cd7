"""DoRA (Liu et al. 2024) in an order of operations that tells each row's gradient, with the values that peft computes.

peft passes an identity matrix through a layer's LoRA factors to learn the length of each output's weights, so that
these layers see more than the rows. No gradient goes that way: the length counts as a constant (section 4.3 of the
paper). Here it comes from the factors' weights themselves, and the trained magnitude is a layer that multiplies.
"""

import functools
from typing import Any

import torch
from torch import Tensor, nn

from confide.models.quantised import weight_of


def times(layer: Any, values: Tensor) -> Tensor:
    """Multiply by the layer's weight: what a magnitude does, by which its rule knows it."""
    found: Tensor = values * layer.weight
    return found


@functools.cache
def _kinds() -> tuple[type[nn.Module], type[Any]]:
    """Return the classes that take the places of peft's own: of the magnitude, and of what a layer does with it."""
    from peft.tuners.lora.dora import DoraLinearLayer
    from peft.tuners.lora.variants import DoraLinearVariant

    class Variant(DoraLinearVariant):  # type: ignore[misc]
        @staticmethod
        def forward(module: Any, active_adapter: str, x: Tensor, result: Tensor, **_: Any) -> Tensor:
            first, second = module.lora_A[active_adapter], module.lora_B[active_adapter]
            magnitude, scale = module.lora_magnitude_vector[active_adapter], module.scaling[active_adapter]
            base = module.get_base_layer()
            with torch.no_grad(), torch.autocast(x.device.type, enabled=False):
                change = second.weight.float() @ first.weight.float()
                weight = weight_of(base).float()
                length = magnitude.get_weight_norm(weight, change, scale)
            plain = result if base.bias is None else result - base.bias
            direction = (plain + second(first(x)) * scale) / length
            found: Tensor = magnitude(direction)
            return found if base.bias is None else found + base.bias

    magnitude = type("Magnitude", (DoraLinearLayer,), {"forward": times, "__module__": __name__})
    return magnitude, Variant


def use_own_dora(model: nn.Module) -> None:
    """Let every linear layer with DoRA compute in this order. In place; the parameters and their names stay."""
    module: Any
    for module in model.modules():
        magnitudes = getattr(module, "lora_magnitude_vector", None)
        for adapter, layer in dict(magnitudes.items() if magnitudes else ()).items():
            if type(layer).__name__ == "DoraLinearLayer":
                layer.__class__, variant = _kinds()
                module.lora_variant[adapter] = variant
