"""Activation functions that transformers writes out in Python, by torch's kernel of the same function.

GPT-2, GPT-J, Phi, ALBERT and others compute the tanh form of GELU (Hendrycks and Gimpel 2016) in eight operations, each
over the widest tensors of a layer, and keep most of what they pass through for the backward pass.
"""

from torch import nn


def fuse(model: nn.Module) -> None:
    """Put the kernel in the place of each such activation: the same function up to rounding. In place.

    Neither the model's weights nor its config change, and what is saved of it loads as before.
    """
    from transformers.activations import ACT2CLS, ACT2FN

    written_out = {ACT2CLS["gelu_new"], ACT2CLS["gelu_fast"]}
    for module in list(model.modules()):
        for name, child in module.named_children():
            if type(child) in written_out:
                setattr(module, name, ACT2FN["gelu_pytorch_tanh"])
