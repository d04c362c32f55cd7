"""The study of a step's time: turns, ratios of the same turn, and that all ways compute the same rows."""

import math

import pytest
from studies.runner.findings import NOT_REPRODUCED, REPRODUCED, judged
from studies.runner.study import Scale, Work

from studies import step_time as study


def test_steps_are_taken_in_turns_whose_order_rotates():
    taken = []
    runners = {name: lambda number, name=name: taken.append((name, number)) for name in "abc"}
    rows = study.in_turns(runners, seeds=2, turns=2, column="arm")
    assert taken[:3] == [("a", 0), ("b", 0), ("c", 0)]  # to warm up
    assert "".join(name for name, _ in taken[3:]) == "abcbcacababc"
    assert [number for _, number in taken[3:]] == [1] * 3 + [2] * 3 + [3] * 3 + [4] * 3
    assert [row["key"] for row in rows] == [1] * 6 + [2] * 6
    assert all(row["seconds"] >= 0 for row in rows)


def test_every_arm_computes_the_same_rows_and_tokens(tmp_path):
    work = Work(None, tmp_path, Scale.TINY)
    reports = [study._steps(work, arm, 3, 2)(0) for arm in study.ARMS]
    assert {report.rows for report in reports} == {6}
    assert len({report.tokens for report in reports}) == 1
    assert reports[0].tokens >= 6 * (study.LENGTH - 4)
    assert [report.units for report in reports] == [3, 6, 3]


def rows(private, slope):
    """Made-up times: of a turn that is `turn` times as slow as the first, and of k to some power."""
    place = {"device": "CPU", "threads": 1, "cores": 2, "load": 6.3, "model": "bundled", "rows": 40}
    found = []
    for turn in range(6):
        for arm, factor in ((study.NONE, 1.0), (study.GROUP, private), (study.ULS, private)):
            common = place | {"what": study.OF_ARMS, "arm": arm, "key": turn // 2, "turn": turn}
            found.append(common | {"seconds": (turn + 1) * factor * (1 + 0.001 * turn * (arm != study.NONE))})
        for k in (1, 4, 16):
            found.append(
                place
                | {
                    "what": study.OF_K,
                    "k": k,
                    "key": turn // 2,
                    "turn": turn,
                    "seconds": (turn + 1) * k**slope,
                }
            )
    return found


def test_claims_follow_the_outcome():
    assert [each.verdict for each in judged(study.findings(rows(1.05, 0.8)))] == [REPRODUCED] * 3
    found = judged(study.findings(rows(1.3, -0.2)))
    assert [each.verdict for each in found] == [NOT_REPRODUCED] * 3
    assert found[0].finding.values[0] == pytest.approx(
        1.3, rel=0.001
    )  # of the same turn, though turns differ
    assert found[2].finding.values == pytest.approx([-0.2] * 3)
    assert math.isinf(found[0].finding.low)


def test_the_table_says_what_a_multiple_is_of():
    """A machine that is slow for a while: quotients of medians are others than those of the same turn."""
    made = rows(1.3, 0.8)
    slow = [row for row in made if row.get("arm") == study.NONE and row["turn"] in (2, 3)]
    for row in slow:
        row["seconds"] *= 3
    found = study.findings(made)
    table = study.tables([made[0] | {"k": 10}, *made[1:]])[0]
    assert len(table.cells[0]) == len(table.columns)
    multiple = sum(found[0].values) / 3
    assert table.cells[0][4].startswith(f"{multiple:.2f} (")
    seconds = [float(cell) for cell in table.cells[0][1:3]]
    quotient = f"{seconds[1] / seconds[0]:.2f}"
    assert quotient != f"{multiple:.2f}"
    assert f"({quotient} and " in table.note
    assert [line[-1] for line in table.cells[1:]] == ["1.07", "1.06", "1.09"]


def test_a_finding_says_on_what_machine_and_that_more_rows_take_longer_is_a_check():
    found = study.findings(rows(1.3, 0.8))
    assert "on CPU, 1 of 2 cores, which others kept busy (load 6.3)" in found[0].statistic
    assert [each.is_check for each in found] == [False, False, True]
