"""Bases held in bf16, fp16, 8 or 4 bits under LoRA: exact beside a loop over rows, or refused."""

from __future__ import annotations

import copy
import importlib.util

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import confide
from confide.config.model_sections import Adapter, idle
from confide.models import base as bases
from confide.models import loading as models
from confide.models.quantised import Int8Linear, is_of_torchao, quantised, take_from_torchao, weight_of
from confide.models.quantised_split import _Bytes, make_splittable
from tests import small
from tests.models.bases import (
    BY_TORCHAO,
    INT8,
    INT8_BF16,
    NEEDS,
    NEEDS_TORCHAO,
    NF4,
    NF4_BF16,
    TORCHAO,
    TORCHAO_BF16,
    TORCHAO_FP16,
    WIDE,
    Plain,
    error,
    held,
    loaded,
    plain_copy,
    settings,
)
from tests.models.test_loading import batch_of


@pytest.mark.parametrize(("kind", "base"), held(["llama", "gpt2", "roberta", "gemma2"], [NF4, INT8, TORCHAO]))
def test_the_sum_over_a_quantised_base_is_that_of_a_loop_over_its_dequantised_weights(saved, kind, base):
    model, task = loaded(saved, kind, base=base)
    assert len(list(quantised(model))) >= 8
    assert error(model, task, plain_copy(model)) < 1e-5


@pytest.mark.parametrize(("kind", "base"), held(["llama", "gpt2"], [NF4, INT8, TORCHAO]))
def test_the_same_where_training_computes_in_bf16(saved, kind, base):
    """The loop itself is rounded to bf16. bitsandbytes' 8-bit layer goes back in float32, not near an ordinary one."""
    model, task = loaded(saved, kind, base=base, train={"precision": "bf16"})
    assert task.autocast
    assert error(model, task) < 3e-3
    assert error(model, task, plain_copy(model)) < (0.03 if base == INT8.values[0] else 3e-3)


@pytest.mark.parametrize(
    ("kind", "base"),
    held(
        ["llama", "gpt2", "roberta", "gemma2"],
        [{"precision": "bf16"}, {"precision": "fp16"}, NF4_BF16, INT8_BF16, TORCHAO_BF16, TORCHAO_FP16],
    ),
)
def test_the_sum_over_a_coarse_base_is_that_of_a_loop(saved, kind, base):
    model, task = loaded(saved, kind, base=base)
    assert {p.dtype for p in models.trainable(model).values()} == {torch.float32}
    still = {p.dtype for p in model.parameters() if not p.requires_grad and p.is_floating_point()}
    assert still == {bases.DTYPES[base["precision"]]}
    assert error(model, task) < 1e-5


def test_a_base_in_bf16_takes_half_and_one_in_4_bits_an_eighth_of_the_bytes(saved):
    def size(**base: str) -> int:
        model, _ = loaded(saved, "llama", base=base)
        layers = [m for n, m in model.named_modules() if n.endswith("base_layer")]
        return sum(p.nbytes for layer in layers for p in layer.parameters())

    whole = size()
    assert size(precision="bf16") * 2 == whole
    if importlib.util.find_spec("bitsandbytes") is not None:
        assert size(quantise="int8") * 4 == whole
        assert size(quantise="nf4") * 8 == whole
    if importlib.util.find_spec("torchao") is not None:
        assert size(**BY_TORCHAO) * 4 == whole


@pytest.mark.parametrize("base", [NF4, INT8, TORCHAO])
def test_the_head_of_a_classifier_trains_whole_and_is_not_quantised(saved, base):
    model, _ = loaded(saved, "roberta", base=base)
    assert not any("classifier" in name for name, _ in quantised(model))
    assert any("classifier.modules_to_save" in name for name in models.trainable(model))


@NEEDS
def test_no_8_bit_layer_looks_at_other_rows_for_large_values(saved):
    model, _ = loaded(saved, "llama", base={"quantise": "int8"})
    layers = [layer for _, layer in quantised(model)]
    assert {layer.state.threshold for layer in layers} == {0.0}
    bases.refuse_outliers(model)
    layers[3].state.threshold = 6.0
    with pytest.raises(confide.InputError, match=r"8-bit layer .*llm_int8_threshold=0\.0"):
        bases.refuse_outliers(model)


@NEEDS
def test_evaluation_leaves_a_4_bit_base_as_it_was(saved):
    model, task = loaded(saved, "llama", base={"quantise": "nf4"})
    before = [layer.weight.clone() for _, layer in quantised(model)]
    with torch.no_grad():
        losses = task.row_loss(model.eval(), batch_of(task))
        assert torch.equal(losses, task.row_loss(model.train(), batch_of(task)))
    after = [layer.weight for _, layer in quantised(model)]
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    assert not any(layer.support_avx512bf16_for_cpu for _, layer in quantised(model))


@NEEDS
@NEEDS_TORCHAO
@pytest.mark.parametrize("kind", ["llama", "roberta", "gemma2"])
def test_both_quantisers_take_the_same_layers(saved, kind):
    """The output layer and heads among those that neither takes."""
    ours, _ = loaded(saved, kind, base=BY_TORCHAO)
    theirs, _ = loaded(saved, kind, base={"quantise": "int8"})
    assert [name for name, _ in quantised(ours)] == [name for name, _ in quantised(theirs)]
    assert not any(map(is_of_torchao, ours.parameters()))


@pytest.mark.parametrize("base", [TORCHAO, TORCHAO_BF16])
@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_a_layer_of_torchao_is_an_ordinary_one_of_its_weights_to_the_bit(saved, base, precision):
    model, task = loaded(saved, "llama", base=base, train={"precision": precision})
    plain = plain_copy(model, bases.DTYPES[base.get("precision", "float32")])
    found, expected = (task.row_loss(net, batch_of(task)) for net in (model, plain))
    assert torch.equal(found, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_layer_of_8_bits_goes_back_as_an_ordinary_one(dtype):
    """Without torchao: what it rounds is two plain tensors here."""
    generator = torch.Generator().manual_seed(0)
    layer = Int8Linear(24, 10, dtype=dtype).requires_grad_(False)
    layer.weight = nn.Parameter(
        torch.randint(-127, 128, (10, 24), generator=generator, dtype=torch.int8), requires_grad=False
    )
    layer.register_buffer("scale", 0.01 * torch.rand(10, 1, generator=generator))
    plain = plain_copy(nn.Sequential(layer), dtype)[0]
    given = torch.randn(5, 24, generator=generator).to(dtype).requires_grad_()
    found, expected = layer(given), plain(given)
    assert torch.equal(found, expected)
    grad = torch.randn(5, 10, generator=generator).to(dtype)
    ours, theirs = (torch.autograd.grad(values, given, grad)[0].float() for values in (found, expected))
    assert float((ours - theirs).norm()) <= torch.finfo(dtype).eps * float(theirs.norm())


@NEEDS_TORCHAO
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_weights_are_those_that_torchao_multiplies_with(dtype):
    from torchao.quantization import Int8WeightOnlyConfig, quantize_

    torch.manual_seed(0)
    layer = nn.Linear(24, 10, dtype=dtype)
    quantize_(layer, Int8WeightOnlyConfig(set_inductor_config=False))
    given = torch.randn(5, 24, dtype=dtype)
    theirs, plain = layer(given).detach(), layer.weight.dequantize()
    assert take_from_torchao(net := nn.Sequential(layer)) is None
    assert isinstance(net[0], Int8Linear)
    assert torch.equal(weight_of(layer).to(dtype), plain)
    assert float((layer(given) - theirs).detach().norm()) < 2 * torch.finfo(dtype).eps * float(theirs.norm())


@NEEDS_TORCHAO
@pytest.mark.parametrize("how", ["rounded inputs", "groups", "zero points", "a class of its own"])
def test_what_torchao_holds_in_other_ways_is_told_by_name(how):
    from torchao.quantization import (
        Int8DynamicActivationInt8WeightConfig,
        Int8WeightOnlyConfig,
        PerGroup,
        quantize_,
    )

    net = nn.Sequential(nn.Linear(32, 8), Plain(32, 8) if how == "a class of its own" else nn.Linear(32, 8))
    of_groups = Int8WeightOnlyConfig(granularity=PerGroup(16), set_inductor_config=False)
    rounds = Int8DynamicActivationInt8WeightConfig(set_inductor_config=False)
    plain = Int8WeightOnlyConfig(set_inductor_config=False)
    quantize_(net[0], plain)
    quantize_(net[1], {"rounded inputs": rounds, "groups": of_groups}.get(how, plain))
    if how == "zero points":
        net[1].weight.zero_point.fill_(3)
    with pytest.raises(
        confide.InputError, match=r"^base\.quantiser: .* holds 1\.weight of 'x' in another way"
    ):
        bases.ready_base(net, "x")


@pytest.mark.parametrize("count", [1, 6, 7])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_packed_values_go_to_bytes_and_back(count, dtype):
    values = (torch.randn(count, 1, generator=torch.Generator().manual_seed(0)) * 100).to(dtype)
    held = _Bytes(values)
    assert (held.parameter.dim(), held.parameter.requires_grad) == (1, False)
    assert torch.equal(held.values(held.parameter), values)


@pytest.mark.parametrize("base", [NF4, NF4_BF16, INT8, TORCHAO])
def test_a_layer_that_can_be_split_computes_what_it_did(saved, base):
    model, task = loaded(saved, "llama", base=base)
    twin = copy.deepcopy(model)
    make_splittable(twin, torch.device("cpu"))
    names = [name for name, _ in quantised(model)]
    assert [name for name, _ in quantised(twin)] == names
    found, expected = (
        torch.autograd.grad(task.row_loss(net, batch_of(task)).sum(), list(models.trainable(net).values()))
        for net in (twin, model)
    )
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


@NEEDS
def test_damaged_weights_are_refused_before_they_are_quantised_away(saved, tmp_path):
    model, _ = loaded(saved, "llama", base={"quantise": "nf4"})
    layer = next(layer for _, layer in quantised(model))
    layer.weight.quant_state.offset.fill_(torch.nan)
    with pytest.raises(confide.InputError, match="infinite or not a number"):
        bases.ready_base(model, "x")


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
@pytest.mark.parametrize("base", [INT8, TORCHAO])
def test_a_damaged_checkpoint_is_refused_before_8_bits_hide_it(tmp_path, base, value):
    path = small.saved(tmp_path / "llama", "llama", **WIDE)
    weights = load_file(path / "model.safetensors")
    weights["model.layers.1.mlp.up_proj.weight"][3, 5] = value
    save_file(weights, path / "model.safetensors", {"format": "pt"})
    with pytest.raises(
        confide.InputError, match=r"up_proj\.weight holds values that are infinite or not a number"
    ):
        models.load_model(settings(path, adapter={"kind": "lora", "rank": 3}, base=base))


@pytest.mark.parametrize(
    ("base", "message"),
    [
        (
            {"quantise": "nf4"},
            r"^base\.quantise: nf4 needs bitsandbytes, .*pip install 'confide\[quantise\]'",
        ),
        (BY_TORCHAO, r"^base\.quantiser: torchao is not installed: pip install 'confide\[torchao\]'"),
    ],
)
def test_a_missing_package_is_named_with_the_command_that_brings_it(saved, monkeypatch, base, message):
    monkeypatch.setattr(bases.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(confide.InputError, match=message):
        loaded(saved, "llama", base=base)


@NEEDS_TORCHAO
def test_layers_that_torchao_leaves_whole_are_refused_by_name(saved):
    with pytest.raises(
        confide.InputError, match=r"^base\.quantiser: .*c_attn of .* is a Conv1D: use .*bitsandbytes"
    ):
        loaded(saved, "gpt2", base=BY_TORCHAO)
    every = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    with pytest.raises(confide.InputError, match=r"^base\.quantiser: torchao finds no linear layer in"):
        loaded(saved, "llama", {"modules_to_save": every}, base=BY_TORCHAO)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"base": {"precision": "bf16"}}, r"base\.precision: adapter\.kind: full trains"),
        ({"base": {"precision": "fp16"}, "adapter": {"kind": "bias"}}, r"base\.precision: .*bias trains"),
        ({"base": {"quantise": "nf4"}}, r"base\.quantise: adapter\.kind: full trains"),
        (
            {"base": {"quantise": "int8"}, "adapter": {"kind": "modules", "targets": ["wte"]}},
            r"base\.quantise: .*modules trains",
        ),
        ({"base": {"quantiser": "torchao"}}, r"base\.quantiser: torchao has nothing to hold"),
        (
            {"base": {"quantise": "nf4", "quantiser": "torchao"}, "adapter": {"kind": "lora"}},
            r"base\.quantiser: torchao's nf4 .*use base\.quantiser: bitsandbytes, or base\.quantise: int8",
        ),
        ({"base": BY_TORCHAO}, r"base\.quantise: adapter\.kind: full trains"),
        ({"adapter": {"rslora": True}}, r"adapter\.rslora: is an option of kind: lora"),
        ({"adapter": {"kind": "bias", "dora": True}}, r"adapter\.dora: is an option of kind: lora"),
        ({"adapter": {"modules_to_save": ["lm_head"]}}, r"adapter\.modules_to_save: is an option of kind: lora"),
        ({"adapter": {"kind": "lora", "dora": True}, "train": {"distributed": "fsdp"}}, r"adapter\.dora: needs"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_by_its_key(more, message):
    with pytest.raises(confide.InputError, match=message):
        settings("bundled", **more)


@pytest.mark.parametrize(
    ("adapter", "keys"),
    [
        ({"rank": 4}, ["adapter.rank"]),
        ({"kind": "matrices", "targets": ["wte"], "alpha": 3}, ["adapter.alpha", "adapter.targets"]),
        ({"kind": "modules", "targets": ["wte"], "rank": 4}, ["adapter.rank"]),
        ({"kind": "lora", "rank": 4, "targets": ["wte"]}, []),
        ({"rank": 32}, []),
    ],
)
def test_keys_without_effect_are_told_and_not_refused(adapter, keys):
    """A config for LoRA may be trained whole for once, and a run folder of an older version opens."""
    assert idle(Adapter(**adapter)) == keys
