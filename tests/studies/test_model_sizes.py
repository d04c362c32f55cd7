"""The study of model sizes: each model is judged by its own runs."""

import pytest
from studies.runner.findings import NOT_REPRODUCED, REPRODUCED, judged
from studies.runner.grid import NOTHING
from studies.runner.users import GROUP, ULS

from studies import model_sizes as study


def rows(loss, before=5.0):
    untrained = {
        "arm": NOTHING,
        "key": 0,
        "part": "test",
        "loss": before,
        "text": "newsgroups",
        "settings": "{}",
    }
    untrained |= {study.EPSILON: None, study.K: None}
    return [{**untrained, "model": model} for model in ("small", "large")] + [
        {
            "text": "newsgroups",
            "model": model,
            "arm": arm,
            study.EPSILON: epsilon,
            study.K: k,
            "key": key,
            "part": "test",
            "settings": "{}",
            "loss": loss(model, arm, epsilon, k) + key / 10000,
        }
        for model in ("small", "large")
        for arm in (GROUP, ULS)
        for epsilon in (1.0, 8.0)
        for k in (2, 10)
        for key in (1, 2, 3)
    ]


def as_claimed(model, arm, epsilon, k):
    if arm == ULS:
        return 4 - k / 100
    return 4 + (k / 100 if epsilon == 1.0 else -k / 100)


def test_claims_are_judged_for_each_model_by_itself():
    found = [each.verdict for each in judged(study.findings(rows(as_claimed)))]
    assert found == [REPRODUCED] * 14  # of each model four that it learns, and three of the paper
    only_small = rows(lambda model, *at: as_claimed(model, *at) * (1 if model == "small" else -1))
    found = [each.verdict for each in judged(study.findings(only_small))]
    assert found == [REPRODUCED] * 11 + [NOT_REPRODUCED] * 3


def test_where_nothing_is_learnt_nothing_is_claimed_of_k():
    found = judged(study.findings(rows(as_claimed, before=3.5)))
    assert [each.verdict for each in found] == [NOT_REPRODUCED] * 8
    assert all("teaches something" in each.finding.claim for each in found)


def test_more_rows_are_held_against_fewer_of_the_same_key():
    assert study.more(rows(as_claimed), "large", ULS, 1.0) == pytest.approx([-0.08] * 3)


def test_each_table_has_a_line_for_each_model_and_epsilon():
    tables = study.tables(rows(as_claimed))
    assert [len(table.cells) for table in tables] == [4, 4]
    assert tables[0].cells[0][-1] == study.PAPER[GROUP, 1.0]
    assert tables[1].cells[-1][:2] == ["large", "8"]
