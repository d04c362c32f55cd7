"""How many rows of a user to take, by mechanism and epsilon (Chua et al. 2024, Tables 3 and 5; 000)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from studies.runner import users
from studies.runner.findings import ABOVE, Finding, paired, pooled, sloped, slopes
from studies.runner.grid import Grid
from studies.runner.models import stories
from studies.runner.study import Row, Scale, Study, Table, Work
from studies.runner.tables import perplexity, target
from studies.runner.users import GROUP, ULS

FIXED_USERS, FIXED_ROWS = f"{ULS}, as many users a step", f"{ULS}, as many rows a step"
K, EPSILON = "privacy.rows_per_unit", "privacy.epsilon"
# Chua et al. 2024, Tables 3 and 5: group privacy and user-wise DP-SGD at k = 2, 5, 10.
ENRON = {
    (GROUP, 1.0): "35.68, 34.06, 35.28",
    (GROUP, 8.0): "30.13, 28.77, 28.51",
    (GROUP, math.inf): "23.01, 19.96, 19.53",
    (FIXED_USERS, 1.0): "34.37, 35.02, 34.01",
    (FIXED_USERS, 8.0): "30.12, 30.29, 29.87",
    (FIXED_USERS, math.inf): "22.87, 19.67, 18.64",
}
BOOKSUM = {
    (GROUP, 1.0): "27.31, 27.34, 27.45",
    (GROUP, 8.0): "27.08, 27.05, 27.02",
    (GROUP, math.inf): "26.07, 25.75, 25.62",
    (FIXED_USERS, 1.0): "27.62, 27.38, 27.38",
    (FIXED_USERS, 8.0): "27.11, 27.02, 27.01",
    (FIXED_USERS, math.inf): "24.38, 24.22, 24.12",
}
_SMALL: dict[str, Any] = {
    "texts": users.TEXTS,
    "rows": 160,
    "users": 64,
    "steps": 16,
    "ks": (1, 2, 5, 10),
    "tuned_ks": (2, 10),
    "rates": (2e-3, 5e-3),
    "epsilons": (1.0, 8.0, math.inf),
    "tuned": (1.0, 8.0, math.inf),
    "seeds": 3,
}
_SIZES: Mapping[Scale, dict[str, Any]] = {
    Scale.TINY: _SMALL
    | {
        "texts": ("newsgroups",),
        "rows": 8,
        "users": 4,
        "steps": 1,
        "ks": (1, 2),
        "tuned_ks": (2,),
        "rates": (5e-3,),
        "epsilons": (8.0,),
        "tuned": (8.0,),
        "seeds": 2,
    },
    Scale.SMALL: _SMALL,
    Scale.FULL: _SMALL
    | {"rows": 1024, "users": 256, "steps": 1000, "ks": (1, 2, 5, 10, 20), "rates": (1e-3, 2e-3)},
}


def grid(work: Work) -> Grid:
    size = _SIZES[work.scale]
    rates, rows = {"train.learning_rate": size["rates"]}, size["rows"]
    return Grid(
        name="user-k",
        texts=size["texts"],
        model=stories,
        keys=users.keys(size["steps"]),
        arms=(
            users.arm(GROUP, rows, rates, selection="random"),
            users.arm(ULS, rows, rates, FIXED_USERS, users=size["users"]),
            users.arm(ULS, rows, rates, FIXED_ROWS),
        ),
        at={EPSILON: size["epsilons"], K: size["ks"]},
        tuned_at={EPSILON: size["tuned"], K: size["tuned_ks"]},
        seeds=size["seeds"],
    )


def measure(work: Work) -> list[Row]:
    return grid(work).measured(work)


def findings(rows: Sequence[Row]) -> list[Finding]:
    found = []
    ks, epsilons = users.values(rows, K), users.values(rows, EPSILON)
    for text in users.texts_of(rows):
        for epsilon in epsilons:
            where = f"at epsilon {target(epsilon)} and as many"
            found += [
                _sloped(
                    f"{where[0].upper()}{where[1:]} users a step, more rows help user-wise DP-SGD ({text}).",
                    "Table 5",
                    _cells(rows, text, FIXED_USERS, epsilon),
                    f"{text}, more rows",
                    high=0.0,
                ),
                _sloped(
                    f"{where[0].upper()}{where[1:]} rows a step, more rows of each user do harm on the whole ({text}).",
                    "Table 5",
                    _cells(rows, text, FIXED_ROWS, epsilon),
                    f"{text}, equal compute",
                    low=0.0,
                    is_beyond=True,
                ),
            ]
        least = epsilons[0]
        for epsilon in epsilons if len(epsilons) > 1 else ():
            which, bound = ("fewer", {"low": 0.0}) if epsilon == least else ("more", {"high": 0.0})
            found.append(
                _sloped(
                    f"Under group privacy, {which} rows of each user are better at epsilon {target(epsilon)} ({text}).",
                    "Table 3",
                    _cells(rows, text, GROUP, epsilon),
                    f"{text}, group privacy",
                    **bound,
                )
            )
        found += _shifts(rows, text)
        for epsilon in epsilons if len(ks) > 2 else ():
            found.append(
                Finding(
                    f"At epsilon {target(epsilon)} and as many users a step, each further row adds less ({text}).",
                    "Table 5",
                    f"the gain in loss a row from k = {ks[0]} to {ks[1]} less that from {ks[-2]} to {ks[-1]}",
                    _diminishing(rows, text, epsilon, ks),
                    low=0.0,
                    family=f"{text}, further rows",
                    is_late=epsilon != least,
                )
            )
    return found


def _shifts(rows: Sequence[Row], text: str) -> list[Finding]:
    """Judge that the number of rows which is best for group privacy grows with epsilon."""
    ks = users.values(rows, K)
    along = [math.log(k) for k in ks]
    of = {
        epsilon: slopes(along, [_of_k(rows, text, GROUP, epsilon, k) for k in ks])
        for epsilon in users.values(rows, EPSILON)
    }
    return [
        Finding(
            f"Under group privacy, epsilon {target(more)} favours more rows of each user than {target(less)} ({text}).",
            "Table 3",
            f"slope of the loss in the logarithm of k: at epsilon {target(less)} less that at {target(more)}",
            tuple(a - b for a, b in zip(of[less], of[more], strict=True)),
            low=ABOVE,
            family=f"{text}, shifts",
            unit="nats a factor e",
            is_late=True,
        )
        for less, more in pairwise(of)
    ]


def _sloped(
    claim: str, place: str, losses: Mapping[int, Mapping[int, float]], family: str, **more: Any
) -> Finding:
    """Return a finding on the slope of the losses of one arm, which come by k and run key."""
    along, values = [math.log(k) for k in losses], list(losses.values())
    return Finding(
        claim,
        place,
        "slope of the loss in the logarithm of k",
        slopes(along, values),
        family=family,
        unit="nats a factor e",
        pooled=pooled(values, sloped(along).tolist()),
        **more,
    )


def _of_k(rows: Sequence[Row], text: str, arm: str, epsilon: float, k: int) -> dict[int, float]:
    return users.at(rows, text, arm, epsilon, privacy__rows_per_unit=k)


def _cells(rows: Sequence[Row], text: str, arm: str, epsilon: float) -> dict[int, dict[int, float]]:
    """Return the losses of an arm by k and run key."""
    return {k: _of_k(rows, text, arm, epsilon, k) for k in users.values(rows, K)}


def _diminishing(rows: Sequence[Row], text: str, epsilon: float, ks: Sequence[int]) -> tuple[float, ...]:
    """Return, by run key, what a further row gains at the smallest k less what one gains at the largest."""

    def gains(fewer: int, more: int) -> dict[int, float]:
        one, other = (_of_k(rows, text, FIXED_USERS, epsilon, k) for k in (fewer, more))
        return {key: (one[key] - other[key]) / (more - fewer) for key in one.keys() & other.keys()}

    return paired(gains(*ks[:2]), gains(*ks[-2:]))


def tables(rows: Sequence[Row]) -> list[Table]:
    ks = users.values(rows, K)
    heads = ["arm", "epsilon", *(f"k = {k}" for k in ks), "paper: Enron, k = 2, 5, 10", "paper: BookSum"]
    found = []
    for text in users.texts_of(rows):
        cells = [
            [
                arm,
                target(epsilon),
                *(perplexity(_of_k(rows, text, arm, epsilon, k)) for k in ks),
                *(each.get((arm, epsilon), "") for each in (ENRON, BOOKSUM)),
            ]
            for arm in (GROUP, FIXED_USERS, FIXED_ROWS)
            for epsilon in users.values(rows, EPSILON)
        ]
        note = (
            "Group privacy has as many rows a step at every k, drawn at random for each user. The paper says that "
            "smaller k are generally better at small epsilon; on Enron, k = 5 is best at epsilon 1. Intervals are of "
            "95% over run keys."
        )
        found.append(Table(f"Tables 3 and 5, {text}: test perplexity", heads, cells, note))
    return found


STUDY = Study(
    name="user-k",
    paper="000",
    shows=("Table 3", "Table 5"),
    question="How many rows of each user should be used?",
    measure=measure,
    findings=findings,
    tables=tables,
    minutes=80,
    deviations=users.DEVIATIONS,
    reads=users.READS,
    texts=_SMALL["texts"],
)
