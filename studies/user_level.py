"""User-level fine-tuning where users are many and where they are few: before, with privacy, and without it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from confide.utils.rounding import at_least
from studies.runner import users
from studies.runner.findings import MARGIN, Finding, paired
from studies.runner.grid import NOTHING, OWN_OPTIMISER, Arm, Grid
from studies.runner.models import bundled
from studies.runner.study import Row, Scale, Study, Table, Work
from studies.runner.tables import perplexity, target
from studies.runner.twins import EPSILON, TUNED, base, gained, percents, with_twins, without_repeats

ULS = users.ULS
MANY, FEW = "more newsgroups", "enron by sender"
HALF = 0.5

_SMALL: dict[str, Any] = {
    "users": {MANY: 128.0, FEW: 60.0},  # a step
    "steps": 30,
    "k": 4,
    "rates": (2e-3, 4e-3),
    "epsilons": (8.0,),
    "seeds": 3,
}
_SIZES: Mapping[Scale, dict[str, Any]] = {
    Scale.TINY: _SMALL
    | {"users": {"newsgroups": 4.0, "articles": 2.0}, "steps": 1, "k": 2, "rates": (5e-3,), "seeds": 2},
    Scale.SMALL: _SMALL,
    Scale.FULL: _SMALL | {"users": {MANY: 400.0, FEW: 60.0}, "steps": 1000, "rates": (1e-3, 2e-3)},
}


def grids(work: Work) -> list[Grid]:
    """Return the grids of each text."""
    size = _SIZES[work.scale]
    found = []
    for text in work.chosen(tuple(size["users"])):
        keys = {
            "privacy.mechanism": "uls",
            "privacy.selection": "random-chunk",
            "privacy.rows_per_unit": size["k"],
            "train.batch": size["users"][text],
        }
        arms = (Arm(ULS, keys, {"train.learning_rate": size["rates"]}),)
        grid = Grid(
            "user-level",
            (text,),
            bundled,
            users.keys(size["steps"], **OWN_OPTIMISER),
            arms,
            {},
            {},
            size["seeds"],
        )
        found += with_twins(grid, size["epsilons"], size["epsilons"])
    return found


def measure(work: Work) -> list[Row]:
    return without_repeats([row for grid in grids(work) for row in grid.measured(work)])


def _epsilon(rows: Sequence[Row]) -> float:
    return next(float(row[EPSILON]) for row in rows if row[EPSILON] and math.isfinite(row[EPSILON]))


def findings(rows: Sequence[Row]) -> list[Finding]:
    epsilon, place = _epsilon(rows), "beyond the papers"
    shares = {text: gained(rows, text, ULS, epsilon, ULS + TUNED) for text in users.texts_of(rows)}
    found = []
    for text, own in shares.items():
        after = users.at(rows, text, ULS, epsilon)
        found.append(
            Finding(
                f"User-level training at epsilon {target(epsilon)} is better than the model before it ({text}).",
                place,
                "loss after training less that before",
                tuple(loss - base(rows, text) for loss in after.values()),
                high=-MARGIN,
                family="at all",
            )
        )
        found.append(
            Finding(
                f"At epsilon {target(epsilon)} it has half of what training without privacy gains ({text}).",
                place,
                "share of the gain in loss of training without privacy, tuned for itself",
                tuple(own.values()),
                low=HALF,
                family="half",
                unit="share",
            )
        )
    if len(shares) > 1:
        (many, share), (few, other) = list(shares.items())[:2]
        found.append(
            Finding(
                "Where users are many, that share is larger.",
                place,
                f"share with {many} less that with {few}",
                paired(share, other),
                low=0.0,
                unit="share",
            )
        )
    return found


def tables(rows: Sequence[Row]) -> list[Table]:
    epsilon = _epsilon(rows)
    heads = [
        "text",
        "epsilon",
        "noise multiplier",
        "perplexity: before",
        "private",
        "without privacy",
        "tuned for itself",
    ]
    heads += ["share of the gain without privacy", "of that tuned for itself"]
    cells = []
    for text in users.texts_of(rows):
        noise = min(
            row["noise_multiplier"]
            for row in rows
            if (row["text"], row["arm"], row[EPSILON], row["part"]) == (text, ULS, epsilon, "test")
        )
        before = [row["perplexity"] for row in rows if (row["text"], row["arm"]) == (text, NOTHING)]
        cells.append(
            [
                text,
                target(epsilon),
                at_least(noise, 4),
                f"{before[0]:.1f}",
                perplexity(users.at(rows, text, ULS, epsilon)),
                perplexity(users.at(rows, text, ULS, math.inf)),
                perplexity(users.at(rows, text, ULS + TUNED, math.inf)),
                percents(gained(rows, text, ULS, epsilon)),
                percents(gained(rows, text, ULS, epsilon, ULS + TUNED)),
            ]
        )
    note = (
        "Without privacy is the same training on the same draws, with the learning rate that was chosen with privacy; "
        "tuned for itself, with the one that was chosen without. Test perplexity of users that nothing was trained or "
        "chosen on, with 95% intervals over run keys."
    )
    return [Table("User-level training", heads, cells, note)]


STUDY = Study(
    name="user-level",
    paper="",
    shows=(),
    question="What does protecting whole users cost where they are many, and where they are few?",
    measure=measure,
    findings=findings,
    tables=tables,
    minutes=80,
    deviations="The bundled base model, trained whole; posts of thousands of senders, and mail of a hundred.",
    reads=("20newsgroups", "wikitext-2", "enron-sent"),
)
