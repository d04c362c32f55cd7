"""Optimisers made for noise: two or three steps by hand, what noise alone comes to, and runs that resume."""

import math

import numpy as np
import pytest
import torch
from studies.parts import noisy_optimisers as noisy

from confide.privacy.mechanisms.values import Aggregation
from confide.training.optimisation import Optimisation
from confide.utils.errors import InputError
from tests import small
from tests.training import test_tensor_adamw
from tests.training.test_step import some_draw, step_of
from tests.training.test_tensor_adamw import GRADIENTS, START

BETAS = (0.3, 0.9)
RATE = 0.1


def path(kind, gradients=GRADIENTS, noise_std=0.0, **settings):
    """The weights of the model after each step, float64[steps, 2]."""

    def told(parameters):
        optimizer = kind(parameters, lr=RATE, **settings)
        optimizer.param_groups[0]["noise_std"] = noise_std
        return optimizer

    return test_tensor_adamw.path(told, gradients)


def means(values, beta):
    """Adam's corrected means: weights (1 - beta) beta^age, which are made to add up to 1."""
    found = []
    for t in range(1, len(values) + 1):
        weights = (1 - beta) * beta ** np.arange(t - 1, -1, -1.0)
        found.append((weights[:, None] * values[:t]).sum(0) / weights.sum())
    return np.array(found)


def adam(gradients):
    return means(gradients, BETAS[0]) / (np.sqrt(means(gradients**2, BETAS[1])) + 1e-8)


def filtered(gradients, pole):
    """The low-pass filter as a sum over past gradients: its response to a pulse is s, s (1 + p), s p (1 + p) ..."""
    share = (1 - pole) / 2
    pulse = [share] + [share * pole ** (n - 1) * (1 + pole) for n in range(1, len(gradients))]
    return np.array(
        [
            sum(pulse[n] * gradients[t - n] for n in range(t + 1)) / sum(pulse[: t + 1])
            for t in range(len(gradients))
        ]
    )


def close(found, expected):
    assert found == pytest.approx(expected, rel=1e-5, abs=1e-6)


def test_directions_are_those_of_torchs_adamw():
    found = path(
        noisy.LowPassAdamW, GRADIENTS[:1], betas=BETAS
    )  # a filter changes nothing of the first gradient
    parameter = torch.nn.Parameter(torch.tensor(START, dtype=torch.float32))
    optimizer = torch.optim.AdamW([parameter], lr=RATE, betas=BETAS, weight_decay=0.0)
    state = {}
    for step, gradient in enumerate(GRADIENTS, 1):
        before = parameter.detach().clone()
        parameter.grad = torch.tensor(gradient, dtype=torch.float32)
        optimizer.step()
        state["step"] = step
        close((before - parameter.detach()) / RATE, noisy.adam(state, parameter.grad, BETAS))
        if step == 1:
            close(found[0], parameter.detach().numpy())


def test_bias_correction_takes_the_noise_out_of_the_second_moment():
    noise, floor = 0.8, 0.1
    moments = np.maximum(means(GRADIENTS**2, BETAS[1]) - noise**2, floor * noise**2)
    steps = means(GRADIENTS, BETAS[0]) / np.sqrt(moments)
    found = path(noisy.BiasCorrectedAdamW, noise_std=noise, betas=BETAS, floor=floor)
    close(found, START - RATE * np.cumsum(steps, 0))
    assert moments[0, 0] == floor * noise**2  # both sides of the floor are met
    assert moments[0, 1] == pytest.approx(1 - noise**2)


def test_without_noise_bias_correction_is_adamw():
    close(path(noisy.BiasCorrectedAdamW, betas=BETAS), START - RATE * np.cumsum(adam(GRADIENTS), 0))


def test_of_noise_alone_bias_correction_leaves_nothing():
    """The corrected moment is 0 but for the error of a mean of 400 squares, and half of the elements lie below 0."""
    noise, steps, size = 0.3, 400, 20_000
    generator = torch.Generator().manual_seed(1)
    parameter = torch.nn.Parameter(torch.zeros(size))
    optimizer = noisy.BiasCorrectedAdamW([parameter], lr=0.0, betas=(0.3, 0.999), floor=0.1)
    group, state = optimizer.param_groups[0] | {"noise_std": noise}, {}
    for step in range(1, steps + 1):
        state["step"] = step
        corrected = optimizer.corrected(torch.randn(size, generator=generator) * noise, state, group)
    relative = corrected / noise**2
    error = math.sqrt(2 / steps)  # of the mean of so many squares of normal values, each of variance 2
    assert abs(float(relative.mean())) < 6 * error / math.sqrt(size)
    assert float(relative.std()) == pytest.approx(error, rel=0.1)
    assert float((relative < 0).float().mean()) == pytest.approx(0.5, abs=0.03)


def test_a_constant_moment_is_the_noises():
    found = path(noisy.ConstantMomentSGD, noise_std=0.5, momentum=0.3)
    close(found, START - RATE * np.cumsum(means(GRADIENTS, 0.3), 0) / 0.5)


def test_a_constant_moment_needs_noise():
    with pytest.raises(InputError, match="this run has none"):
        path(noisy.ConstantMomentSGD)


def test_a_floored_moment_is_never_less_than_the_noises():
    noise = 0.8
    moments = means(GRADIENTS**2, BETAS[1])
    assert (moments < noise**2).any()
    assert (moments > noise**2).any()
    steps = means(GRADIENTS, BETAS[0]) / np.sqrt(np.maximum(moments, noise**2))
    close(path(noisy.FlooredAdamW, noise_std=noise, betas=BETAS), START - RATE * np.cumsum(steps, 0))


def test_without_noise_a_floored_moment_is_adamws():
    close(path(noisy.FlooredAdamW, betas=BETAS), START - RATE * np.cumsum(adam(GRADIENTS), 0))


@pytest.mark.parametrize("pole", [0.0, 0.5])
def test_low_pass_before_adamw(pole):
    passed = filtered(GRADIENTS, pole)
    found = path(noisy.LowPassAdamW, betas=BETAS, pole=pole)
    close(found, START - RATE * np.cumsum(adam(passed), 0))


def test_a_low_pass_filter_lets_means_through_and_alternation_not():
    signs = np.array([[1.0, 3.0], [-1.0, 3.0]] * 30)
    found = filtered(signs, 0.5)[-1]
    state = {}
    for gradient in signs:
        passed = noisy.low_pass(state, torch.tensor(gradient), 0.5)
    close(passed.numpy(), found)
    assert passed.numpy() == pytest.approx([0.0, 3.0], abs=1e-6)


def test_disk_takes_gradients_beyond_and_ends_at_the_weights():
    kappa, steps = 0.8, len(GRADIENTS)
    kept, passed = GRADIENTS[0], []
    for gradient in GRADIENTS:
        kept = (1 - kappa) * kept + kappa * gradient
        passed.append(kept)
    moves = -RATE * adam(np.array(passed))
    weights = START + np.cumsum(moves, 0)
    found = path(noisy.KalmanAdamW, steps=steps, betas=BETAS, kappa=kappa)
    close(found[:-1], (weights + 0.25 * moves)[:-1])
    close(found[-1], weights[-1])


def test_disk_that_keeps_nothing_is_adamw():
    found = path(noisy.KalmanAdamW, steps=3, betas=BETAS, kappa=1.0)
    close(found, START - RATE * np.cumsum(adam(GRADIENTS), 0))


def test_schedule_free_takes_gradients_between_and_ends_at_the_mean():
    of_mean, beta = 0.6, 0.9
    last, mean, square, weights = START, START, np.zeros(2), 0.0
    expected = []
    for t, gradient in enumerate(GRADIENTS, 1):
        square = beta * square + (1 - beta) * gradient**2
        rate = RATE * math.sqrt(1 - beta**t)
        last = last - rate * gradient / (np.sqrt(square) + 1e-8)
        weights += rate**2
        mean = mean + rate**2 / weights * (last - mean)
        expected.append(mean if t == len(GRADIENTS) else (1 - of_mean) * last + of_mean * mean)
    close(path(noisy.ScheduleFreeAdamW, steps=3, betas=(of_mean, beta)), np.array(expected))


def test_a_closure_is_refused():
    optimizer = noisy.LowPassAdamW([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    with pytest.raises(InputError, match="no closure"):
        optimizer.step(lambda: 0.0)


KINDS = {
    "bias-corrected": lambda p: noisy.BiasCorrectedAdamW(p, lr=RATE, betas=BETAS),
    "low-pass": lambda p: noisy.LowPassAdamW(p, lr=RATE, betas=BETAS),
    "constant-moment": lambda p: noisy.ConstantMomentSGD(p, lr=RATE, momentum=0.3),
    "floored": lambda p: noisy.FlooredAdamW(p, lr=RATE, betas=BETAS),
    "DiSK": lambda p: noisy.KalmanAdamW(p, lr=RATE, steps=3, betas=BETAS),
    "Schedule-Free": lambda p: noisy.ScheduleFreeAdamW(p, lr=RATE, steps=3, betas=BETAS),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_resumes_to_the_bit(kind, tmp_path):
    draws = [some_draw(seed=seed) for seed in range(3)]
    ends = []
    for stops in ((3,), (1, 3)):
        began, state = 0, None
        for until in stops:
            model = small.gpt2(seed=began)
            optimisation = Optimisation(steps=3, optimizer_of=KINDS[kind])
            step = step_of(model, draws, Aggregation(1.0, 0.5, 0.3), optimisation=optimisation)
            if state is not None:
                step.restore(torch.load(state))
            for number in range(began, until):
                step(number)
            state = tmp_path / f"{until}.pt"
            torch.save(step.state(), state)
            began = until
        ends.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    assert torch.equal(*ends)
    assert not torch.equal(ends[0], torch.cat([p.detach().flatten() for p in small.gpt2().parameters()]))
