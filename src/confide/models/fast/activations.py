"""A model's modules, exchanged for ones that compute the same faster, and back.

GPT-2, GPT-J, Phi, ALBERT and others compute the tanh form of GELU (Hendrycks and Gimpel 2016) in eight operations, each
over the widest tensors of a layer, and keep most of what they pass through for the backward pass: torch has a kernel.
Linear layers have theirs in `onednn`.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

from confide.models.fast.onednn import use_onednn
from confide.models.fast.switch import off

_REPLACED = "replaced"


def install_fast_layers(model: nn.Module) -> None:
    """Replace every layer that has a faster equivalent: the same function up to rounding. In place.

    Neither the model's weights nor its config change, and saved weights load as before.
    """
    from transformers.activations import ACT2CLS, ACT2FN

    written_out = {ACT2CLS["gelu_new"], ACT2CLS["gelu_fast"]}
    for module in list(model.modules()):
        use_onednn(module)
        for name, child in list(module._modules.items()):  # named_children() would leave out a second place
            if child is not None and type(child) in written_out:
                kernel = ACT2FN["gelu_pytorch_tanh"].train(child.training)
                vars(kernel)[_REPLACED] = child  # not as a module of it
                setattr(module, name, kernel)


@contextmanager
def original_layers(model: nn.Module) -> Iterator[None]:
    """Run the model with its original layers inside the context, with everything else of this folder off.

    A run is then the same up to rounding: `test_a_step_is_the_same_without_all_of_it`.
    """
    places = [
        (module._modules, name, child)
        for module in model.modules()
        for name, child in module._modules.items()
        if child is not None and _REPLACED in vars(child)
    ]
    for children, name, child in places:
        children[name] = vars(child)[_REPLACED]
    try:
        with off():
            yield
    finally:
        for children, name, child in places:
            children[name] = child
