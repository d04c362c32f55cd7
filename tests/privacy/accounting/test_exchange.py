"""One text in place of another: a removal and then an addition, in each direction by itself."""

import math
from dataclasses import dataclass

import numpy as np
import pytest
from scipy import stats

from confide.privacy.accounting import (
    Direction,
    Exchanged,
    GroupOf,
    MixtureOfGaussians,
    PrivacyProfile,
    Repeated,
    Trials,
    least_noise,
    replaced,
)


@dataclass(frozen=True)
class OneSided:
    """A unit that is there shows itself with probability `share`, by an outcome of its own, and else does nothing.

    With the unit against without: H(e) = share from e = 0 on. Without against with it: nothing but the share that is
    missing, H(e) = 1 - (1 - share) e^e.
    """

    share: float = 0.2

    def curve(self, noise_multiplier: float, interval: float = 1e-4) -> PrivacyProfile:
        e = np.array([-30.0, 0.0, 30.0])
        removal = Direction(e, np.array([1 - math.exp(-30) * (1 - self.share), self.share, self.share]))
        end = -math.log1p(-self.share)
        addition = Direction(np.array([-30.0, end]), np.array([1 - (1 - self.share) * math.exp(-30), 0.0]))
        return PrivacyProfile(removal, addition, 0.0)

    def describe(self) -> str:
        return "A unit may show itself."


TEXTS = (np.array([0.2, 0.0, 0.8]), np.array([0.0, 0.2, 0.8]))
"""Of two units of `OneSided`, each with an outcome of its own; nobody there is always the third."""


def divergence(p: np.ndarray, q: np.ndarray, epsilon: float) -> float:
    return float(np.maximum(0, p - math.exp(epsilon) * q).sum())


def test_both_directions_by_themselves_bound_one_text_against_another():
    """By the group lemma an addition alone would cost nothing at all, and 0.2 is what is lost."""
    found = replaced(OneSided()).curve(1.0)
    p, q = TEXTS
    for direction in (found.removal, found.addition):
        for epsilon in np.linspace(-2, 6, 81):
            assert float(direction.delta(epsilon)) >= divergence(p, q, epsilon) - 1e-9
            assert float(direction.delta(epsilon)) >= divergence(q, p, epsilon) - 1e-9


def test_the_best_of_several_runs_is_bounded_from_a_sound_curve():
    """Two of them, one after the other, the best by a lot: the first text shows itself in one of K runs or more."""
    trials = Trials(3.0)
    found = Repeated(replaced(OneSided()), trials).curve(1.0)
    shown = 0.2  # the released run alone shows the text with that probability: its score is a lot
    assert min(float(found.removal.delta(5.0)), float(found.addition.delta(5.0))) >= shown
    assert float(found.true_positive_rate(0.0)) >= shown


def mixture(x: np.ndarray, weights: np.ndarray, s: float, side: int) -> np.ndarray:
    return sum(w * stats.norm.pdf(x, side * k, s) for k, w in enumerate(weights))


@pytest.mark.parametrize(("rows", "p", "s"), [(3, 0.2, 0.8), (5, 0.05, 1.0), (2, 0.9, 2.0)])
def test_no_test_does_better_than_the_bound_on_true_positives(rows, p, s):
    """Rows of the one text move a step one way, rows of the other the opposite way: the likeliest ratio first."""
    weights = stats.binom.pmf(np.arange(rows + 1), rows, p)
    x = np.linspace(-rows - 12 * s, rows + 12 * s, 200_001)
    cell = x[1] - x[0]
    own, other = mixture(x, weights, s, 1), mixture(x, weights, s, -1)
    order = np.argsort(-own / other)
    fpr, tpr = np.cumsum(other[order]) * cell, np.cumsum(own[order]) * cell
    curve = replaced(MixtureOfGaussians.binomial(rows, p, 1)).curve(s)
    for direction in (curve.removal, curve.addition):
        for target in (1e-4, 1e-2, 0.1, 0.4):
            reached = float(tpr[np.searchsorted(fpr, target, side="right") - 1])
            assert reached <= float(direction.blow_up(target)) + 1e-6


PROCESSES = {
    "several rows": MixtureOfGaussians.binomial(4, 0.02, 50),
    "unequal rows": MixtureOfGaussians.poisson_binomial([0.01, 0.2, 0.05], 20),
    "a group": GroupOf(MixtureOfGaussians.bernoulli(0.02, 50), 3),
}


@pytest.mark.parametrize("name", PROCESSES)
def test_it_costs_no_more_than_a_group_of_two(name):
    process = PROCESSES[name]
    found, twice = Exchanged(process).curve(1.1, 1e-3), GroupOf(process, 2).curve(1.1, 1e-3)
    for delta in (1e-2, 1e-4, 1e-6):
        assert process.curve(1.1, 1e-3).epsilon(delta) < found.epsilon(delta)
        assert found.epsilon(delta) <= twice.epsilon(delta) * (1 + 1e-9)
    for epsilon in (-1.0, 0.0, 0.5, 2.0):
        assert found.delta(epsilon) <= twice.delta(epsilon) + 1e-12
    assert found.removal is found.addition


def test_noise_is_found_for_it_and_it_says_what_it_is():
    process = Exchanged(MixtureOfGaussians.binomial(3, 0.01, 100))
    noise = least_noise(process, 3.0, 1e-5)
    assert 2.97 < process.curve(noise).epsilon(1e-5) <= 3.0
    assert noise <= least_noise(GroupOf(process.process, 2), 3.0, 1e-5)
    assert "putting the other in" in process.describe()
    assert math.isinf(process.curve(0.0).epsilon(1e-5))
