"""The trained model of a run, for a study that looks at it before the run is thrown away."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from confide.runs.folder import Run
from confide.runs.job import Job
from confide.utils.console import Console


@contextmanager
def released(run: Run) -> Iterator[Job]:
    """Give the job of a finished run, whose model has the weights that the run would release."""
    job = Job.of(run, Console(quiet=True))
    _, state = job.trained()
    runner = job.phase_runner()
    runner.restore(state)
    with runner.averaged():
        yield job
