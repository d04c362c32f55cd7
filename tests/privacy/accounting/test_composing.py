"""Composition of equal steps against `dp_accounting`'s own, which is slower."""

from decimal import Decimal, localcontext

import numpy as np
import pytest
from dp_accounting.pld import common
from dp_accounting.pld.pld_pmf import DensePLDPmf, create_pmf_pessimistic_connect_dots_fixed_gap
from scipy.stats import norm

from confide.privacy.accounting.composing import TRUNCATED, bounds, connected, mirrored, self_composed
from confide.privacy.accounting.pairs import ADD, REMOVE, MixtureLoss


def one_step(q, s, direction, interval):
    return MixtureLoss(1.0, [0.0, 1 / s], [1 - q, q], adjacency_type=direction).dots(interval)


@pytest.mark.parametrize("interval", [1e-3, 0.02])
@pytest.mark.parametrize(
    ("first", "points"), [(-200, 500), (-3, 4), (0, 60), (7, 1), (7, 90), (-90, 80), (-90, 91)]
)
def test_dots_are_connected_as_in_dp_accounting(interval, first, points):
    """Of a Gaussian, whose divergences are known; also where the grid ends before 0 or begins behind it."""
    losses = interval * np.arange(first, first + points)
    deltas = norm.cdf(0.5 - losses) - np.exp(losses) * norm.cdf(-0.5 - losses)
    ours = connected(interval, first, deltas - np.maximum(0, -np.expm1(losses)))
    theirs = create_pmf_pessimistic_connect_dots_fixed_gap(
        interval, first, first + points - 1, deltas
    ).to_dense_pmf()
    assert (ours._lower_loss, ours._discretization) == (theirs._lower_loss, interval)
    assert ours._pessimistic_estimate
    assert ours._infinity_mass == pytest.approx(theirs._infinity_mass, abs=1e-15)
    assert ours._probs == pytest.approx(theirs._probs, abs=1e-15 / interval)
    assert ours._probs.sum() + ours._infinity_mass == pytest.approx(1, abs=1e-14)
    # what it says of the grid is what it was told
    assert ours.get_delta_for_epsilon(losses) == pytest.approx(deltas, abs=1e-12)


def test_a_pair_that_is_its_own_mirror_image_needs_half_of_its_divergences():
    losses = 0.02 * np.arange(200)
    deltas = norm.cdf(0.5 - losses) - np.exp(losses) * norm.cdf(-0.5 - losses)
    everywhere = 0.02 * np.arange(-199, 200)
    above = norm.cdf(0.5 - everywhere) - np.exp(everywhere) * norm.cdf(-0.5 - everywhere)
    above -= np.maximum(0, -np.expm1(everywhere))
    ours, whole = mirrored(0.02, deltas), connected(0.02, -199, above)
    assert ours._lower_loss == whole._lower_loss
    assert ours._probs == pytest.approx(whole._probs, abs=1e-13)


def test_a_divergence_that_rises_is_refused():
    with pytest.raises(ValueError, match="no number"):
        connected(0.1, 0, np.array([np.nan, 0.1]))
    with pytest.raises(ValueError, match="rises"):
        connected(0.1, 0, np.array([0.1, 0.2, 0.0]))


@pytest.mark.parametrize("direction", [REMOVE, ADD])
@pytest.mark.parametrize(
    ("q", "s", "steps", "interval"),
    [
        (0.01, 0.7, 2000, 1e-3),
        (0.5, 10.0, 10_000, 1e-3),
        (1e-3, 0.6, 100_000, 1e-3),
        (0.9, 5.0, 1000, 1e-3),
        (0.05, 1.5, 2, 1e-3),
    ],
)
def test_equal_steps_compose_as_in_dp_accounting(direction, q, s, steps, interval):
    single = one_step(q, s, direction, interval)
    ours, theirs = self_composed(single, steps), single.self_compose(steps)
    assert (ours._lower_loss, ours.size) == (theirs._lower_loss, theirs.size)
    assert ours._infinity_mass == theirs._infinity_mass
    rounding = steps * 2.0**-50  # what a curve adds to every delta for a transform (`Composed`)
    tails = [np.cumsum(found._probs[::-1]) for found in (ours, theirs)]
    assert np.abs(tails[0] - tails[1]).max() < rounding + 1e-14
    # both kinds of tail: all of the mass, whose exact size is known, and the far end, where nothing is left
    with localcontext(prec=50):
        exact = sum(Decimal(mass) for mass in single._probs.tolist()) ** steps
        assert abs(sum(Decimal(mass) for mass in ours._probs.tolist()) - exact) < rounding + 1e-14
    assert tails[0].min() > -rounding


def test_what_is_lost_for_certain_stays_lost():
    lost = DensePLDPmf(1e-3, 0, np.zeros(5), 1.0, True)
    assert self_composed(lost, 100)._infinity_mass == 1.0


@pytest.mark.parametrize("steps", [2, 300, 50_000])
def test_bounds_are_those_of_dp_accounting(steps):
    generator = np.random.default_rng(0)
    for size in (1, 2, 57, 4000):
        masses = generator.random(size) ** 8
        masses /= masses.sum() * 1.0001
        assert bounds(masses, steps) == common.compute_self_convolve_bounds(masses, steps, TRUNCATED)
