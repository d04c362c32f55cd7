"""A run goes on to its end whatever a unit's gradient is, and says of it nothing that leaves the house."""

import json

import pytest
import torch

from confide.runs.folder import Run
from confide.runs.loop import fine_tune
from confide.training.tasks import Task
from confide.utils.errors import Diverged
from tests.test_resume import config


@pytest.fixture
def unlucky(monkeypatch):
    """Of every micro-batch that is trained on, the first row's loss is no number."""
    row_loss = Task.row_loss

    def spoilt(self, model, batch):
        found = row_loss(self, model, batch)
        if not torch.is_grad_enabled():
            return found
        factor = torch.ones_like(found)
        factor[0] = torch.nan
        return found * factor

    monkeypatch.setattr(Task, "row_loss", spoilt)


def settings(folder, **changes):
    """Under a secret key."""
    return config(folder, **{"privacy__published_key": None, "train__steps": 6} | changes)


def test_a_run_goes_on_and_its_ledger_and_release_do_not_tell(tmp_path, unlucky, monkeypatch):
    run = Run(settings(tmp_path))
    outcome = fine_tune(run)
    assert (outcome.steps, outcome.finished, outcome.guarantee.theorem) == (6, True, True)
    told = [json.loads(line) for line in run.metrics_path.read_text().splitlines()]
    assert sum(line.get("left_out", 0) for line in told) >= 1  # private, and never in what follows
    for line in run.ledger_path.read_text().splitlines()[1:]:
        assert set(json.loads(line)) == {"phase", "step", "noise_multiplier", "generator", "confide"}
    released = [path for path in run.release.rglob("*") if path.suffix in (".json", ".md")]
    assert released
    for path in released:
        assert "left_out" not in path.read_text("utf-8")
        assert "finite" not in path.read_text("utf-8")


@pytest.mark.parametrize("evaluated", [None, 0.2], ids=["no held-out rows", "held-out rows"])
def test_weights_that_are_no_numbers_end_a_run(tmp_path, evaluated):
    """Noised as they are, they tell of no unit; and no later step could use them."""
    run = Run(settings(tmp_path, train__learning_rate=1e38, train__optimizer="sgd", data__eval=evaluated))
    with pytest.raises(Diverged, match="diverged"):
        fine_tune(run)
    assert not run.release.exists()
    assert not list(run.checkpoints.folder.glob("step-*"))
