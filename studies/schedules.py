"""How the learning rate should fall under noise, and whether a mean of the last weights does as well.

This is beyond the papers. A run of few steps ends where its last noise has left it. A rate that falls makes the last
noise small. So does a mean of the last weights: the later an update comes, the less it counts in it. All arms have the
same steps, rows and epsilon, and as many trials.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from torch.optim.lr_scheduler import LambdaLR

from confide.planning.progress import SQUARES, WALK
from confide.runs.given import Given
from studies.runner import users
from studies.runner.findings import MARGIN, Finding, paired
from studies.runner.grid import OWN_OPTIMISER, Arm, Grid, Keys
from studies.runner.models import own, stories
from studies.runner.study import Row, Scale, Study, Table, Work
from studies.runner.tables import change, perplexity, target
from studies.runner.users import ULS

EPSILON, STEPS, RATE = "privacy.epsilon", "train.steps", "train.learning_rate"
HELPDESK = "helpdesk"
FACTOR = "rate_over_rule"  # what is tried; `Course.keys_of` makes a learning rate of it

_SMALL: dict[str, Any] = {
    "texts": {"newsgroups": (32, 96), "articles": (32, 96), HELPDESK: (24,)},
    "rows": {"newsgroups": 64, "articles": 64, HELPDESK: 192},  # a step; one of each user
    "factors": (0.7, 1.0, 1.4, 2.0),
    "epsilons": (8.0,),
    "seeds": 3,
}
_SIZES: Mapping[Scale, dict[str, Any]] = {
    Scale.TINY: _SMALL
    | {"texts": {"newsgroups": (4,)}, "rows": {"newsgroups": 8}, "factors": (1.0,), "seeds": 2},
    Scale.SMALL: _SMALL,
    Scale.FULL: _SMALL
    | {
        "texts": dict.fromkeys(_SMALL["texts"], (32, 128, 512)),
        "rows": dict.fromkeys(_SMALL["texts"], 256),
        "epsilons": (1.0, 8.0),
        "seeds": 5,
    },
}


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

    def keys_of(self, keys: Keys) -> Keys:
        """Replace the factor by a learning rate. The planner's rule centres the rates of each course."""
        made = {name: value for name, value in keys.items() if name != FACTOR}
        rule = 1 / math.sqrt(2 * WALK * keys[STEPS] * self.square)
        average = {"train.average.kind": "tail", "train.average.share": self.mean} if self.mean else {}
        return {**made, **average, "train.schedule": "constant", RATE: keys[FACTOR] * rule}

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


def grid(work: Work, text: str) -> Grid:
    size = _SIZES[work.scale]
    at = {EPSILON: size["epsilons"], STEPS: size["texts"][text]}
    keys = users.keys(size["texts"][text][0], **OWN_OPTIMISER) | {
        "privacy.rows_per_unit": 1,
        "train.micro_tokens": 8192,
    }
    if text == HELPDESK:
        keys |= {"data.max_length": 32}
    return Grid(
        name="schedules",
        texts=(text,),
        model=own if text == HELPDESK else stories,
        keys=keys,
        arms=tuple(_arm(course, text, size["rows"][text], size["factors"]) for course in COURSES),
        at=at,
        tuned_at=at,
        seeds=size["seeds"],
    )


def _arm(course: Course, text: str, rows: int, factors: Sequence[float]) -> Arm:
    made = users.arm(ULS, rows, {FACTOR: factors}, course.name)
    keys = {**made.keys, **({"privacy.sampling": "bins"} if text == HELPDESK else {})}
    return replace(
        made, keys=keys, derived=lambda keys: course.keys_of(made.derived(keys)), given=course.given
    )


def measure(work: Work) -> list[Row]:
    texts = work.chosen(tuple(_SIZES[work.scale]["texts"]))
    return [row for text in texts for row in grid(work, text).measured(work)]


# what was found ------------------------------------------------------------------------------------------------
def _places(rows: Sequence[Row]) -> list[tuple[str, float, int]]:
    """Return the texts, epsilons and steps at which all courses were run, in order."""
    return list(
        dict.fromkeys((row["text"], row[EPSILON], row[STEPS]) for row in rows if row[STEPS] is not None)
    )


def _at(rows: Sequence[Row], text: str, arm: str, epsilon: float, steps: int) -> dict[int, float]:
    return users.at(rows, text, arm, epsilon, train__steps=steps)


def _gap(rows: Sequence[Row], text: str, arm: str, epsilon: float, steps: int) -> tuple[float, ...]:
    """Return the paired differences of an arm's losses to those of a constant rate."""
    return paired(_at(rows, text, arm, epsilon, steps), _at(rows, text, CONSTANT.name, epsilon, steps))


def findings(rows: Sequence[Row]) -> list[Finding]:
    """Check which courses beat a constant rate by more than the margin. The courses of a text are one family."""
    return [
        Finding(
            f"In {steps} steps at epsilon {target(epsilon)}, this beats a constant rate by more than 1% of the "
            f"perplexity: {course} ({text}).",
            "beyond the papers",
            "loss less that of a constant rate",
            _gap(rows, text, course, epsilon, steps),
            high=-MARGIN,
            family=text,
        )
        for text, epsilon, steps in _places(rows)
        for course in OTHERS
    ]


def tables(rows: Sequence[Row]) -> list[Table]:
    cells = [
        [
            text,
            target(epsilon),
            str(steps),
            course.name,
            _rate(rows, text, course.name, epsilon, steps),
            perplexity(_at(rows, text, course.name, epsilon, steps)),
            change(_gap(rows, text, course.name, epsilon, steps)) if course is not CONSTANT else "",
        ]
        for text, epsilon, steps in _places(rows)
        for course in COURSES
    ]
    heads = ["text", "epsilon", "steps", "learning rate", "over the rule's", "test perplexity"]
    heads.append("against a constant one")
    note = (
        "The learning rates of each course are four factors on the one that the planner's rule gives for it, and were "
        "chosen on validation text. Intervals are of 95% over run keys."
    )
    return [Table("Courses of the learning rate", heads, cells, note)]


def _rate(rows: Sequence[Row], text: str, arm: str, epsilon: float, steps: int) -> str:
    place = (text, arm, epsilon, steps, "test")
    return users.chosen(
        [row for row in rows if (row["text"], row["arm"], row[EPSILON], row[STEPS], row["part"]) == place]
    )


STUDY = Study(
    name="schedules",
    paper="",
    shows=(),
    question="How should the learning rate fall under noise, and does a mean of the last weights do as well?",
    measure=measure,
    findings=findings,
    tables=tables,
    minutes=60,
    deviations="Posts and articles are learnt by stories260K, in rows of 64 tokens. The helpdesk is made up. Its mails "
    "are learnt by the bundled model, with the rows and the draws of `confide quickstart`. All weights are trained.",
    reads=users.READS,
)
