"""Runs in processes of their own end as they would alone."""

import pytest
from studies.side_by_side import fine_tuned

from confide.runs.folder import Run
from confide.runs.loop import fine_tune
from confide.utils.console import Console
from confide.utils.errors import InputError
from tests.test_resume import config


def test_runs_end_as_they_would_alone(tmp_path):
    short = {"train__steps": 3, "train__eval_on_start": False}
    runs = [config(tmp_path / name, **short) for name in ("a", "b", "c")]
    found = fine_tuned(runs[:2], Console(quiet=True), processes=2)
    alone = fine_tune(Run(runs[2]))
    assert set(found) == {each.run for each in runs[:2]}
    for outcome in found.values():
        assert (outcome.finished, outcome.base, outcome.steps) == (True, None, 3)
        assert outcome.final["loss"] == pytest.approx(
            alone.final["loss"], rel=1e-4
        )  # threads add in another order
        assert outcome.guarantee.noise_multiplier == alone.guarantee.noise_multiplier


def test_what_is_refused_in_a_process_is_refused_here(tmp_path):
    run = config(tmp_path / "a", train__steps=1)
    with Run(run).locked(), pytest.raises(InputError, match="another process"):
        fine_tuned([run], Console(quiet=True))
