"""The study of gradients that are multiplied before they are clipped: its arms, and its claims of made-up losses."""

from studies.parts import short_runs
from studies.runner.findings import NOT_REPRODUCED, REPRODUCED, UNDECIDED, judged
from studies.runner.study import Scale, Work

from studies import scales as study


def arms(text="newsgroups", scale=Scale.SMALL):
    return {arm.name: arm for grid in study.grids(Work(None, None, scale), text) for arm in grid.arms}


def test_one_arm_multiplies_nothing_one_the_rate_and_others_the_gradients():
    made = arms()
    assert tuple(made) == study.ARMS
    assert made[study.FASTER].keys["train.rate_factors"] == {"embeddings": 2.0}
    for name, scales in study.SCALES.items():
        assert made[name].keys["privacy.scales"] == scales
        assert "train.rate_factors" not in made[name].keys
    for name in (study.PLAIN, study.FASTER, study.COMMON):
        assert "privacy.scales" not in made[name].keys
    assert made[study.ALL].keys["privacy.scales"] == made[study.CHOSEN].keys["privacy.scales"]
    powers = {name: arm.keys.get("privacy.common_tokens") for name, arm in made.items()}
    assert {name for name, power in powers.items() if power} == {study.COMMON, study.ALL}
    assert powers[study.ALL] == powers[study.COMMON] == study.POWER


def test_the_helpdesk_has_the_settings_of_the_quickstart():
    for arm in arms(study.HELPDESK).values():
        assert (arm.keys["adapter.kind"], arm.keys["privacy.bands"]) == ("matrices", 8)
        assert arm.keys["privacy.sampling"] == "poisson"
    assert all("privacy.bands" not in arm.keys for arm in arms().values())


def test_every_arm_has_as_many_trials_and_the_same_rates():
    for text in ("newsgroups", study.HELPDESK):
        tried = [[each[short_runs.FACTOR] for each in arm.trials()] for arm in arms(text).values()]
        assert tried == [list(study.FACTORS[text])] * len(study.ARMS)


def test_every_arm_is_held_against_the_one_that_multiplies_nothing():
    losses = dict(zip(study.ARMS, (2.0, 2.0, 1.9, 1.9, 2.1, 1.9, 1.9, 1.8), strict=True))
    rows = [
        {"text": "newsgroups", "privacy.epsilon": 8.0, "train.steps": 32, "part": "test", "arm": arm}
        | {"key": key, "loss": losses[arm] + key / 1000, "settings": '{"rate_over_rule": 1.0}'}
        for arm in arms()
        for key in (1, 2, 3)
    ]
    found = [each.verdict for each in judged(study.findings(rows))]
    assert found == [NOT_REPRODUCED, REPRODUCED, REPRODUCED, NOT_REPRODUCED, *[REPRODUCED] * 4]
    assert UNDECIDED not in found
    [table] = study.tables(rows)
    assert [bool(row[-1]) for row in table.cells] == [False, *[True] * 7]
