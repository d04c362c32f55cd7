"""The study of which rows to take: what the rules' rows are like, beside made-up ones."""

import pytest
from studies.runner.findings import NOT_REPRODUCED, REPRODUCED, judged

from studies import user_selection as study


def rows(**of_rule):
    """Made-up rows that rules take: the share that is shorter than allowed, and the median perplexity."""
    return [
        {"text": "newsgroups", "part": study.CHOSEN, "arm": rule, "rows": 9, "length": 60.0}
        | {"shorter": shorter, "median": median, "perplexity": 1e8}
        for rule, (shorter, median) in of_rule.items()
    ]


def test_that_the_longest_rows_are_long_is_a_check_and_that_they_are_easy_a_finding():
    found = judged(study._of_chosen(rows(longest=(0.1, 150.0), random=(0.2, 170.0)), "newsgroups"))
    assert [(each.finding.is_check, each.verdict) for each in found] == [
        (True, REPRODUCED),
        (False, REPRODUCED),
    ]
    found = judged(study._of_chosen(rows(longest=(0.2, 180.0), random=(0.2, 170.0)), "newsgroups"))
    assert [each.verdict for each in found] == [NOT_REPRODUCED] * 2


def test_the_table_shows_medians_as_few_rows_rule_the_mean():
    table = study._chosen_table(rows(longest=(0.1, 150.0), random=(0.2, 170.0)), "newsgroups")
    assert table.cells[0][:5] == ["longest", "9", "60.0", "150.0", "0.10"]
    assert {len(line) for line in table.cells} == {len(table.columns)}


@pytest.mark.parametrize(("user_wise", "verdict"), [(4.0, REPRODUCED), (4.1, NOT_REPRODUCED)])
def test_mechanisms_are_compared_where_both_read_random_rows(user_wise, verdict):
    losses = {study.name(study.GROUP, "random"): 4.0, study.name(study.ULS, "random"): user_wise}
    made = [
        {"text": "newsgroups", "part": "test", "arm": arm, study.EPSILON: 1.0, "key": key}
        | {"loss": loss + key / 1000}
        for arm, loss in losses.items()
        for key in (1, 2, 3)
    ]
    (found,) = judged([study._mechanisms(made, "newsgroups", 1.0)])
    assert (found.verdict, found.finding.is_beyond) == (verdict, True)
