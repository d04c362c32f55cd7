"""Exposure estimated from a sample or a fitted curve holds what it states, and p-values keep their level."""

import math

import numpy as np
import pytest
from scipy import stats

from confide.auditing import exposure, skewnormal, trie
from confide.auditing.candidates import Candidates
from confide.auditing.exposure import (
    combined,
    exact,
    extrapolated,
    fisher,
    most,
    sampled,
    share_interval,
)
from confide.auditing.likelihood import totals
from confide.auditing.skewnormal import SkewNormal
from confide.auditing.trie import Trie, search
from tests.auditing.test_exposure import model, tokenizer


# estimates -----------------------------------------------------------------------------------------------------
def test_sampling_all_others_is_exact():
    space, own, made = Candidates.digits("My ID {}.", 2), tokenizer(), model()
    generator = np.random.default_rng(0)
    for one, all_ in zip(
        exact(made, Trie.of(space, own), [3, 44, 71]),
        sampled(made, own, space, [3, 44, 71], 99, generator),
        strict=True,
    ):
        assert all_.rank == one.rank
        assert all_.interval == pytest.approx((one.exposure, one.exposure))
        assert all_.p_value == one.p_value
        assert all_.is_estimate
        assert not one.is_estimate


def test_a_sample_tells_of_no_more_exposure_than_it_can_see():
    space, own, made = Candidates.digits("My ID {}.", 3), tokenizer(), model()
    first = int(np.argmax(search(made, Trie.of(space, own)).totals))
    (found,) = sampled(made, own, space, [first], 31, np.random.default_rng(0))
    assert found.exposure == pytest.approx(math.log2(32))
    assert found.interval[1] == most(1000)
    assert found.interval[0] < found.exposure


def test_a_sampled_interval_holds_the_exact_exposure():
    space, own, made = Candidates.digits("My ID {}.", 3), tokenizer(), model()
    secrets = np.arange(0, 1000, 20)
    truth = exact(made, Trie.of(space, own), secrets)
    found = sampled(made, own, space, secrets, 100, np.random.default_rng(1))
    held = [a.interval[0] <= b.exposure <= a.interval[1] for a, b in zip(found, truth, strict=True)]
    assert np.mean(held) >= 0.95 - 2 * math.sqrt(0.95 * 0.05 / len(secrets))
    assert np.mean([each.interval[1] - each.interval[0] for each in found]) < 1.5


def test_an_interval_of_a_population_holds_at_every_truth():
    population, drawn = 40, 13
    intervals = np.array([share_interval(hits, drawn, population) for hits in range(drawn + 1)])
    for truth in range(population + 1):
        chance = stats.hypergeom.pmf(np.arange(drawn + 1), population, truth, drawn)
        assert chance[intervals[:, 0] > truth].sum() <= 0.025
        assert chance[intervals[:, 1] < truth].sum() <= 0.025
    assert share_interval(0, drawn, population)[1] < 12
    assert share_interval(13, 13, 13) == (13, 13)


def test_in_a_large_population_it_is_clopper_and_pearsons():
    low, high = share_interval(7, 200, 10**9)
    known = stats.binomtest(7, 200).proportion_ci(0.95, "exact")
    assert (low / 10**9, high / 10**9) == pytest.approx((known.low, known.high), rel=1e-4)


def test_a_skew_normal_is_fitted_and_extrapolated():
    for alpha in (-3.0, 0.0, 4.0):
        truth = stats.skewnorm(alpha, loc=30, scale=2.5)
        fitted = SkewNormal.fit(truth.rvs(400_000, random_state=1))
        far = truth.ppf([1e-5, 1e-3, 0.5, 0.99])
        exposures = -np.log2(fitted.below(far))
        np.testing.assert_allclose(exposures, -np.log2(truth.cdf(far)), rtol=0.03, atol=0.01)
    drawn = SkewNormal(30, 2.5, 0.9).draw(100_000, np.random.default_rng(0))
    assert stats.kstest(drawn, stats.skewnorm(0.9 / math.sqrt(0.19), 30, 2.5).cdf).pvalue > 1e-3


def test_the_fit_is_refused_where_losses_follow_something_else():
    generator = np.random.default_rng(2)
    losses = np.concatenate([generator.normal(20, 1, 300), generator.normal(26, 1, 300)])
    assert SkewNormal.fit(losses).goodness(losses, generator) <= 0.01


def test_the_fit_is_refused_at_its_level_where_losses_follow_it(monkeypatch):
    monkeypatch.setattr(skewnormal, "REPLICATES", 39)
    generator, trials = np.random.default_rng(3), 80
    small = 0
    for _ in range(trials):
        losses = SkewNormal(20, 3, 0.8).draw(100, generator)
        small += SkewNormal.fit(losses).goodness(losses, generator) <= 0.05
    assert small <= trials * 0.05 + 3 * math.sqrt(trials * 0.05 * 0.95)


def test_an_extrapolated_exposure_is_an_estimate_near_the_exact_one():
    space, own, made = Candidates.digits("My ID {}.", 3), tokenizer(), model("llama")
    tree = Trie.of(space, own)
    order = np.argsort(-search(made, tree).totals)
    secrets = order[[100, 500]]
    found = extrapolated(made, own, space, secrets, 300, np.random.default_rng(4))
    for each, true in zip(found, exact(made, tree, secrets), strict=True):
        assert each.exposure == pytest.approx(true.exposure, abs=0.8)
        assert each.interval[0] < each.exposure < each.interval[1] <= most(1000)
        assert each.p_value is None
        assert each.fit is not None
        assert each.to_json()["estimate"] is True


# p-values ------------------------------------------------------------------------------------------------------
TRIALS, AT_MOST = 2000, 0.05 + 2 * math.sqrt(0.05 * 0.95 / 2000)


def test_secrets_that_the_model_does_not_depend_on_raise_no_alarm():
    space, own, made = Candidates.digits("My ID {}.", 3), tokenizer(), model()
    generator = np.random.default_rng(5)
    everyone = exact(made, Trie.of(space, own), np.arange(1000))
    drawn = generator.integers(1000, size=(TRIALS, 6))
    p = np.array([combined([everyone[i] for i in row]).p_value for row in drawn])
    assert (p <= 0.05).mean() <= AT_MOST
    assert (p <= 0.05).mean() > 0.02  # and the test is not so safe that it is of no use


@pytest.fixture
def coarse(monkeypatch):
    """Log-probabilities are rounded so far that many candidates are equal."""

    def rounded(values):
        return np.round(values / 20) * 20

    def found(*arguments):
        scores = search(*arguments)
        return trie.Scores(rounded(scores.totals), scores.positions)

    monkeypatch.setattr(exposure, "search", found)
    monkeypatch.setattr(exposure, "totals", lambda made, rows: rounded(totals(made, rows)))


def test_ties_raise_no_alarm(coarse):
    space, own = Candidates.digits("My ID {}.", 3), tokenizer()
    everyone = exact(model(), Trie.of(space, own), np.arange(1000))
    assert len({each.rank for each in everyone}) < 20
    drawn = np.random.default_rng(7).integers(1000, size=(TRIALS, 6))
    p = np.array([combined([everyone[i] for i in row]).p_value for row in drawn])
    assert (p <= 0.05).mean() <= AT_MOST


def test_sampled_ranks_raise_no_alarm():
    space, own, made = Candidates.digits("My ID {}.", 2), tokenizer(), model()
    generator = np.random.default_rng(8)
    found = sampled(made, own, space, generator.integers(100, size=TRIALS), 39, generator)
    p = np.array([combined([each]).p_value for each in found])
    assert (p < 0.051).mean() <= AT_MOST  # the best two places of forty, which have p = 0.05
    assert (p < 0.051).mean() >= 0.05 - (AT_MOST - 0.05)


def test_fishers_method():
    assert fisher([0.03]) == pytest.approx(0.03)
    values = [0.2, 0.04, 0.6, 0.01]
    assert fisher(values) == pytest.approx(stats.combine_pvalues(values, "fisher").pvalue)
    assert fisher([1.0] * 5) == 1.0
    assert fisher([1e-6] * 3) < 1e-14
