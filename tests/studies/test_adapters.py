"""The study of adapters: its arms have equal budgets, and claims follow made-up losses."""

import math

from studies.runner.findings import NOT_REPRODUCED, REPRODUCED, judged
from studies.runner.grid import NOTHING
from studies.runner.study import Scale, Work

from studies import adapters as study


def rows(losses, before=5.0):
    untrained = {
        "text": study.TEXT,
        "arm": NOTHING,
        "key": 0,
        "part": "test",
        "loss": before,
        study.EPSILON: None,
    }
    return [untrained] + [
        {
            "text": study.TEXT,
            "arm": arm,
            study.EPSILON: 8.0,
            "key": key,
            "part": "test",
            "settings": '{"train.learning_rate": 0.004}',
            "loss": loss + key / 10000,
        }
        for arm, loss in losses.items()
        for key in (1, 2, 3)
    ]


def made(full, *at_ranks):
    return rows({study.FULL: full} | dict(zip(map(study.lora, (64, 16)), at_ranks, strict=True)))


def test_ranks_are_read_from_the_arms_the_largest_first():
    assert study.ranks(made(4.0, 4.01, 4.02)) == [64, 16]


def test_claims_follow_the_losses():
    assert [each.verdict for each in judged(study.findings(made(4.0, 4.01, 4.03)))] == [REPRODUCED] * 5
    assert [each.verdict for each in judged(study.findings(made(4.0, 3.8, 3.7)))] == [
        REPRODUCED,
        REPRODUCED,
        REPRODUCED,
        NOT_REPRODUCED,
        NOT_REPRODUCED,
    ]
    assert [each.verdict for each in judged(study.findings(made(4.0, 4.2, 4.3)))][1:3] == [NOT_REPRODUCED] * 2


def test_what_teaches_nothing_costs_nothing():
    found = judged(
        study.findings(rows({study.FULL: 4.0, "LoRA, r = 64": 4.01, "LoRA, r = 16": 4.02}, before=4.0))
    )
    assert [each.verdict for each in found] == [NOT_REPRODUCED]


def test_a_part_of_the_weights_is_held_against_all_of_them():
    found = {study.FULL: 4.0, "LoRA, r = 64": 4.0, "LoRA, r = 16": 4.0, study.BLOCKS: 3.9, study.UPPER: 4.1}
    at_eight = rows(found)
    assert [each.verdict for each in judged(study.findings(at_eight))][-2:] == [REPRODUCED, NOT_REPRODUCED]
    without = [
        row | {study.EPSILON: math.inf} for row in rows(found | {study.BLOCKS: 3.95, study.UPPER: 4.0})
    ]
    claims = {each.finding.claim: each.verdict for each in judged(study.findings(at_eight + without))}
    control = (
        "The gap to training every weight is smaller at epsilon 8 than without noise, where this alone trains"
    )
    control += ": {}."
    assert claims[control.format(study.BLOCKS)] == REPRODUCED
    assert claims[control.format(study.UPPER)] == NOT_REPRODUCED
    assert [line[1] for line in study.tables(rows(found))[0].cells][-2:] == [study.BLOCKS, study.UPPER]


def test_the_table_has_the_papers_number_beside_each_rank():
    cells = study.tables(made(4.0, 4.01, 4.03))[0].cells
    assert [line[1] for line in cells] == [study.FULL, "LoRA, r = 64", "LoRA, r = 16"]
    assert cells[0][3] == ""
    assert cells[1][3].startswith("+1.0%")
    assert [line[-1] for line in cells] == ["18.53 / 23.79", "18.83 / 24.07", "19.39 / 24.31"]


def test_each_arm_trains_its_own_part_with_as_many_rows(tmp_path):
    grid = study.grid(Work(None, tmp_path, Scale.SMALL))
    keys = [arm.derived({**grid.keys, **arm.keys, study.EPSILON: math.inf}) for arm in grid.arms]
    assert [(each["adapter.kind"], each.get("adapter.rank")) for each in keys] == [
        ("full", None),
        ("lora", 64),
        ("lora", 32),
        ("lora", 16),
        ("matrices", None),
        ("modules", None),
        ("modules", None),
    ]
    assert [each.get("adapter.targets") for each in keys[5:]] == [["h"], ["h.2", "h.3"]]
    assert [arm.options["train.learning_rate"] for arm in grid.arms[4:]] == [(1e-3, 2e-3, 4e-3)] * 3
    assert {each["train.batch"] for each in keys} == {48.0}
