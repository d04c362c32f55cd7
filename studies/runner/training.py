"""Train the runs of a study, or find what they came to: by the processes of this machine or of a Ray cluster."""

from __future__ import annotations

import hashlib
import json
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from confide.config.loading import check
from confide.distributed.ranks import Ranks
from confide.runs.folder import Run
from confide.runs.job import Job
from confide.runs.loop import opened
from confide.runs.provenance import code_version
from confide.utils.console import Console
from confide.utils.files import write_text
from studies.runner.study import Row, Work


class After(Protocol):
    """What is measured of a trained model beside its loss. It may be sent to other processes.

    Attributes:
        name: of the results' files; another one for other settings.
    """

    @property
    def name(self) -> str: ...

    def __call__(self, job: Job) -> Row: ...


class _Unreleased(Run):
    """A run of a study: what it trained is measured and thrown away."""

    releases = False


@dataclass(frozen=True)
class Trained:
    """A run to train and measure.

    Attributes:
        columns: what tells it apart in the study's table.
        raw: its config.
        is_twin: without clipping and noise, on the same draws.
        trains: False to measure the model as it was.
        folder: where it works; its result lies beside.
        after: what else is measured of the trained model.
    """

    columns: Row
    raw: dict[str, Any]
    is_twin: bool
    trains: bool
    folder: Path
    after: After | None = None

    @classmethod
    def of(cls, columns: Row, raw: dict[str, Any], is_twin: bool, trains: bool, root: Path) -> Trained:
        asked = json.dumps([raw, is_twin, trains], sort_keys=True)
        return cls(columns, raw, is_twin, trains, root / hashlib.sha256(asked.encode()).hexdigest()[:16])

    def followed(self, after: After) -> Trained:
        """Return the same run, of which something else is measured, too."""
        return replace(self, after=after, folder=self.folder.with_name(f"{self.folder.name}-{after.name}"))

    @property
    def result(self) -> Path:
        return self.folder.with_suffix(".json")

    def measure(self) -> Row:
        """Train, or resume, and measure."""
        began = time.monotonic()
        run = _Unreleased(check(self.raw | {"run": str(self.folder)}, str(self.folder)), twin=self.is_twin)
        if not self.trains:
            found = Job.of(run, Console(quiet=True)).evaluate()
            assert found is not None
            measured: Row = {"loss": found["loss"], "perplexity": found["perplexity"]}
        else:
            measured = self._trained(run)
        measured |= {"seconds": round(time.monotonic() - began, 1), "version": code_version()}
        shutil.rmtree(self.folder, ignore_errors=True)
        return measured

    def _trained(self, run: Run) -> Row:
        with opened(run, Console(quiet=True), Ranks()) as loop:
            outcome = loop.go(None)
            if not outcome.finished:
                raise KeyboardInterrupt
            assert outcome.final is not None
            measured: Row = {"loss": outcome.final["loss"], "perplexity": outcome.final["perplexity"]}
            if not self.is_twin:
                measured |= {
                    "noise_multiplier": outcome.guarantee.noise_multiplier,
                    "epsilon": outcome.guarantee.epsilon,
                    "rows_per_unit": outcome.guarantee.rows_per_unit,
                }
            return measured if self.after is None else measured | self.after(loop.job)


def job_of(raw: dict[str, Any], folder: Path, work: Work) -> Job:
    """Return the job of a config that is looked at and does not train."""
    return Job.of(Run(check(raw | {"run": str(folder)}, str(folder))), work.console)


@dataclass(frozen=True)
class _Training:
    """The job of each process."""

    def ready(self) -> Callable[[Trained], Row]:
        return Trained.measure


def trained(runs: Sequence[Trained], work: Work, what: str) -> list[Row]:
    """Return the rows of runs, in their order. Each result is kept once it is there, for the next time."""
    left = {run.folder: run for run in runs if not run.result.exists()}
    if left:
        (work.folder / "runs").mkdir(parents=True, exist_ok=True)
        done = len(runs) - len(left)
        with (
            work.crew.workers(_Training(), "a process that trains") as workers,
            work.console.track(what, len(runs), done) as track,
        ):
            for run, row in zip(left.values(), workers.map(left.values()), strict=True):
                write_text(run.result, json.dumps(row))
                track()
    return [run.columns | json.loads(run.result.read_text("utf-8")) for run in runs]
