"""The same compute, better spent: more users a step and one chunk of each, against two chunks of half as many."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from confide.utils.rounding import at_least
from studies.runner import users
from studies.runner.findings import MARGIN, Finding, paired
from studies.runner.grid import OWN_OPTIMISER, Arm, Grid, Keys
from studies.runner.models import bundled
from studies.runner.study import Row, Scale, Study, Table, Work
from studies.runner.tables import change, perplexity, target
from studies.runner.twins import EPSILON, TUNED, gained, percents, with_twins, without_repeats

PLAIN, CHOSEN = "plain: two chunks of each", "chosen: one chunk of twice the users"
WANTED = 0.8
"""The share of the gain without privacy that was wanted at the larger epsilon."""

_SMALL: dict[str, Any] = {
    "text": "more newsgroups",
    "rows": 128,
    "steps": 60,
    "rates": (2e-3, 4e-3),
    "epsilons": (3.0, 8.0),
    "tuned": (8.0,),
    "seeds": 3,
}
_SIZES: Mapping[Scale, dict[str, Any]] = {
    Scale.TINY: _SMALL
    | {
        "text": "newsgroups",
        "rows": 8,
        "steps": 1,
        "rates": (5e-3,),
        "epsilons": (8.0,),
        "seeds": 2,
    },
    Scale.SMALL: _SMALL,
    Scale.FULL: _SMALL | {"rows": 1024, "steps": 1000, "rates": (1e-3, 2e-3)},
}


def grids(work: Work) -> list[Grid]:
    size = _SIZES[work.scale]
    rates = {"train.learning_rate": size["rates"]}
    mechanism: Keys = {"privacy.mechanism": "uls", "privacy.selection": "random-chunk"}
    arms = tuple(
        Arm(name, {**mechanism, "privacy.rows_per_unit": k, "train.batch": size["rows"] / k}, rates)
        for name, k in ((PLAIN, 2), (CHOSEN, 1))
    )
    grid = Grid(
        "recipe",
        (size["text"],),
        bundled,
        users.keys(size["steps"], **OWN_OPTIMISER),
        arms,
        {},
        {},
        size["seeds"],
    )
    return with_twins(grid, size["epsilons"], size["tuned"])


def measure(work: Work) -> list[Row]:
    return without_repeats([row for grid in grids(work) for row in grid.measured(work)])


def _private(rows: Sequence[Row]) -> list[float]:
    return [epsilon for epsilon in users.values(rows, EPSILON) if epsilon < float("inf")]


def findings(rows: Sequence[Row]) -> list[Finding]:
    (text,), epsilons = users.texts_of(rows), _private(rows)
    place, most = "beyond the papers", epsilons[-1]
    found = [
        Finding(
            f"At epsilon {target(epsilon)} and equal compute, one chunk of twice the users beats two chunks of each.",
            place,
            "loss with one chunk less that with two",
            users.gap(rows, text, CHOSEN, PLAIN, epsilon),
            high=-MARGIN,
            family="one chunk",
        )
        for epsilon in epsilons
    ]
    for epsilon in epsilons:
        found.append(
            Finding(
                f"At epsilon {target(epsilon)} the chosen recipe has {WANTED:.0%} of what training without privacy "
                "gains, tuned for itself with the same compute.",
                place,
                "share of the gain in loss over the model before training",
                tuple(gained(rows, text, CHOSEN, epsilon, CHOSEN + TUNED).values()),
                low=WANTED,
                family="share",
                unit="share",
            )
        )
    plain, own = (gained(rows, text, CHOSEN, most, twin) for twin in (PLAIN, CHOSEN + TUNED))
    found.append(
        Finding(
            "Held against the plain recipe without privacy, that share looks larger than it is.",
            place,
            f"share of the plain recipe's gain less that of the tuned one's, at epsilon {target(most)}",
            paired(plain, own),
            low=0.0,
            unit="share",
        )
    )
    return found


def tables(rows: Sequence[Row]) -> list[Table]:
    (text,) = users.texts_of(rows)
    heads = [
        "recipe",
        "epsilon",
        "noise multiplier",
        "learning rate",
        "test perplexity",
        "one chunk against two",
    ]
    heads += [
        "share of the gain: of the plain recipe's",
        "of its own without privacy",
        "of that tuned for itself",
    ]
    cells = []
    for arm in (PLAIN, CHOSEN):
        for epsilon in _private(rows):
            noises = [
                row["noise_multiplier"]
                for row in rows
                if (row["arm"], row[EPSILON], row["part"]) == (arm, epsilon, "test")
            ]
            cells.append(
                [
                    arm,
                    target(epsilon),
                    at_least(min(noises), 4),
                    users.settings(rows, text, arm, epsilon),
                    perplexity(users.at(rows, text, arm, epsilon)),
                    change(users.gap(rows, text, CHOSEN, PLAIN, epsilon)) if arm == CHOSEN else "",
                    *(percents(gained(rows, text, arm, epsilon, twin)) for twin in (PLAIN, arm, arm + TUNED)),
                ]
            )
        for twin in (arm, arm + TUNED):
            cells.append(
                [
                    twin if twin != arm else f"{arm}, without privacy",
                    "",
                    "",
                    users.settings(rows, text, twin, float("inf")),
                    perplexity(users.at(rows, text, twin, float("inf"))),
                    *[""] * 4,
                ]
            )
    note = (
        "Without privacy an arm has the same draws, and the learning rate that was chosen with privacy; tuned for "
        "itself it has the one that was chosen without. Intervals are of 95% over run keys."
    )
    return [Table("Two ways to spend the same compute", heads, cells, note)]


STUDY = Study(
    name="recipe",
    paper="",
    shows=(),
    question="Are more users a step worth more than more text of each?",
    measure=measure,
    findings=findings,
    tables=tables,
    minutes=70,
    deviations="The bundled base model, trained whole, on the first 12,000 posts of 20 Newsgroups; 7,680 rows of 64 "
    "tokens in all.",
    reads=("20newsgroups",),
)
