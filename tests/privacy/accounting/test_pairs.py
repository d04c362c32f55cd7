import math

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as pld
from scipy import stats

from confide.privacy.accounting import GroupOf, MixtureOfGaussians, delta_default
from confide.privacy.accounting.pairs import ADD, REMOVE, MixtureLoss
from confide.utils.errors import InputError

bernoulli, binomial = MixtureOfGaussians.bernoulli, MixtureOfGaussians.binomial
poisson_binomial = MixtureOfGaussians.poisson_binomial


def agrees(value: float, reference: float, below: float = 0.005, above: float = 0.005) -> bool:
    """A claim may exceed its reference, but not fall below it by more than half a percent."""
    return reference * (1 - below) <= value <= reference * (1 + above)


@pytest.mark.parametrize(
    ("q", "s", "steps", "delta", "epsilon"),
    [
        (0.01, 1.0, 2000, 1e-6, 2.955257996558511),
        (0.05688888888888889, 1.2, 500, 1e-5, 6.244601370261794),
        (0.001, 0.7, 10000, 1e-7, 2.102079313500506),
    ],
)
def test_user_sampling_meets_its_reference(q, s, steps, delta, epsilon):
    assert agrees(bernoulli(q, steps).curve(s).epsilon(delta), epsilon)


@pytest.mark.parametrize(
    ("p", "rows", "s", "steps", "delta", "epsilon"),
    [
        (0.01, 2, 2.0, 2000, 1e-6, 2.2018529634572404),
        (0.01, 8, 4.0, 2000, 1e-6, 4.4446937312698065),
        (0.004, 16, 3.0, 1000, 1e-6, 3.3263280504888497),
    ],
)
def test_els_meets_its_reference(p, rows, s, steps, delta, epsilon):
    assert agrees(binomial(rows, p, steps).curve(s).epsilon(delta), epsilon)


@pytest.mark.parametrize("direction", [REMOVE, ADD])
@pytest.mark.parametrize("s", [0.6, 4.0])
def test_faster_inverse_equals_dp_accounting(direction, s):
    values, masses = np.arange(9) / s, stats.binom.pmf(np.arange(9), 8, 0.02)
    ours = MixtureLoss(1.0, values, masses, adjacency_type=direction).dots(0.02).to_dense_pmf()
    theirs = pld.from_mixture_gaussian_mechanism(1.0, values, masses, value_discretization_interval=0.02)
    reference = (theirs._pmf_remove if direction == REMOVE else theirs._pmf_add).to_dense_pmf()
    assert ours._lower_loss == reference._lower_loss
    assert ours._probs == pytest.approx(reference._probs, abs=1e-9)
    assert ours._infinity_mass <= 1e-21


@pytest.mark.parametrize("direction", [REMOVE, ADD])
@pytest.mark.parametrize(("q", "s"), [(0.02, 1.5), (0.3, 4.0), (0.01, 0.7), (0.9, 0.5), (1.0, 2.0)])
def test_a_step_weighs_one(direction, q, s):
    """Mass that rounding makes would be made anew in every step: 1e-13 of 1,000 steps is 1e-10 of delta."""
    found = MixtureLoss(1.0, [0.0, 1 / s], [1 - q, q], adjacency_type=direction).dots(1e-4)
    assert abs(found._probs.sum() + found._infinity_mass - 1) < 1e-14


def test_bernoulli_is_dp_accountings_sampled_gaussian():
    curve = bernoulli(0.02, 300).curve(1.5)
    assert curve.interval == 1e-4
    reference = pld.from_gaussian_mechanism(
        1.5, sampling_prob=0.02, value_discretization_interval=curve.interval
    ).self_compose(300)
    for epsilon in (0.0, 0.3, 1.0, 2.0):
        assert curve.delta(epsilon) == pytest.approx(reference.get_delta_for_epsilon(epsilon), abs=1e-10)
    # connected dots of 40 digits, composed (`test_exact_dots` makes such, on coarser grids)
    exact = {0.0: 0.10204386348293876, 0.1: 0.06375592554699462, 0.3: 0.019382119941077112}
    for epsilon, delta in exact.items():
        assert 0 < curve.delta(epsilon) - delta < 300 * 2.0**-50 + 2e-14
    assert reference.get_delta_for_epsilon(0.0) - exact[0.0] > 2e-11  # the library's rounding, and not ours
    for delta in (1e-3, 1e-6):
        assert curve.epsilon(delta) == pytest.approx(reference.get_epsilon_for_delta(delta), rel=1e-6)


def test_masses_are_exact_and_truncated_tails_move_up():
    rho = [0.3, 0.01, 0.5]
    process = poisson_binomial(rho, 1)
    exact = {
        0: 0.7 * 0.99 * 0.5,
        1: 0.3 * 0.99 * 0.5 + 0.7 * 0.01 * 0.5 + 0.7 * 0.99 * 0.5,
        2: 0.3 * 0.01 * 0.5 + 0.3 * 0.99 * 0.5 + 0.7 * 0.01 * 0.5,
        3: 0.3 * 0.01 * 0.5,
    }
    assert dict(zip(process.values, process.probabilities, strict=True)) == pytest.approx(exact)
    many = binomial(3000, 0.01, 1)
    assert many.values[-1] == 3000  # the cut tail is found at the very top
    assert 0 < many.probabilities[-1] < 1e-23
    assert len(many.values) < 200
    # stochastically larger than the exact distribution, never smaller
    values, masses = np.array(many.values), np.array(many.probabilities)
    for count in (5, 10, 30, 60, 90):
        exact_tail = stats.binom.sf(count - 1, 3000, 0.01)
        assert masses[values >= count].sum() >= exact_tail * (1 - 1e-9)


def test_unequal_rates_agree_with_equal_ones_and_with_order():
    equal = binomial(40, 0.01, 1)
    nearly = poisson_binomial([0.01] * 39 + [0.01 * (1 + 1e-12)], 1)
    assert nearly.probabilities[:8] == pytest.approx(equal.probabilities[:8], rel=1e-9)
    low, high = poisson_binomial([0.01, 0.02], 200), poisson_binomial([0.01, 0.02, 0.005], 200)
    assert low.curve(2.0).epsilon(1e-6) < high.curve(2.0).epsilon(1e-6)


def test_thousands_of_unequal_rows_are_quick():
    rho = np.linspace(1e-4, 3e-3, 4000).tolist()
    process = poisson_binomial(rho, 300)
    assert process.mean == pytest.approx(sum(rho), rel=1e-12)
    assert 35 < process.curve(20.0).epsilon(1e-6) < 45  # the central limit gives 39


def test_secret_at_its_reference_noise():
    curve = binomial(100, 2048 / 1.5e6, 2000).curve(2.022)
    bounds = curve.reconstruction([1e-10, 1e-6, 1e-4, 1e-3])
    assert bounds == pytest.approx([1e-3, 0.065, 0.31, 0.55], rel=0.01)
    assert curve.advantage() == pytest.approx(0.89, abs=0.005)
    assert curve.epsilon(1e-5) == pytest.approx(18.8, rel=0.005)


def test_interval_is_refined_for_small_losses_and_coarsened_for_large_ones():
    weak, strong = bernoulli(0.01, 10_000).curve(400.0), binomial(64, 0.5, 1000).curve(2.0)
    assert weak.interval < 1e-4 < strong.interval
    # the central limit: mu = q sqrt(T) / s = 0.0025; without refinement delta(0) comes out more than twice as large
    assert weak.advantage() == pytest.approx(2 * stats.norm.cdf(0.00125) - 1, rel=0.02)


def test_group_of_is_the_lemma():
    inner = bernoulli(0.01, 2000)
    curve, one = GroupOf(inner, 5).curve(3.6612847729689264), inner.curve(3.6612847729689264, 1e-3)
    assert agrees(curve.epsilon(1e-6), 3.0)
    for epsilon in (0.5, 2.0, 3.0):
        factor = math.expm1(epsilon) / math.expm1(epsilon / 5)
        assert curve.delta(epsilon) == pytest.approx(factor * one.delta(epsilon / 5), rel=1e-2)
        assert curve.delta(epsilon) >= factor * one.delta(epsilon / 5) * (1 - 1e-9)
    assert curve.delta(0.0) == pytest.approx(min(1.0, 5 * one.delta(0.0)))
    # the black box costs more than the mixture that knows the rows
    assert curve.epsilon(1e-6) > binomial(5, 0.01, 2000).curve(3.6612847729689264).epsilon(1e-6)


@pytest.mark.parametrize(
    ("rho", "s", "kl"),
    [
        # least noise for p = 1e-10 to r, by KL(Bern(r) || Bern(p)), T = 2000
        ([2048 / 1.5e6] * 100, 35.1213141594393, 0.015118595917608347),
        ([2048 / 1.5e6] * 100, 83.06760234593351, 0.002701751649018357),
        ([0.003] * 30 + [0.0015] * 8, 26.2423, 0.015118595917608347),
        ([0.003] * 5, 9.15288, 0.002701751649018357),
    ],
)
def test_kl_meets_its_reference(rho, s, kl):
    assert poisson_binomial(rho, 2000).kl(s) == pytest.approx(kl, rel=1e-4)


def test_kl_of_the_plain_gaussian_and_of_a_small_noise():
    assert bernoulli(1, 50).kl(2.0) == pytest.approx(50 / (2 * 4), rel=1e-9)
    # s = 0.02: the worlds do not overlap, KL -> 0.3 (log 0.3 + 1/(2 s^2)) + 0.7 log 0.7
    expected = 0.3 * (math.log(0.3) + 1 / (2 * 0.02**2)) + 0.7 * math.log(0.7)
    assert bernoulli(0.3, 1).kl(0.02) == pytest.approx(expected, rel=1e-6)


def test_no_noise_protects_nothing():
    for process in (binomial(4, 0.1, 10), GroupOf(bernoulli(1, 1), 3)):
        curve = process.curve(0.0)
        assert math.isinf(curve.epsilon(1e-5))
        assert curve.advantage() == 1
        assert float(curve.reconstruction(1e-6)) == 1
    assert math.isinf(binomial(4, 0.1, 10).kl(0.0))


def test_next_to_no_noise_is_told_as_none():
    assert math.isinf(binomial(5000, 0.5, 10).curve(0.5).epsilon(1e-5))
    assert math.isinf(bernoulli(1, 10).curve(1e-5).epsilon(1e-5))
    assert bernoulli(0.2, 10).curve(0.02).epsilon(1e-5) > 1e3


@pytest.mark.parametrize(
    ("make", "key"),
    [
        (lambda: bernoulli(0.0, 10), "sampling probability"),
        (lambda: bernoulli(1.5, 10), "train.batch"),
        (lambda: bernoulli(math.nan, 10), "sampling probability"),
        (lambda: binomial(0, 0.1, 10), "privacy.rows_per_unit"),
        (lambda: poisson_binomial([0.1, 0.0], 10), "sampling probability"),
        (lambda: poisson_binomial([], 10), "privacy.rows_per_unit"),
        (lambda: bernoulli(0.1, 0), "train.steps"),
        (lambda: bernoulli(0.1, 5).curve(-1.0), "privacy.noise_multiplier"),
        (lambda: bernoulli(0.1, 5).curve(math.nan), "privacy.noise_multiplier"),
        (lambda: GroupOf(bernoulli(0.1, 5), 0), "privacy.rows_per_unit"),
    ],
)
def test_impossible_processes_are_refused(make, key):
    with pytest.raises(InputError, match=key):
        make()


def test_descriptions_are_one_plain_sentence_with_the_numbers():
    words = binomial(4, 0.25, 500).describe()
    assert "500" in words
    assert "4 rows" in words
    assert "0.25" in words
    assert words.endswith(".")
    assert "any 3" in GroupOf(bernoulli(0.1, 5), 3).describe()


def test_default_delta():
    assert delta_default(1000, 1000) == pytest.approx(1000**-1.1)
    assert delta_default(1000, 10) == pytest.approx(1000**-1.1)
    assert delta_default(10, 1000) == pytest.approx(1e-3)


@pytest.mark.parametrize("s", [1e-3, 0.01, 0.03, 0.044, 0.1, 0.3, 1.0, 3.0, 10.0])
@pytest.mark.parametrize(
    "process", [MixtureOfGaussians.bernoulli(0.01, 100), MixtureOfGaussians.binomial(4, 0.01, 100)]
)
def test_both_directions_agree_on_the_advantage(process, s):
    """At epsilon 0 both are the total variation, however far apart the atoms are."""
    curve = process.curve(s, 1e-3)
    assert curve.addition.delta(0.0) == pytest.approx(float(curve.removal.delta(0.0)), rel=1e-6, abs=1e-9)
    if s <= 0.03 and curve.interval > 0:  # not given up: whether the unit was ever drawn is seen for certain
        drawn = 1 - process.probabilities[0] ** 100
        assert curve.removal.delta(0.0) == pytest.approx(drawn, rel=1e-6)
        assert curve.true_positive_rate(0.5) == pytest.approx(1.0, abs=1e-6)


def test_a_unit_that_always_takes_part_can_be_told_at_any_epsilon():
    """What masses fall short of 1 by is not the mass of taking no part, at which losses would end."""
    found = MixtureLoss(1.0, [8.0], [1 - 5e-10], adjacency_type=ADD).dots(0.01)
    right = stats.norm.cdf(4 - 30 / 8) - math.exp(30) * stats.norm.cdf(-4 - 30 / 8)
    assert right > 0.5
    assert found.get_delta_for_epsilon(30.0) == pytest.approx(right, rel=1e-5)


def test_masses_add_up_to_one_however_many_rows():
    process = poisson_binomial([0.01, 0.013] * 4_000, 1)
    assert math.fsum(process.probabilities) == pytest.approx(1, abs=1e-15)
