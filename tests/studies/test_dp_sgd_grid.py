"""The grid of batches and epochs: steps of an epoch, and what follows from made-up losses."""

import math

import pytest
from studies.runner.findings import NOT_REPRODUCED, REPRODUCED, judged

from studies import dp_sgd_grid as study


def rows(loss):
    return [
        {
            "text": "articles",
            "arm": study.ARM,
            study.EPOCHS: epochs,
            study.BATCH: batch,
            "key": key,
            "part": "test",
            "settings": '{"train.learning_rate": 0.005}',
            "loss": loss(math.log(epochs), math.log(batch / 256)) + key / 10000,
        }
        for epochs in (1, 3, 9)
        for batch in (256, 512, 1024)
        for key in (1, 2, 3)
    ]


def test_an_epoch_is_as_many_steps_as_batches_in_the_rows():
    keys = {study.EPOCHS: 3, study.BATCH: 256, "privacy.epsilon": 3.0}
    assert study.with_steps(keys, 1024) == {study.BATCH: 256, "privacy.epsilon": 3.0, "train.steps": 12}
    assert study.with_steps({study.EPOCHS: 1, study.BATCH: 1024}, 100)["train.steps"] == 1


def test_gains_diminish_where_the_loss_flattens():
    bent = rows(lambda epochs, batch: 5 - 0.3 * epochs + 0.05 * epochs**2)
    assert study.diminishing(bent, 256) == pytest.approx([0.05 * 2 * math.log(3)] * 3)
    assert study.diminishing(rows(lambda epochs, batch: 5 - 0.3 * epochs), 256) == pytest.approx([0] * 3)


def test_claims_follow_the_losses():
    as_claimed = rows(
        lambda epochs, batch: (
            5 - 0.3 * epochs + 0.05 * epochs**2 - 0.005 * batch - 0.004 * (2 * math.log(3) - epochs) * batch
        )
    )
    assert [each.verdict for each in judged(study.findings(as_claimed))] == [REPRODUCED] * 9
    otherwise = rows(lambda epochs, batch: 5 + 0.3 * epochs + 0.05 * epochs**2 + 0.1 * batch)
    found = [each.verdict for each in judged(study.findings(otherwise))]
    # The loss rises ever faster, so a gain that shrinks is still what saturation says.
    assert found == [NOT_REPRODUCED, REPRODUCED] * 3 + [NOT_REPRODUCED] * 3


def test_batches_help_over_all_epochs_and_are_alike_after_the_most():
    """Where large batches are few steps, they are worse after few epochs and as good in the end."""
    made = rows(lambda epochs, batch: 5 - 0.3 * epochs + 0.1 * batch * (2 * math.log(3) - epochs))
    helps, interact, alike = judged(study.findings(made))[-3:]
    assert (helps.verdict, interact.verdict, alike.verdict) == (NOT_REPRODUCED, REPRODUCED, REPRODUCED)
    assert interact.finding.values == pytest.approx(
        [0.1 * math.log(4) * 2 * math.log(3)] * 3
    )  # whatever its sign
    assert helps.finding.values == pytest.approx([0.1 * math.log(3)] * 3)
    after = math.expm1(0.1 * math.log(4) * 2 * math.log(3))
    assert f"with 1,024 rows a step, less that with 256, is +{after:.1%}" in study.tables(made)[0].note


def test_the_tables_have_every_cell_and_the_papers_beside():
    grid, tried = study.tables(rows(lambda epochs, batch: 4.0))
    assert len(grid.cells) == 9 + len(study.PAPER)
    assert grid.cells[0][0::3] == ["256", "0.005"]
    assert ["1,024", "600", "27.01 (paper, GPT-2 small)", ""] in grid.cells
    assert dict(line[:2] for line in tried.cells) == {
        "epsilon": "3",
        "clip norm": "0.1",
        "batch": "256, 512, 1024",
        "learning rate": "0.005",
        "epochs": "1, 3, 9",
    }
