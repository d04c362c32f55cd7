"""The study of more users: its noise is what accounting says, its claims against made-up losses."""

import numpy as np
import pytest
from studies.runner.findings import NOT_REPRODUCED, REPRODUCED, judged
from studies.runner.users import ELS, ULS

from confide.data.shape import Shape
from confide.planning.account import Asked, account
from studies import users_what_if as study

ROWS = np.array([1, 3, 8, 9] * 16)
SHAPE = Shape(ROWS, int(ROWS.sum()), 0, single_owner=True)


@pytest.mark.parametrize("times", [1, 10])
@pytest.mark.parametrize("kind", [ELS, ULS])
def test_noise_is_that_of_an_account_for_so_many_users(kind, times):
    asked = {"train.steps": 8, study.K: 4, study.TIMES: times, study.BUDGET: 32, "train.schedule": "linear"}
    found = study.accounted(kind, SHAPE, asked)
    many = {"epsilon": study.EPSILON, "delta": study.DELTA, "steps": 8}
    if kind == ELS:
        in_use = times * 16 * (1 + 3 + 4 + 4)
        known = account(Asked("els", rows=in_use, rows_per_unit=4, batch=32, **many))
    else:
        known = account(Asked("uls", units=times * 64, batch=8, **many))
    assert found == {
        "train.steps": 8,
        "train.schedule": "linear",
        study.K: 4,
        "train.batch": 32.0 if kind == ELS else 8.0,
        "privacy.noise_multiplier": known.noise_multiplier,
    }


def rows(loss):
    """Made-up runs: `loss` of (arm, times, budget), and a little by key."""
    return [
        {
            "arm": arm,
            study.TIMES: times,
            study.BUDGET: budget,
            "part": "test",
            "key": key,
            "loss": loss(arm, times, budget) + key / 1000,
            "epsilon": 4.0 * times,
            "noise_multiplier": 1.5 if arm == ELS else 1.25,
            "rows_per_unit": 54 if arm == ELS else None,
            "settings": '{"privacy.rows_per_unit": "median"}'
            if arm == ELS
            else '{"privacy.rows_per_unit": 4}',
        }
        for arm in (ELS, ULS)
        for times in (1, 10, 100)
        for budget in (24, 384)
        for key in (1, 2, 3)
    ]


def verdicts(found):
    return [each.verdict for each in judged(study.findings(found))]


def test_claims_follow_the_outcome():
    def as_in_the_paper(arm, times, budget):
        by_users, by_compute = (0.2, 0.1) if arm == ELS else (0.1, 0.2)
        return 3.0 - by_users * np.log10(times) - by_compute * np.log2(budget)

    assert verdicts(rows(as_in_the_paper)) == [REPRODUCED] * 5
    swapped = rows(lambda arm, times, budget: as_in_the_paper(ULS if arm == ELS else ELS, times, budget))
    assert verdicts(swapped) == [NOT_REPRODUCED] * 5


def test_the_table_says_what_each_run_may_claim():
    (table,) = study.tables(rows(lambda arm, times, budget: 2.0))
    assert [line[0] for line in table.cells] == ["x1", "x1", "x10", "x10", "x100", "x100"]
    assert table.cells[-1][-2:] == ["epsilon 400", "epsilon 400"]
    assert table.cells[-1][5:-2] == ["54", "4", "1.5", "1.25"]
    assert {len(line) for line in table.cells} == {len(table.columns)}
