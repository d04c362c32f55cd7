"""Linear layers whose products oneDNN takes: the same layers, and only where something is gained."""

import copy

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import nn
from torch.nn import functional
from transformers.pytorch_utils import Conv1D

from confide.clipping import ClippedSum
from confide.clipping.rule import UnsupportedParameter
from confide.clipping.rules import layers
from confide.models.fast import onednn as products
from confide.models.fast.activations import original_layers
from confide.models.fast.switch import off
from tests import small
from tests.clipping import brute_force
from tests.quick import everywhere, needs_onednn, quick

__all__ = ["everywhere"]

pytestmark = needs_onednn

LAYERS = {
    "linear": lambda: nn.Linear(40, 32),
    "square linear": lambda: nn.Linear(48, 48),
    "without bias": lambda: nn.Linear(24, 50, bias=False),
    "Conv1D": lambda: Conv1D(33, 16),
    "whole lines": lambda: Conv1D(32, 24),
    "square Conv1D": lambda: Conv1D(16, 16),
}


@pytest.fixture(autouse=True)
def same_numbers():
    torch.manual_seed(0)


def inputs(width):
    return {
        "matrix": torch.randn(70, width),
        "rows": torch.randn(3, 11, width),
        "four axes": torch.randn(2, 3, 4, width),
        "one vector": torch.randn(width),
        "part of wider rows": torch.randn(3, 11, 2 * width)[..., width:],
        "every other position": torch.randn(3, 22, width)[:, ::2],
        "one for all": torch.randn(1, 1, width).expand(3, 5, width),
        "crosswise": torch.randn(width, 70).T,
    }


@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize("how", inputs(1))
def test_values_and_gradients_are_the_layers_own(everywhere, kind, how):
    layer = LAYERS[kind]()
    own = quick(layer)
    width = own.weight.shape[0] if own.across else own.weight.shape[1]
    found = []
    for module in (layer, own):
        given = inputs(width)[how] if not found else found[0][0].detach()
        if isinstance(layer, Conv1D):
            given = given.contiguous()  # its own takes no other
        given.requires_grad_()
        values = module(given)
        weights = torch.linspace(-1, 1, values.numel()).view(values.shape)
        gradients = torch.autograd.grad((values * weights).sum(), [given, *module.parameters()])
        found.append([given, values, *gradients])
    outputs = found[0][1].shape[-1]
    assert len(everywhere) == (2 if outputs % 16 == 0 else 1), "the test tries nothing"
    for right, mine in zip(*found, strict=True):
        assert mine.shape == right.shape
        assert torch.allclose(mine, right, rtol=1e-5, atol=1e-5)


def test_gradients_of_weights_lie_as_the_weights_do(everywhere):
    """AdamW in one pass is blind to how a weight lies."""
    for make in LAYERS.values():
        own = quick(make())
        own(torch.randn(9, own.weight.shape[0] if own.across else own.weight.shape[1])).sum().backward()
        assert own.weight.grad.is_contiguous()
    assert len(everywhere) == len(LAYERS)


def test_only_what_is_asked_for_gets_a_gradient(everywhere):
    own = quick(nn.Linear(5, 16).requires_grad_(False))
    given = torch.randn(4, 5, requires_grad=True)
    own(given).sum().backward()
    assert own.weight.grad is None
    assert torch.allclose(given.grad, own.weight.sum(0).expand(4, 5), atol=1e-6)
    assert not own(given.detach()).requires_grad
    with torch.no_grad():
        assert not own(given).requires_grad
    own.weight.requires_grad_(True)
    own(given.detach()).sum().backward()
    assert own.weight.grad is not None
    assert own.bias.grad is None
    assert len(everywhere) == 5  # one of them backwards


class Doubled(nn.Linear):
    def forward(self, given):
        return 2 * functional.linear(given, self.weight)


class Elsewhere(torch.Tensor):
    pass


def _changed(layer):
    layer.forward = lambda given: given[..., :1]
    return layer


@pytest.mark.parametrize(
    ("layer", "given"),
    [
        (Doubled(8, 3), torch.randn(2, 8)),
        (_changed(nn.Linear(8, 3)), torch.randn(2, 8)),
        (nn.Linear(8, 3, dtype=torch.float64), torch.randn(2, 8, dtype=torch.float64)),
        (nn.Linear(8, 3, dtype=torch.bfloat16), torch.randn(2, 8).bfloat16()),
        (nn.Linear(8, 3), torch.randn(2, 8).as_subclass(Elsewhere)),
        (nn.Linear(8, 3), torch.randn(0, 8)),
    ],
    ids=["another class", "changed", "float64", "bf16", "another tensor", "nothing"],
)
def test_others_compute_as_they_do(everywhere, layer, given):
    assert torch.equal(quick(layer)(given), layer(given))
    assert not everywhere


def test_autocast_goes_on_as_before(everywhere):
    layer = nn.Linear(8, 3)
    with torch.autocast("cpu", torch.bfloat16):
        assert quick(layer)(torch.randn(2, 8)).dtype == torch.bfloat16
    assert not everywhere


def test_nothing_is_exchanged_where_nothing_is_gained(monkeypatch):
    wide, narrow = nn.Linear(256, 300), nn.Linear(256, 255)
    monkeypatch.setattr(products, "are_faster", lambda: True)
    assert type(quick(narrow)) is nn.Linear
    own = quick(wide)
    assert isinstance(own, products.OneDNNLayer)
    taken = []
    monkeypatch.setattr(products, "product", lambda *factors: taken.append(factors))
    assert torch.equal(own(torch.ones(127, 256)), wide(torch.ones(127, 256)))
    assert torch.equal(own(torch.ones(1, 127, 256)), wide(torch.ones(1, 127, 256)))
    own(torch.ones(128, 256))
    own(torch.ones(1, 128, 256))
    assert len(taken) == 2
    monkeypatch.setattr(products, "are_faster", lambda: False)
    assert type(quick(wide)) is nn.Linear


@pytest.mark.parametrize(
    ("vendor", "capability", "expected"),
    [
        ("AuthenticAMD", "AVX512", True),
        ("AuthenticAMD", "AVX2", False),
        ("GenuineIntel", "AVX512", False),
        (None, "AVX512", False),
    ],
)
def test_only_where_it_was_measured(monkeypatch, vendor, capability, expected):
    monkeypatch.setattr(products, "_vendor", lambda path: vendor)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    products.are_faster.cache_clear()
    try:
        assert products.are_faster() is expected
    finally:
        products.are_faster.cache_clear()


@pytest.mark.parametrize(
    ("text", "vendor"),
    [
        ("processor\t: 0\nvendor_id\t: AuthenticAMD\nmodel\t: 17\n", "AuthenticAMD"),
        (
            "processor\t: 0\nvendor_id\t: GenuineIntel\n\nprocessor\t: 1\nvendor_id\t: GenuineIntel\n",
            "GenuineIntel",
        ),
        ("processor\t: 0\nCPU implementer\t: 0x41\n", None),
        (None, None),
    ],
    ids=["AMD", "Intel", "ARM", "not Linux"],
)
def test_whose_processor_it_is(tmp_path, text, vendor):
    if text is not None:
        (tmp_path / "cpuinfo").write_text(text)
    assert products._vendor(tmp_path / "cpuinfo") == vendor


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("family", ["gpt2", "llama"])
@pytest.mark.parametrize("adapter", ["full", "lora"])
def test_clipped_sums_are_those_of_brute_force(everywhere, family, adapter, checkpointing):
    written = brute_force.tiny(family) if adapter == "full" else brute_force.lora(brute_force.tiny(family))
    model = quick(written)
    assert {layer.rule for layer in layers(model)} == {layer.rule for layer in layers(written)}
    batch, unit = brute_force.rows(family), torch.tensor([0, 1, 0, 2, 1, 3, 3, 3, 4])
    weight = torch.linspace(0.5, 1.5, len(unit))
    model.train()
    if checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    everywhere.clear()
    total = ClippedSum(model, brute_force.causal_loss, 0.05)
    found = total.add(batch, unit, weight)
    expected, norms = brute_force.clipped_sum(
        written, brute_force.causal_loss, batch, unit, weight, 0.05, found
    )
    assert (found >= norms * (1 - 1e-5)).all()
    assert (found <= norms * (1 + brute_force.ABOVE)).all()
    brute_force.compare(total.take(), expected)
    assert (norms > 0.05).any(), "the test clips nothing"
    assert len(everywhere) > 8, "the test tries nothing"


def test_a_tied_output_layer_of_a_run_is_the_same(everywhere):
    task, written = small.task(), small.gpt2()
    model = quick(written)
    assert isinstance(model.lm_head, products.OneDNNLayer)
    assert model.lm_head.weight is model.transformer.wte.weight
    rows = [torch.randint(2, small.VOCABULARY, (n,)).numpy() for n in (7, 4, 9)]
    batch = task.collate(rows)
    with off():
        right = task.row_loss(written, batch)
    everywhere.clear()
    assert torch.allclose(task.row_loss(model, batch), right, rtol=1e-5)
    assert everywhere, "the test tries nothing"


def test_what_is_saved_of_a_model_stays_and_it_can_be_copied(everywhere, tmp_path):
    written = small.gpt2()
    model = quick(written)
    model.save_pretrained(tmp_path)
    again = type(written).from_pretrained(tmp_path)
    assert type(again.lm_head) is nn.Linear
    assert all(torch.equal(a, b) for a, b in zip(written.parameters(), again.parameters(), strict=True))
    torch.save(model, tmp_path / "whole")
    assert isinstance(torch.load(tmp_path / "whole", weights_only=False).lm_head, products.OneDNNLayer)
    twin = copy.deepcopy(model)
    twin.lm_head.weight.data.zero_()
    ids = torch.arange(5)[None]
    assert not twin(ids).logits.any()
    assert model(ids).logits.any()


def test_an_adapter_is_merged_as_into_the_layer_itself(everywhere):
    model = get_peft_model(quick(small.gpt2()), LoraConfig(r=2, target_modules=["c_attn", "c_fc"]))
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            nn.init.normal_(parameter)
    ids = torch.arange(6)[None]
    before = model(ids).logits
    assert everywhere
    merged = model.merge_and_unload()
    assert torch.allclose(merged(ids).logits, before, atol=1e-4)
    assert isinstance(merged.transformer.h[0].attn.c_attn, Conv1D)


@pytest.mark.parametrize("make", [lambda: nn.Linear(8, 8), lambda: Conv1D(8, 8)], ids=["linear", "Conv1D"])
def test_a_rule_of_the_layer_is_not_that_of_one_made_of_it(everywhere, make):
    """Nor of one whose forward method somebody has replaced."""
    own = quick(make())

    class Centred(type(own)):
        def forward(self, given):
            return super().forward(given - given.mean(0))

    assert [layer.rule for layer in layers(own)] == [layer.rule for layer in layers(make())]
    own.__class__ = Centred
    with pytest.raises(UnsupportedParameter):
        layers(own)
    replaced = quick(make())
    replaced.forward = lambda given: given - given.mean(0)
    with pytest.raises(UnsupportedParameter):
        layers(replaced)
    plain = make()
    plain.forward = replaced.forward
    with pytest.raises(UnsupportedParameter):
        layers(plain)


def test_the_input_may_be_given_by_its_name(everywhere):
    given = torch.randn(3, 16)
    for layer, name in ((nn.Linear(16, 4), "input"), (Conv1D(4, 16), "x")):
        assert torch.allclose(quick(layer)(**{name: given}), layer(given), atol=1e-6)
    assert len(everywhere) == 2


def test_a_wrong_input_is_refused_as_the_layer_refuses_it(everywhere):
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        quick(nn.Linear(8, 16))(torch.ones(3, 7))


def test_as_written_no_product_is_taken_for_a_while_whatever_happens(everywhere):
    model = quick(small.gpt2())
    ids = torch.arange(6)[None]

    def fail():
        with original_layers(model):
            model(ids)
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert not everywhere
    model(ids)
    assert everywhere
