"""Activation functions that transformers writes out in Python, by torch's kernel of the same function.

GPT-2, GPT-J, Phi, ALBERT and others compute the tanh form of GELU (Hendrycks and Gimpel 2016) in eight operations, each
over the widest tensors of a layer, and keep most of what they pass through for the backward pass.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

_REPLACED = "replaced"


def fuse(model: nn.Module) -> None:
    """Put the kernel in the place of each such activation: the same function up to rounding. In place.

    Neither the model's weights nor its config change, and what is saved of it loads as before.
    """
    from transformers.activations import ACT2CLS, ACT2FN

    written_out = {ACT2CLS["gelu_new"], ACT2CLS["gelu_fast"]}
    for module in list(model.modules()):
        for name, child in list(module._modules.items()):  # named_children() would leave out a second place
            if child is not None and type(child) in written_out:
                kernel = ACT2FN["gelu_pytorch_tanh"].train(child.training)
                vars(kernel)[_REPLACED] = child  # not as a module of it
                setattr(module, name, kernel)


@contextmanager
def as_written(model: nn.Module) -> Iterator[None]:
    """While it lasts, the model computes by the activations that `fuse` replaced."""
    places = [
        (module._modules, name, child)
        for module in model.modules()
        for name, child in module._modules.items()
        if child is not None and _REPLACED in vars(child)
    ]
    for modules, name, child in places:
        modules[name] = vars(child)[_REPLACED]
    try:
        yield
    finally:
        for modules, name, child in places:
            modules[name] = child
