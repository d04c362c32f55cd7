"""Does `plan --suggest` choose well? Its first setting against a grid of twelve, at three epsilons.

20 Newsgroups as in `recipe`, a quarter of its rows. The grid varies the chunks of a user a step, the number of steps
and the learning rate; the suggestion sees the shape of the data alone, and keeps the learning rate that it was given.
The planner's two constants are fitted to the runs of one chunk at the rate of 4e-3; what they predict of an epsilon
that is left out, of the other rate, and of half and twice the budget is told beside. Other mechanisms and caps are
not trained.

The best of twelve runs is in part the luckiest, and draws of one setting differ by two or three percent: so the
suggestion is held against new runs of the grid's best setting, both with the same run keys.

At the first epsilon, beside them, one setting of the grid with noise that is correlated over all steps, which bears a
higher rate, and with independent noise at that rate; and with averages of the weights, on the draws of the grid.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import chain, product
from math import exp
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
from scipy import optimize

from confide.config.schema import Config
from confide.models import loading as models
from confide.planning.cost import Size
from confide.planning.suggest import SQUARES, log_progress, suggest
from confide.runs.folder import Run
from confide.runs.job import prepared_data
from confide.runs.loop import Outcome
from confide.tuning.space import altered
from confide.utils.console import Console
from confide.utils.rounding import at_least, at_most
from studies import main
from studies import recipe as recipes
from studies.recipe import Recipe
from studies.side_by_side import fine_tuned

EPSILONS = (8.0, 3.0, 1.0)
ROWS = 7_680
"""Chunks computed in all, by every setting."""

GRID = tuple(
    Recipe(f"grid-{rows}-{steps}-{rate:g}", ROWS // (rows * steps), rows, steps, rate)
    for rows, steps, rate in product((1, 2), (16, 32, 64), (2e-3, 4e-3))
)
START = Recipe("start", 64, 2, 60, 4e-3)
"""What a user might have written before asking; budget and learning rate of the suggestion are its."""

BUDGETS = {
    rows: tuple(
        Recipe(f"budget-{rows}-{steps}", rows // steps, 1, steps, START.learning_rate) for steps in tried
    )
    for rows, tried in ((ROWS // 2, (8, 16, 32, 64)), (ROWS * 2, (16, 32, 64, 128)))
}
"""Other budgets, at the second epsilon; nothing is fitted to them."""

KEYS = (1, 2, 3)
"""Run keys of the suggestion and of the grid's best setting, trained again; the grid's is 0."""

FASTER = Recipe("faster", 240, 1, 32, 6e-3)
"""A setting of the grid at a higher rate, where each user may take part in one step if noise is correlated over all."""

AVERAGED = Recipe("averaged", 240, 1, 32, 4e-3)
"""A setting of the grid; what is released is a mean of weights, after linear decay as in the grid or without any."""

AVERAGES = (("ema", "linear"), ("ema", "constant"), ("tail", "constant"))


@dataclass(frozen=True)
class Row:
    """A setting that was trained; a loss on held-out users for each run key."""

    name: str
    mechanism: str
    batch: float
    rows: int | str
    steps: int
    learning_rate: float
    schedule: str
    average: str
    bands: int
    noise_multiplier: float
    losses: tuple[float, ...]

    @property
    def loss(self) -> float:
        return mean(self.losses)

    @property
    def perplexity(self) -> float:
        return exp(self.loss)

    def is_of_the_setting_of(self, other: "Row") -> bool:
        """Whether nothing but draws tells the two apart."""
        return replace(self, name="", losses=()) == replace(other, name="", losses=())


def config(recipe: Recipe, epsilon: float, key: int, data: Path, folder: Path) -> Config:
    """Of one run, which looks at held-out users at its end alone."""
    return altered(recipes.config(recipe, epsilon, key, data, folder), {"train.eval_on_start": False})


def suggested(data: Path, folder: Path, console: Console) -> dict[float, dict[str, Any]]:
    """What the first setting of `plan --suggest` sets in the config, at each epsilon."""
    starts = {epsilon: config(START, epsilon, KEYS[0], data, folder) for epsilon in EPSILONS}
    first = starts[EPSILONS[0]]  # they have the same data
    tokenizer = models.load_tokenizer(first)
    prepared = prepared_data(Run(first), tokenizer, console)
    shape = prepared.train.shape()
    size = Size.of(models.load_model(first, prepared.classes, len(tokenizer)))
    return {
        epsilon: dict(suggest(start, shape, size, ROWS, count=1)["ranked"][0]["settings"])
        for epsilon, start in starts.items()
    }


@dataclass(frozen=True)
class Compared:
    """What was trained at one epsilon.

    again: new runs of the grid's best setting, unless the suggestion is that.
    """

    grid: tuple[Row, ...]
    suggested: Row
    again: Row | None
    others: tuple[Row, ...]

    @property
    def best(self) -> Row:
        return min(self.grid, key=lambda row: row.loss)

    @property
    def of_the_best(self) -> float:
        return 1.0 if self.again is None else self.suggested.perplexity / self.again.perplexity

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"of_the_best": self.of_the_best}


@dataclass(frozen=True)
class _Study:
    data: Path
    folder: Path
    console: Console
    outcomes: dict[str, Outcome] = field(default_factory=dict)

    def own(self, recipe: Recipe, epsilon: float, key: int = 0) -> Config:
        return config(recipe, epsilon, key, self.data, self.folder)

    def train(self, runs: Iterable[Config]) -> None:
        """Or resume."""
        self.outcomes.update(fine_tuned(list(runs), self.console))

    def row(self, *runs: Config) -> Row:
        """What came of one setting, with each of some run keys."""
        first, found = runs[0], [self.outcomes[each.run] for each in runs]
        return Row(
            Path(first.run).name,
            first.privacy.mechanism,
            first.train.batch,
            first.privacy.rows_per_unit,
            first.train.steps,
            first.train.learning_rate,
            first.train.schedule,
            first.train.average.kind,
            first.privacy.bands,
            found[0].guarantee.noise_multiplier,
            tuple(outcome.final["loss"] for outcome in found if outcome.final),
        )

    def compared(self, epsilon: float, chosen: Sequence[Config]) -> Compared:
        """Train the grid, the suggestion and what stands beside; by other keys again where these two differ."""
        others = beside(self.data, self.folder) if epsilon == EPSILONS[0] else []
        self.train([*(self.own(each, epsilon) for each in GRID), chosen[0], *others])
        grid = {each: self.row(self.own(each, epsilon)) for each in GRID}
        best = min(grid, key=lambda each: grid[each].loss)
        found, again = self.row(chosen[0]), None
        if not found.is_of_the_setting_of(grid[best]):
            anew = [self.own(best, epsilon, key) for key in KEYS]
            self.train([*chosen[1:], *anew])
            found, again = self.row(*chosen), self.row(*anew)
        return Compared(tuple(grid.values()), found, again, tuple(self.row(each) for each in others))


def run(data: Path, folder: Path) -> dict[str, Any]:
    """Train everything, or resume, compare on held-out users, and fit the planner's rule to it."""
    console = Console()
    study = _Study(data, folder, console)
    chosen = {
        epsilon: [
            altered(
                study.own(START, epsilon, key),
                setting | {"run": str(folder / f"suggested-{at_most(epsilon, 6)}-{key}")},
            )
            for key in KEYS
        ]
        for epsilon, setting in suggested(data, folder, console).items()
    }
    found = {}
    for epsilon, runs in chosen.items():
        found[epsilon] = study.compared(epsilon, runs)
        console.say(
            f"epsilon {at_most(epsilon, 6)}\n\n{_table(found[epsilon])}\n"
        )  # hours before all are done
    budgets = {rows: [study.own(each, EPSILONS[1]) for each in own] for rows, own in BUDGETS.items()}
    study.train(chain(*budgets.values()))
    own = rule(
        {epsilon: [*each.grid, each.suggested] for epsilon, each in found.items()},
        {rows: [study.row(each) for each in runs] for rows, runs in budgets.items()},
    )
    tables = [f"epsilon {at_most(epsilon, 6)}\n\n{_table(each)}" for epsilon, each in found.items()]
    return {at_most(epsilon, 6): each.to_json() for epsilon, each in found.items()} | {
        "rule": own,
        "markdown": "\n\n".join([*tables, _rule_table(own)]),
    }


def beside(data: Path, folder: Path) -> list[Config]:
    """At a higher rate, with independent noise and with noise correlated over all steps; and with averages."""
    epsilon = EPSILONS[0]
    faster, averaged = (config(recipe, epsilon, 0, data, folder) for recipe in (FASTER, AVERAGED))
    bands = {"privacy.bands": FASTER.steps, "run": str(folder / f"correlated-{at_most(epsilon, 6)}-0")}
    averages = [
        {
            "train.average.kind": kind,
            "train.schedule": schedule,
            "run": str(folder / f"{kind}-{schedule}-{at_most(epsilon, 6)}-0"),
        }
        for kind, schedule in AVERAGES
    ]
    return [faster, altered(faster, bands), *(altered(averaged, each) for each in averages)]


# the planner's rule ---------------------------------------------------------------------------------------------
def rule(found: Mapping[float, Sequence[Row]], budgets: Mapping[int, Sequence[Row]]) -> dict[str, Any]:
    """The constants of `suggest.log_progress` that fit runs of one chunk at the rate of `START`, and what follows.

    Args:
        found: by epsilon, runs at the one budget; budgets: by chunks computed, runs at others, which are not fitted.

    Returns:
        `dimensions`: ratio over squared noise per gradient: `suggest.DIMENSIONS` times the trainable weights;
        `walk`; `error`: root mean square of the losses' residuals; `predicted`: of each epsilon from the others, and of
        other rates and budgets from all, the number of steps that is best by the rule, and among the runs, and how much
        the former's perplexity is above the latter's; `budgets`: those runs.
    """
    rate = START.learning_rate
    used = {epsilon: [row for row in rows if _is_plain(row, rate)] for epsilon, rows in found.items()}
    whole, error = _fitted([row for rows in used.values() for row in rows])
    predicted = []
    for epsilon, rows in used.items():
        others, _ = _fitted([row for other, own in used.items() if other != epsilon for row in own])
        predicted.append(_prediction(f"epsilon {at_most(epsilon, 6)}, from the others", rows, others))
    for epsilon, trained in found.items():
        for other in sorted({row.learning_rate for row in trained} - {rate}):
            plain = [row for row in trained if _is_plain(row, other)]
            predicted.append(
                _prediction(
                    f"epsilon {at_most(epsilon, 6)} at the rate {other:g}, from {rate:g}", plain, whole
                )
            )
    for budget, trained in budgets.items():
        predicted.append(
            _prediction(f"epsilon {EPSILONS[1]:g} and {budget:,} chunks, from {ROWS:,}", trained, whole)
        )
    return {
        "dimensions": whole[0],
        "walk": whole[1],
        "error": error,
        "predicted": predicted,
        "budgets": {budget: [asdict(row) for row in rows] for budget, rows in budgets.items()},
    }


def _is_plain(row: Row, rate: float) -> bool:
    return (row.rows, row.learning_rate, row.schedule, row.average, row.bands) == (
        1,
        rate,
        "linear",
        "none",
        1,
    )


def _progress(row: Row, dimensions: float, walk: float) -> float:
    ratio = dimensions * (row.noise_multiplier / row.batch) ** 2
    return log_progress(row.steps, ratio, SQUARES[row.schedule] * row.learning_rate**2, walk)


def _fitted(rows: Sequence[Row]) -> tuple[tuple[float, float], float]:
    """(dimensions, walk) with which losses lie next to a line over progress, and the root mean square beside it."""
    losses = np.concatenate([row.losses for row in rows])

    def residuals(logs: np.ndarray) -> np.ndarray:
        constants = np.exp(logs)
        progress = np.concatenate([[_progress(row, *constants)] * len(row.losses) for row in rows])
        line = np.stack([np.ones_like(progress), progress], 1)
        return np.asarray(losses - line @ np.linalg.lstsq(line, losses, rcond=None)[0])

    best = min(
        (
            optimize.minimize(lambda logs: float(np.sum(residuals(logs) ** 2)), start, method="Nelder-Mead")
            for start in product((11.0, 14.0), (5.0, 7.0))
        ),
        key=lambda result: result.fun,
    )
    dimensions, walk = np.exp(best.x).tolist()
    return (dimensions, walk), float(np.sqrt(best.fun / len(losses)))


def _prediction(what: str, rows: Sequence[Row], constants: tuple[float, float]) -> dict[str, Any]:
    by_rule = max(rows, key=lambda row: _progress(row, *constants))
    best = min(rows, key=lambda row: row.loss)
    return {
        "of": what,
        "by_rule": by_rule.steps,
        "best": best.steps,
        "behind": by_rule.perplexity / best.perplexity - 1,
        "perplexities": [
            (row.steps, row.perplexity) for row in sorted(rows, key=lambda row: (row.steps, row.name))
        ],
    }


def _rule_table(own: dict[str, Any]) -> str:
    lines = [
        f"The rule, fitted: ratio {own['dimensions']:.3g} (s / n)^2, walk {own['walk']:.0f}; losses lie "
        f"{own['error']:.3f} beside it.",
        "",
        "| predicted | steps by the rule | steps of the best run | behind it | perplexity by steps |",
        "|---|---|---|---|---|",
    ]
    for each in own["predicted"]:
        all_of_them = ", ".join(f"{steps}: {value:.1f}" for steps, value in each["perplexities"])
        lines.append(
            f"| {each['of']} | {each['by_rule']} | {each['best']} | {each['behind']:.1%} | {all_of_them} |"
        )
    return "\n".join(lines)


def _table(found: Compared) -> str:
    kinds: dict[str, Sequence[Row]] = {
        "grid": found.grid,
        "grid's best, again": [found.again] if found.again else [],
        "**suggested**": [found.suggested],
        "beside": found.others,
    }
    best = found.best.perplexity
    lines = [
        "| setting | mechanism | units or rows a step | chunks of each | steps | learning rate | average | noise | "
        "noise multiplier | loss, by run key | mean | perplexity | of the grid's best |",
        "|" + 13 * "---|",
    ]
    named = [(name, row) for name, rows in kinds.items() for row in rows]
    for name, row in sorted(named, key=lambda pair: pair[1].loss):
        cells = [
            name,
            row.mechanism,
            f"{row.batch:.4g}",
            str(row.rows),
            str(row.steps),
            f"{row.learning_rate:g}, {row.schedule}",
            row.average,
            "independent" if row.bands == 1 else f"correlated over {row.bands} steps",
            at_least(row.noise_multiplier, 5),
            ", ".join(f"{loss:.3f}" for loss in row.losses),
            f"{row.loss:.3f}",
            f"{row.perplexity:.1f}",
            f"{row.perplexity / best - 1:+.1%}",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    main(run)
