"""The best of a random number of trials: against brute force, closed forms, and dp_accounting's Renyi bound."""

import math

import dp_accounting
import numpy as np
import pytest
from dp_accounting.dp_event import RepeatAndSelectDpEvent
from dp_accounting.rdp import RdpAccountant
from scipy.special import ndtr

from confide.privacy.accounting import (
    Direction,
    GroupOf,
    MixtureOfGaussians,
    PrivacyProfile,
    Repeated,
    Replacement,
    Trials,
    Untouched,
    least_noise,
    repetition,
)
from confide.privacy.accounting.repetition import repeated
from confide.utils.errors import InputError

KINDS = [(1.3, 0.0), (2.0, 1.0), (8.0, 0.0), (8.0, 0.5), (8.0, 1.0), (30.0, 3.0), (400.0, 1.0)]


def masses(trials: Trials, most: int = 60_000) -> np.ndarray:
    """P(K = 1), P(K = 2), ...: the definition of Papernot and Steinke, normalised by its sum."""
    k = np.arange(1, most)
    steps = np.concatenate([[0.0], np.log((k[:-1] + trials.shape) / (k[:-1] + 1))])
    found = np.exp(np.cumsum(steps) + k * math.log1p(-trials.stop))
    return found / found.sum()


@pytest.mark.parametrize(("mean", "shape"), KINDS)
def test_the_number_of_trials_has_the_stated_distribution(mean, shape):
    trials = Trials(mean, shape)
    p = masses(trials)
    k = np.arange(1, len(p) + 1)
    assert p @ k == pytest.approx(mean, rel=1e-6)
    for x in (0.0, 0.3, 0.9, 1.0):
        assert trials.generating(x) == pytest.approx(p @ x**k, abs=1e-9)
    totals = np.cumsum(p)
    for uniform in (0.0, 0.1, 0.5, 0.9, 0.99, 0.999999):
        assert trials.number(uniform) == 1 + np.searchsorted(totals, uniform + 1e-12)
    assert trials.number(1 - 2.0**-53) < 1e5


@pytest.mark.parametrize(("mean", "shape"), [(100, 50), (1000, 10), (10_000, 6)])
def test_many_trials_are_drawn_where_few_are_as_good_as_impossible(mean, shape):
    trials = Trials(float(mean), float(shape))
    assert trials.number(0.5) == pytest.approx(mean, rel=0.1)
    assert trials.number(0.05) < trials.number(0.95)


@pytest.mark.parametrize(
    ("mean", "shape", "words"),
    [(1.0, 1.0, "no sweep"), (math.nan, 1.0, "no sweep"), (1e9, 1.0, "10,000"), (8.0, -0.5, "--shape")],
)
def test_what_is_no_distribution_is_refused(mean, shape, words):
    with pytest.raises(InputError, match=words):
        Trials(mean, shape)


def exact(p: np.ndarray, q: np.ndarray) -> Direction:
    """The divergences of p from q at many epsilons."""
    epsilons = np.unique(np.concatenate([np.log(p / q), np.linspace(-6, 6, 100)]))
    return Direction(epsilons, np.array([np.maximum(p - np.exp(e) * q, 0).sum() for e in epsilons]))


def best(p: np.ndarray, order: np.ndarray, trials: Trials) -> np.ndarray:
    """The distribution of the best of K draws from p, where later in `order` is better."""
    below = np.concatenate([[0.0], np.cumsum(p[order])]).clip(0, 1)
    found = np.empty_like(p)
    found[order] = np.diff([trials.generating(float(x)) for x in below])
    return found


def pairs(generator: np.random.Generator, count: int):
    """Pairs of distributions, far apart and near, few outcomes and more."""
    for number in range(count):
        size = int(generator.integers(2, 8))
        p = generator.dirichlet(np.full(size, generator.choice([0.3, 1.0, 5.0])))
        q = generator.dirichlet(np.full(size, generator.choice([0.3, 1.0, 5.0])))
        if number % 2:
            q = p * np.exp(generator.normal(0, 0.3, size))
        p, q = np.maximum(p, 1e-7), np.maximum(q, 1e-7)
        yield p / p.sum(), q / q.sum()


def unlucky_orders(p: np.ndarray, q: np.ndarray):
    """Best are some that q makes likelier, then those that p makes likeliest: the worst orders for p against q."""
    rising = np.argsort(p / q)
    for count in range(len(p) + 1):
        yield np.concatenate([rising[count:], rising[:count][::-1]])


@pytest.mark.parametrize(("places", "hinges"), [(300, 50), (3, 2)])
def test_no_order_of_the_outcomes_tells_more_than_the_bound(places, hinges, monkeypatch):
    """However coarsely it is computed."""
    monkeypatch.setattr(repetition, "_PLACES", places)
    monkeypatch.setattr(repetition, "_HINGES", hinges)
    generator, epsilons = np.random.default_rng(0), np.linspace(-3, 8, 23)
    ratio = np.exp(epsilons)[:, None]
    for p, q in pairs(generator, 120):
        mean, shape = KINDS[generator.integers(len(KINDS))]
        trials = Trials(mean, shape)
        curve = repeated(PrivacyProfile(exact(p, q), exact(q, p), 0.0), trials)
        removal, addition = curve.removal.delta(epsilons), curve.addition.delta(epsilons)
        for order in (generator.permutation(len(p)), *unlucky_orders(p, q), *unlucky_orders(q, p)):
            one, other = best(p, order, trials), best(q, order, trials)
            assert one.sum() == pytest.approx(1.0)
            assert (removal >= np.maximum(one - ratio * other, 0).sum(axis=1) - 1e-9).all()
            assert (addition >= np.maximum(other - ratio * one, 0).sum(axis=1) - 1e-9).all()


@pytest.mark.parametrize("shape", [0.0, 1.0])
def test_the_most_unlucky_score_reaches_the_bound(shape):
    """N(1, 2^2) or N(0, 2^2): best are small numbers, then very large ones, then all others."""
    noise, delta, trials = 2.0, 1e-6, Trials(8.0, shape)
    claimed = Repeated(MixtureOfGaussians.bernoulli(1.0, 1), trials).curve(noise).epsilon(delta)

    def at_least_one(mass):
        return 1 - np.vectorize(trials.generating)(1 - mass)

    def told(epsilon):
        small, large = np.meshgrid(np.linspace(-6, 1, 141), np.linspace(4, 14, 101))
        (first, both), (first_other, both_other) = (
            (at_least_one(ndtr(x)), at_least_one(ndtr(x) + ndtr(-y)))
            for x, y in (((small - mean) / noise, (large - mean) / noise) for mean in (1.0, 0.0))
        )
        return float((both - first - math.exp(epsilon) * (both_other - first_other)).max())

    assert told(claimed) <= delta
    assert told(claimed - 0.03) > delta


@pytest.mark.parametrize("shape", [0.0, 1.0])
def test_the_bound_is_near_what_an_unlucky_score_gives_away(shape):
    """One number per trial, N(1, s^2) or N(0, s^2): in closed form where the score is that number or its negative."""
    noise, trials, single = 2.0, Trials(8.0, shape), MixtureOfGaussians.bernoulli(1.0, 1)
    curve = Repeated(single, trials).curve(noise, 1e-3)
    x, epsilons = np.linspace(-30, 31, 4001), np.linspace(0, 4, 201)
    deltas = np.zeros_like(epsilons)
    for sign in (1, -1):
        falls = [[trials.generating(float(v)) for v in ndtr(sign * (x - m) / noise)] for m in (1, 0)]
        one, other = np.abs(np.diff(falls))
        told = np.maximum(one - np.exp(epsilons)[:, None] * other, 0).sum(axis=1)
        assert (curve.removal.delta(epsilons) >= told - 1e-9).all()
        deltas = np.maximum(deltas, told)
    reached = epsilons[deltas > 1e-5].max()
    assert single.curve(noise, 1e-3).epsilon(1e-5) < reached < curve.epsilon(1e-5) < 1.45 * reached


@pytest.mark.parametrize(("epsilon", "mean", "shape"), [(1.0, 8, 1.0), (3.0, 16, 0.0), (8.0, 8, 1.0)])
def test_it_lies_between_a_single_run_and_the_renyi_bound_of_dp_accounting(epsilon, mean, shape):
    q, steps, delta = 0.02, 500, 1e-5
    process = MixtureOfGaussians.bernoulli(q, steps)
    noise = least_noise(process, epsilon, delta)
    found = Repeated(process, Trials(mean, shape)).curve(noise, 1e-3)
    step = dp_accounting.PoissonSampledDpEvent(q, dp_accounting.GaussianDpEvent(noise))
    accountant = RdpAccountant([1 + x / 10 for x in range(1, 100)] + list(range(11, 64)))
    accountant.compose(RepeatAndSelectDpEvent(dp_accounting.SelfComposedDpEvent(step, steps), mean, shape))
    assert 1.2 * epsilon < found.epsilon(delta) < 0.9 * accountant.get_epsilon(delta)
    single = process.curve(noise, 1e-3)
    assert found.advantage() > single.advantage()
    assert found.reconstruction(1e-4) > single.reconstruction(1e-4)


@pytest.mark.parametrize(
    "process",
    [
        MixtureOfGaussians.binomial(5, 0.05, 20),
        Replacement(0.1, 20),
        GroupOf(MixtureOfGaussians.bernoulli(0.1, 20), 2),
    ],
    ids=lambda process: type(process).__name__,
)
def test_every_process_can_be_repeated(process):
    one = process.curve(2.0, 1e-3)
    few, many = (Repeated(process, Trials(mean)).curve(2.0, 1e-3) for mean in (1.001, 8))
    assert one.epsilon(1e-5) < few.epsilon(1e-5) < 1.02 * one.epsilon(1e-5)
    assert many.epsilon(1e-5) > 1.2 * one.epsilon(1e-5)
    assert few.advantage() < 1.02 * one.advantage()
    epsilons = np.linspace(-3, 6, 50)
    for direction in (many.removal, many.addition):
        assert (np.diff(direction.delta(epsilons)) <= 0).all()
        assert (np.diff(direction.epsilons) > 0).all()
    assert "8 on average (geometric distribution)" in Repeated(process, Trials(8)).describe()


@pytest.mark.parametrize(("mean", "shape"), KINDS)
def test_what_gives_nothing_away_gives_nothing_away_however_often(mean, shape):
    curve = Repeated(Untouched("nothing"), Trials(mean, shape)).curve(1.0)
    assert 0 <= curve.delta(0.0) < 1e-12
    assert curve.epsilon(1e-12) == 0.0


@pytest.mark.parametrize(("mean", "shape"), [(8.0, 1.0), (1e4, 1.0), (1e4, 100.0)])
@pytest.mark.parametrize(("q", "noise"), [(0.01, 30.0), (0.001, 50.0)])
def test_rounding_costs_next_to_nothing_where_next_to_nothing_is_given_away(q, noise, mean, shape):
    """Never more than the bound by one weight and one ratio for all outputs (Koskela, Redberg and Wang 2024)."""
    one, trials = MixtureOfGaussians.bernoulli(q, 100).curve(noise), Trials(mean, shape)
    g, a = trials.stop, one.addition.epsilons[one.addition.epsilons >= 0]
    ratio = (1 + shape) * np.maximum(a, np.log1p((1 - g) / g * one.addition.delta(a))).min()
    plain = one.removal.epsilon(1e-5 / mean) + ratio
    assert repeated(one, trials).removal.epsilon(1e-5) <= 1.001 * plain + 1e-4


def test_vertices_fall_across_zero():
    removal = Direction(np.array([-0.86, 0.38]), np.array([0.58, 0.0]))
    addition = Direction(np.array([-2.64, -1.32, 3.64]), np.array([0.95, 0.8, 0.0]))
    for direction in (
        (found := repeated(PrivacyProfile(removal, addition, 0.0), Trials(1.001))).removal,
        found.addition,
    ):
        assert (np.diff(direction.deltas) <= 0).all()


def test_what_protects_nobody_protects_nobody():
    curve = Repeated(MixtureOfGaussians.bernoulli(0.1, 5), Trials(8)).curve(0.0)
    assert curve.epsilon(0.1) == math.inf
    assert curve.advantage() == 1.0


def test_the_least_noise_for_a_sweep_is_certified_and_the_least():
    process = MixtureOfGaussians.bernoulli(0.1, 30)
    swept = Repeated(process, Trials(8))
    noise = least_noise(swept, 3.0, 1e-5)
    assert 2.98 < swept.curve(noise).epsilon(1e-5) <= 3.0
    assert noise > 1.1 * least_noise(process, 3.0, 1e-5)
