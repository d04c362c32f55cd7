"""Group privacy or user-wise DP-SGD: the claims follow made-up losses, that of ELS between the two as well."""

import pytest
from studies.runner.findings import NOT_REPRODUCED, REPRODUCED, judged
from studies.runner.grid import NOTHING
from studies.runner.users import ELS, GROUP, ULS

from studies import group_or_user as study

TEXT = "newsgroups"


def made(losses):
    """Rows of made-up runs at two epsilons."""
    return [
        {
            "text": TEXT,
            "arm": arm,
            "privacy.epsilon": epsilon,
            "key": key,
            "part": "test",
            "loss": loss + key / 10000,
            "noise_multiplier": 1.5,
            "rows_per_unit": 5 if arm in (GROUP, study.GROUP_ALIKE) else None,
            "settings": '{"privacy.rows_per_unit": 2, "train.learning_rate": 0.005}',
        }
        for arm, loss in losses.items()
        for epsilon in (1.0, 8.0)
        for key in (1, 2, 3)
    ]


def between(group, els, uls):
    """The verdicts on ELS between the two, of made-up runs at two epsilons: not worse than group, not better."""
    rows = made({GROUP: group, ELS: els, ULS: uls})
    found = [each for each in judged(study.findings(rows)) if each.finding.family.endswith("ELS between")]
    assert {each.finding.family for each in found} == {f"{TEXT}, ELS between"}
    assert len(found) == 4
    return [each.verdict for each in found[:2]]


@pytest.mark.parametrize(
    ("losses", "verdicts"),
    [
        ((4.2, 4.1, 4.0), [REPRODUCED, REPRODUCED]),
        ((4.2, 4.3, 4.0), [NOT_REPRODUCED, REPRODUCED]),
        ((4.2, 3.9, 4.0), [REPRODUCED, NOT_REPRODUCED]),
        ((4.0, 4.005, 4.0), [REPRODUCED, REPRODUCED]),  # less than 1% of the perplexity apart
    ],
)
def test_els_lies_between_unless_it_is_worse_than_group_or_better_than_user_wise(losses, verdicts):
    assert between(*losses) == verdicts


@pytest.mark.parametrize(("uls", "verdict"), [(4.0, REPRODUCED), (4.3, NOT_REPRODUCED)])
def test_arms_that_read_random_rows_are_compared_by_themselves(uls, verdict):
    losses = {GROUP: 4.4, ELS: 4.1, ULS: 4.0, study.GROUP_ALIKE: 4.1, study.ULS_ALIKE: uls}
    found = [each for each in judged(study.findings(made(losses))) if each.finding.family.endswith("alike")]
    assert [each.verdict for each in found] == [verdict] * 2
    assert all(each.finding.is_beyond for each in found)


def test_the_table_says_which_rows_each_arm_reads_and_what_it_is_held_against():
    losses = {GROUP: 4.4, ELS: 4.1, ULS: 4.0, study.GROUP_ALIKE: 4.1, study.ULS_ALIKE: 4.1}
    untrained = {"text": TEXT, "arm": NOTHING, "privacy.epsilon": None, "key": 0, "part": "test", "loss": 5.0}
    (table,) = study.tables([untrained, *made(losses)])
    assert {len(line) for line in table.cells} == {len(table.columns)}
    lines = {line[1]: line for line in table.cells if line[0] == "8"}
    assert [lines[arm][2] for arm in (GROUP, study.GROUP_ALIKE)] == ["longest", "random, fixed before"]
    assert [lines[arm][3] for arm in (GROUP, ULS)] == ["5", "2"]
    assert lines[GROUP][7] == ""
    assert lines[ULS][7].startswith("-33.0%")  # 4.0 against 4.4
    assert lines[study.ULS_ALIKE][7].startswith("+0.0%")  # against group privacy with random rows
    assert (lines[GROUP][8:], lines[ULS][8:]) == (["28.51", "27.00", "28.34"], ["28.32", "27.02", "28.07"])
    (older,) = study.tables([untrained, *made({GROUP: 4.4, ELS: 4.1, ULS: 4.0})])
    assert [line[1] for line in older.cells] == [GROUP, ELS, ULS] * 2
    assert "both read random rows" in table.note
    assert "both read random rows" not in older.note
