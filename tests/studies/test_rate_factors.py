"""The study of several learning rates in one model: what its arms move, and the claims against made-up losses."""

import pytest
from studies.parts import short_runs
from studies.runner.findings import NOT_REPRODUCED, REPRODUCED, judged
from studies.runner.study import Scale, Work

from studies import rate_factors as study


def arms(text="newsgroups", scale=Scale.SMALL):
    return {arm.name: arm for grid in study.grids(Work(None, None, scale), text) for arm in grid.arms}


@pytest.mark.parametrize("factor", study.EMBEDDINGS)
def test_each_arm_has_a_factor_of_its_own_on_the_embeddings(factor):
    for text in ("newsgroups", study.HELPDESK):
        assert arms(text)[study.embeddings(factor)].keys["train.rate_factors"] == {"embeddings": factor}
    assert "train.rate_factors" not in arms()[study.FULL].keys


def test_lora_is_at_one_place_of_the_posts_and_not_of_the_helpdesk():
    full, lora = study.grids(Work(None, None, Scale.SMALL), "newsgroups")
    assert [len(each.at["train.steps"]) for each in (full, lora)] == [2, 1]
    assert study.LORA not in arms(study.HELPDESK)


def test_the_helpdesk_has_an_arm_that_leaves_biases_norms_and_positions():
    assert arms(study.HELPDESK)[study.MATRICES].keys["adapter.kind"] == "matrices"
    assert study.MATRICES not in arms()  # stories260K has no biases


@pytest.mark.parametrize("ratio", study.RATIOS)
def test_lora_plus_has_a_ratio_and_no_longer_a_mean(ratio):
    factors = arms()[study.plus(ratio)].keys["train.rate_factors"]
    assert factors["lora_B"] / factors["lora_A"] == pytest.approx(ratio)
    assert factors["lora_B"] * factors["lora_A"] == pytest.approx(1)


def test_every_arm_has_as_many_trials_and_the_same_rates_as_its_base():
    made = arms(study.HELPDESK) | arms()
    tried = {name: [each[short_runs.FACTOR] for each in arm.trials()] for name, arm in made.items()}
    assert all(tried[arm] == tried[base] for arm, base in study.BASES.items())
    assert len({len(each) for each in tried.values()}) == 1


def test_several_rates_are_held_against_one():
    losses = {study.embeddings(3.0): 1.98, study.plus(4.0): 2.205, study.LORA: 2.21}
    rows = [
        {"text": "newsgroups", "privacy.epsilon": 8.0, "train.steps": 32, "part": "test", "arm": arm}
        | {"key": key, "loss": losses.get(arm, 2.0) + key / 1000, "settings": '{"rate_over_rule": 1.4}'}
        for arm in arms()
        for key in (1, 2, 3)
    ]
    found = [each.verdict for each in judged(study.findings(rows))]
    assert found == [REPRODUCED, NOT_REPRODUCED, NOT_REPRODUCED, REPRODUCED]
    [table] = study.tables(rows)
    assert [bool(row[-1]) for row in table.cells] == [False, True, True, False, True, True]
