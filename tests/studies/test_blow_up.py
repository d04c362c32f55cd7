"""The blow-up function: which instances are the paper's, and what a sum of masses says."""

import pytest
from studies.blow_up import OURS, STOCK, findings, tables
from studies.runner.findings import NOT_REPRODUCED, REPRODUCED, judged


def rows(wholes, sampled=0.5):
    found = []
    for size, sums in wholes.items():
        for interval, whole in zip((1e-2, 1e-3), sums, strict=True):
            common = {"rows": size, "interval": interval, "posterior": 0.5}
            found += [common | {"what": STOCK, "whole": whole}, common | {"what": OURS, "whole": 1.0}]
        for key in (1, 2):
            found.append({"rows": size, "what": "sampled", "key": key, "posterior": sampled + key / 1e4})
    return found


def papers(made):
    return [each.verdict for each in judged(findings(made)) if not each.finding.is_beyond]


@pytest.mark.parametrize(
    ("wholes", "expected"),
    [
        ({1: (1.0, 1.000001), 100: (1.0, 2e4)}, [REPRODUCED] * 3),
        (
            {1: (1.0, 1.000001), 100: (1e-33, 1e-30)},
            [REPRODUCED, REPRODUCED, NOT_REPRODUCED],
        ),  # lost, not inflated
        ({1: (1.0, 1.5), 100: (0.999, 1.001)}, [NOT_REPRODUCED] * 3),
    ],
)
def test_verdicts_follow_the_sum_that_is_farthest_from_1(wholes, expected):
    assert papers(rows(wholes)) == expected


def test_other_numbers_of_rows_than_the_papers_are_beyond_it():
    found = findings(rows({1: (1.0, 1.0), 10: (1.7, 12.1), 100: (0.0, 0.0)}))
    assert all(each.is_beyond for each in found if "10 rows" in each.claim)
    assert sum(each.is_beyond for each in found) == 5
    assert "of 20,000 and more with about 100" in tables(rows({1: (1.0, 1.0)}))[0].note


def test_that_a_bound_of_1_is_as_stable_as_a_share_of_1_is_a_check():
    made = rows({100: (0.0, 0.0)})
    assert not any(each.is_check for each in findings(made))
    for row in made:
        row["posterior"] = 1.0
    assert [each.is_check for each in findings(made)] == [False, False, True]
