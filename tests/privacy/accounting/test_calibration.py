import math
import time

import numpy as np
import pytest

from confide.privacy.accounting import (
    GroupOf,
    MixtureOfGaussians,
    least_noise,
    least_noise_for_kl,
    least_noise_for_reconstruction,
    most_steps,
)
from confide.privacy.accounting import calibration as module
from confide.privacy.accounting.calibration import LEAST, _narrow, nearly_least_noise, round_up
from confide.utils.errors import InputError

bernoulli, binomial = MixtureOfGaussians.bernoulli, MixtureOfGaussians.binomial


@pytest.mark.parametrize(
    ("process", "epsilon", "delta"),
    [
        (bernoulli(0.01, 1000), 8.0, 1e-5),
        (bernoulli(1, 1000), 2.0, 1e-6),
        (binomial(8, 0.01, 2000), 4.0, 1e-6),
        (GroupOf(bernoulli(0.01, 500), 16), 8.0, 1e-6),
    ],
)
def test_least_noise_meets_the_target_and_little_less_does_not(process, epsilon, delta):
    s = least_noise(process, epsilon, delta)
    assert process.curve(s).epsilon(delta) <= epsilon
    assert process.curve(s * 0.997).epsilon(delta) > epsilon


@pytest.mark.parametrize("delta", [1e-3, 1e-12])
@pytest.mark.parametrize("epsilon", [0.01, 1e4])
def test_extreme_targets_are_reached(epsilon, delta):
    process = binomial(4, 0.05, 200)
    s = least_noise(process, epsilon, delta)
    assert 0.5 * epsilon < process.curve(s).epsilon(delta) <= epsilon


def test_a_unit_of_thousands_of_rows_is_calibrated():
    process = binomial(2000, 0.5, 100)
    s = least_noise(process, 8.0, 1e-6)
    # nearly the plain Gaussian of mu = 1000 sqrt(100) / s
    plain = 1000 * least_noise(bernoulli(1, 100), 8.0, 1e-6)
    assert plain < s < 1.1 * plain


def test_group_privacy_meets_its_reference():
    s = least_noise(GroupOf(bernoulli(0.01, 2000), 5), 3.0, 1e-6)
    assert 3.6612847729689264 * 0.995 <= s <= 3.6612847729689264 * 1.005
    mixture = least_noise(binomial(5, 0.01, 2000), 3.0, 1e-6)
    assert 3.570383299796691 * 0.995 <= mixture <= 3.570383299796691 * 1.005


@pytest.mark.parametrize(
    ("rows", "r", "blow_up", "kl_noise"),
    [
        ([(100, 2048 / 1.5e6)], 1e-3, 2.02216, 35.1213),
        ([(100, 2048 / 1.5e6)], 2e-4, 2.3104848872465844, 83.06760234593351),
        ([(30, 0.003), (8, 0.0015)], 1e-3, 1.58174, 26.2423),
        ([(5, 0.003)], 2e-4, 0.6035, 9.15288),
    ],
)
def test_secrets_meet_their_reference(rows, r, blow_up, kl_noise):
    process = MixtureOfGaussians.poisson_binomial([rho for n, rho in rows for _ in range(n)], 2000)
    s = least_noise_for_reconstruction(process, [(1e-10, r)])
    assert blow_up * 0.998 <= s <= blow_up * 1.002
    assert float(process.curve(s).reconstruction(1e-10)) <= r
    kl = r * math.log(r / 1e-10) + (1 - r) * math.log((1 - r) / (1 - 1e-10))
    assert kl_noise * 0.999 <= least_noise_for_kl(process, kl) <= kl_noise * 1.001


def test_every_pair_of_a_secret_is_enforced():
    process = binomial(20, 0.002, 500)
    first = least_noise_for_reconstruction(process, [(1e-10, 1e-3)])
    both = least_noise_for_reconstruction(process, [(1e-10, 1e-3), (1e-4, 5e-4)])
    assert both > 1.2 * first
    assert float(process.curve(both).reconstruction(1e-4)) <= 5e-4


@pytest.mark.parametrize(
    ("process", "seconds"), [(bernoulli(0.01, 2000), 1.0), (binomial(256, 0.01, 2000), 5.0)]
)
def test_calibration_is_quick(process, seconds):
    start = time.process_time()
    least_noise(process, 8.0, 1e-6)
    assert time.process_time() - start < 2 * seconds  # twice the aim, as machines differ


@pytest.mark.parametrize(
    ("epsilon", "delta", "key"),
    [
        (0.0, 1e-5, "privacy.epsilon"),
        (-1.0, 1e-5, "privacy.epsilon"),
        (math.nan, 1e-5, "privacy.epsilon"),
        (math.inf, 1e-5, "privacy.epsilon"),
        (1.0, 0.0, "privacy.delta"),
        (1.0, 1.0, "privacy.delta"),
        (1.0, math.nan, "privacy.delta"),
        (1e-9, 1e-15, "privacy.epsilon"),
    ],
)
def test_impossible_targets_are_refused(epsilon, delta, key):
    with pytest.raises(InputError, match=key):
        least_noise(bernoulli(0.1, 100), epsilon, delta)


def test_impossible_secrets_are_refused():
    with pytest.raises(InputError, match="prior"):
        least_noise_for_reconstruction(bernoulli(0.1, 10), [(1e-3, 1e-3)])
    with pytest.raises(InputError, match="KL"):
        least_noise_for_kl(bernoulli(0.1, 10), 0.0)


@pytest.mark.parametrize("s", [0.12345678, 1.0, 9.99999, 123456.7, 7e-4, 3.14159])
def test_rounding_goes_up_by_little(s):
    assert s <= round_up(s) <= s * 1.00011


@pytest.mark.parametrize("touching", [True, False])
def test_an_excess_without_a_slope_is_narrowed_all_the_same(touching):
    """Flat on both sides of a step: false position learns nothing from it, so halving has to do."""
    calls = []

    def excess(s):
        calls.append(s)
        return (0.0 if touching else -1e-300) if s >= 1.2345 else 1e-300

    good, bad = _narrow(excess, 4.0, 1.0, 1e-5)
    assert bad < 1.2345 <= good <= bad * (1 + 1e-5)
    assert len(calls) < 120


def test_a_target_that_hardly_any_noise_meets_is_met_by_the_least_there_is():
    process = bernoulli(5e-6, 2)
    assert least_noise_for_kl(process, 13.7) == LEAST
    assert process.kl(LEAST) <= 13.7
    MixtureOfGaussians.bernoulli(1e-30, 1).curve(1.0)  # of losses that are all 0 no grid can be told


def test_a_search_ends_where_epsilon_leaps_over_the_target(monkeypatch):
    """Under group privacy epsilon falls from infinity to less than the target at one noise, to which it comes close."""
    process = GroupOf(MixtureOfGaussians.bernoulli(0.0027, 64), 8)
    asked, honest = [], GroupOf.curve

    def counted(self, *given):
        asked.append(given)
        return honest(self, *given)

    monkeypatch.setattr(GroupOf, "curve", counted)
    found = nearly_least_noise(process, 8.0, 1e-5)
    assert len(asked) < 15
    assert process.curve(1.03 * found, 1e-2).epsilon(1e-5) < 7.0
    assert math.isinf(process.curve(0.95 * found, 1e-2).epsilon(1e-5))


@pytest.mark.parametrize("digits", [1, 3, 5])
def test_rounding_up_never_goes_below(digits):
    """Pitfall 37: noise that is stated, and then made, is at least what was found to be enough."""
    for value in (*np.geomspace(1e-3, 1e7, 400), 1.00004, 9.99999, 0.1, 1234.5):
        rounded = round_up(float(value), digits)
        assert value <= rounded <= value * (1 + 10.0 ** (1 - digits) * 1.001)
        assert rounded == float(f"{rounded:.{digits - 1}e}")


# the most steps ------------------------------------------------------------------------------------
def never(steps):
    raise AssertionError(f"{steps} steps are beyond what may be asked")


@pytest.mark.parametrize("guess", [1, 3, 40, 41, 42, 500, 9_999])
@pytest.mark.parametrize("true", [1, 2, 41, 4_000, 9_999])
@pytest.mark.parametrize(("reach", "tolerance"), [(1.0, 0.05), (5e-3, 5e-4), (5e-4, 0.0)])
def test_the_search_for_steps_ends_at_the_last_that_meets(guess, true, reach, tolerance):
    asked = []

    def meets(steps):
        asked.append(steps)
        return steps <= true if 1 <= steps <= 9_999 else never(steps)

    found = module._most(meets, guess, 1, reach, tolerance, 9_999)
    assert found <= true <= found * (1 + tolerance) + (tolerance > 0)
    if tolerance == 0:
        assert found == true
    assert len(asked) < 60


def test_the_search_for_steps_bears_a_coarse_grid_on_which_none_meets():
    assert module._most(lambda steps: False, 40, 8, 0.1, 0.0, 9_999) == 8


def test_the_most_steps_are_those_of_a_search_one_by_one():
    def epsilon(steps):
        return MixtureOfGaussians.bernoulli(0.2, steps).curve(2.0).epsilon(1e-5)

    one_by_one = next(steps for steps in range(1, 200) if epsilon(steps + 1) > 2.0)
    assert (
        most_steps(lambda steps: MixtureOfGaussians.bernoulli(0.2, steps), 2.0, 2.0, 1e-5) == one_by_one > 9
    )
