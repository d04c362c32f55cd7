"""The study of masks: what it masks, and what its arms differ by."""

import re

import pytest
from studies.runner.findings import NOT_REPRODUCED, REPRODUCED, judged
from studies.runner.grid import nested
from studies.runner.study import Scale, Work

from studies import mask_token as study


def test_the_share_counts_the_characters_of_all_kinds_once():
    assert study.masked_share(["Ann saw 12", "and so on!"]) == (3 + 2) / 20
    assert study.masked_share(["the town of New York had it in 1920 and 7 more"]) == (8 + 2 + 4 + 1) / 46


def test_no_two_kinds_meet_in_one_place():
    """Where two did, the place would have the one mask also in the arm that tells kinds."""
    text = "In 1920 Ann Lee , who had 3 cats and 12345 mice , sold them to 1900s Mr. Bob"
    taken = [
        i
        for e in study.EXPRESSIONS.values()
        for m in re.finditer(e, text)
        for i in range(m.start() - 1, m.end())
    ]
    assert len(taken) == len(set(taken))


def test_the_arms_differ_by_their_masks_alone(tmp_path):
    kinds, one, none = (nested(arm.keys) for arm in study.grid(Work(None, tmp_path, Scale.SMALL)).arms)
    assert kinds["detector"].pop("masks") == {kind: f"<{kind}>" for kind in study.EXPRESSIONS}
    assert kinds == one
    assert none == {"privacy": {"mechanism": "none"}}


def rows(losses):
    return [
        {
            "arm": arm,
            "key": key,
            "part": "test",
            "settings": '{"train.learning_rate": 0.002}',
            "loss": loss + key / 10000,
        }
        for arm, loss in losses.items()
        for key in (1, 2, 3)
    ] + [{"part": "train", "share": 0.25}]


def test_claims_follow_the_losses():
    for losses, verdict in (((4.5, 4.0, 3.5), REPRODUCED), ((4.0, 4.5, 5.0), NOT_REPRODUCED)):
        made = rows(dict(zip((study.KINDS, study.ONE, study.NONE), losses, strict=True)))
        assert [each.verdict for each in judged(study.findings(made))] == [verdict] * 2
    table = study.tables(made)[0]
    assert [line[-1] for line in table.cells] == ["64.82", "37.90", ""]
    assert "Masked: 25.0% of the characters" in table.note


@pytest.mark.parametrize("kind", study.EXPRESSIONS)
def test_every_kind_is_found(kind):
    text = "In 1920 Ann Lee , who had 3 cats , sold them"
    assert re.search(study.EXPRESSIONS[kind], text)
