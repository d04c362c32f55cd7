"""Balls in bins: the bound against integrals, simulated runs and the best attack, and its parts against brute force."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import integrate, stats

from confide.privacy import accounting
from confide.privacy.accounting import BallsInBins, Exchanged, MixtureOfGaussians
from confide.privacy.accounting import bins as module
from confide.privacy.accounting.bins import Spread, epoch, grid_of
from confide.privacy.accounting.calibration import least_noise
from confide.privacy.accounting.curves import Composed
from confide.utils.errors import InputError

EPSILONS = np.array([-1.5, -0.5, 0.0, 0.5, 1.5, 3.0])


# one epoch, against integrals -----------------------------------------------------------------------
def call(strike, s):
    """E (Y - strike)+ of a lognormal Y of mean 1, where log Y has a standard deviation of 1/s."""
    strike = np.asarray(strike, float)
    with np.errstate(divide="ignore", invalid="ignore"):
        d = s * (0.5 / s**2 - np.log(strike))
        found = stats.norm.cdf(d) - strike * stats.norm.cdf(d - 1 / s)
    return np.where(strike <= 0, 1 - strike, found)


def exact(bins: int, released: int, s: float, g: float) -> float:
    """E (S - g)+ of S = 1 - released/bins + (Y_1 + ... + Y_released)/bins: by an integral over all Y but one."""
    left = bins * g - (bins - released)
    if released == 1:
        return float(call(left, s)) / bins
    points = np.linspace(-12, 12, 6001)
    weights, values = stats.norm.pdf(points) * (points[1] - points[0]), np.exp(points / s - 0.5 / s**2)
    if released == 2:
        return float(weights @ call(left - values, s)) / bins
    thinned, values_two = weights[::15] * 15, values[::15]
    both = call(left - values_two[:, None] - values_two, s)
    return float(thinned @ both @ thinned) / bins


@pytest.mark.parametrize(("bins", "released"), [(2, 1), (2, 2), (3, 2), (5, 2), (3, 3), (7, 3)])
@pytest.mark.parametrize("s", [0.5, 1.0, 3.0])
def test_an_epoch_is_bounded_by_little_more_than_the_integral(bins, released, s):
    curve = Composed.of(epoch(bins, released, s, grid_of(bins, s, 1e-4)), 1).curve()
    for epsilon in EPSILONS:
        removal = exact(bins, released, s, math.exp(epsilon))
        g = math.exp(-epsilon)  # E (1 - S / g)+ = (E (S - g)+ - 1 + g) / g
        addition = (exact(bins, released, s, g) - 1 + g) / g
        for direction, truth in ((curve.removal, removal), (curve.addition, addition)):
            claimed = float(direction.delta(epsilon))
            assert claimed >= truth * (1 - 1e-7) - 1e-12
            if truth > 1e-10:
                assert claimed <= 1.02 * truth + 1e-9


def test_an_integral_is_right_where_the_sum_is_known():
    """Against SciPy's adaptive rule, so that the yardstick is no sum over a grid of its own alone."""
    s, g = 1.0, 1.7

    def inner(z):
        return stats.norm.pdf(z) * 0.5 * call(2 * g - math.exp(z / s - 0.5 / s**2), s)

    kink = s * (math.log(2 * g) + 0.5 / s**2)
    assert exact(2, 2, s, g) == pytest.approx(
        integrate.quad(inner, -12, 12, points=[kink], limit=300)[0], rel=1e-6
    )


def test_of_one_bin_it_is_gaussian_and_of_one_step_it_is_poisson():
    assert BallsInBins(1, 7).curve(2.0).epsilon(1e-5) == MixtureOfGaussians.bernoulli(1.0, 7).curve(
        2.0
    ).epsilon(1e-5)
    # A run that ends after one step of an epoch has tossed a coin of probability 1/b.
    ours, coin = BallsInBins(20, 1).curve(0.8), MixtureOfGaussians.bernoulli(1 / 20, 1).curve(0.8)
    for delta in (1e-3, 1e-6):
        assert ours.epsilon(delta) == pytest.approx(coin.epsilon(delta), rel=0.01)


# the parts ------------------------------------------------------------------------------------------
ZERO = 1e-3


def some(seed: int, h: float, first: int, n: int) -> Spread:
    generator = np.random.default_rng(seed)
    masses = generator.random(n) ** 4
    return Spread(h, first, (1 - ZERO) * masses / masses.sum(), ZERO, 0.03)


def calls(values, masses, lost, strikes):
    """E (S - strike)+, with what infinity adds."""
    return np.array([(masses * np.maximum(values - strike, 0)).sum() for strike in strikes]) + lost


@pytest.mark.parametrize("h", [0.02, 0.1, 0.7])
@pytest.mark.parametrize(("n", "m"), [(40, 40), (200, 13), (1, 90)])
def test_a_sum_is_a_spread_of_the_sum_and_of_little_more(h, n, m):
    for one, two in ((some(1, h, -30, n), some(2, h, -50, m)), (some(3, h, -5, n),) * 2):
        found = one.add(two)
        left, right = ((np.append(x.points(), 0), np.append(x.masses, x.zero)) for x in (one, two))
        values = np.add.outer(left[0], right[0]).ravel()
        masses = np.multiply.outer(left[1], right[1]).ravel()
        assert found.masses.min() >= 0
        assert found.masses.sum() + found.zero == pytest.approx(masses.sum(), rel=1e-12)
        mean = (found.masses * found.points()).sum() + found.lost
        assert mean == pytest.approx(masses @ values + one.lost + two.lost, rel=1e-12)
        strikes = np.linspace(0, values.max(), 60)
        truth = calls(values, masses, one.lost + two.lost, strikes)
        claimed = calls(found.points(), found.masses, found.lost, strikes)
        assert (claimed >= truth * (1 - 1e-12) - 1e-13).all()
        # an atom x that is spread over a step adds at most x h / 4, at a strike in the middle; the mass at 0 adds
        # what it is spread over
        assert (claimed <= truth + values.max() * (math.expm1(h) / 3.9 + 2 * ZERO)).all()


def test_a_constant_is_added_with_the_mean_kept():
    h = 0.05
    one = some(1, h, -40, 60)
    found = one.plus(0.3)
    values, masses = np.append(one.points(), 0) + 0.3, np.append(one.masses, one.zero)
    assert found.masses @ found.points() == pytest.approx(masses @ values, rel=1e-12)
    strikes = np.linspace(0, values.max(), 50)
    truth = calls(values, masses, one.lost, strikes)
    claimed = calls(found.points(), found.masses, found.lost, strikes)
    assert (claimed >= truth - 1e-13).all()
    assert (claimed <= truth + 0.02).all()


def test_what_is_cut_off_counts_as_lost(monkeypatch):
    monkeypatch.setattr(module, "LOST", 1e-3)
    one = some(1, 0.05, -200, 400)
    falling = one.masses * np.exp(-0.1 * np.abs(np.arange(-200, 200)))
    one = replace(one, masses=(1 - ZERO) * falling / falling.sum())
    found = one.cut()
    assert found.first > one.first  # at both ends
    assert found.lost > one.lost
    assert found.masses.sum() + found.zero == pytest.approx(one.masses.sum() + one.zero, rel=1e-12)
    mean = one.masses @ one.points() + one.lost
    assert found.masses @ found.points() + found.lost == pytest.approx(mean, rel=1e-12)
    strikes = np.geomspace(1e-3, 1e9, 60)
    truth = calls(one.points(), one.masses, one.lost, strikes)
    assert (calls(found.points(), found.masses, found.lost, strikes) >= truth - 1e-9).all()


def test_a_finer_grid_holds_the_same():
    one = some(1, 0.4, -4, 9)
    found = one.on(0.1)
    assert found.points()[found.masses > 0] == pytest.approx(one.points())
    assert found.masses.sum() == one.masses.sum()


# whole runs, against simulated ones -----------------------------------------------------------------
def losses(bins: int, steps: int, s: float, trials: int, generator, is_there: bool):
    """log P/Q of a run's releases, of a unit of gradient 1 whose bins nobody knows; float64[trials]."""
    total = np.zeros(trials)
    for first in range(0, steps, bins):
        released = min(bins, steps - first)
        y = s * generator.normal(size=(trials, released))
        if is_there:
            bin_of = generator.integers(bins, size=trials)
            seen = np.flatnonzero(bin_of < released)
            y[seen, bin_of[seen]] += 1.0
        total += np.log((bins - released + np.exp((y - 0.5) / s**2).sum(axis=1)) / bins)
    return total


@pytest.mark.parametrize(("bins", "steps", "s"), [(4, 12, 0.8), (4, 14, 0.8), (20, 60, 0.6), (10, 30, 2.0)])
def test_a_run_costs_what_simulated_runs_cost(bins, steps, s):
    generator, trials = np.random.default_rng(0), 100_000
    curve = BallsInBins(bins, steps).curve(s)
    there = losses(bins, steps, s, trials, generator, True)
    absent = losses(bins, steps, s, trials, generator, False)
    for epsilon in (0.2, 0.5 * float(np.quantile(there, 0.9)), float(np.quantile(there, 0.9))):
        for direction, sample in ((curve.removal, there), (curve.addition, -absent)):
            each = np.maximum(-np.expm1(epsilon - sample), 0)
            error = 4.5 * each.std() / math.sqrt(trials) + 1e-5
            claimed = float(direction.delta(epsilon))
            assert abs(claimed - each.mean()) < error + 0.01 * claimed


def test_no_test_of_an_adaptive_gradient_beats_the_curve_and_with_epochs_left_out_it_does():
    """The gradient's length follows from what was released, as the theorem allows; the best test there is looks on."""
    bins, steps, s, trials = 5, 20, 0.7, 60_000

    def scores(is_there: bool, lengths, seed: int) -> np.ndarray:
        generator = np.random.default_rng(seed)
        total, last = np.zeros(trials), np.zeros(trials)
        for _ in range(steps // bins):
            bin_of = generator.integers(bins, size=trials)
            ratios = np.zeros(trials)
            for place in range(bins):
                length = lengths(last)
                last = s * generator.normal(size=trials) + (is_there & (bin_of == place)) * length
                ratios += np.exp((length * last - length**2 / 2) / s**2) / bins
            total += np.log(ratios)
        return total

    def excess(curve, lengths) -> float:
        """True positives at 1% and 10% of false ones, less what the curve allows, in standard errors: the larger."""
        out, inside = scores(False, lengths, 1), scores(True, lengths, 2)
        found = []
        for fpr in (0.01, 0.1):
            tpr = np.mean(inside > np.quantile(out, 1 - fpr))
            allowed = float(curve.true_positive_rate(fpr))
            slope = (float(curve.true_positive_rate(1.1 * fpr)) - allowed) / (0.1 * fpr)
            error = math.sqrt(tpr * (1 - tpr) / trials + slope**2 * fpr * (1 - fpr) / trials)
            found.append((tpr - allowed) / error)
        return max(found)

    def longest(last):
        return np.ones(trials)

    def by_what_was_seen(last):
        return np.where(last > 0, 1.0, 0.4)

    curve = BallsInBins(bins, steps).curve(s)
    assert -4 < excess(curve, longest) < 4  # and it is tight
    assert excess(curve, by_what_was_seen) < 4
    assert excess(BallsInBins(bins, steps - bins).curve(s), longest) > 8
    assert excess(BallsInBins(bins + 1, steps).curve(s), longest) > 8


def test_coins_of_the_same_probability_cost_more():
    for bins, epochs, s in ((10, 5, 1.0), (100, 5, 0.7), (8, 4, 3.0), (1000, 2, 0.6)):
        coins = MixtureOfGaussians.bernoulli(1 / bins, bins * epochs).curve(s)
        assert BallsInBins(bins, bins * epochs).curve(s).epsilon(1e-6) < coins.epsilon(1e-6)


# its use --------------------------------------------------------------------------------------------
def test_more_steps_and_less_noise_cost_more_and_finer_grids_less():
    delta = 1e-6
    found = [BallsInBins(6, steps).curve(1.5).epsilon(delta) for steps in (1, 3, 6, 7, 12, 13, 60)]
    assert found == sorted(found)
    found = [BallsInBins(6, 14).curve(s).epsilon(delta) for s in (8.0, 2.0, 1.0, 0.5)]
    assert found == sorted(found)
    found = [BallsInBins(6, 14).curve(1.0, interval).epsilon(delta) for interval in (1e-4, 1e-3, 1e-2, 0.03)]
    assert found == sorted(found)
    assert found[2] < 1.02 * found[0]


def test_noise_is_found_and_certified_at_every_scale():
    for epsilon, delta in ((0.1, 1e-5), (8.0, 1e-6)):
        process = BallsInBins(12, 30)
        s = least_noise(process, epsilon, delta)
        assert process.curve(s).epsilon(delta) <= epsilon
        assert process.curve(s / 1.01).epsilon(delta) > epsilon


def test_even_a_small_delta_has_an_epsilon_after_many_epochs():
    assert BallsInBins(4, 4000).curve(30.0).epsilon(1e-12) < 12


@pytest.mark.parametrize("s", [1e-3, 0.05, 1e4])
def test_noise_at_the_ends_of_the_search_has_a_curve(s):
    found = BallsInBins(9, 20).curve(s, 1e-2).epsilon(1e-5)
    assert found >= 0
    assert (found < 0.01) == (s > 1)


def test_no_noise_protects_nobody_and_odd_settings_are_refused():
    assert BallsInBins(4, 8).curve(0.0).epsilon(1e-5) == math.inf
    for wrong in ({"bins": 0}, {"steps": 0}, {"bins": 2.5}):
        with pytest.raises(InputError):
            replace(BallsInBins(4, 8), **wrong)


def test_replacing_is_removing_and_adding():
    process = BallsInBins(4, 8)
    assert accounting.replaced(process) == Exchanged(process)
    one, two = (each.curve(2.0).epsilon(1e-5) for each in (process, accounting.replaced(process)))
    assert one < two < 2.5 * one


def test_phases_of_different_grids_compose():
    one, two = BallsInBins(4, 8).curve(2.0), MixtureOfGaussians.bernoulli(0.1, 50).curve(2.0)
    both = accounting.compose([one, two]).epsilon(1e-5)
    assert max(one.epsilon(1e-5), two.epsilon(1e-5)) < both < one.epsilon(5e-6) + two.epsilon(5e-6)


def test_the_longest_epochs_are_accounted_for_and_longer_ones_refused():
    """Rounding takes more mass from a longer epoch: it counts as infinite loss."""
    curve = BallsInBins(module.MOST_BINS, module.MOST_BINS).curve(1.5)
    coins = MixtureOfGaussians.bernoulli(1 / module.MOST_BINS, module.MOST_BINS).curve(1.5)
    assert 0 < curve.epsilon(1e-6) < coins.epsilon(1e-6)
    with pytest.raises(InputError, match="at most 100,000 steps, and here it would have 100,001"):
        BallsInBins(module.MOST_BINS + 1, 5)


def test_mass_that_rounding_took_goes_to_infinite_loss():
    assert module._with_lacking(1e-12, 2e-10) == pytest.approx(4.01e-10)
    assert module._with_lacking(1e-12, -2e-10) == module._with_lacking(1e-12, 1e-12) == 1e-12
    with pytest.raises(AssertionError, match="add up to 1 less"):
        module._with_lacking(0.0, 1e-8)
