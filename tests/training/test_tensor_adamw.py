"""AdamW with one second moment for each tensor: its steps by hand, beside torch's, and what it keeps."""

import numpy as np
import pytest
import torch

from confide.privacy.mechanisms.values import Aggregation
from confide.training.optimisation import Optimisation
from confide.training.tensor_adamw import TensorAdamW
from confide.utils.errors import InputError
from tests import small
from tests.training.test_step import NOTHING, some_draw, step_of

GRADIENTS = np.array([[0.5, -1.0], [0.25, 3.0], [-2.0, 0.125]])
START = np.array([1.0, -2.0])


def path(kind, gradients=GRADIENTS, **settings):
    """The weights after each step, float64[steps, elements]."""
    parameter = torch.nn.Parameter(torch.tensor(START[: gradients.shape[1]], dtype=torch.float32))
    optimizer = kind([parameter], **settings)
    found = []
    for gradient in gradients:
        parameter.grad = torch.tensor(gradient, dtype=torch.float32)
        optimizer.step()
        found.append(parameter.detach().double().numpy().copy())
    return np.array(found)


def test_steps_by_hand():
    rate, (first, second), decay = 0.1, (0.3, 0.9), 0.5
    weights, mean, square, expected = START, np.zeros(2), 0.0, []
    for step, gradient in enumerate(GRADIENTS, 1):
        mean = first * mean + (1 - first) * gradient
        square = second * square + (1 - second) * np.mean(gradient**2)
        direction = mean / (1 - first**step) / np.sqrt(square / (1 - second**step))
        weights = weights - rate * decay * weights - rate * direction
        expected.append(weights)
    found = path(TensorAdamW, lr=rate, betas=(first, second), weight_decay=decay)
    assert found == pytest.approx(np.array(expected), rel=1e-5)


def test_a_tensor_of_one_element_moves_as_under_torchs_adamw():
    settings = {"lr": 0.1, "betas": (0.3, 0.9), "weight_decay": 0.5}
    own, theirs = (path(kind, GRADIENTS[:, :1], **settings) for kind in (TensorAdamW, torch.optim.AdamW))
    assert own == pytest.approx(theirs, rel=1e-5)


def test_a_step_has_the_length_that_the_rate_says_whatever_the_gradients():
    for scale in (1e-6, 1.0, 1e6):
        moved = np.linalg.norm(path(TensorAdamW, scale * GRADIENTS[:1], lr=0.1) - START)
        assert moved == pytest.approx(0.1 * np.sqrt(2), rel=0.02)  # 1e-8 beside 1e-6 is 1%


def optimizer_of(aggregation, **settings):
    return step_of(
        small.gpt2(), [NOTHING], aggregation, optimisation=Optimisation(steps=1, **settings)
    ).optimizer


def test_it_is_the_default_where_there_is_noise_and_plain_adamw_elsewhere():
    assert isinstance(optimizer_of(Aggregation(1.0, 0.5, 0.1)), TensorAdamW)
    assert isinstance(optimizer_of(Aggregation(None, 0.0, 0.1)), torch.optim.AdamW)
    assert isinstance(optimizer_of(Aggregation(1.0, 0.5, 0.1), optimizer="adamw"), torch.optim.AdamW)


def test_it_keeps_one_value_for_each_weight():
    model = small.gpt2()
    step = step_of(model, [some_draw()], Aggregation(1.0, 0.5, 0.1), optimisation=Optimisation(steps=1))
    step(0)
    kept = sum(value.numel() for state in step.optimizer.state.values() for value in state.values())
    parameters = list(model.parameters())
    assert kept == sum(p.numel() for p in parameters) + len(parameters)


def test_a_large_tensor_steps_as_far_as_a_small_one():
    """A single sum of its squares in float32 would be 2% too small on a CPU, and steps as much too long."""
    parameter = torch.nn.Parameter(torch.zeros(400, 100_000))
    parameter.grad = torch.full_like(parameter, 0.1)
    TensorAdamW([parameter], lr=0.5).step()
    assert float(parameter.detach()[0, 0]) == pytest.approx(-0.5, rel=1e-4)


@pytest.mark.parametrize("shape", [(), (0,), (1,)])
def test_tensors_of_one_element_or_none_stay_finite(shape):
    parameter = torch.nn.Parameter(torch.zeros(shape))
    parameter.grad = torch.ones(shape)
    optimizer = TensorAdamW([parameter], lr=0.5)
    optimizer.step()
    assert torch.allclose(parameter.detach(), torch.full(shape, -0.5))
    assert optimizer.state[parameter]["exp_avg_sq"].isfinite()


def test_a_closure_is_refused():
    with pytest.raises(InputError, match="no closure"):
        TensorAdamW([torch.nn.Parameter(torch.zeros(1))], lr=0.1).step(lambda: 0.0)
