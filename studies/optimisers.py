"""What moves the weights best under noise: AdamW's first beta by steps and epsilon. Beyond the papers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from studies.runner import users
from studies.runner.findings import MARGIN, Finding, paired
from studies.runner.grid import Arm, Grid
from studies.runner.models import stories
from studies.runner.study import Row, Scale, Study, Table, Work
from studies.runner.tables import change, perplexity, target
from studies.runner.users import ULS

EPSILON, STEPS = "privacy.epsilon", "train.steps"
USUAL = 0.9  # torch's own, and that of nearly all who fine-tune
_SMALL: dict[str, Any] = {
    "texts": users.TEXTS,
    "rows": 64,
    "betas": (USUAL, 0.6, 0.3, 0.0),
    "steps": (8, 32, 96),
    "rates": (4e-3, 8e-3),
    "epsilons": (8.0,),
    "seeds": 3,
}
_SIZES: Mapping[Scale, dict[str, Any]] = {
    Scale.TINY: _SMALL
    | {
        "texts": ("newsgroups",),
        "rows": 8,
        "betas": (USUAL, 0.0),
        "steps": (1, 2),
        "rates": (4e-3,),
        "epsilons": (8.0,),
        "seeds": 2,
    },
    Scale.SMALL: _SMALL,
    Scale.FULL: _SMALL | {"rows": 1024, "steps": (32, 128, 512), "rates": (5e-4, 1e-3, 2e-3), "seeds": 5},
}


def grid(work: Work) -> Grid:
    size = _SIZES[work.scale]
    places = {EPSILON: size["epsilons"], STEPS: size["steps"]}
    return Grid(
        name="optimisers",
        texts=size["texts"],
        model=stories,
        keys=users.keys(size["steps"][0], **{"privacy.rows_per_unit": 1}),
        arms=tuple(_with(beta, size["rows"], size["rates"]) for beta in size["betas"]),
        at=places,
        tuned_at=places,
        seeds=size["seeds"],
    )


def _with(beta: float, rows: int, rates: Sequence[float]) -> Arm:
    made = users.arm(ULS, rows, {"train.learning_rate": rates}, name_of(beta))
    return replace(made, keys={**made.keys, "train.betas": [beta, 0.999]})


def name_of(beta: float) -> str:
    return f"beta1 {beta:g}"


def measure(work: Work) -> list[Row]:
    return grid(work).measured(work)


def _at(rows: Sequence[Row], text: str, arm: str, epsilon: float, steps: int) -> dict[int, float]:
    return users.at(rows, text, arm, epsilon, train__steps=steps)


def _gap(rows: Sequence[Row], text: str, arm: str, epsilon: float, steps: int) -> tuple[float, ...]:
    """Return the paired differences of an arm's losses and those of the usual first beta."""
    return paired(_at(rows, text, arm, epsilon, steps), _at(rows, text, name_of(USUAL), epsilon, steps))


def _arms(rows: Sequence[Row]) -> list[str]:
    return list(dict.fromkeys(row["arm"] for row in rows if str(row["arm"]).startswith("beta1 ")))


def findings(rows: Sequence[Row]) -> list[Finding]:
    """Compare the smaller betas with the usual one, and say for each whether it gains more than the margin."""
    found = []
    for text in users.texts_of(rows):
        for epsilon in users.values(rows, EPSILON):
            for steps in users.values(rows, STEPS):
                for arm in _arms(rows)[1:]:
                    found.append(
                        Finding(
                            f"In {steps} steps at epsilon {target(epsilon)}, {arm} beats {name_of(USUAL)} by more than "
                            f"1% of the perplexity ({text}).",
                            "first beta",
                            "loss less that of the usual first beta",
                            _gap(rows, text, arm, epsilon, steps),
                            high=-MARGIN,
                            family=f"{text}, first beta",
                        )
                    )
    return found


def tables(rows: Sequence[Row]) -> list[Table]:
    others = _arms(rows)[1:]
    heads = ["epsilon", "steps", name_of(USUAL), *(f"{arm}, against it" for arm in others)]
    found = []
    for text in users.texts_of(rows):
        cells = [
            [
                target(epsilon),
                str(steps),
                perplexity(_at(rows, text, name_of(USUAL), epsilon, steps)),
                *(change(_gap(rows, text, arm, epsilon, steps)) for arm in others),
            ]
            for epsilon in users.values(rows, EPSILON)
            for steps in users.values(rows, STEPS)
        ]
        note = "Each step asks for as many rows, one of each user. Intervals are of 95% over run keys."
        found.append(Table(f"AdamW's first beta, {text}: test perplexity", heads, cells, note))
    return found


STUDY = Study(
    name="optimisers",
    paper="",
    shows=(),
    question="Which first beta of AdamW is best under noise, and how does it depend on the steps?",
    measure=measure,
    findings=findings,
    tables=tables,
    minutes=25,
    deviations="",
    reads=users.READS,
)
