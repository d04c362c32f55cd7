"""What more users would be worth: noise as for 1, 10 and 100 times as many (Charles et al. 2024, Figure 5; 003).

The runs train on the users that there are. Only their noise is that of more, so what they show no run may claim.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np

from confide.data.shape import Shape
from confide.privacy.selection import cap_of
from studies.parts.user_sampling import Target
from studies.runner import users
from studies.runner.findings import Finding, paired
from studies.runner.grid import Arm, Grid, Keys, config
from studies.runner.models import stories
from studies.runner.study import Row, Scale, Study, Table, Work
from studies.runner.tables import change, losses, perplexity, target
from studies.runner.training import job_of
from studies.runner.users import ELS, ULS

K, RATE, MEDIAN = "privacy.rows_per_unit", "train.learning_rate", "median"
TIMES, BUDGET = (
    "times_users",
    "rows_a_step",
)  # where arms are compared; `accounted` makes keys of the config of them
EPSILON, DELTA = 4.0, 1e-5
_SELECTION = "random"  # rows for both; ULS draws them anew at each step (Algorithm 2)
_SMALL: dict[str, Any] = {
    "text": "articles",
    "steps": 16,
    "times": (1, 10, 100),
    "budgets": (24, 96, 384),
    "options": {
        ELS: {K: (MEDIAN,), RATE: (2.5e-3, 5e-3, 1e-2, 2e-2)},
        ULS: {K: (1, 4), RATE: (5e-3, 1e-2)},
    },
    "seeds": 5,
}
_SIZES: Mapping[Scale, dict[str, Any]] = {
    Scale.TINY: _SMALL
    | {
        "text": "newsgroups",
        "steps": 1,
        "times": (1, 10),
        "budgets": (8,),
        "options": {ELS: {K: (MEDIAN,), RATE: (5e-3,)}, ULS: {K: (2,), RATE: (5e-3,)}},
        "seeds": 2,
    },
    Scale.SMALL: _SMALL,
    Scale.FULL: _SMALL
    | {
        "steps": 2000,
        "budgets": (64, 512, 4096),
        "options": {
            ELS: {K: (MEDIAN,), RATE: (2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2)},
            ULS: {K: (1, 4, 16), RATE: (5e-4, 2e-3)},
        },
    },
}


def accounted(kind: str, shape: Shape, keys: Keys) -> Keys:
    """Replace how many rows a step has, and how many times the users there are, by a batch and the noise for it.

    Args:
        kind: ELS or ULS.
        shape: of the users that there are.
    """
    made = {name: value for name, value in keys.items() if name not in (TIMES, BUDGET)}
    asked = Target(EPSILON, DELTA, keys["train.steps"], keys[TIMES] * shape.units)
    k, budget = cap_of(keys[K], shape), keys[BUDGET]
    if kind == ULS:
        batch, noise = budget / k, _uls_noise(asked, budget / k)
    else:
        used = np.minimum(shape.rows_per_unit, k)
        batch, noise = budget, _els_noise(asked, budget, int(used.max()), keys[TIMES] * int(used.sum()))
    return made | {"train.batch": float(batch), "privacy.noise_multiplier": noise}


@cache
def _uls_noise(asked: Target, batch: float) -> float:
    return asked.uls_noise(batch)


@cache
def _els_noise(asked: Target, batch: float, group_size: int, rows: int) -> float:
    return asked.els_noise(batch, group_size, rows)


def grid(work: Work, shape: Shape) -> Grid:
    size = _SIZES[work.scale]

    def arm(kind: str) -> Arm:
        options = size["options"][kind]
        made = users.arm(kind, None, options, selection=_SELECTION)
        return Arm(kind, made.keys, options, lambda keys: accounted(kind, shape, keys))

    return Grid(
        name="users-what-if",
        texts=(size["text"],),
        model=stories,
        keys=users.keys(size["steps"]),
        arms=(arm(ELS), arm(ULS)),
        at={TIMES: size["times"], BUDGET: size["budgets"]},
        tuned_at={TIMES: size["times"], BUDGET: size["budgets"]},
        seeds=size["seeds"],
    )


def measure(work: Work) -> list[Row]:
    size = _SIZES[work.scale]
    keys = {**users.keys(size["steps"]), **users.arm(ULS, None, {}, selection=_SELECTION).keys}
    raw = config(work, stories(work), size["text"], {**keys, "privacy.epsilon": EPSILON, "train.batch": 2.0})
    shape = job_of(raw, work.folder / "users-what-if", work).setting.shape
    return grid(work, shape).measured(work)


# what was found ------------------------------------------------------------------------------------------------
def _at(rows: Sequence[Row], arm: str, times: int, budget: int) -> dict[int, float]:
    return losses(rows, {"arm": arm, TIMES: times, BUDGET: budget})


def gained(
    rows: Sequence[Row], arm: str, before: tuple[int, int], after: tuple[int, int]
) -> dict[int, float]:
    """Return by how much the loss falls from one pair of times and budget to another, by run key."""
    one, other = _at(rows, arm, *before), _at(rows, arm, *after)
    return {key: one[key] - other[key] for key in one}


def findings(rows: Sequence[Row]) -> list[Finding]:
    many, budgets = users.values(rows, TIMES), users.values(rows, BUDGET)
    found = []
    for times in many if len(budgets) > 1 else ():
        pair = (times, budgets[0]), (times, budgets[-1])
        found.append(
            Finding(
                f"With {_words(times)}, the loss of ULS falls more with the compute budget than that of ELS.",
                "Figure 5",
                "the gain of ULS from the smallest to the largest budget, less that of ELS: a quotient of two "
                "quotients of perplexities",
                paired(gained(rows, ULS, *pair), gained(rows, ELS, *pair)),
                low=0.0,
                family="compute",
            )
        )
    for budget in budgets:
        pair = (many[0], budget), (many[-1], budget)
        found.append(
            Finding(
                f"At {budget} rows a step, the loss of ELS falls more with the number of users than that of ULS.",
                "Figure 5",
                f"the gain of ELS from {_words(many[0])} to {_words(many[-1])}, less that of ULS: a "
                "quotient of two quotients of perplexities",
                paired(gained(rows, ELS, *pair), gained(rows, ULS, *pair)),
                low=0.0,
                family="users",
            )
        )
    return found


def _words(times: int) -> str:
    return "the users there are" if times == 1 else f"{times} times the users"


def tables(rows: Sequence[Row]) -> list[Table]:
    heads = ["users, as accounted", "rows a step", "ELS", "ULS", "ULS against ELS", "G of ELS", "k of ULS"]
    heads += ["noise multiplier of ELS", "of ULS", "what such a run of ELS may claim", "of ULS"]
    cells, alike = [], 0
    for times in users.values(rows, TIMES):
        for budget in users.values(rows, BUDGET):
            losses_of = [_at(rows, arm, times, budget) for arm in (ELS, ULS)]
            runs = [_runs(rows, arm, times, budget) for arm in (ELS, ULS)]
            alike += users.are_alike(*runs)
            cells.append(
                [
                    f"x{times}",
                    str(budget),
                    *map(perplexity, losses_of),
                    change(paired(losses_of[1], losses_of[0])),
                    *map(users.rows_of_unit, runs),
                    *map(users.noise_of, runs),
                    *(f"epsilon {target(max(float(row['epsilon']) for row in own))}" for own in runs),
                ]
            )
    note = (
        "ELS: example-level sampling, with at most G rows of each user in use; ULS: user-level sampling, or user-wise "
        f"DP-SGD, with k of each user a step. {users.ALIKE} That is so in {alike} of {len(cells)} lines. Noise is that "
        f"of epsilon {target(EPSILON)} for so many times the users, each with the same rows; the users that are drawn "
        "from stay as they are. So it is a what-if, and the last columns say what the runs may claim. The paper has "
        "plots, not numbers. Intervals are of 95% over run keys."
    )
    return [Table("Figure 5: test perplexity by budget and accounted users", heads, cells, note)]


def _runs(rows: Sequence[Row], arm: str, times: int, budget: int) -> list[Row]:
    place = (arm, times, budget, "test")
    return [row for row in rows if (row["arm"], row[TIMES], row[BUDGET], row["part"]) == place]


STUDY = Study(
    name="users-what-if",
    paper="003",
    shows=("Figure 5",),
    question="Which gains more from more users, and which from more compute: ELS or ULS?",
    measure=measure,
    findings=findings,
    tables=tables,
    minutes=30,
    deviations="stories260K on WikiText-2 articles in place of a model of 350 million weights on CC-News; rows a step "
    "are the budget; k is chosen of two on validation text, in place of Estimate-and-Double, and for that "
    "ELS has twice as many learning rates; one delta for all.",
    reads=("20newsgroups", "wikitext-2"),
)
