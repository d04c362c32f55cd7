"""The adaptive study: what epsilon its gammas would have if they were public, its floors, and its findings."""

import math

import pytest
from studies.adaptive import EPSILON, NOISE, NORMALISATIONS, PLAIN, PRIVATE, nominal
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
                rows.append({"arm": nominal("rank")} | own | place)
    return rows


def test_claims_follow_the_outcome():
    growing = {0.5: 0.1, 1.0: 0.2, 2.0: 0.3, 5.0: 0.5}
    found = judged(adaptive.findings(made(growing, 0.0, 2.0)))
    assert {each.verdict for each in found} == {REPRODUCED}
    shrinking = {noise: -gain for noise, gain in growing.items()}
    found = judged(adaptive.findings(made(shrinking, 0.2, -2.0)))
    assert {each.verdict for each in found} == {NOT_REPRODUCED}
    assert len(found) == 4 + 1 + 4 + 1
    slope = next(each for each in found if "grows" in each.finding.claim)
    assert slope.finding.values[0] == pytest.approx(-0.4 / math.log(10), rel=0.1)


def test_a_gain_is_of_the_same_run_key():
    rows = made({1.0: 0.2, 2.0: 0.2}, 0.0, 1.0)
    assert adaptive.gain(rows, nominal("rank"), {NOISE: 1.0}) == pytest.approx({1: 0.199, 2: 0.198, 3: 0.197})
