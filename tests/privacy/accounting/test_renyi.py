"""Renyi divergences of a run, and the posterior that they allow: closed forms, and the best attack on small worlds."""

import math
from itertools import product

import numpy as np
import pytest
from scipy.optimize import brentq

from confide.privacy.accounting import MixtureOfGaussians, Population, Targets, least_noise_for_secrets
from confide.privacy.accounting.renyi import ORDERS, allowed, renyi


def divergence(p, q, order):
    """By its definition, of two distributions on a finite set."""
    return math.log(sum(a**order * b ** (1 - order) for a, b in zip(p, q, strict=True))) / (order - 1)


def bern(x):
    return [x, 1 - x]


def in_closed_form(process, noise, order):
    """E_Q[(P/Q)^order] is a sum over as many draws of X, each pair of which adds the product of its values."""
    values = [v / noise for v in process.values]
    total = math.fsum(
        math.prod(process.probabilities[i] for i in draw)
        * math.exp(sum(values[i] * values[j] for n, i in enumerate(draw) for j in draw[:n]))
        for draw in product(range(len(values)), repeat=order)
    )
    return process.steps * math.log(total) / (order - 1)


@pytest.mark.parametrize("noise", [0.6, 1.3, 50.0])
@pytest.mark.parametrize("order", [2, 3, 4])
@pytest.mark.parametrize(
    "process",
    [
        MixtureOfGaussians.bernoulli(1.0, 3),
        MixtureOfGaussians.bernoulli(0.02, 100),
        MixtureOfGaussians.binomial(5, 0.3, 7),
        MixtureOfGaussians.poisson_binomial([0.5, 0.01, 0.2], 1),
    ],
    ids=["drawn always", "one row", "five rows", "three rates"],
)
def test_divergences_are_those_of_the_closed_form(process, order, noise):
    expected = in_closed_form(process, noise, order)
    assert renyi(process, noise)[ORDERS.index(order)] == pytest.approx(expected, rel=1e-7)


def test_large_orders_of_a_gaussian():
    found = renyi(MixtureOfGaussians.bernoulli(1.0, 10), 3.0)
    assert found == pytest.approx(10 * np.array(ORDERS) / 18, rel=1e-8)
    assert (renyi(MixtureOfGaussians.bernoulli(1.0, 10), 0.0) == np.inf).all()
    far = renyi(MixtureOfGaussians.bernoulli(1.0, 1), 2e-3)  # the grid would be long: fewer orders
    assert far[0] == pytest.approx(250_000, rel=1e-8)
    assert np.isinf(far[-1])


@pytest.mark.parametrize(("p", "r"), [(1e-10, 1e-3), (1e-4, 0.02), (0.3, 0.31), (0.01, 0.99)])
def test_what_is_allowed_is_the_divergence_of_two_coins_rounded_down(p, r):
    found = allowed(np.array([p]), np.array([r]))[0]
    for order, nats in zip(ORDERS, found, strict=True):
        if order <= 16:
            assert nats == pytest.approx(divergence(bern(r), bern(p), order), rel=1e-8)
            assert nats <= divergence(bern(r), bern(p), order)


def best_guess(worlds, prior):
    """The chance of the best attack: for each output the likeliest candidate."""
    return sum(
        max(w * world[y] for w, world in zip(prior, worlds, strict=True)) for y in range(len(worlds[0]))
    )


def bound(worlds, zeroed, p, order):
    """The posterior that the lemma states: that of the coin with as large a divergence."""
    worst = max(divergence(world, zeroed, order) for world in worlds)
    if divergence(bern(1 - 1e-12), bern(p), order) <= worst:
        return 1.0
    return brentq(lambda r: divergence(bern(r), bern(p), order) - worst, p, 1 - 1e-12, xtol=1e-14)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("order", [2, 3, 8])
def test_no_attack_on_a_small_world_beats_the_bound(seed, order):
    random = np.random.default_rng(seed)
    for _ in range(40):
        candidates, outputs = random.integers(2, 7), random.integers(2, 9)
        prior = random.dirichlet(np.full(candidates, 5.0))
        zeroed = random.dirichlet(np.ones(outputs))
        worlds = [
            0.5 * zeroed + 0.5 * random.dirichlet(np.full(outputs, random.uniform(0.1, 2)))
            for _ in range(candidates)
        ]
        assert best_guess(worlds, prior) <= bound(worlds, zeroed, float(prior.max()), order) + 1e-9


@pytest.mark.parametrize("order", [2, 3, 8])
def test_the_bound_is_reached_by_some_world(order):
    # Each of k candidates is likeliest at an output of its own, and no output is likelier where all are zeroed out.
    k, r = 5, 0.6
    worlds = [[r if y == i else (1 - r) / (k - 1) for y in range(k)] for i in range(k)]
    found = bound(worlds, [1 / k] * k, 1 / k, order)
    assert found == pytest.approx(r, rel=1e-9)
    assert best_guess(worlds, [1 / k] * k) == pytest.approx(r)


@pytest.mark.parametrize("seed", [0, 1])
def test_every_secret_is_met_and_little_less_noise_would_not_do(seed):
    random = np.random.default_rng(seed)
    vectors = [10 ** random.uniform(-3, -1, random.integers(1, 6)) for _ in range(12)]
    offsets = np.concatenate([[0], np.cumsum([len(v) for v in vectors])])
    units = Population(offsets, np.arange(offsets[-1]), np.concatenate(vectors), 50)
    prior = 10.0 ** -random.integers(3, 10, 12)
    pairs = Targets(np.arange(12), prior, np.minimum(0.5, prior ** random.uniform(0.2, 0.5, 12)))
    noise = least_noise_for_secrets(units, pairs, "renyi")

    # the divergences themselves are checked above
    assert max(_shares(units, pairs, noise)) <= 1
    assert max(_shares(units, pairs, noise / 1.004)) > 1
    assert noise < least_noise_for_secrets(units, pairs, "kl")


def _shares(units, pairs, noise):
    limits = allowed(pairs.prior, pairs.posterior)
    return [(renyi(units.process(n), noise) / limits[n]).min() for n in range(units.units)]
