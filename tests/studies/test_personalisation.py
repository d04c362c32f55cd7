"""The study of personalisation: its claims against made-up losses, and results of its own for other settings."""

from studies.personalisation import Personalising
from studies.runner.findings import NOT_REPRODUCED, REPRODUCED, judged
from studies.runner.training import Trained
from studies.runner.users import ELS, ULS

from studies import personalisation as study


def rows(losses):
    """Made-up models: (before, after) by arm, to which as much is added by key, so that gaps stay."""
    return [
        {
            "arm": arm,
            study.EPSILON: 8.0,
            study.STEPS: 16,
            "part": "test",
            "key": key,
            "users": 40,
            "before": before + key / 1000,
            "after": after + key / 1000 + key / 10000,
            "improved": 30,
        }
        for arm, (before, after) in losses.items()
        for key in (1, 2, 3)
    ]


def verdicts(losses):
    return [each.verdict for each in judged(study.findings(rows(losses)))]


def test_claims_follow_the_outcome():
    assert verdicts({ELS: (3.0, 2.5), ULS: (2.9, 2.4)}) == [REPRODUCED] * 4
    assert verdicts({ELS: (3.0, 3.1), ULS: (3.1, 3.3)}) == [NOT_REPRODUCED] * 4


def test_a_smaller_gain_is_not_the_same_gap():
    found = verdicts({ELS: (3.0, 2.5), ULS: (2.6, 2.5)})
    assert found == [REPRODUCED, REPRODUCED, NOT_REPRODUCED, REPRODUCED]


def test_the_table_has_losses_and_the_difference_of_the_gaps():
    els, uls = study.tables(rows({ELS: (3.0, 2.5), ULS: (2.9, 2.4)}))[0].cells
    assert els[:5] == ["8", "16", ELS, "3.002", "2.502"]
    assert els[6:] == ["", "75%"]
    assert uls[6].startswith("-0.0%") or uls[6].startswith("+0.0%")


def test_what_else_is_measured_has_a_result_of_its_own(tmp_path):
    run = Trained.of({}, {"train": {"steps": 1}}, False, True, tmp_path)
    afters = [Personalising(2, 1, (0.01,)), Personalising(2, 1, (0.02,)), Personalising(3, 1, (0.01, 0.02))]
    results = {run.result, *(run.followed(after).result for after in afters)}
    assert len(results) == 4
