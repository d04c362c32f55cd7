"""How many rows of a user ELS should use: the group size G (Charles et al. 2024, appendix H, Figures 9 and 10; 003)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from studies.runner import users
from studies.runner.findings import MARGIN, Finding, paired, unsigned
from studies.runner.grid import Arm, Grid
from studies.runner.models import stories
from studies.runner.study import Row, Scale, Study, Table, Work
from studies.runner.tables import change, perplexity, target
from studies.runner.users import ELS

EPSILON = "privacy.epsilon"
MEDIAN = "median"

_SMALL: dict[str, Any] = {
    "texts": users.TEXTS,
    "rows": 192,
    "steps": 16,
    "groups": (1, 2, 4, 8, 16, 32, 64),
    "rates": (5e-3, 1e-2),
    "epsilons": (1.0, 4.0, 16.0),
    "seeds": 3,
}
_SIZES: Mapping[Scale, dict[str, Any]] = {
    Scale.TINY: _SMALL
    | {
        "texts": ("newsgroups",),
        "rows": 8,
        "steps": 1,
        "groups": (1,),
        "epsilons": (16.0,),
        "seeds": 2,
    },
    Scale.SMALL: _SMALL,
    Scale.FULL: _SMALL
    | {
        "rows": 1024,
        "steps": 2000,
        "groups": tuple(2**power for power in range(13)),
        "rates": (5e-4, 1e-3, 2e-3),
        "epsilons": (1.0, 4.0, 16.0, 64.0),
    },
}


def group(size: int) -> str:
    """Return the name of the arm of a group size."""
    return f"G = {size}"


def grid(work: Work) -> Grid:
    size = _SIZES[work.scale]
    groups = {group(g): g for g in size["groups"]} | {MEDIAN: MEDIAN}
    rates = {"train.learning_rate": size["rates"]}
    return Grid(
        name="group-size",
        texts=size["texts"],
        model=stories,
        keys=users.keys(size["steps"]),
        arms=tuple(_arm(name, g, size["rows"], rates) for name, g in groups.items()),
        at={EPSILON: size["epsilons"]},
        tuned_at={EPSILON: size["epsilons"]},
        seeds=size["seeds"],
    )


def _arm(name: str, g: int | str, rows: int, rates: Mapping[str, Any]) -> Arm:
    return users.arm(ELS, rows, rates, name, rows_per_unit=g)


def measure(work: Work) -> list[Row]:
    return grid(work).measured(work)


def arms(rows: Sequence[Row]) -> list[str]:
    """Return the arms, in the order of their group sizes, the median last."""
    return list(dict.fromkeys(row["arm"] for row in rows if row["part"] == "test" and row["key"]))


def best(rows: Sequence[Row], text: str, epsilon: float) -> str:
    """Return the arm, other than the median, of the least loss on validation text."""
    place = (text, epsilon, "validation")
    tried = [row for row in rows if (row["text"], row[EPSILON], row["part"]) == place]
    found: Row = min((row for row in tried if row["arm"] != MEDIAN), key=lambda row: row["loss"])
    return str(found["arm"])


def _gap(rows: Sequence[Row], text: str, one: str, other: str, epsilon: float) -> tuple[float, ...]:
    return paired(users.at(rows, text, one, epsilon), users.at(rows, text, other, epsilon))


def findings(rows: Sequence[Row]) -> list[Finding]:
    found, named = [], arms(rows)
    epsilons = users.values(rows, EPSILON)
    for text in users.texts_of(rows):
        for epsilon in epsilons:
            other = best(rows, text, epsilon)
            found.append(
                Finding(
                    f"At epsilon {target(epsilon)} the median group size is within 1% of the best ({text}).",
                    "Figures 9 and 10",
                    "loss with the median less that with the group size of the least validation loss",
                    _gap(rows, text, MEDIAN, other, epsilon),
                    high=MARGIN,
                    family=f"{text}, median",
                )
            )
        least, most = epsilons[0], epsilons[-1]
        smallest, largest = named[0], named[-2]  # the median comes last
        if least < most:
            dear, cheap = (_gap(rows, text, largest, smallest, epsilon) for epsilon in (least, most))
            more = tuple(a - b for a, b in zip(dear, cheap, strict=True))
            statistic = (
                f"loss with {largest} less that with {smallest}, at epsilon {target(least)} less the same at "
            )
            statistic += f"{target(most)}: a quotient of two quotients of perplexities"
            found += [
                Finding(
                    f"How {largest} compares with {smallest} depends on epsilon ({text}).",
                    "appendix H, Figures 9 and 10",
                    f"{statistic}, turned so that its mean is above 1, as the paper names no direction; more than 1% "
                    "counts, by our choice",
                    unsigned(more),
                    low=MARGIN,
                ),
                Finding(
                    f"{largest} in place of {smallest} costs more at epsilon {target(least)} than at {target(most)} "
                    f"({text}).",
                    "Figures 9 and 10",
                    statistic,
                    more,
                    low=0.0,
                    is_beyond=True,
                ),
            ]
    return found


def tables(rows: Sequence[Row]) -> list[Table]:
    found, epsilons = [], users.values(rows, EPSILON)
    heads = ["group size", "rows of a user in use, at most"]
    heads += [f"epsilon {target(epsilon)}" for epsilon in epsilons]
    heads += [f"less the median's, epsilon {target(epsilon)}" for epsilon in epsilons]
    for text in users.texts_of(rows):
        chosen = {epsilon: best(rows, text, epsilon) for epsilon in epsilons}
        cells = []
        for arm in arms(rows):
            marks = ["*" if chosen[epsilon] == arm else "" for epsilon in epsilons]
            cells.append(
                [
                    arm,
                    _most(rows, text, arm),
                    *(
                        f"{perplexity(users.at(rows, text, arm, epsilon))}{mark}"
                        for epsilon, mark in zip(epsilons, marks, strict=True)
                    ),
                    *(
                        "" if arm == MEDIAN else change(_gap(rows, text, arm, MEDIAN, epsilon))
                        for epsilon in epsilons
                    ),
                ]
            )
        note = (
            "A star marks the group size, other than the median, of the least validation loss. Every step asks for as "
            "many rows. The paper has plots, not numbers. Intervals are of 95% over run keys."
        )
        found.append(
            Table(f"Figures 9 and 10, {text}: test perplexity of ELS by group size", heads, cells, note)
        )
    return found


def _most(rows: Sequence[Row], text: str, arm: str) -> str:
    own = {row.get("rows_per_unit") for row in rows if (row["text"], row["arm"]) == (text, arm)}
    return ", ".join(str(most) for most in sorted(each for each in own if each is not None))


STUDY = Study(
    name="group-size",
    paper="003",
    shows=("Figure 9", "Figure 10"),
    question="How many rows of each user should example-level sampling use?",
    measure=measure,
    findings=findings,
    tables=tables,
    minutes=60,
    deviations="stories260K in place of a model of 350 million weights; newsgroup posts and WikiText-2 articles in "
    "place of Stack Overflow and CC-News; Poisson draws in place of shuffled batches; "
    "on CC-News the paper counts ten times the users that there are; within 1% is our choice for what works well; one "
    "compute budget, and the "
    "learning rate alone is tuned, since the normalised clip norm of 1 clips all rows. No group size takes all rows of "
    "every user: one sender of newsgroups has thousands, and noise for these leaves nothing to learn.",
    reads=users.READS,
    texts=_SMALL["texts"],
)
