"""The adaptive study: what epsilon its gammas would have if they were public, its floors, and its findings."""

import math

import pytest
from studies.adaptive import EPSILON, JUDGED, NOISE, NORMALISATIONS, PLAIN, PRIVATE, nominal
from studies.runner.findings import NOT_REPRODUCED, REPRODUCED, judged
from studies.runner.study import Scale, Work

from confide.privacy.accounting import MixtureOfGaussians
from studies import adaptive


def test_gammas_as_if_public_are_composed_as_what_they_were_at_least():
    rate, sigma, delta = 0.05, 1.2, 1e-5

    def plain(noise, steps):
        return MixtureOfGaussians.bernoulli(rate, steps).curve(noise, 1e-3).epsilon(delta)

    whole = adaptive.public([sigma] * 20, sigma, rate, delta)
    assert whole == pytest.approx(plain(sigma, 20), abs=0.02)
    assert whole >= plain(sigma, 20)
    half = adaptive.public([sigma] * 10 + [sigma / 2] * 10, sigma, rate, delta)
    assert max(whole, plain(sigma / 2, 10)) < half < plain(sigma / 2, 20)
    rounded = adaptive.public([0.999 * sigma] * 20, sigma, rate, delta)  # counts as 0.99
    assert rounded >= plain(0.99 * sigma, 20) > whole


def test_the_floor_at_equal_epsilon_is_the_mean_gamma_rounded_down(tmp_path):
    rows = [
        {"arm": nominal("rank"), "gamma": 0.512},
        {"arm": nominal("rank"), "gamma": 0.506},
        {"arm": nominal("perplexity"), "gamma": 0.0009},
        {"arm": PRIVATE, "gamma": 0.8},
        {"arm": PLAIN, "gamma": 1.0},
        {"arm": PRIVATE},  # a trial
    ]
    gammas = adaptive.mean_gammas(rows)
    assert gammas == {nominal("rank"): 0.5, nominal("perplexity"): 0.01, PRIVATE: 0.8}
    work = Work(None, tmp_path, Scale.SMALL)
    arms = {arm.name: arm.keys for arm in adaptive.at_equal_epsilon(work, gammas).arms}
    assert arms[nominal("rank")]["adaptive.floor"] == 0.5
    assert arms[PRIVATE]["adaptive.floor"] == 0.8
    at_noise = {arm.name: arm.keys for arm in adaptive.at_equal_noise(work).arms}
    assert list(at_noise) == [PLAIN, *map(nominal, NORMALISATIONS), PRIVATE]
    assert at_noise[nominal("rank")]["adaptive.floor"] == adaptive.FLOOR
    assert at_noise[nominal("log-perplexity")]["adaptive.normalise"] == "log-perplexity"
    assert "adaptive.floor" not in at_noise[PRIVATE]


def made(gains, at_epsilon, costs):
    """Runs of DP-SGD and one adaptive arm, with these gains by noise multiplier and at one epsilon."""
    rows = []
    for key in (1, 2, 3):
        common = {"part": "test", "key": key, "steps": 16, "is_proved": 1, "noise_multiplier": 1.0}
        for column, gain_at in ((NOISE, gains), (EPSILON, {3.0: at_epsilon})):
            for value, gain in gain_at.items():
                place = {column: value, **common}
                noisy = 3.0 + key / 10
                rows.append(
                    {"arm": PLAIN, "loss": noisy, "gamma": 1.0, "epsilon": 1.0, "public": 1.0} | place
                )
                own = {"loss": noisy - gain + key / 1000, "gamma": 0.5, "epsilon": 9.0, "public": 1.0 + costs}
                rows.append({"arm": nominal(JUDGED)} | own | place)
    return rows


def of_kinds(rows):
    """Verdicts: of the paper's claims, of ours, and of checks."""
    found = {"paper": [], "beyond": [], "check": []}
    for each in judged(adaptive.findings(rows)):
        kind = "check" if each.finding.is_check else "beyond" if each.finding.is_beyond else "paper"
        found[kind].append(each.verdict)
    return found


def test_claims_follow_the_outcome():
    """The paper has noise multipliers of 1 and 5: at others less noise is no claim of its own."""
    growing = {0.5: 0.1, 1.0: 0.2, 2.0: 0.3, 5.0: 0.5}
    rows = made(growing, 0.0, 2.0)
    dear = [
        NOT_REPRODUCED,
        REPRODUCED,
    ]  # three times the epsilon is more than the paper's at noise 1, not at 5
    assert of_kinds(rows) == {
        "paper": [REPRODUCED] * 3,
        "beyond": [*dear, REPRODUCED],
        "check": [NOT_REPRODUCED, REPRODUCED, REPRODUCED],  # DP-SGD has one loss at all noises here
    }
    shrinking = {noise: -gain for noise, gain in growing.items()}
    rows = made(shrinking, 0.2, -2.0)
    assert of_kinds(rows) == {
        "paper": [NOT_REPRODUCED] * 3,
        "beyond": [REPRODUCED, REPRODUCED, NOT_REPRODUCED],
        "check": [NOT_REPRODUCED] * 3,
    }
    slope = next(each for each in judged(adaptive.findings(rows)) if "grows" in each.finding.claim)
    assert slope.finding.values[0] == pytest.approx(0.4 / math.log(10), rel=0.1)


def test_a_check_is_of_the_noise_multiplier_with_the_least_gain():
    rows = made({1.0: 0.2, 2.0: -0.1, 5.0: 0.3}, 0.0, 1.0)
    (check,) = (each for each in judged(adaptive.findings(rows)) if each.finding.family == "less noise")
    assert check.verdict == NOT_REPRODUCED
    assert check.finding.values == pytest.approx((0.101, 0.102, 0.103))


def test_a_variant_whose_gammas_are_all_the_floor_is_no_other_than_dp_sgd():
    rows = made({1.0: 0.2, 2.0: 0.2}, 0.0, 1.0)
    assert not adaptive.is_at_floor(rows, nominal(JUDGED))
    assert "this is DP-SGD" not in adaptive.tables(rows)[0].note
    for row in rows:
        row["gamma"] = adaptive.FLOOR if row["arm"] != PLAIN else 1.0
    assert adaptive.is_at_floor(rows, nominal(JUDGED))
    assert "by perplexity every gamma is the floor, so that this is DP-SGD" in adaptive.tables(rows)[0].note
    assert not [
        each for each in adaptive.findings(rows) if each.family == "equal epsilon" and not each.is_check
    ]


def test_a_gap_is_of_the_same_run_key_and_below_zero_where_adaptive_noise_is_better():
    rows = made({1.0: 0.2, 2.0: 0.2}, 0.0, 1.0)
    gaps = adaptive.gap(rows, nominal(JUDGED), {NOISE: 1.0})
    assert gaps == pytest.approx({1: -0.199, 2: -0.198, 3: -0.197})
