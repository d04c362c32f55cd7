"""Options of LoRA, on bases held in every way: exact beside a loop over rows, or refused."""

from __future__ import annotations

import pytest
import torch
from peft.tuners.lora import LoraLayer

import confide
from confide.models import loading as models
from tests.models.bases import NF4, TORCHAO, error, held, loaded
from tests.models.test_loading import batch_of


@pytest.mark.parametrize("base", [{}, {"precision": "bf16"}, NF4, TORCHAO])
@pytest.mark.parametrize(
    "adapter",
    [
        {"rslora": True},
        {"dora": True},
        {"dora": True, "rslora": True, "modules_to_save": ["lm_head"]},
        {"modules_to_save": ["lm_head"]},
        {"modules_to_save": ["embed_tokens"]},
        {"modules_to_save": ["norm"], "targets": ["q_proj", "v_proj"]},
    ],
    ids=lambda adapter: "-".join(adapter),
)
def test_options_of_lora_are_exact(saved, adapter, base):
    model, task = loaded(saved, "llama", adapter, base=base)
    assert error(model, task) < 1e-5


@pytest.mark.parametrize("kind", ["gpt2", "roberta"])
def test_dora_is_exact_beside_biases_and_transposed_weights(saved, kind):
    model, task = loaded(saved, kind, {"dora": True})
    assert any("magnitude" in name for name in models.trainable(model))
    assert error(model, task) < 1e-5


@pytest.mark.parametrize(
    ("kind", "base"), held(["llama", "gpt2", "roberta"], [{"precision": "float32"}, NF4, TORCHAO])
)
def test_dora_is_what_peft_computes(saved, kind, base):
    """Values and gradients, of peft's own order of operations."""
    model, task = loaded(saved, kind, {"dora": True}, base=base)
    parameters, batch = models.trainable(model), batch_of(task)
    ours = task.row_loss(model, batch)
    own = torch.autograd.grad(ours.sum(), list(parameters.values()))
    from peft.tuners.lora.dora import DoraLinearLayer
    from peft.tuners.lora.variants import DoraLinearVariant

    swapped = 0
    for module in model.modules():
        for adapter, layer in dict(getattr(module, "lora_magnitude_vector", {}).items()).items():
            layer.__class__ = DoraLinearLayer
            module.lora_variant[adapter] = DoraLinearVariant
            swapped += 1
    assert swapped >= 8
    theirs = task.row_loss(model, batch)
    assert torch.allclose(ours, theirs, rtol=1e-5)
    grads = torch.autograd.grad(theirs.sum(), list(parameters.values()))
    for a, b in zip(own, grads, strict=True):
        assert float((a - b).norm()) < 1e-4 * float(b.norm()) + 1e-8


def test_rslora_divides_by_the_root_of_the_rank(saved):
    scales = {}
    for rslora in (False, True):
        model, _ = loaded(saved, "llama", {"rank": 4, "alpha": 8.0, "rslora": rslora})
        layers = [layer for layer in model.modules() if isinstance(layer, LoraLayer)]
        scales[rslora] = {layer.scaling["default"] for layer in layers}
    assert scales == {False: {2.0}, True: {4.0}}


@pytest.mark.parametrize(
    ("kind", "adapter", "message"),
    [
        ("llama", {"targets": ["embed_tokens"]}, r"adapter\.targets: .*embed_tokens is an embedding.*\[embed_tokens\]"),
        ("gpt2", {"targets": ["wte", "c_attn"]}, r"adapter\.targets: .*wte is an embedding"),
        ("llama", {"modules_to_save": ["nowhere"]}, r"adapter\.modules_to_save: the model has no module named nowhere"),
    ],
)  # fmt: skip
def test_what_cannot_be_told_apart_is_refused_by_name(saved, kind, adapter, message):
    with pytest.raises(confide.InputError, match=message):
        loaded(saved, kind, adapter)


def test_a_module_that_trains_whole_takes_no_factors(saved):
    model, task = loaded(saved, "llama", {"modules_to_save": ["q_proj"]})
    assert not any("q_proj" in name and "lora_" in name for name in models.trainable(model))
    assert error(model, task) < 1e-5
    with pytest.raises(confide.InputError, match=r"adapter\.modules_to_save: q_proj trains whole"):
        loaded(saved, "llama", {"modules_to_save": ["q_proj"], "targets": ["q_proj", "v_proj"]})
