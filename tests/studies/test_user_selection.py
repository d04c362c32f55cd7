"""The study of which rows to take: what the rules' rows are like, beside made-up ones."""

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
