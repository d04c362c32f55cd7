"""The twin's own learning rate: it moves the twin alone, and no draw."""

import pytest

from confide.runs.folder import Run
from confide.runs.job import Job
from confide.runs.loop import fine_tune
from confide.utils.console import Console
from tests.test_resume import config


def test_the_twin_has_a_rate_of_its_own_and_the_private_run_does_not_know_it(tmp_path):
    still = config(tmp_path / "still", train__twin_learning_rate=1e-12)
    plain = config(tmp_path / "plain")
    assert Run(still).binding() == Run(plain).binding()
    base = Job.of(Run(config(tmp_path / "base")), Console(quiet=True)).evaluate()["loss"]
    of_still, of_plain = (fine_tune(Run(each, twin=True)).final["loss"] for each in (still, plain))
    private = fine_tune(Run(still)).final["loss"]
    assert of_still == pytest.approx(base, abs=1e-6)
    assert of_plain != pytest.approx(base, abs=1e-4)
    assert private != pytest.approx(base, abs=1e-4)
