"""The blow-up function: which instances are the paper's, and what a sum of masses says."""

import pytest
from studies.blow_up import OURS, SAMPLED_NOISE, STOCK, findings, tables
from studies.runner.findings import NOT_REPRODUCED, REPRODUCED, judged


def rows(wholes, sampled=0.5):
    found = []
    for size, sums in wholes.items():
        for noise, whole in zip((9.0, SAMPLED_NOISE), sums, strict=True):
            common = {"rows": size, "noise": noise, "interval": 1e-2, "posterior": 0.5}
            found += [
                common | {"what": STOCK["add"], "whole": whole},
                common | {"what": STOCK["remove"], "whole": 1.0},
                common | {"what": OURS, "whole": 1.0},
            ]
        for key in (1, 2):
            common = {"rows": size, "noise": SAMPLED_NOISE, "what": "sampled"}
            found.append(common | {"key": key, "posterior": sampled + key / 1e4})
    return found


def papers(made):
    return [each.verdict for each in judged(findings(made)) if not each.finding.is_beyond]


@pytest.mark.parametrize(
    ("wholes", "expected"),
    [
        ({1: (1.0, 1.000001), 100: (1.0, 2e4)}, [REPRODUCED] * 3),
        ({1: (1.0, 1.000001), 100: (1.0, 25.0)}, [REPRODUCED, REPRODUCED, NOT_REPRODUCED]),
        (
            {1: (1.0, 1.000001), 100: (1e-33, 1e-30)},
            [REPRODUCED, REPRODUCED, NOT_REPRODUCED],
        ),  # lost, not inflated
        ({1: (1.0, 1.5), 100: (0.999, 1.001)}, [NOT_REPRODUCED] * 3),
    ],
)
def test_verdicts_follow_the_sum_that_is_farthest_from_1(wholes, expected):
    assert papers(rows(wholes)) == expected


def test_a_sampled_posterior_stands_beside_its_noise_alone():
    table = tables(rows({100: (1.0, 2e4)}))[0]
    assert [(line[1], line[-1]) for line in table.cells if line[2] == OURS] == [("9", ""), ("1.5", "0.5")]
    assert "of 20,000 and more with about 100" in table.note


def test_stability_is_judged_where_samples_are():
    made = rows({100: (1.0, 2e4)})
    for row in made:
        if row["noise"] == 9.0:
            row["posterior"] = 0.1
    stable = next(each for each in judged(findings(made)) if "stable" in each.finding.claim)
    assert stable.verdict == REPRODUCED


def test_that_a_bound_of_1_is_as_stable_as_a_share_of_1_is_a_check():
    made = rows({100: (0.0, 0.0)})
    assert not any(each.is_check for each in findings(made))
    for row in made:
        row["posterior"] = 1.0
    assert [each.is_check for each in findings(made)] == [False, False, False, True]
