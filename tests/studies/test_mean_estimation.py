"""The mean-estimation study: its steps against a loop, its draws by count, its claims against made-up outcomes."""

import numpy as np
import pytest
from studies.mean_estimation import Size, interval
from studies.parts import estimated_means
from studies.parts import user_sampling as ways
from studies.parts.estimated_means import D, K, N, People, Result, Setting, clipped_sum, drawn
from studies.runner.findings import REPRODUCED, judged

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
    setting = Setting(budget=64.0 if k is None else 16.0 * k, within=2.0, steps=200)
    errors = estimated_means.trained(
        setting, k, who, np.array([1e6], np.float32), np.array([1 / 16], np.float32)
    )
    best = ((who.user_means.mean(1) - who.mean) ** 2).sum(1)
    assert errors[:, 0] == pytest.approx(best, abs=3.0)
    assert errors.mean() < 0.1 * (who.mean**2).sum(1).mean()


def test_noise_spreads_as_the_accountant_says(who, monkeypatch):
    """One step of a learning rate of 1 from 0: what is beyond the clipped sum is s C / n in every coordinate."""
    setting, clip = Setting(epsilon=1.0, budget=64.0, steps=1), np.array([2.0], np.float32)
    many = People(
        np.repeat(who.mean[:1], 400, 0) * 0,
        np.repeat(who.rows[:1], 400, 0) * 0,
        np.zeros((400, N, D), np.float32),
    )
    errors = estimated_means.trained(setting, 16, many, clip, np.array([1.0], np.float32))
    scale = setting.noise_multiplier(16) * 2.0 / (64 / 16)
    assert errors.mean() == pytest.approx(D * scale**2, rel=0.05)


def test_intervals_are_those_of_students_t():
    noise = np.random.default_rng(0).standard_normal(100)
    low, high = interval(noise - noise.mean())
    assert (low + high) / 2 == pytest.approx(0)
    assert high == pytest.approx(1.984 * noise.std(ddof=1) / 10, rel=1e-3)


SIZE = Size(budgets=(32.0, 64.0))


def made_up(error, monkeypatch):
    """Let the error be a function of (setting, k), with a little spread; return the measurements."""
    spread = 0.01 * np.random.default_rng(0).standard_normal(SIZE.default.trials[1])

    def result(setting, k):
        return Result(error(setting, k), error(setting, k) + spread, 0.125, 0.01)

    monkeypatch.setattr(study, "result", result)
    monkeypatch.setattr(Setting, "noise_multiplier", lambda self, k: 1.0)
    return [row for asked in SIZE.asked() for row in study.errors(*asked)]


def choices(**ks):
    """What each strategy is made to choose at epsilon 8, for all trials."""
    names = (ways.OWN, ways.PRINTED, ways.LEAST, ways.ORACLE, ways.COHORT, ways.GROUP, ways.RANDOM)
    return [
        {
            "what": "choice",
            "epsilon": 8.0,
            "budget": budget,
            "strategy": name,
            "k": ks.get(name, 1),
            "key": key,
        }
        for name in names
        for budget in (32.0, 64.0)
        for key in range(1, 73)
    ]


def verdicts(rows):
    return {each.finding.claim: each.verdict == REPRODUCED for each in judged(study.findings(rows))}


def test_claims_follow_the_outcome(monkeypatch):
    def as_in_the_paper(setting, k):
        gain = setting.within * setting.budget / setting.epsilon
        return 1.0 if k in (None, 1) else 1 / (1 + gain / 1000 + k / 1000)

    of_figure = 11
    rows = made_up(as_in_the_paper, monkeypatch) + choices()
    found = [*verdicts(rows).values()]
    assert found[:of_figure] == [True] * of_figure
    rows = made_up(lambda setting, k: 1.0 if k is None else 1.2, monkeypatch) + choices()
    found = [*verdicts(rows).values()]
    assert found[:of_figure] == [False] * of_figure


def test_claims_name_the_setting_that_they_are_of(monkeypatch):
    """One row of each user spends at most 256 rows, so the largest budget is another one where k = 1 is asked for."""
    rows = made_up(lambda setting, k: 1.0, monkeypatch) + choices()
    claims = [each.claim for each in study.findings(rows)]
    assert "At a large budget (1,024 rows a step), ULS improves on ELS." in claims
    assert "At a large budget (256 rows a step), ULS benefits from more than one row a user." in claims
    assert (
        "At a large budget (1,024 rows a step), ULS gains more than at the other end (16 rows a step)."
        in claims
    )
    assert "At a small epsilon (0.25), ULS improves on ELS." in claims


def test_strategies_are_judged_at_each_epsilon_and_beyond_the_paper(monkeypatch):
    """Most users are best at one epsilon and worst at the other."""
    size = Size(budgets=(32.0, 64.0))

    def error(setting, k):
        return 1.0 if k is None else 1.0 + (k if setting.epsilon == 8.0 else 1 / k)

    rows = made_up(error, monkeypatch)
    rows += [
        row | {"epsilon": epsilon}
        for epsilon in size.choosing
        for row in choices(**{ways.OWN: 2, ways.COHORT: 1})
    ]
    found = [each for each in judged(study.findings(rows)) if "than max cohort at" in each.finding.claim]
    assert [each.verdict == REPRODUCED for each in found] == [True, False]
    assert all(each.finding.is_beyond for each in found)


def test_the_k_of_uls_is_chosen_by_the_trials_that_are_not_reported_on(monkeypatch):
    rows = made_up(lambda setting, k: 1.0 if k is None else 1.0 + abs(k - 4), monkeypatch)
    measured = study.Measured(rows)
    assert measured.best_k(Setting()) == 4
    for row in rows:
        row["tuned"] = abs((row["k"] or 0) - 2)
    assert study.Measured(rows).best_k(Setting()) == 2
    assert [*measured.swept("budget")] == [16.0, 64.0, 256.0, 1024.0]
    assert measured.swept("budget")[64.0] == measured.swept("epsilon")[1.0] == Setting()


def test_strategies_are_judged_by_what_they_lose(monkeypatch):
    rows = made_up(lambda setting, k: 1.0 if k is None else 1.0 + k, monkeypatch)  # k = 1 is the best split
    lost = study.Measured(rows + choices(**{ways.GROUP: 2})).suboptimalities(8.0)
    assert lost[ways.OWN].mean() == pytest.approx(0, abs=1e-3)
    assert lost[ways.GROUP].mean() == pytest.approx(0.5, abs=0.01)
    assert lost[ways.GROUP].shape == (2, 72)
    simple = (ways.GROUP, ways.COHORT, ways.RANDOM)
    claims = [*verdicts(rows + choices(**dict.fromkeys(simple, 2))).values()][-4:]
    assert claims == [True, True, True, True]
    claims = [*verdicts(rows + choices(**{ways.OWN: 2})).values()][-4:]
    assert claims == [False, False, False, False]


def test_strategies_choose_as_they_say(monkeypatch):
    """Error that the noise variance decides: then the least of it is what the oracle finds, too."""
    norm = study.norms(SIZE)

    def by_noise(setting, k):
        error = norm[k] * setting.noise_multiplier(k) / (setting.budget / k)
        return Result(error, np.array([error]), 0.125, 0.01)

    monkeypatch.setattr(study, "result", by_noise)
    picked = {}
    for row in study.chosen(SIZE, 8.0):
        picked.setdefault((row["strategy"], row["budget"]), set()).add(row["k"])
    assert picked[ways.COHORT, 64.0] == {1}
    assert picked[ways.GROUP, 64.0] == {4}
    assert picked[ways.RANDOM, 64.0] == {1, 2, 4}
    assert picked[ways.PRINTED, 64.0] == picked[ways.GROUP, 64.0]
    assert picked[ways.LEAST, 64.0] == picked[ways.ORACLE, 64.0] == picked[ways.OWN, 64.0]
    errors = {k: by_noise(Setting(8.0, 64.0), k).error for k in (1, 2, 4)}
    assert picked[ways.LEAST, 64.0] == {min(errors, key=errors.get)}


def test_norms_shrink_with_rows():
    found = study.norms(SIZE)
    assert found[1] > 1.05 * found[2] > 1.05 * found[4]
    assert found[16] == pytest.approx(np.sqrt((2 + 1 / K) * D), rel=0.15)
    assert found[1] == pytest.approx(np.sqrt(3 * D), rel=0.15)
