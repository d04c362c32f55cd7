"""Intervals cover what they say, at pure chance too; the best of many finds nothing; ceilings are a Gaussian's."""

import json
import math

import numpy as np
import pytest
from scipy import stats

from confide.auditing import rates as module
from confide.auditing.rates import advantage, auroc, ceiling, rates, true_positive_rate
from confide.privacy.accounting import MixtureOfGaussians, PrivacyProfile

TRIALS = 2000
SLACK = 2 * math.sqrt(0.05 * 0.95 / TRIALS)


def draws(seed, trials=TRIALS, m=60, n=90, shift=0.0):
    """Scores of members and non-members of one trial after another."""
    generator = np.random.default_rng(seed)
    for _ in range(trials):
        yield shift + generator.normal(size=m), generator.normal(size=n)


# area under the curve ------------------------------------------------------------------------------------------
def by_pairs(members, others):
    """AUROC and DeLong's variance, term by term."""
    wins = (members[:, None] > others).astype(float) + 0.5 * (members[:, None] == others)
    above, passed = wins.mean(1), wins.mean(0)
    return wins.mean(), above.var(ddof=1) / len(members) + passed.var(ddof=1) / len(others)


@pytest.mark.parametrize("levels", [None, 5])  # with ties
def test_auroc_and_its_variance_are_those_of_all_pairs(levels):
    generator = np.random.default_rng(1)
    members, others = 0.7 + generator.normal(size=31), 2 * generator.normal(size=17)
    if levels:
        members, others = np.round(members * levels / 4), np.round(others * levels / 4)
    value, variance = by_pairs(members, others)
    found, p_value = auroc(members, others)
    assert found.value == pytest.approx(value)
    theirs = stats.brunnermunzel(
        others, members, alternative="less"
    )  # the same variance, its own degrees of freedom
    assert p_value == pytest.approx(theirs.pvalue)
    width = math.log(found.high / (1 - found.high)) - math.log(found.low / (1 - found.low))
    reach = width / 2 * value * (1 - value) / math.sqrt(variance)
    assert stats.t.ppf(0.975, 60) < reach < stats.t.ppf(0.975, 16)


def test_swapping_the_two_turns_the_curve_about():
    members, others = next(draws(2, shift=1))
    found, turned = auroc(members, others)[0], auroc(others, members)[0]
    assert (1 - turned.high, 1 - turned.value, 1 - turned.low) == pytest.approx(
        (found.low, found.value, found.high)
    )


@pytest.mark.parametrize("levels", [None, 3])
def test_at_pure_chance_the_interval_covers_one_half_and_p_values_are_seldom_small(levels):
    hits = alarms = 0
    for members, others in draws(3):
        if levels:
            members, others = (
                np.floor(levels * stats.norm.cdf(members)),
                np.floor(levels * stats.norm.cdf(others)),
            )
        found, p_value = auroc(members, others)
        hits += found.low <= 0.5 <= found.high
        alarms += p_value <= 0.05
    assert hits / TRIALS >= 0.95 - SLACK
    assert alarms / TRIALS <= 0.05 + SLACK
    assert alarms / TRIALS >= 0.03  # and it does not sleep


def test_scores_that_only_spread_more_are_no_members():
    generator = np.random.default_rng(4)
    alarms = sum(
        auroc(4 * generator.normal(size=30), generator.normal(size=60))[1] <= 0.05 for _ in range(TRIALS)
    )
    assert alarms / TRIALS <= 0.05 + SLACK


def test_the_interval_covers_an_area_that_is_not_one_half():
    truth = stats.norm.cdf(1.2 / math.sqrt(2))
    hits = 0
    for members, others in draws(5, shift=1.2):
        found, _ = auroc(members, others)
        hits += found.low <= truth <= found.high
    assert hits / TRIALS >= 0.95 - SLACK


def test_rows_of_a_unit_count_together():
    """Where users differ and nothing was learned, rows that are taken for independent find members; units do not."""
    generator = np.random.default_rng(6)
    unit = np.repeat(np.arange(20), 6)
    trials, hits, blind, alarms = 2000, 0, 0, 0
    for _ in range(trials):
        members, others = (
            generator.normal(size=20)[unit] + 0.5 * generator.normal(size=len(unit)) for _ in range(2)
        )
        found, p_value = auroc(members, others, (unit, unit))
        hits += found.low <= 0.5 <= found.high
        alarms += p_value <= 0.05
        found, _ = auroc(members, others)
        blind += found.low <= 0.5 <= found.high
    slack = 2 * math.sqrt(0.05 * 0.95 / trials)
    assert hits / trials >= 0.95 - slack
    assert alarms / trials <= 0.05 + slack
    assert blind / trials < 0.8


def test_copies_of_rows_in_a_unit_tell_nothing_more():
    members, others = next(draws(7, shift=1))
    once = rates(members, others)
    alone = rates(members, others, (np.arange(60), np.arange(90)[::-1]))
    assert alone.units == (60, 90)
    assert alone.auroc == once.auroc
    three = rates(
        np.repeat(members, 3),
        np.repeat(others, 3),
        (np.repeat(np.arange(60), 3), np.repeat(np.arange(90), 3)),
    )
    assert three.auroc.low == pytest.approx(once.auroc.low)
    assert three.p_value == pytest.approx(once.p_value)
    assert three.advantage.low == pytest.approx(once.advantage.low)
    for ours, theirs in zip(three.true_positive_rate, once.true_positive_rate, strict=True):
        assert (ours.low, ours.high) == pytest.approx((theirs.low, theirs.high))


def test_perfect_separation_is_no_certainty():
    """k pairs in a row come out alike with a probability of 5% where each does with 0.05^(1/k)."""
    found, p_value = auroc(np.arange(10, 20.0), np.arange(8.0))
    assert (found.value, found.high) == (1.0, 1.0)
    assert found.low == pytest.approx(0.05 ** (1 / 8))
    assert p_value == 0.5**8
    nearly, p_value = auroc(np.arange(5.0), np.arange(-4.0, 1.0))  # of 25 pairs one is a tie
    assert nearly.low < 0.7
    assert p_value == 0.5**5  # Brunner and Munzel's would be 10^-7, of five members
    constant, p_value = auroc(np.zeros(5), np.zeros(9))
    assert constant.value == 0.5
    assert constant.low == pytest.approx(0.5 - constant.high + 0.5)
    assert constant.low < 0.3
    assert p_value == 1.0
    two, _ = auroc(np.ones(100), np.zeros(100), (np.arange(100) // 50, np.arange(100) // 50))
    assert two.low == pytest.approx(0.05 ** (1 / 2))  # two units on a side, however many rows


# rates at thresholds -------------------------------------------------------------------------------------------
def test_the_rate_is_that_of_the_least_threshold_few_enough_pass():
    others = np.arange(200.0)
    members = np.array([150.0, 196, 197, 198, 199, 250])
    assert true_positive_rate(members, others, 0.01).value == pytest.approx(3 / 6)  # above 197 are 2 of 200
    assert true_positive_rate(members, others, 0.001).value == pytest.approx(1 / 6)  # above all of them
    tied = true_positive_rate(members, np.full(200, 197.0), 0.01)
    assert tied.value == pytest.approx(3 / 6)


@pytest.mark.parametrize(("fpr", "shift", "n"), [(0.05, 1.5, 300), (0.01, 2.0, 1000)])
def test_the_interval_knows_that_the_threshold_is_estimated(fpr, shift, n):
    truth = stats.norm.sf(stats.norm.isf(fpr) - shift)
    trials, hits, naive = 2000, 0, 0
    for members, others in draws(8, trials, 400, n, shift):
        found = true_positive_rate(members, others, fpr)
        hits += found.low <= truth <= found.high
        assert found.low <= found.value <= found.high
        low, high = module._clopper_pearson(found.value, len(members), 0.025)
        naive += low <= truth <= high
    assert hits / trials >= 0.95 - 2 * math.sqrt(0.05 * 0.95 / trials)
    assert naive / trials < 0.85  # who takes the threshold for given is wrong far more often


def test_each_threshold_of_the_bracket_errs_no_more_than_it_says():
    """Of discrete scores too, for which no threshold has exactly the rate."""
    generator = np.random.default_rng(9)
    fpr, miss, trials = 0.3, 0.05, 3000
    exact, ties = [0, 0], [0, 0]
    sought = float(stats.poisson.isf(fpr, 3))  # the least score that no more than 30% are above
    for _ in range(trials):
        strict, loose = module._bracket(np.sort(generator.random(20)), 20, fpr, miss)
        exact[0] += 1 - strict > fpr
        exact[1] += 1 - loose < fpr
        strict, loose = module._bracket(np.sort(generator.poisson(3, 20)), 20, fpr, miss)
        ties[0] += strict < sought
        ties[1] += loose > sought
    most = trials * miss + 2 * math.sqrt(trials * miss * (1 - miss))
    assert max(*exact, *ties) <= most
    assert min(exact) > trials * miss / 4  # and they are not far off for nothing


def test_too_few_non_members_say_nothing_at_a_low_rate():
    members = 500.0 + np.arange(50)
    found = true_positive_rate(members, np.arange(436.0), 0.01)
    assert (found.value, found.low, found.needed) == (1.0, 0.0, 437)
    found = true_positive_rate(members, np.arange(437.0), 0.01)
    assert found.low == pytest.approx(0.0125 ** (1 / 50))
    unit = np.arange(437) // 2
    assert true_positive_rate(members, np.arange(437.0), 0.01, (np.arange(50), unit)).low == 0.0


def test_the_best_of_all_thresholds_is_not_reported_on_the_rows_that_chose_it():
    trials = 2000
    found, best = np.zeros(trials), np.zeros(trials)
    covered = 0
    for i, (members, others) in enumerate(draws(10, trials)):
        estimate = advantage(members, others)[1]
        found[i] = estimate.value
        place = module._best_threshold(members, others)
        best[i] = (members > place).mean() - (others > place).mean()
        covered += estimate.low <= 0 <= estimate.high  # the truth, whatever the threshold
    assert abs(found.mean()) < 4 * found.std() / math.sqrt(trials)
    assert best.mean() > 0.1
    assert covered / trials >= 0.95 - 2 * math.sqrt(0.05 * 0.95 / trials)


def test_the_interval_of_the_advantage_covers_that_of_its_threshold():
    trials, hits = 2000, 0
    for members, others in draws(11, trials, shift=1.0):
        threshold, found = advantage(members, others)
        hits += found.low <= stats.norm.sf(threshold - 1) - stats.norm.sf(threshold) <= found.high
    assert hits / trials >= 0.95 - 2 * math.sqrt(0.05 * 0.95 / trials)


def test_halves_share_no_unit():
    unit = np.repeat(np.arange(7), [1, 2, 3, 4, 5, 6, 7])
    side = module._Side.of(np.arange(28.0), unit, "members")
    first, second = side.halves()
    assert sorted([*first, *second]) == list(range(28))
    assert not set(unit[first]) & set(unit[second])
    assert len(set(unit[first])) == 4


def test_members_below_the_others_have_no_advantage():
    found = rates(np.arange(20.0), 100.0 + np.arange(20))
    assert found.auroc.value == 0.0
    assert found.threshold == math.inf
    assert found.advantage.value == 0.0
    assert found.p_value == 1.0


# what a guarantee permits --------------------------------------------------------------------------------------
@pytest.mark.parametrize("noise", [0.5, 1.0, 3.0])
def test_the_ceiling_of_one_gaussian_release_is_the_best_test_of_it(noise):
    """N(1, s^2) against N(0, s^2): the likelihood ratio orders as the score itself."""
    found = ceiling(MixtureOfGaussians.bernoulli(1.0, 1).curve(noise), (0.1, 0.01))
    exact = stats.norm.cdf(1 / noise / math.sqrt(2))
    assert exact <= found.auroc <= exact + 0.001
    assert found.advantage == pytest.approx(2 * stats.norm.cdf(0.5 / noise) - 1, abs=1e-4)
    assert found.balanced_accuracy == pytest.approx(stats.norm.cdf(0.5 / noise), abs=1e-4)
    for fpr, bound in found.true_positive_rate:
        assert bound == pytest.approx(stats.norm.sf(stats.norm.isf(fpr) - 1 / noise), abs=1e-4)


def test_the_best_attack_reaches_the_ceiling_and_does_not_pass_it():
    generator = np.random.default_rng(12)
    bound = ceiling(MixtureOfGaussians.bernoulli(1.0, 1).curve(1.0))
    found = rates(1 + generator.normal(size=10_000), generator.normal(size=10_000))
    assert found.auroc.low <= bound.auroc
    assert found.auroc.value > bound.auroc - 0.01
    assert found.advantage.low <= bound.advantage
    assert found.advantage.value > bound.advantage - 0.03
    for measured, (fpr, most) in zip(found.true_positive_rate, bound.true_positive_rate, strict=True):
        assert measured.fpr == fpr
        assert measured.low <= most <= measured.high


def test_without_noise_everything_is_permitted():
    found = ceiling(PrivacyProfile.unprotected())
    assert (found.auroc, found.advantage, found.balanced_accuracy) == (1.0, 1.0, 1.0)
    assert found.true_positive_rate == ((0.01, 1.0), (0.001, 1.0))


# values --------------------------------------------------------------------------------------------------------
def test_results_are_plain_json():
    members, others = next(draws(13))
    found = rates(members, others, (np.arange(60) // 2, np.arange(90) // 3)).to_json()
    assert json.loads(json.dumps(found, allow_nan=False))["units"] == [30, 30]
    assert found["balanced_accuracy"]["value"] == pytest.approx((1 + found["advantage"]["value"]) / 2)
    hopeless = rates(np.zeros(3), np.ones(3)).to_json()
    assert json.loads(json.dumps(hopeless, allow_nan=False))["threshold"] is None
    json.dumps(ceiling(PrivacyProfile.unprotected()).to_json(), allow_nan=False)


def test_what_cannot_be_compared_is_refused():
    with pytest.raises(ValueError, match="members is not a number"):
        rates(np.array([1.0, np.nan]), np.zeros(3))
    with pytest.raises(ValueError, match="two at least"):
        rates(np.zeros(3), np.zeros(1))
    with pytest.raises(ValueError, match="two at least"):
        rates(np.zeros(3), np.zeros(3), (np.zeros(3), np.arange(3)))
    with pytest.raises(ValueError, match="one unit"):
        rates(np.zeros(3), np.zeros(3), (np.zeros(2), np.arange(3)))
    with pytest.raises(ValueError, match="between 0 and 1"):
        true_positive_rate(np.zeros(3), np.zeros(3), 0.0)
