"""How the learning rate should fall under noise, and whether a mean of the last weights does as well.

This is beyond the papers. A run of few steps ends where its last noise has left it. A rate that falls makes the last
noise small. So does a mean of the last weights: the later an update comes, the less it counts in it. All arms have the
same steps, rows and epsilon, and as many trials.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from torch.optim.lr_scheduler import LambdaLR

from confide.planning.progress import SQUARES
from confide.runs.given import Given
from studies.parts import short_runs
from studies.parts.short_runs import STEPS
from studies.runner import users
from studies.runner.findings import Finding
from studies.runner.grid import Arm, Grid, Keys
from studies.runner.study import Row, Scale, Study, Table, Work


@dataclass(frozen=True)
class Course:
    """How far each step moves the released weights.

    Attributes:
        name: as in tables.
        falls: the share of the steps, at the end, over which the rate falls to zero in a line.
        mean: the share of the steps, at the end, over which the weights are averaged.
    """

    name: str
    falls: float = 0.0
    mean: float = 0.0

    @property
    def square(self) -> float:
        """The mean square of the lengths with which steps count, in units of the peak's.

        In a mean over the last steps the updates there count less and less, in a line.
        """
        return 1 - (1 - SQUARES["linear"]) * max(self.falls, self.mean)

    def given(self, keys: Keys) -> Given:
        if not self.falls:
            return Given()
        return Given(
            scheduler=partial(LambdaLR, lr_lambda=partial(share, steps=keys[STEPS], falls=self.falls))
        )


def share(step: int, steps: int, falls: float) -> float:
    """Return the learning rate of a step, counted from 0, over the peak: flat first, then in a line towards zero."""
    return min(1.0, (1 - step / steps) / falls)


CONSTANT = Course("constant")
COURSES = (
    CONSTANT,
    Course("constant, mean of the last quarter", mean=0.25),
    Course("constant, mean of the last half", mean=0.5),
    Course("falling over the last half", falls=0.5),
    Course("falling from the start", falls=1.0),
)
OTHERS = tuple(course.name for course in COURSES if course is not CONSTANT)
BASES = dict.fromkeys(OTHERS, CONSTANT.name)
"""The course that each other one is held against."""


def grid(work: Work, text: str) -> Grid:
    size = short_runs.SIZES[work.scale]
    return short_runs.grid("schedules", work, text, size, [_arm(course, text, size) for course in COURSES])


def _arm(course: Course, text: str, size: Mapping[str, Any]) -> Arm:
    made = short_runs.arm(course.name, text, size, course.square)
    average = {"train.average.kind": "tail", "train.average.share": course.mean} if course.mean else {}
    return replace(made, keys={**made.keys, **average}, given=course.given)


def measure(work: Work) -> list[Row]:
    texts = work.chosen(tuple(short_runs.SIZES[work.scale]["texts"]))
    return [row for text in texts for row in grid(work, text).measured(work)]


# what was found ------------------------------------------------------------------------------------------------
def findings(rows: Sequence[Row]) -> list[Finding]:
    """Check which courses beat a constant rate by more than the margin."""
    return short_runs.claims(rows, BASES, "a constant rate")


def tables(rows: Sequence[Row]) -> list[Table]:
    note = (
        "The learning rates of each course are four factors on the one that the planner's rule gives for it, and were "
        "chosen on validation text. Intervals are of 95% over run keys."
    )
    heads = ("learning rate", "against a constant one")
    courses = (CONSTANT.name, *OTHERS)
    return [short_runs.table("Courses of the learning rate", rows, courses, BASES, heads, note)]


STUDY = Study(
    name="schedules",
    paper="",
    shows=(),
    question="How should the learning rate fall under noise, and does a mean of the last weights do as well?",
    measure=measure,
    findings=findings,
    tables=tables,
    minutes=60,
    deviations=f"{short_runs.DEVIATIONS} All weights are trained.",
    reads=users.READS,
    texts=tuple(short_runs.SIZES[Scale.SMALL]["texts"]),
)
