"""The suggestion study: equal compute, the planner's own suggestion, and what its rule predicts."""

import json
import math

import pytest
from studies.runner.findings import NOT_REPRODUCED, REPRODUCED, judged
from studies.runner.grid import TRIAL
from studies.runner.study import Scale, Work
from studies.runner.suggested import BANDS, COMMON, CORRELATED_SCALED, SAMPLING, SCALES
from studies.suggestion import (
    CORRELATED,
    EPSILON,
    INDEPENDENT,
    NOISE,
    SEARCHED,
    SUGGESTED,
    TEXT,
    Trial,
    fitted,
    grids,
    predictions,
    spent,
)

from confide.planning.progress import COMMON_TOKENS, DIMENSIONS, SCALED, WALK
from studies import suggestion

RATE, STEPS, K = suggestion.RATE, suggestion.STEPS, suggestion.K
TRAINABLE = 5_000_000
CONSTANTS = (DIMENSIONS * TRAINABLE, WALK)


def keys_of(grid):
    """The keys of every run of a grid's trials, or of its runs where nothing is chosen."""
    for arm in grid.arms:
        for epsilon in grid.at[EPSILON]:
            for settings in arm.trials():
                yield arm.derived({**grid.keys, **arm.keys, EPSILON: epsilon, **settings})


def test_every_setting_spends_the_same_but_where_the_budget_is_what_is_tried(tmp_path):
    own = {EPSILON: 0, K: 3, STEPS: 11, "train.batch": 100.0}
    chosen = {epsilon: dict(own) | {EPSILON: epsilon} for epsilon in (1.0, 3.0, 8.0)}
    search, suggested, *budgets = grids(Work(None, tmp_path, Scale.SMALL), TEXT, 1700, chosen)
    assert {keys["train.batch"] * keys[K] * keys[STEPS] for keys in keys_of(search)} == {3840}
    assert [{keys["train.batch"] * keys[STEPS] for keys in keys_of(grid)} for grid in budgets] == [
        {1920},
        {7680},
    ]
    assert [grid.seeds for grid in budgets] == [0, 0]  # trials alone
    assert len(search.arms[0].trials()) == 36
    assert [keys["train.batch"] for keys in keys_of(suggested)] == [100.0]
    assert {keys[RATE] for keys in keys_of(suggested)} == {4e-3}


def test_correlated_noise_has_as_many_bands_as_users_allow_and_a_higher_rate():
    keys = {K: 1, STEPS: 32, RATE: 4e-3}
    assert spent(3840, 1700, keys | {NOISE: INDEPENDENT}) == {**keys, "train.batch": 120.0}
    found = spent(3840, 1700, keys | {NOISE: CORRELATED})
    assert found == {**keys, "train.batch": 120.0, BANDS: 14, RATE: 8e-3, SAMPLING: "bins"}
    assert spent(3840, 1700, keys | {NOISE: CORRELATED_SCALED}) == {
        **found,
        SCALES: SCALED,
        COMMON: COMMON_TOKENS,
    }
    in_turn = spent(3840, 400, keys | {NOISE: CORRELATED})  # 3.3 steps an epoch
    assert in_turn == {**keys, "train.batch": 120.0, BANDS: 3, RATE: 8e-3}
    assert spent(3840, 10**6, keys | {NOISE: CORRELATED})[BANDS] == 32
    few = spent(3840, 200, keys | {NOISE: CORRELATED})  # each step draws more than half of them: no bands go
    assert few == {**keys, "train.batch": 120.0}


def made(steps, noise, rate=4e-3, constants=CONSTANTS, budget=3840):
    """A trial whose loss lies on the rule."""
    trial = Trial(steps, budget / steps, rate, noise, 0.0)
    return Trial(steps, budget / steps, rate, noise, 6.5 - 0.4 * trial.progress(*constants))


def noises(steps, noise):
    return noise * (16 / steps) ** 0.15


def test_the_rule_is_found_again():
    trials = [
        made(steps, noises(steps, noise)) for steps in (8, 16, 32, 64, 128) for noise in (0.5, 0.9, 1.4)
    ]
    assert fitted(trials) == pytest.approx(CONSTANTS, rel=0.02)


def row(arm, epsilon, key, part, loss, settings, noise=0.6):
    return {
        "study": "suggestion",
        "scale": "small",
        "text": TEXT,
        "arm": arm,
        EPSILON: epsilon,
        "key": key,
        "part": part,
        "loss": loss,
        "settings": json.dumps(settings),
        "noise_multiplier": noise,
        suggestion.WEIGHTS: TRAINABLE,
    }


def measured(suggested=0.0):
    """Runs in which the rule holds, and the suggestion is so far from the search."""
    rows = []
    for epsilon, noise in ((8.0, 0.57), (3.0, 0.86), (1.0, 1.43)):
        for steps in (16, 32, 64):
            for rate in (2e-3, 4e-3):
                trial = made(steps, noises(steps, noise), rate)
                settings = {K: 1, STEPS: steps, RATE: rate, NOISE: INDEPENDENT}
                rows.append(row(SEARCHED, epsilon, TRIAL, "validation", trial.loss, settings, trial.noise))
            more = {STEPS: steps, RATE: 4e-3}
            for settings in ({K: 2, NOISE: INDEPENDENT} | more, {K: 1, NOISE: CORRELATED} | more):
                # no part of the rule, which would be upset
                rows.append(row(SEARCHED, epsilon, TRIAL, "validation", 0.0, settings, trial.noise))
        for key in (1, 2, 3):
            rows.append(row(SEARCHED, epsilon, key, "test", 5.0 + key / 100, settings))
            loss = 5.0 + suggested + key / 100 + key / 10_000
            rows.append(row(SUGGESTED, epsilon, key, "test", loss, settings))
    for budget, noise in ((1920, 0.6), (7680, 1.2)):
        for steps in (8, 16, 32, 64, 128):
            trial = made(steps, noises(steps, noise), budget=budget)
            settings = {STEPS: steps}
            arm = f"{budget:,} chunks"
            rows.append(row(arm, 3.0, TRIAL, "validation", trial.loss, settings, trial.noise))
    return rows


def test_the_rule_predicts_what_was_left_out():
    found = predictions(measured(), 3840, (1920, 7680))
    assert len(found) == 2 * 3 + 2 + 3
    assert sum("fitted" in each.of for each in found) == 3
    assert all(each.by_rule == each.best and each.behind == 0 for each in found)
    assert {each.best for each in found} >= {32, 64}
    upset = measured()
    worse = next(
        each for each in upset if each[EPSILON] == 8.0 and json.loads(each["settings"])[RATE] == 2e-3
    )
    worse["loss"] = 3.0  # the best by far, and by no rule
    assert any(each.behind > 1 for each in predictions(upset, 3840, (1920, 7680)))


def test_with_one_epsilon_nothing_is_fitted(monkeypatch):
    monkeypatch.setattr(suggestion, "fitted", None)
    one = [each for each in measured() if each[EPSILON] == 8.0]
    assert [each.of for each in predictions(one, 3840, ())] == [
        "epsilon 8 at the rate 0.002",
        "epsilon 8 at the rate 0.004",
    ]


def test_claims_follow_the_outcome():
    found = judged(suggestion.findings(measured()))
    assert [each.verdict for each in found] == [REPRODUCED] * 4
    found = judged(suggestion.findings(measured(suggested=0.1)))
    rule = 3
    verdicts = [each.verdict for each in found]
    assert verdicts.pop(rule) == REPRODUCED
    assert verdicts == [NOT_REPRODUCED] * 3


def test_a_difference_in_perplexity_is_that_of_the_run_keys(tmp_path):
    table = suggestion.tables(measured(suggested=math.log(1.05)))[0]
    assert table.cells[1][-1].startswith("+5.0%")


def test_the_table_names_the_rate_and_the_bands_of_correlated_noise():
    chosen = measured()
    bands = {K: 1, STEPS: 32, "train.batch": 120, BANDS: 14, RATE: 0.0076}
    for each in chosen:
        if each["arm"] == SUGGESTED:
            each["settings"] = json.dumps(bands)
    cells = suggestion.tables(chosen)[0].cells
    assert cells[0][4] == "64 steps, 1 row of each, rate 0.008, correlated noise"
    assert cells[1][4] == "32 steps of 120 users, 1 row of each, rate 0.0076, noise correlated over 14 steps"
