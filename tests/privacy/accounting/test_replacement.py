"""Replacing a unit's text: the pair against integrals, other vectors, simulation and the black-box bound."""

import math

import numpy as np
import pytest
from scipy import stats

from confide.privacy.accounting import (
    After,
    Exchanged,
    GroupOf,
    MixtureOfGaussians,
    Replacement,
    Untouched,
    least_noise,
    replaced,
)
from confide.privacy.accounting.replacement import _Loss

bernoulli = MixtureOfGaussians.bernoulli


def integral(q: float, s: float, epsilon: float) -> float:
    """H(epsilon) of one step by adding up max(0, p - e^epsilon q) on a fine grid."""
    x = np.linspace(-1 - 12 * s, 1 + 12 * s, 400_001)
    stay = (1 - q) * stats.norm.pdf(x, 0, s)
    p, other = stay + q * stats.norm.pdf(x, 1, s), stay + q * stats.norm.pdf(x, -1, s)
    return float(np.maximum(0, p - math.exp(epsilon) * other).sum() * (x[1] - x[0]))


@pytest.mark.parametrize(("q", "s"), [(0.01, 0.6), (0.2, 1.0), (0.9, 2.5), (1.0, 1.5), (1e-4, 0.4)])
def test_one_step_is_the_hockey_stick_divergence_of_the_pair(q, s):
    loss = _Loss(q, s)
    for epsilon in (-3.0, -0.4, 0.0, 0.1, 1.0, 4.0):
        assert float(loss.delta(np.array([epsilon]))[0]) == pytest.approx(integral(q, s, epsilon), abs=2e-8)
        assert loss._at(float(loss._place(np.array([epsilon]))[0])) == pytest.approx(epsilon, abs=1e-9)


def test_no_two_vectors_of_norm_one_are_told_apart_better():
    rng = np.random.default_rng(0)
    axis = np.linspace(-9, 9, 301)
    grid, cell = np.stack(np.meshgrid(axis, axis), -1), (axis[1] - axis[0]) ** 2

    def density(centre: np.ndarray, s: float) -> np.ndarray:
        return stats.norm.pdf(grid[..., 0], centre[0], s) * stats.norm.pdf(grid[..., 1], centre[1], s)

    for _ in range(60):
        q, s, epsilon = rng.uniform(0.02, 1), rng.uniform(0.5, 1.5), rng.uniform(-1, 3)
        u, v = (w / max(1, np.linalg.norm(w)) for w in rng.normal(size=(2, 2)))
        stay = (1 - q) * density(np.zeros(2), s)
        p, other = stay + q * density(u, s), stay + q * density(v, s)
        found = float(np.maximum(0, p - math.exp(epsilon) * other).sum() * cell)
        assert found <= float(_Loss(q, s).delta(np.array([epsilon]))[0]) + 1e-6


@pytest.mark.parametrize(("q", "steps", "s"), [(0.02, 200, 0.9), (0.3, 20, 2.0), (0.004, 1000, 0.7)])
def test_lies_between_zeroing_out_and_twice_that(q, steps, s):
    once, curve = bernoulli(q, steps).curve(s), Replacement(q, steps).curve(s)
    twice = GroupOf(bernoulli(q, steps), 2).curve(s)
    for delta in (1e-3, 1e-5, 1e-7):
        assert once.epsilon(delta) < curve.epsilon(delta) < twice.epsilon(delta)


def test_composition_holds_what_simulated_runs_show_and_little_more():
    q, steps, s, n = 0.1, 30, 1.0, 400_000
    rng = np.random.default_rng(1)
    loss = np.zeros(n)
    for _ in range(steps):
        x = (rng.uniform(size=n) < q) + s * rng.normal(size=n)
        up, down = (q * np.exp((side * x - 0.5) / s**2) for side in (1, -1))
        loss += np.log((1 - q + up) / (1 - q + down))
    curve = Replacement(q, steps).curve(s)
    for epsilon in (0.0, 0.5, 1.5, 3.0):
        simulated = np.maximum(0, -np.expm1(epsilon - loss))
        error = simulated.std() / math.sqrt(n)
        assert curve.delta(epsilon) == pytest.approx(float(simulated.mean()), abs=5 * error)


def test_who_always_takes_part_is_moved_by_twice_the_clip_norm():
    for s in (0.7, 3.0):
        ours, gauss = Replacement(1.0, 7).curve(s), bernoulli(1.0, 7).curve(s / 2)
        assert ours.epsilon(1e-5) == pytest.approx(gauss.epsilon(1e-5), rel=1e-3)


def test_where_it_is_proved_it_stands_for_two_zero_outs():
    assert replaced(bernoulli(0.1, 5)) == Replacement(0.1, 5)
    assert replaced(bernoulli(1.0, 5)) == Replacement(1.0, 5)
    several = MixtureOfGaussians.binomial(3, 0.1, 5)
    assert replaced(several) == Exchanged(several)


def test_calibration_meets_its_target_with_less_noise_than_the_black_box():
    noise = least_noise(Replacement(0.01, 500), 3.0, 1e-5)
    assert 2.98 < Replacement(0.01, 500).curve(noise).epsilon(1e-5) <= 3.0
    assert noise < 0.97 * least_noise(GroupOf(bernoulli(0.01, 500), 2), 3.0, 1e-5)


@pytest.mark.parametrize("s", [0.02, 0.05, 30.0, 1000.0])
def test_extreme_noise_neither_overflows_nor_claims_too_much(s):
    curve = Replacement(0.01, 100).curve(s)
    epsilon = curve.epsilon(1e-6)
    assert 0 <= epsilon <= GroupOf(bernoulli(0.01, 100), 2).curve(s).epsilon(1e-6)
    assert epsilon >= bernoulli(0.01, 100).curve(s).epsilon(1e-6) * 0.999


def test_untouched_gives_nothing_away():
    curve = Untouched("nothing sensitive is read").curve(0.0)
    assert curve.epsilon(1e-9) == 0.0
    assert curve.delta(0.0) == 0.0
    assert float(curve.reconstruction(1e-4)) == pytest.approx(1e-4, rel=1e-12)
    assert curve.delta(-1.0) == pytest.approx(1 - math.exp(-1))


def test_two_phases_cost_more_than_either_and_less_than_their_sum():
    first, second = Replacement(0.002, 300), Replacement(0.01, 300)
    both = After(first, 0.8, second).curve(1.2).epsilon(1e-5)
    one, other = first.curve(0.8).epsilon(1e-5), second.curve(1.2).epsilon(1e-5)
    assert max(one, other) < both < one + other
    assert math.isinf(After(first, 0.0, second).curve(1.2).epsilon(1e-5))


def test_a_unit_that_is_always_there_has_a_curve_at_the_least_noise():
    """Two clip norms apart, as one Gaussian; what overflows is of a unit that is not there."""
    for steps in (1, 3):
        found = Replacement(1.0, steps).curve(0.05)
        right = MixtureOfGaussians((2.0,), (1.0,), steps).curve(0.05)
        assert found.epsilon(1e-5) == pytest.approx(right.epsilon(1e-5), rel=1e-3)
        assert found.true_positive_rate(0.01) == pytest.approx(1)
