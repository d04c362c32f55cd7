"""Models of ELS and ULS that are trained further on each test user's own text (Charles et al. 2024, Figure 16; 003).

The private models are those of `els-uls`, whose trials choose their settings. What is trained further is covered by no
guarantee, and stays with its user.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from confide.runs.folder import Run
from confide.runs.loop import Outcome
from confide.runs.personalise import RATES, personalise
from studies import els_uls
from studies.els_uls import EPSILON, STEPS
from studies.runner import users
from studies.runner.findings import MARGIN, Finding, paired
from studies.runner.grid import Grid
from studies.runner.models import stories
from studies.runner.released import released
from studies.runner.study import Row, Scale, Study, Table, Work
from studies.runner.tables import change, target
from studies.runner.training import trained
from studies.runner.users import ELS, ULS

_TEXT = "newsgroups"
_SMALL: dict[str, Any] = {
    "users": 200,
    "epochs": 4,
    "rates": RATES,
    "epsilons": (1.0, 16.0),
    "steps": (16, 48),
}
_SIZES: Mapping[Scale, dict[str, Any]] = {
    Scale.TINY: {"users": 3, "epochs": 1, "rates": (0.01,), "epsilons": (16.0,), "steps": (1,)},
    Scale.SMALL: _SMALL,
    Scale.FULL: _SMALL | {"epsilons": (1.0, 4.0, 16.0, 64.0), "steps": (100, 400, 1600)},
}


@dataclass(frozen=True)
class Personalising:
    """Measure a model on the second half of each test user's rows, before and after training on the first.

    Attributes:
        users, epochs, rates: as in `personalise`.
    """

    users: int
    epochs: int
    rates: tuple[float, ...]

    def __call__(self, run: Run, outcome: Outcome) -> Row:
        with released(run) as job:
            found = personalise(job, self.users, self.epochs, self.rates)
        return {
            "users": found.users,
            "before": found.loss_before,
            "after": found.loss_after,
            "improved": found.improved,
            "own_rate": found.learning_rate,
        }


def grid(work: Work) -> Grid:
    """Return that of `els-uls`, at fewer places; trials are the same, and are not made twice in one folder."""
    size = _SIZES[work.scale]
    places = {EPSILON: size["epsilons"], STEPS: size["steps"]}
    return replace(els_uls.grid(work), name="personalisation", texts=(_TEXT,), at=places)


def measure(work: Work) -> list[Row]:
    size, model = _SIZES[work.scale], stories(work)
    after = Personalising(size["users"], size["epochs"], size["rates"])
    trials, runs = grid(work).tuned(work, model, _TEXT)
    followed = [run.followed(after) for run in runs]
    return trials + trained(followed, work, "personalisation: models, each trained further for every user")


# what was found ------------------------------------------------------------------------------------------------
def _by_key(rows: Sequence[Row], arm: str, place: tuple[float, int], column: str) -> dict[int, float]:
    return {
        row["key"]: row[column]
        for row in rows
        if row["part"] == "test" and row["key"] and (row["arm"], row[EPSILON], row[STEPS]) == (arm, *place)
    }


def gap(rows: Sequence[Row], arm: str, place: tuple[float, int]) -> dict[int, float]:
    """Return what personalising adds to the loss by run key: the mean over users of each one's after less before."""
    before, after = (_by_key(rows, arm, place, column) for column in ("before", "after"))
    return {key: after[key] - before[key] for key in before}


def places(rows: Sequence[Row]) -> list[tuple[float, int]]:
    return [
        (epsilon, steps) for epsilon in users.values(rows, EPSILON) for steps in users.values(rows, STEPS)
    ]


def _where(place: tuple[float, int]) -> str:
    return f"epsilon {target(place[0])} after {place[1]} {'step' if place[1] == 1 else 'steps'}"


def findings(rows: Sequence[Row]) -> list[Finding]:
    found = []
    for place in places(rows):
        for arm in (ELS, ULS):
            found.append(
                Finding(
                    f"Personalisation lowers the loss of a model of {arm} ({_where(place)}).",
                    "Figure 16",
                    "loss after less that before, in the mean over users",
                    tuple(gap(rows, arm, place).values()),
                    high=0.0,
                    family="it helps",
                )
            )
        found.append(
            Finding(
                f"Personalisation gains about as much with ULS as with ELS ({_where(place)}).",
                "Figure 16",
                "its change of the loss with ULS less that with ELS; up to 1% of the perplexity counts as the same",
                paired(gap(rows, ULS, place), gap(rows, ELS, place)),
                -MARGIN,
                MARGIN,
                family="the same gap",
            )
        )
        found.append(
            Finding(
                f"Personalised, a model of ULS does not do worse than one of ELS ({_where(place)}).",
                "Figure 16",
                "loss of ULS less that of ELS, both personalised",
                paired(_by_key(rows, ULS, place, "after"), _by_key(rows, ELS, place, "after")),
                high=MARGIN,
                family="ULS",
            )
        )
    return found


def tables(rows: Sequence[Row]) -> list[Table]:
    cells = []
    for place in places(rows):
        gaps = {arm: gap(rows, arm, place) for arm in (ELS, ULS)}
        for arm in (ELS, ULS):
            before, after = (_mean(_by_key(rows, arm, place, column)) for column in ("before", "after"))
            improved = _mean(_by_key(rows, arm, place, "improved")) / _mean(
                _by_key(rows, arm, place, "users")
            )
            cells.append(
                [
                    target(place[0]),
                    str(place[1]),
                    arm,
                    f"{before:.3f}",
                    f"{after:.3f}",
                    change(tuple(gaps[arm].values())),
                    "" if arm == ELS else change(paired(gaps[ULS], gaps[ELS])),
                    f"{improved:.0%}",
                ]
            )
    heads = ["epsilon", "steps", "model", "loss", "loss, personalised", "change of the perplexity"]
    heads += ["of ULS less that of ELS", "users whose loss fell"]
    count = math.floor(_mean({row["key"]: row["users"] for row in rows if row.get("users")}))
    note = (
        f"Means over {count} test users of each one's mean loss on the second half of their rows, and over run keys. "
        "Every fifth user chooses the learning rate and is not reported on. The paper has plots, not numbers. "
        "Intervals are of 95% over run keys; all models have the same users."
    )
    return [Table("Figure 16: with and without personalisation", heads, cells, note)]


def _mean(found: Mapping[int, float]) -> float:
    return sum(found.values()) / len(found)


STUDY = Study(
    name="personalisation",
    paper="003",
    shows=("Figure 16",),
    question="Does a model of ULS gain more from personalisation than one of ELS?",
    measure=measure,
    findings=findings,
    tables=tables,
    minutes=45,
    deviations="stories260K on newsgroup posts in place of a model of 350 million weights on Stack Overflow; up to 200 "
    "test users of two rows or more, the first 64 rows of each; rows of the second half that repeat one of the first "
    "are left out; two epsilons and two budgets.",
    reads=("20newsgroups",),
)
