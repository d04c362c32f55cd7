"""The filter's noise is the paper's, its claim one point, and its proof holds on users made to break it."""

import math

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as pld
from scipy.stats import norm

from confide.privacy.accounting.concentration import (
    NEAR,
    TEST_SCALE,
    THRESHOLD_SCALE,
    Filtered,
    Moves,
    Released,
)

DELTA = 1e-6


def test_the_noise_is_the_papers():
    filtered = Filtered(users=500, steps=40, epsilon=3.0, delta=DELTA)
    s = filtered.noise_multiplier / math.sqrt(8 * math.log(math.exp(3.0) * 40 / DELTA))
    for factor, meets in ((1.0, True), (0.995, False)):
        whole = pld.from_gaussian_mechanism(factor * s / math.sqrt(40), value_discretization_interval=1e-4)
        assert (whole.get_epsilon_for_delta(DELTA / 2) <= 1.5) == meets


def test_one_point_is_claimed_and_what_follows_from_it():
    filtered = Filtered(500, 40, 3.0, DELTA)
    curve = filtered.curve(filtered.noise_multiplier)
    assert curve.epsilon(DELTA) == 3.0
    assert curve.epsilon(0.9 * DELTA) == math.inf
    # The trade-off of (epsilon, delta): true positives at a rate of false ones, and the least total of errors.
    assert curve.true_positive_rate(1e-3) == pytest.approx(DELTA + math.exp(3) * 1e-3, rel=1e-6)
    assert curve.advantage() == pytest.approx((math.exp(3) - 1 + 2 * DELTA) / (math.exp(3) + 1), rel=1e-9)
    assert curve.reconstruction(1e-4) == pytest.approx(DELTA + math.exp(3) * 1e-4, rel=1e-6)
    assert filtered.curve(0.999 * filtered.noise_multiplier).epsilon(DELTA) == math.inf


def test_thousands_of_users_are_proved_and_few_are_not():
    def proved(users, steps, epsilon):
        filtered = Filtered(users, steps, epsilon, DELTA)
        return filtered.proved(filtered.noise_multiplier)

    assert proved(10_000, 100, 1.0) <= 1.0
    assert proved(2_500, 100, 3.0) <= 3.0
    assert 3.0 < proved(1_000, 100, 3.0) < 4.0
    assert proved(100_000, 1, 1.0) > 1.0  # with one step a rare number of flips does not average out
    assert proved(124, 100, 8.0) == math.inf
    assert Moves.of(6, 0.2) is None
    noisier = Filtered(1_000, 100, 3.0, DELTA)
    assert 1.5 < noisier.proved(2 * noisier.noise_multiplier) < 2.5


def test_without_flips_it_is_a_gaussian_composed():
    steps, s, first = 30, 40.0, 6.0
    curve = Released(Moves(first, 4.0, 0, 0.1), steps).curve(s)
    d = first * math.sqrt(steps) / s
    for epsilon in (0.0, 0.5, 2.0):
        exact = norm.cdf(d / 2 - epsilon / d) - math.exp(epsilon) * norm.cdf(-d / 2 - epsilon / d)
        assert exact <= curve.delta(epsilon) <= exact + 2e-4


def test_with_flips_it_is_the_mixture():
    """One step against the integral, told the number of flips; and more flips cost more."""
    moves, s = Moves(6.0, 4.0, 30, 0.05), 20.0
    counts, weights, beyond = moves.flips()
    assert weights.sum() + beyond == pytest.approx(1.0, abs=1e-12)
    assert weights @ counts == pytest.approx(1.5, rel=1e-9)
    curve = Released(moves, 1).curve(s)
    for epsilon in (-0.5, 0.0, 1.0):
        d = (6.0 + 4.0 * counts) / s
        exact = weights @ (norm.cdf(d / 2 - epsilon / d) - math.exp(epsilon) * norm.cdf(-d / 2 - epsilon / d))
        assert exact - 1e-12 <= curve.delta(epsilon) <= exact + 2e-4
    more = Released(Moves(6.0, 4.0, 60, 0.05), 1).curve(s)
    assert more.delta(1.0) > 1.2 * curve.delta(1.0)


def test_a_step_is_taken_by_chance_no_more_often_than_allowed():
    steps, epsilon, delta, users = 20, 2.0, 0.1, 1000
    filtered = Filtered(users, steps, epsilon, delta)
    generator = np.random.default_rng(0)
    trials = 40_000
    threshold = generator.laplace(scale=THRESHOLD_SCALE / epsilon, size=(trials, 1))
    test = generator.laplace(scale=TEST_SCALE / epsilon, size=(trials, steps))
    excess = (filtered._far() - (1 - NEAR)) * users
    assert 0.2 * delta / 2 < (test - threshold > excess).any(1).mean() < delta / 2


def chances(points):
    distance = np.abs(points[:, None] - points[None])
    n = len(points)
    return np.clip(((distance <= 2).sum(1) - n / 2) / (n / 6), 0, 1), (distance > 1).mean()


def some_users(generator, n):
    """A crowd with a fringe about where users stop being kept, on a line, where they are as far apart as can be."""
    fringe = generator.integers(0, n // 4)
    crowd = generator.choice([-0.5, 0.0, 0.5, 1.0], n - fringe, p=generator.dirichlet(np.ones(4)))
    edge = generator.choice([-3.0, -2.6, -2.1, 2.4, 2.9, 3.2], fringe)
    return generator.permutation(np.concatenate([crowd, edge]))


def test_replacing_a_user_moves_the_mean_of_the_kept_by_no_more_than_the_lemma_says():
    generator = np.random.default_rng(1)
    met = flipped = 0
    closest = closest_flip = 0.0
    for _ in range(4_000):
        n = int(generator.choice([60, 100]))
        points = some_users(generator, n)
        replaced = points.copy()
        replaced[0] = generator.choice([-3.0, -2.0, 0.0, 2.0, 3.0])
        before, far = chances(points)
        moves = Moves.of(n, max(far, 0.2))
        if moves is None:
            continue
        after, _ = chances(replaced)
        changed = np.abs(before - after)[1:]
        assert (changed > 0).sum() <= moves.users
        assert changed.max() <= moves.chance + 1e-12
        sure = replaced[1:][np.minimum(before, after)[1:] == 1]
        for user in replaced[1:][changed > 0]:
            alone = abs(user - sure.mean()) * n / (len(sure) + 1)
            closest_flip = max(closest_flip, alone / moves.each)
        for draws in generator.random((4, n)):
            kept, also = draws < before, draws < after
            flips = (kept != also)[1:].sum()
            moved = abs(points[kept].mean() - replaced[also].mean())
            closest = max(closest, moved * n / (moves.first + moves.each * flips))
            met, flipped = met + 1, flipped + (flips > 0)
    assert met > 300
    assert flipped > 30
    assert 0.3 < closest <= 1
    assert 0.5 < closest_flip <= 1
