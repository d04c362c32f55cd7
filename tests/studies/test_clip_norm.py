"""The study of clip norms: its findings, table and picture against made-up losses."""

import math

import pytest
from studies.runner.findings import NOT_REPRODUCED, REPRODUCED, judged
from studies.runner.users import GROUP

from studies import clip_norm as study

CLIPS, BATCHES, KEYS = (0.1, 1.0, 10.0), (64, 256), (1, 2, 3)


def rows(bend, gain):
    """Made-up losses: a bowl over clip norms, of depth `bend(mechanism)`, that falls by `gain` a factor e of rows."""
    return [
        {
            "text": "newsgroups",
            "arm": f"{mechanism}, {optimiser}",
            "privacy.epsilon": 1.0,
            study.CLIP: clip,
            study.ROWS: batch,
            "key": key,
            "part": "test",
            "settings": '{"train.learning_rate": 0.5}',
            "rows_per_unit": 5 if mechanism == GROUP else None,
            "loss": 4 + bend(mechanism) * math.log10(clip) ** 2 - gain * math.log(batch / 64) + key / 1000,
        }
        for mechanism in study.MECHANISMS
        for optimiser in study.OPTIMISERS
        for clip in CLIPS
        for batch in BATCHES
        for key in KEYS
    ]


def test_spread_and_best_are_over_clip_norms_of_one_key():
    made = rows(lambda mechanism: 0.5, 0.1)
    made[0]["loss"] += 1  # group privacy with SGD, clip norm 0.1, 64 rows, key 1
    arm = f"{GROUP}, SGD"
    assert study.spread(made, arm, 64) == pytest.approx({1: 1.5, 2: 0.5, 3: 0.5})
    assert study.best(made, arm, 64) == pytest.approx({1: 4.001, 2: 4.002, 3: 4.003})


def test_claims_follow_the_losses():
    as_claimed = rows(lambda mechanism: 0.5 if mechanism == GROUP else 0.1, 0.1)
    assert [each.verdict for each in judged(study.findings(as_claimed))] == [REPRODUCED] * 8
    otherwise = rows(lambda mechanism: 0.1 if mechanism == GROUP else 0.5, -0.1)
    assert [each.verdict for each in judged(study.findings(otherwise))] == [NOT_REPRODUCED] * 8


def test_the_table_ends_each_arm_with_worst_over_best_and_the_picture_has_a_panel_for_each():
    made = rows(lambda mechanism: 0.5, 0.1)
    cells = study.tables(made)[0].cells
    assert len(cells) == 4 * (len(CLIPS) + 1)
    assert cells[3] == [f"{GROUP}, SGD", "0.5", "worst / best", "1.65", "1.65"]
    made[0]["loss"] = 1e4  # whose exponential no float holds
    (table,) = study.tables(made)
    assert table.cells[0][3] == "worse than guessing"
    assert table.cells[3][3] == f"{math.exp((study.GUESSING - 4.001 + 1.0) / 3):.2f}"  # one key of three
    assert "k = 5 rows" in table.note
    (plot,) = study.plots(made)
    assert all(f"{GROUP}, {optimiser}" in plot.svg for optimiser in study.OPTIMISERS)


def test_the_picture_leaves_out_what_is_worse_than_guessing_and_has_one_scale():
    made = rows(lambda mechanism: 0.5 if mechanism == GROUP else 0.1, 0.1)
    (whole,) = study.plots(made)
    for row in made:
        if (row["arm"], row[study.CLIP], row[study.ROWS]) == (f"{GROUP}, SGD", 0.1, 64):
            row["loss"] = 7.0
    (plot,) = study.plots(made)
    assert whole.svg.count("<circle") == plot.svg.count("<circle") + 1
    assert "512" not in plot.svg.replace("M512", "")
    ticks = [line for line in whole.svg.splitlines() if line.endswith(">64</text>")]
    assert len({line.split('y="')[1].split('"')[0] for line in ticks}) == 1
    assert len(ticks) == 4  # in all panels
