import copy

import pytest
import torch
from torch import nn
from transformers.activations import ACT2CLS, ACT2FN, NewGELUActivation

from confide.config.loading import check
from confide.models import loading as models
from confide.models.fast.activations import install_fast_layers, original_layers
from tests import small


class Layer(nn.Module):
    def __init__(self, activation):
        super().__init__()
        self.linear, self.act = nn.Linear(3, 3), activation

    def forward(self, given):
        return self.act(self.linear(given))


@pytest.mark.parametrize("name", ["gelu_new", "gelu_fast"])
@pytest.mark.parametrize(("precision", "tolerance"), [(torch.float64, 1e-9), (torch.float32, 1e-6)])
def test_the_kernel_is_the_same_function_with_the_same_slope(name, precision, tolerance):
    """Their constants are sqrt(2 / pi) written out to ten digits, or better."""
    own = Layer(ACT2FN[name])
    install_fast_layers(own)
    given = torch.linspace(-30, 30, 60_001, dtype=precision, requires_grad=True)
    right, found = ACT2FN[name](given), own.act(given)
    (slope,) = torch.autograd.grad(right.sum(), given)
    (own_slope,) = torch.autograd.grad(found.sum(), given)
    assert torch.allclose(found, right, rtol=tolerance, atol=tolerance)
    assert torch.allclose(own_slope, slope, rtol=tolerance, atol=4 * tolerance)
    exact = nn.functional.gelu(given)
    assert not torch.allclose(exact, right, atol=1e-4)  # so the test tells the two forms of GELU apart


def test_one_that_is_held_twice_is_replaced_everywhere_and_weights_stay():
    shared = ACT2FN["gelu_new"]
    model = nn.Sequential(Layer(shared), nn.Sequential(shared, Layer(shared), shared)).eval()
    before = dict(model.named_parameters())
    install_fast_layers(model)
    assert not any(isinstance(module, NewGELUActivation) for module in model.modules())
    assert not any(module.training for module in model.modules())
    assert all(value is before[name] for name, value in model.named_parameters())


def test_as_written_the_model_has_its_own_for_a_while_whatever_happens():
    own = ACT2FN["gelu_new"]
    model = nn.Sequential(Layer(own), nn.ReLU())
    install_fast_layers(model)
    kernel = model[0].act
    assert list(dict(model.named_modules())) == ["", "0", "0.linear", "0.act", "1"]

    def fail():
        with original_layers(model):
            assert model[0].act is own
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert model[0].act is kernel
    again = copy.deepcopy(model)
    with original_layers(again):
        assert type(again[0].act) is NewGELUActivation


def test_bf16_is_no_farther_from_the_truth_than_what_it_replaces():
    own = Layer(ACT2FN["gelu_new"])
    install_fast_layers(own)
    found = {}
    for name, activation in (("kernel", own.act), ("written out", ACT2FN["gelu_new"])):
        given = torch.linspace(-30, 30, 60_001).bfloat16().requires_grad_()
        values = activation(given)
        (slope,) = torch.autograd.grad(values.sum(), given)
        true = given.detach().double().requires_grad_()
        right = ACT2FN["gelu_new"](true)
        (right_slope,) = torch.autograd.grad(right.sum(), true)
        found[name] = float((values - right).detach().abs().max()), float((slope - right_slope).abs().max())
    assert found["kernel"][0] <= found["written out"][0]
    assert found["kernel"][1] <= found["written out"][1]


class Scaled(NewGELUActivation):
    def forward(self, given):
        return 2 * super().forward(given)


@pytest.mark.parametrize("activation", [Scaled(), ACT2FN["gelu"], ACT2FN["relu"], ACT2FN["quick_gelu"]])
def test_any_other_function_is_left_alone(activation):
    model = Layer(activation)
    install_fast_layers(model)
    assert model.act is activation


@pytest.mark.parametrize("adapter", [{}, {"kind": "lora", "rank": 2}])
def test_a_model_that_is_loaded_has_it_and_keeps_its_config(tmp_path, adapter):
    path = small.saved(tmp_path / "m", "gpt2")
    data = {"train": "x", "unit": "user", "max_length": 32}
    settings = check(
        {
            "model": str(path),
            "tokenizer": "bundled",
            "adapter": adapter,
            "data": data,
            "privacy": {"epsilon": 4},
        }
    )
    model = models.load_model(settings)
    kinds = {type(module) for module in model.modules()}
    assert NewGELUActivation not in kinds
    assert ACT2CLS["gelu_pytorch_tanh"] in kinds
    assert model.config.activation_function == "gelu_new"
