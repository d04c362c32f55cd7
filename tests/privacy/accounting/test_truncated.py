"""Truncated Poisson sampling: against every small world, and against an attacker who samples whole runs."""

import itertools
import math
from collections import Counter

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as pld
from scipy import stats

from confide.privacy.accounting import MixtureOfGaussians, TruncatedPoisson, stock

X = np.linspace(-16, 16, 16_001)
EPSILONS = (-1.5, -0.4, -0.05, 0.0, 0.05, 0.2, 0.5, 1.0, 2.0)


def sums(gradients: tuple[float, ...], q: float, cap: int) -> dict[bool, Counter]:
    """The probability of each sum, by whether at least `cap` of the rows behind the first one were drawn."""
    found = {False: Counter(), True: Counter()}
    for drawn in itertools.product((False, True), repeat=len(gradients)):
        mass = math.prod(q if each else 1 - q for each in drawn)
        chosen = [row for row, each in enumerate(drawn) if each]
        used = list(itertools.combinations(chosen, min(cap, len(chosen))))
        for rows in used:
            found[sum(drawn[1:]) >= cap][sum(gradients[row] for row in rows)] += mass / len(used)
    return found


def density(masses: Counter, s: float) -> np.ndarray:
    return sum(mass * stats.norm.pdf(X, total, s) for total, mass in masses.items()) + np.zeros(len(X))


def divergence(p: np.ndarray, z: np.ndarray, epsilon: float) -> float:
    return float(np.maximum(p - math.exp(epsilon) * z, 0).sum() * (X[1] - X[0]))


def worst(rows: int, q: float, cap: int, s: float, epsilon: float, forth: bool) -> float:
    """The largest divergence of all worlds whose rows contribute -1, 0 or 1, if |S| >= cap is told to the attacker."""
    most = 0.0
    for others in itertools.combinations_with_replacement((-1.0, 0.0, 1.0), rows - 1):
        have, lack = sums((1.0, *others), q, cap), sums((0.0, *others), q, cap)
        total = 0.0
        for case in (False, True):
            pair = density(have[case], s), density(lack[case], s)
            total += divergence(*(pair if forth else pair[::-1]), epsilon)
        most = max(most, total)
    return most


@pytest.mark.parametrize("s", [0.5, 1.0, 2.0])
@pytest.mark.parametrize(
    ("rows", "q", "cap"), [(2, 0.5, 1), (3, 0.3, 1), (3, 0.6, 2), (4, 0.5, 2), (3, 1.0, 2)]
)
def test_no_small_world_is_beyond_the_bound(rows, q, cap, s):
    curve = TruncatedPoisson(rows, q, cap, 1).curve(s, 1e-3)
    for epsilon in EPSILONS:
        for side, forth in ((curve.removal, True), (curve.addition, False)):
            assert worst(rows, q, cap, s, epsilon, forth) <= float(side.delta(epsilon)) + 1e-6, (
                epsilon,
                forth,
            )


@pytest.mark.parametrize(("rows", "q", "cap"), [(2, 0.5, 1), (2, 0.9, 1), (3, 1.0, 2)])
def test_a_world_attains_the_bound(rows, q, cap):
    """All others pull the other way, and no more than `cap` others can be drawn, so that their sum is known."""
    curve = TruncatedPoisson(rows, q, cap, 1).curve(1.0, 1e-4)
    for epsilon in (0.0, 0.2, 0.5, 1.0):
        assert worst(rows, q, cap, 1.0, epsilon, True) == pytest.approx(
            float(curve.removal.delta(epsilon)), rel=2e-3
        )


def test_an_attacker_of_whole_runs_stays_below_and_comes_near():
    """The attacker is told in each of 60 steps whether |S| >= cap, and the others contribute -1 where it holds.

    A step attains the bound from epsilon 0 on, and not below, so a whole run comes near it.
    """
    size, q, cap, steps, s, epsilon = 100, 0.1, 10, 60, 2.0, 1.0
    tolerance = 0.04  # of 100,000 samples
    process = TruncatedPoisson(size, q, cap, steps)
    generator, samples = np.random.default_rng(1), 100_000
    total = np.zeros(samples)
    for _ in range(steps):
        full = generator.random(samples) < process.full
        rate = np.where(full, process.displacing, q)
        far, near = np.where(full, 2.0, 1.0), np.where(full, 1.0, 0.0)
        x = np.where(generator.random(samples) < rate, far, 0.0) + generator.normal(0, s, samples)
        two, one, none = (stats.norm.logpdf(x, at, s) for at in (far, near, 0.0))
        total += np.logaddexp(np.log1p(-rate) + none, np.log(rate) + two)
        total -= np.logaddexp(np.log1p(-rate) + none, np.log(rate) + one)
    delta = float(np.mean(np.maximum(0, -np.expm1(epsilon - total))))
    bound = float(process.curve(s).removal.delta(epsilon))
    assert 0.75 * bound < delta < (1 + tolerance) * bound


def test_it_is_tighter_than_the_stock_pair_and_no_tighter_than_plain_sampling_where_nothing_is_cut():
    theirs = pld.from_truncated_subsampled_gaussian_mechanism(
        100,
        0.1,
        10,
        2.0,
        value_discretization_interval=1e-3,
        neighboring_relation=pld.NeighborRel.REPLACE_SPECIAL,
    )
    found = TruncatedPoisson(100, 0.1, 10, 50).curve(2.0).epsilon(1e-5)
    assert found < 0.55 * theirs.self_compose(50).get_epsilon_for_delta(1e-5)
    plain = MixtureOfGaussians.bernoulli(0.1, 50).curve(2.0)
    uncut = TruncatedPoisson(100, 0.1, 100, 50).curve(2.0)
    for side in ("removal", "addition"):
        assert getattr(uncut, side).epsilon(1e-5) == pytest.approx(
            getattr(plain, side).epsilon(1e-5), rel=1e-4
        )


def test_a_row_alone_is_as_in_plain_sampling():
    assert TruncatedPoisson(1, 0.5, 1, 5).displacing == 0
    found = TruncatedPoisson(1, 0.5, 1, 5).curve(1.0).epsilon(1e-5)
    assert found == pytest.approx(MixtureOfGaussians.bernoulli(0.5, 5).curve(1.0).epsilon(1e-5), rel=1e-4)


@pytest.mark.parametrize("s", [0.01, 0.05, 1.0])
@pytest.mark.parametrize("cap", [1, 2, 5])
def test_rows_that_are_all_drawn_have_a_curve_too(cap, s):
    """Of two rows one or both are used, at any noise: none of it is a mixture of a single Gaussian."""
    found = TruncatedPoisson(2, 1.0, cap, 1).curve(s, 1e-3).removal
    apart = 2 * stats.norm.cdf(0.5 / s) - 1
    assert float(found.delta(0.0)) == pytest.approx(apart * (0.5 if cap == 1 else 1), abs=1e-4)


CUT_OFTEN = [(100_000, 0.1, 100, 10_000, 5.0), (1000, 0.5, 10, 10_000, 20.0)]


@pytest.mark.parametrize(("size", "q", "cap", "steps", "s"), CUT_OFTEN)
def test_a_cap_far_below_the_expected_draw_has_a_grid_that_is_fine_enough(size, q, cap, steps, s):
    process = TruncatedPoisson(size, q, cap, steps)
    epsilon = process.curve(s).epsilon(1e-5)
    assert stock.recheck(process, s, 1e-5, epsilon) == (
        size == 1000
    )  # the other's losses reach too far for it
    assert process.curve(s, 1e-5).epsilon(1e-5) == pytest.approx(epsilon, rel=0.01)
