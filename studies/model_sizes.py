"""How many rows of a user to take, by the size of the model (Chua et al. 2024, Tables 10 and 11; 000)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from studies.runner import users
from studies.runner.findings import ABOVE, Finding, has_taught, paired, taught
from studies.runner.grid import NOTHING, Grid
from studies.runner.models import one_million, stories
from studies.runner.study import Row, Scale, Study, Table, Work
from studies.runner.tables import change, losses, perplexity, target
from studies.runner.users import GROUP, ULS

K, EPSILON = "privacy.rows_per_unit", "privacy.epsilon"
SIZES = {"0.26 M": stories, "1 M": one_million, "5.3 M": lambda work: Path("bundled")}
LARGE = {"124 M": "gpt2", "355 M": "gpt2-medium", "774 M": "gpt2-large"}  # of the paper, at `full`
# Chua et al. 2024, Tables 10 and 11 on BookSum at k = 2, 10: GPT-2 small, medium, large.
PAPER = {
    (GROUP, 1.0): "27.31, 27.45; 21.83, 21.99; 19.28, 19.32",
    (GROUP, 8.0): "27.08, 27.02; 21.61, 21.52; 19.12, 18.99",
    (ULS, 1.0): "27.62, 27.38; 21.88, 21.77; 19.22, 19.19",
    (ULS, 8.0): "27.11, 27.01; 21.50, 21.44; 18.99, 18.93",
}
_SMALL: dict[str, Any] = {
    "sizes": ("0.26 M", "1 M", "5.3 M"),
    "rows": 160,
    "users": 32,
    "steps": 16,
    "ks": (2, 10),
    "rates": {"0.26 M": (5e-3, 1.5e-2), "1 M": (2e-3, 6e-3), "5.3 M": (1e-3, 4e-3)},
    "epsilons": (1.0, 8.0),
    "seeds": 3,
}
_SIZES: Mapping[Scale, dict[str, Any]] = {
    Scale.TINY: _SMALL
    | {
        "sizes": ("1 M",),
        "rows": 8,
        "users": 4,
        "steps": 1,
        "ks": (1, 2),
        "rates": {"1 M": (5e-3,)},
        "epsilons": (8.0,),
        "seeds": 2,
    },
    Scale.SMALL: _SMALL,
    Scale.FULL: _SMALL
    | {
        "sizes": tuple(LARGE),
        "rows": 1024,
        "users": 256,
        "steps": 1000,
        "ks": (2, 5, 10, 20),
        "rates": dict.fromkeys(LARGE, (5e-4, 1e-3)),
    },
}


def grid(work: Work, size: str) -> Grid:
    """Return the runs of one model. User-wise DP-SGD has as many users a step at each k, as in the paper."""
    of = _SIZES[work.scale]
    rates = {"train.learning_rate": of["rates"][size]}
    at = {EPSILON: of["epsilons"], K: of["ks"]}
    return Grid(
        name="model-sizes",
        texts=("newsgroups",),
        model=_model(size),
        keys=users.keys(of["steps"]),
        arms=(
            users.arm(GROUP, of["rows"], rates, selection="random"),  # as where k varies (4.1)
            users.arm(ULS, of["rows"], rates, users=of["users"]),
        ),
        at=at,
        tuned_at=at,
        seeds=of["seeds"],
    )


def _model(size: str) -> Callable[[Work], Path]:
    return SIZES[size] if size in SIZES else lambda work: Path(LARGE[size])


def measure(work: Work) -> list[Row]:
    sizes = _SIZES[work.scale]["sizes"]
    return [row | {"model": size} for size in sizes for row in grid(work, size).measured(work)]


def _models(rows: Sequence[Row]) -> list[str]:
    return list(dict.fromkeys(row["model"] for row in rows))


def _at(rows: Sequence[Row], model: str, arm: str, epsilon: float, k: int) -> dict[int, float]:
    return losses(rows, {"model": model, "arm": arm, EPSILON: epsilon, K: k})


def more(rows: Sequence[Row], model: str, arm: str, epsilon: float) -> tuple[float, ...]:
    """Return the loss at the largest k less that at the least, by run key."""
    ks = users.values(rows, K)
    return paired(_at(rows, model, arm, epsilon, ks[-1]), _at(rows, model, arm, epsilon, ks[0]))


def findings(rows: Sequence[Row]) -> list[Finding]:
    """Judge, for each model, what the paper finds for all of its models."""
    ks, epsilons = users.values(rows, K), users.values(rows, EPSILON)
    few, many = ks[0], ks[-1]
    found = []
    for model in _models(rows):
        before = next(iter(losses(rows, {"model": model, "arm": NOTHING}).values()))
        learns = {}
        for arm in (GROUP, ULS):
            for epsilon in epsilons:
                gains = [loss - before for loss in _at(rows, model, arm, epsilon, few).values()]
                learns[arm, epsilon] = has_taught(gains)
                what = f"With {model} weights and epsilon {target(epsilon)}, {arm}"
                found.append(taught(what, f"loss at k = {few} less that before training", gains))
        if epsilons[0] < epsilons[-1] and all(learns[GROUP, each] for each in (epsilons[0], epsilons[-1])):
            small, large = (more(rows, model, GROUP, epsilon) for epsilon in (epsilons[0], epsilons[-1]))
            found.append(
                Finding(
                    f"With {model} weights, the larger epsilon shifts what group privacy favours towards larger k.",
                    "Table 10",
                    f"loss at k = {many} less that at k = {few}: at epsilon {target(epsilons[0])} less that at "
                    f"{target(epsilons[-1])}",
                    tuple(a - b for a, b in zip(small, large, strict=True)),
                    low=ABOVE,
                    family="group privacy",
                )
            )
        for epsilon in (each for each in epsilons if learns[ULS, each]):
            found.append(
                Finding(
                    f"With {model} weights and epsilon {target(epsilon)}, user-wise DP-SGD does better with k = {many} "
                    f"than with k = {few}, at as many users a step.",
                    "Table 11",
                    f"loss at k = {many} less that at k = {few}",
                    more(rows, model, ULS, epsilon),
                    high=-ABOVE,
                    family="user-wise DP-SGD",
                )
            )
    return found


def tables(rows: Sequence[Row]) -> list[Table]:
    ks = users.values(rows, K)
    heads = ["weights", "epsilon", *(f"k = {k}" for k in ks), f"k = {ks[-1]} against {ks[0]}"]
    heads.append("paper: BookSum, k = 2 and 10; GPT-2 small; medium; large")
    found = []
    for title, arm in (("Table 10", GROUP), ("Table 11", ULS)):
        cells = [
            [
                model,
                target(epsilon),
                *(perplexity(_at(rows, model, arm, epsilon, k)) for k in ks),
                change(more(rows, model, arm, epsilon)),
                PAPER.get((arm, epsilon), ""),
            ]
            for model in _models(rows)
            for epsilon in users.values(rows, EPSILON)
        ]
        before = "; ".join(
            f"{model}: {perplexity(losses(rows, {'model': model, 'arm': NOTHING}))}"
            for model in _models(rows)
        )
        note = (
            f"Before training: {before}. The model of 5.3 million weights has tokens of its own, so its perplexities "
            "are not to be compared with those of the others. Intervals are of 95% over run keys."
        )
        found.append(Table(f"{title}, newsgroups: test perplexity with {arm}", heads, cells, note))
    return found


STUDY = Study(
    name="model-sizes",
    paper="000",
    shows=("Table 10", "Table 11"),
    question="Does what is best for a small model hold for larger ones?",
    measure=measure,
    findings=findings,
    tables=tables,
    minutes=90,
    deviations="Models of 0.26, 1 and 5.3 million weights, trained whole, in place of GPT-2 small, medium and large "
    "with LoRA: stories260K, one that the study itself pretrains on WikiText-2, and the bundled model. Newsgroup posts "
    "in rows of 64 tokens in place of BookSum; k = 2 and 10 alone; Poisson draws. Group privacy takes random rows, as "
    "in the paper. User-wise DP-SGD takes random chunks; the paper does not say what it took here.",
    reads=("20newsgroups", "wikitext-2"),
)
