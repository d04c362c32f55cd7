"""The mean-estimation study: its steps against a loop, its draws by count, its claims against made-up outcomes."""

import numpy as np
import pytest
from studies.mean_estimation import (
    D,
    K,
    N,
    People,
    Result,
    Setting,
    claim,
    clipped_sum,
    drawn,
    interval,
)

from studies import mean_estimation as study


@pytest.fixture(scope="module")
def who():
    return People.drawn(within=2.0, trials=3)


def test_people_spread_as_they_should():
    who = People.drawn(within=3.0, trials=20)
    rows = who.rows.reshape(20, N, K, D)
    assert who.mean.std() == pytest.approx(1, abs=0.15)
    assert (rows.mean(2) - who.mean[:, None]).std() == pytest.approx(np.sqrt(1 + 9 / K), rel=0.02)
    assert (rows - rows.mean(2, keepdims=True)).std() == pytest.approx(3 * np.sqrt(1 - 1 / K), rel=0.02)
    assert np.allclose(who.user_means, rows.mean(2), atol=1e-5)


def test_clipped_sums_are_those_of_a_loop():
    generator = np.random.default_rng(0)
    theta = generator.standard_normal((2, 3, D)).astype(np.float32)
    vectors = generator.standard_normal((2, 5, D)).astype(np.float32)
    real = generator.random((2, 5)) < 0.7
    clip = np.array([0.5, 8.0, 100.0], np.float32)
    slow = np.zeros((2, 3, D))
    for trial, pair, place in np.ndindex(2, 3, 5):
        gradient = theta[trial, pair] - vectors[trial, place]
        if real[trial, place]:
            slow[trial, pair] += gradient * min(1, clip[pair] / np.linalg.norm(gradient))
    assert clipped_sum(theta, vectors, real, clip) == pytest.approx(slow, abs=1e-4)


@pytest.mark.parametrize(("k", "things"), [(None, N * K), (1, N), (4, N), (K, N)])
def test_each_thing_is_drawn_with_its_probability(who, k, things):
    generator, count, rounds = np.random.default_rng(1), things / 8, 60
    sizes = np.array([drawn(who, k, count, generator)[1].sum(1) for _ in range(rounds)])
    sd = np.sqrt(things / 8 * 7 / 8 / sizes.size)
    assert abs(sizes.mean() - count) < 5 * sd
    assert sizes.var() == pytest.approx(things / 8 * 7 / 8, rel=0.5)


def test_a_user_drawn_gives_the_mean_of_distinct_rows_of_its_own(who):
    vectors, real = drawn(who, 2, N, np.random.default_rng(2))
    assert real.all()
    rows = who.rows.reshape(3, N, K, D)
    for trial, user in np.ndindex(3, 20):
        pairs = (rows[trial, user][:, None] + rows[trial, user][None]) / 2
        found = np.argwhere(np.isclose(pairs, vectors[trial, user], atol=1e-5).all(2))
        assert len(found) == 2  # the pair, in either order
        assert found[0][0] != found[0][1]


def test_rows_and_whole_users_are_drawn_as_they_are(who):
    assert np.array_equal(drawn(who, None, N * K, np.random.default_rng(0))[0], who.rows)
    assert np.array_equal(drawn(who, K, N, np.random.default_rng(0))[0], who.user_means)
    vectors, real = drawn(who, 1, 1e-9, np.random.default_rng(0))
    assert not real.any()
    assert not vectors.any()


@pytest.mark.parametrize("k", [None, 4, 16])
def test_without_noise_the_mean_of_all_rows_is_found(who, k, monkeypatch):
    monkeypatch.setattr(Setting, "noise_multiplier", lambda self, k: 0.0)
    setting = Setting(budget=64.0 if k is None else 16.0 * k, within=2.0)
    errors = study.trained(
        setting, k, who, np.array([1e6], np.float32), np.array([1 / 16], np.float32), steps=200
    )
    best = ((who.user_means.mean(1) - who.mean) ** 2).sum(1)
    assert errors[:, 0] == pytest.approx(best, abs=3.0)
    assert errors.mean() < 0.1 * (who.mean**2).sum(1).mean()


def test_noise_spreads_as_the_accountant_says(who, monkeypatch):
    """One step of a learning rate of 1 from 0: what is beyond the clipped sum is s C / n in every coordinate."""
    setting, clip = Setting(epsilon=1.0, budget=64.0), np.array([2.0], np.float32)
    many = People(
        np.repeat(who.mean[:1], 400, 0) * 0,
        np.repeat(who.rows[:1], 400, 0) * 0,
        np.zeros((400, N, D), np.float32),
    )
    errors = study.trained(setting, 16, many, clip, np.array([1.0], np.float32), steps=1)
    scale = setting.noise_multiplier(16) * 2.0 / (64 / 16)
    assert errors.mean() == pytest.approx(D * scale**2, rel=0.05)


def test_a_claim_holds_only_if_its_interval_lies_above_zero():
    generator = np.random.default_rng(0)
    noise = generator.standard_normal(100)
    low, high = interval(noise - noise.mean())
    assert (low + high) / 2 == pytest.approx(0)
    assert high == pytest.approx(1.984 * noise.std(ddof=1) / 10, rel=1e-3)
    assert claim("", noise - noise.mean() + 1.1 * high)["holds"]
    assert not claim("", noise - noise.mean() + 0.9 * high)["holds"]
    assert not claim("", -10 + noise)["holds"]


def made_up(error):
    """Results whose error a function of (setting, k) tells, with a little spread."""
    spread = 0.01 * np.random.default_rng(0).standard_normal(study.REPORTED)
    return lambda setting, k: Result(error(setting, k), error(setting, k) + spread, 0.125, 0.01)


def test_claims_follow_the_outcome(monkeypatch):
    def as_in_the_paper(setting, k):
        gain = setting.within * setting.budget / setting.epsilon
        return 1.0 if k in (None, 1) else 1 / (1 + gain / 1000 + k / 1000)

    monkeypatch.setattr(study, "result", made_up(as_in_the_paper))
    assert all(one["holds"] for one in study.claims())
    monkeypatch.setattr(study, "result", made_up(lambda setting, k: 1.0 if k is None else 1.2))
    assert not any(one["holds"] for one in study.claims())


def test_strategies_are_judged_against_the_best_split(monkeypatch):
    """Error that the noise variance decides: then the least of it is the best split."""
    norm = study.norms()

    def by_noise(setting, k):
        return norm[k] * setting.noise_multiplier(k) / (setting.budget / k)

    monkeypatch.setattr(study, "result", made_up(by_noise))
    monkeypatch.setattr(study, "budgets", lambda: [32.0, 64.0])
    found = study.suboptimalities(8.0)
    assert found["least noise variance"].mean() == pytest.approx(0, abs=1e-9)
    assert found["max group size"].mean() > 0.05
    assert found["random"].mean() > 0.01
    assert all(parts.shape == (2, study.REPORTED) for parts in found.values())
    assert found["Estimate-and-Double"].mean() <= found["max group size"].mean()


def test_norms_shrink_with_rows():
    found = study.norms()
    assert found[1] > 1.05 * found[2] > 1.05 * found[4]
    assert found[16] == pytest.approx(np.sqrt((2 + 1 / K) * D), rel=0.15)
    assert found[1] == pytest.approx(np.sqrt(3 * D), rel=0.15)
