"""Short private runs of user-wise DP-SGD that differ in how the weights move: what their studies share.

Every place has as many steps and rows, and the same epsilon, for all arms.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from confide.planning.progress import WALK
from studies.runner import users
from studies.runner.findings import MARGIN, Finding, paired
from studies.runner.grid import OWN_OPTIMISER, Arm, Grid, Keys
from studies.runner.models import own, stories
from studies.runner.study import Row, Scale, Table, Work
from studies.runner.tables import change, perplexity, target
from studies.runner.users import ULS

EPSILON, STEPS, RATE = "privacy.epsilon", "train.steps", "train.learning_rate"
HELPDESK = "helpdesk"
FACTOR = "rate_over_rule"  # what is tried; `arm` makes a learning rate of it

OF_HELPDESK: Keys = {"data.max_length": 32, "privacy.sampling": "bins"}
"""What runs of the helpdesk have besides: rows as in `confide quickstart`, and each customer once an epoch."""

SMALL: dict[str, Any] = {
    "texts": {"newsgroups": (32, 96), "articles": (32, 96), HELPDESK: (24,)},
    "rows": {"newsgroups": 64, "articles": 64, HELPDESK: 192},  # a step; one of each user
    "factors": (0.7, 1.0, 1.4, 2.0),
    "epsilons": (8.0,),
    "seeds": 3,
}
SIZES: Mapping[Scale, dict[str, Any]] = {
    Scale.TINY: SMALL
    | {"texts": {"newsgroups": (4,)}, "rows": {"newsgroups": 8}, "factors": (1.0,), "seeds": 2},
    Scale.SMALL: SMALL,
    Scale.FULL: SMALL
    | {
        "texts": dict.fromkeys(SMALL["texts"], (32, 128, 512)),
        "rows": dict.fromkeys(SMALL["texts"], 256),
        "epsilons": (1.0, 8.0),
        "seeds": 5,
    },
}
"""Texts with the steps of their runs, and what all runs have."""

DEVIATIONS = (
    "Posts and articles are learnt by stories260K, in rows of 64 tokens. The helpdesk is made up. Its mails "
    "are learnt by the bundled model, with the rows and the draws of `confide quickstart`."
)


def arm(
    name: str,
    text: str,
    size: Mapping[str, Any],
    square: float = 1.0,
    factors: Sequence[float] | None = None,
) -> Arm:
    """Return an arm of user-wise DP-SGD. It tries factors on the learning rate of the planner's rule.

    Args:
        square: mean square of the lengths with which steps count, in units of the peak's, for a rate that falls.
        factors: those of the study, unless the arm needs its own.
    """
    made = users.arm(ULS, size["rows"][text], {FACTOR: factors or size["factors"]}, name)
    keys = {**made.keys, "train.schedule": "constant"}

    def derived(keys: Keys) -> Keys:
        others = {key: value for key, value in made.derived(keys).items() if key != FACTOR}
        rule = 1 / math.sqrt(2 * WALK * keys[STEPS] * square)
        return {**others, RATE: keys[FACTOR] * rule}

    return replace(made, keys=keys, derived=derived)


def grid(name: str, work: Work, text: str, size: Mapping[str, Any], arms: Sequence[Arm]) -> Grid:
    """Return the runs of a study on a text.

    Args:
        name: of the study.
    """
    at = {EPSILON: size["epsilons"], STEPS: size["texts"][text]}
    keys = users.keys(size["texts"][text][0], **OWN_OPTIMISER) | {
        "privacy.rows_per_unit": 1,
        "train.micro_tokens": 8192,  # a step's rows are few: one pass does
    }
    if text == HELPDESK:
        keys |= OF_HELPDESK
    return Grid(
        name=name,
        texts=(text,),
        model=own if text == HELPDESK else stories,
        keys=keys,
        arms=tuple(arms),
        at=at,
        tuned_at=at,
        seeds=size["seeds"],
    )


def places(rows: Sequence[Row]) -> list[tuple[str, float, int]]:
    """Return the texts, epsilons and steps at which arms were compared, in order."""
    return list(
        dict.fromkeys((row["text"], row[EPSILON], row[STEPS]) for row in rows if row[STEPS] is not None)
    )


def at(rows: Sequence[Row], text: str, arm: str, epsilon: float, steps: int) -> dict[int, float]:
    """Return the test loss by run key of an arm at a place."""
    return users.at(rows, text, arm, epsilon, train__steps=steps)


def gap(rows: Sequence[Row], text: str, arm: str, than: str, epsilon: float, steps: int) -> tuple[float, ...]:
    """Return the paired differences of two arms' losses, `arm` - `than`."""
    return paired(at(rows, text, arm, epsilon, steps), at(rows, text, than, epsilon, steps))


def chosen(rows: Sequence[Row], text: str, arm: str, epsilon: float, steps: int) -> str:
    """Write what was chosen for an arm at a place."""
    place = (text, arm, epsilon, steps, "test")
    return users.chosen(
        [row for row in rows if (row["text"], row["arm"], row[EPSILON], row[STEPS], row["part"]) == place]
    )


def claims(rows: Sequence[Row], bases: Mapping[str, str], than: str, question: str = "") -> list[Finding]:
    """Ask at each place whether an arm beats the one that it is held against by more than the margin.

    The arms of a text that answer one question are one family.

    Args:
        bases: by arm, the one that it is held against.
        than: the latter in words.
        question: that they answer, if a study asks several.
    """
    return [
        Finding(
            f"In {steps} steps at epsilon {target(epsilon)}, this beats {than} by more than 1% of the perplexity: "
            f"{arm} ({text}).",
            "beyond the papers",
            f"loss less that of {than}",
            gap(rows, text, arm, base, epsilon, steps),
            high=-MARGIN,
            family=f"{text} {question}".strip(),
        )
        for text, epsilon, steps in places(rows)
        for arm, base in bases.items()
        if at(rows, text, arm, epsilon, steps)
    ]


def table(
    title: str,
    rows: Sequence[Row],
    arms: Sequence[str],
    bases: Mapping[str, str],
    heads: tuple[str, str],
    note: str,
) -> Table:
    """Show the losses of arms at each place, beside those of the arms that they are held against.

    Args:
        heads: of the arms' column, and of that of the differences.
    """
    cells = [
        [
            text,
            target(epsilon),
            str(steps),
            arm,
            chosen(rows, text, arm, epsilon, steps),
            perplexity(at(rows, text, arm, epsilon, steps)),
            change(gap(rows, text, arm, bases[arm], epsilon, steps)) if arm in bases else "",
        ]
        for text, epsilon, steps in places(rows)
        for arm in arms
        if at(rows, text, arm, epsilon, steps)
    ]
    what, against = heads
    return Table(
        title, ["text", "epsilon", "steps", what, "over the rule's", "test perplexity", against], cells, note
    )
