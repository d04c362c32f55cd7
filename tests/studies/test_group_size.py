"""The study of group sizes: what the median is held against, and the claims against made-up losses."""

import pytest
from studies.runner.findings import NOT_REPRODUCED, REPRODUCED, judged

from studies import group_size as study

ARMS = (study.group(1), study.group(8), study.group(64), study.MEDIAN)


def rows(losses, trials=None):
    """Made-up runs at two epsilons.

    Args:
        losses: (arm, epsilon) -> test loss, to which a little is added by key.
        trials: the same of validation losses, of two rates the better one; the test losses by default.
    """
    found = []
    for arm in ARMS:
        for epsilon in (1.0, 16.0):
            row = {"text": "newsgroups", "arm": arm, "privacy.epsilon": epsilon, "rows_per_unit": 8}
            best = (trials or losses)[arm, epsilon]
            found += [row | {"key": 0, "part": "validation", "loss": best + more} for more in (0.0, 0.5)]
            found += [
                row | {"key": key, "part": "test", "loss": losses[arm, epsilon] + key / 1000}
                for key in (1, 2, 3)
            ]
    return found


def at(one, eight, most, median):
    """Return losses by arm: a pair each, of epsilon 1 and 16."""
    pairs = dict(zip(ARMS, (one, eight, most, median), strict=True))
    return {(arm, epsilon): pairs[arm][i] for arm in ARMS for i, epsilon in enumerate((1.0, 16.0))}


def verdicts(found):
    return [each.verdict for each in judged(study.findings(found))]


def test_claims_follow_the_outcome():
    as_in_the_paper = at((2.0, 2.0), (1.9, 1.8), (2.2, 1.8), (1.905, 1.805))
    assert verdicts(rows(as_in_the_paper)) == [REPRODUCED] * 4
    otherwise = at((2.0, 2.0), (1.9, 1.8), (2.2, 2.205), (1.95, 1.85))
    assert verdicts(rows(otherwise)) == [NOT_REPRODUCED] * 4


def test_dependence_on_epsilon_has_no_direction():
    dearer_at_the_large_one = at((2.0, 2.2), (1.9, 1.8), (2.0, 2.3), (1.9, 1.8))
    depends, costs_more = judged(study.findings(rows(dearer_at_the_large_one)))[2:]
    assert (depends.verdict, depends.finding.is_beyond) == (REPRODUCED, False)
    assert (costs_more.verdict, costs_more.finding.is_beyond) == (NOT_REPRODUCED, True)
    assert depends.interval == pytest.approx(tuple(-limit for limit in reversed(costs_more.interval)))


def test_the_median_is_held_against_what_validation_text_chose():
    tests = at((2.0, 2.0), (1.9, 1.9), (2.2, 2.2), (2.0, 2.0))
    validation = at((1.5, 2.0), (1.9, 1.9), (2.2, 2.2), (1.0, 1.0))
    found = rows(tests, validation)
    assert study.best(found, "newsgroups", 1.0) == study.group(1)
    assert study.best(found, "newsgroups", 16.0) == study.group(8)
    assert verdicts(found)[:2] == [REPRODUCED, NOT_REPRODUCED]


def test_the_table_marks_it_and_says_what_the_median_came_to():
    losses = at((2.0, 2.0), (1.9, 1.9), (2.2, 2.2), (2.0, 2.0))
    lines = {line[0]: line for line in study.tables(rows(losses))[0].cells}
    assert [line[2].endswith("*") for line in lines.values()] == [False, True, False, False]
    assert lines[study.MEDIAN][1] == "8"
    assert lines[study.MEDIAN][4:] == ["", ""]
    assert lines[study.group(64)][4].startswith("+22.1%")
