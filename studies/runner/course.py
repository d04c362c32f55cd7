"""Training that is looked into as it goes on: how exposed planted numbers are at some of its steps."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from confide.auditing.candidates import Candidates
from confide.auditing.exposure import exact
from confide.auditing.trie import Trie
from confide.config.loading import check
from confide.runs.folder import Run
from confide.runs.job import Job
from confide.runs.loop import fine_tune
from confide.utils.console import Console
from confide.utils.files import write_text
from studies.runner.rows import version
from studies.runner.study import Row, Work
from studies.runner.training import Unreleased

TEMPLATE = "My ID is {}"


@dataclass(frozen=True)
class Course:
    """A run to train step by step and look into. What was found is kept under a name that its config decides.

    Attributes:
        groups: the planted numbers, by how often each stands.
    """

    columns: Row
    raw: dict[str, Any]
    folder: Path
    every: int
    steps: int
    digits: int
    groups: tuple[tuple[int, tuple[str, ...]], ...]

    @property
    def result(self) -> Path:
        asked = json.dumps([self.raw, self.every, self.digits, self.groups], sort_keys=True)
        return self.folder.with_name(
            f"{self.folder.name}-{hashlib.sha256(asked.encode()).hexdigest()[:8]}.json"
        )

    def measure(self) -> list[Row]:
        """Train on to each step that is looked at. What was found is kept."""
        if self.result.exists():
            found: list[Row] = json.loads(self.result.read_text("utf-8"))
            return found
        rows: list[Row] = []
        run = Unreleased(check({**self.raw, "run": str(self.folder)}, str(self.folder)))
        for until in range(self.every, self.steps + 1, self.every):
            if fine_tune(run, until=until).steps < until:
                raise KeyboardInterrupt
            rows += self._looked(run, until)
        shutil.rmtree(self.folder, ignore_errors=True)
        write_text(self.result, json.dumps(rows))
        return rows

    def _looked(self, run: Run, step: int) -> Iterator[Row]:
        job = Job.of(run, Console(quiet=True))
        job.phase_runner().restore(job.trained()[1])
        held_out = job.evaluate()
        assert held_out is not None
        numbers = np.array([int(number) for _, some in self.groups for number in some])
        draws = step * run.config.train.batch / job.prepared.train.n_rows  # of each row, in the mean
        exposures = iter(exact(job.model, _trie(self.raw["model"], self.digits), numbers))
        for times, some in self.groups:
            bits = [next(exposures).exposure for _ in some]
            yield {
                **self.columns,
                **version(),
                "step": step,
                "times": times,
                "numbers": len(some),
                "reads": times * draws,
                "loss": held_out["loss"],
                "perplexity": held_out["perplexity"],
                "exposure": sum(bits) / len(bits),
                "most": max(bits),
            }


@lru_cache(1)
def _trie(model: str, digits: int) -> Trie:
    """Return all numbers of so many digits in the text that holds them: a million texts take a while to cut."""
    from transformers import AutoTokenizer

    return Trie.of(Candidates.digits(TEMPLATE, digits), AutoTokenizer.from_pretrained(model))


@dataclass(frozen=True)
class _Looking:
    """The job of each process."""

    def ready(self) -> Callable[[Course], list[Row]]:
        return Course.measure


def courses_of(courses: Sequence[Course], work: Work, what: str) -> list[Row]:
    """Return the rows of all runs, in their order; what was found before is read."""
    rows: list[Row] = []
    for course in courses:
        if not work.has(course.result):
            course.result.unlink(missing_ok=True)
            if work.again is not None:
                shutil.rmtree(course.folder, ignore_errors=True)
    with (
        work.crew.workers(_Looking(), "a process that trains and looks") as workers,
        work.console.track(what, len(courses)) as track,
    ):
        for course, found in zip(courses, workers.map(courses), strict=True):
            rows += found
            work.made(course.result)
            track()
    return rows


def numbers_of(
    key: int, digits: int, each: int, times: Sequence[int]
) -> tuple[tuple[int, tuple[str, ...]], ...]:
    """Return random numbers of a run key, all different: so many that stand so often."""
    drawn = np.random.default_rng([2022, key, each]).choice(10**digits, each * len(times), replace=False)
    texts = [f"{number:0{digits}d}" for number in drawn]
    return tuple((count, tuple(texts[i * each : (i + 1) * each])) for i, count in enumerate(times))
