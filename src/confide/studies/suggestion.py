"""Does `plan --suggest` choose well? Its first setting against a grid of twelve, at three epsilons.

20 Newsgroups as in `recipe`, a quarter of its rows. The grid varies the chunks of a user a step, the number of steps
and the learning rate; the suggestion sees the shape of the data alone, and keeps the learning rate that it was given.
The planner's one constant was fitted to the grids' settings of one chunk at the rate of 4e-3 at the first two epsilons,
where this shows whether one constant can describe both; at the third it predicts. Other mechanisms and caps are not
trained.

The best of twelve runs is in part the luckiest, and draws of one setting differ by one or two percent: so the
suggestion is held against new runs of the grid's best setting, both with the same run keys.

At the first epsilon, beside them, one setting of the grid with noise that is correlated over all steps, which bears a
higher rate, and with independent noise at that rate; and with averages of the weights, on the draws of the grid.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from math import exp
from pathlib import Path
from statistics import mean
from typing import Any

from confide import models
from confide.console import Console
from confide.finetuning import fine_tune
from confide.job import prepared_data
from confide.planning import Size
from confide.runs import Run
from confide.settings import Config
from confide.space import altered
from confide.studies.recipe import Recipe, config
from confide.suggesting import suggest

EPSILONS = (8.0, 3.0, 1.0)
ROWS = 7_680
"""Chunks computed in all, by every setting."""

GRID = tuple(
    Recipe(f"grid-{rows}-{steps}-{rate:g}", ROWS // (rows * steps), rows, steps, rate)
    for rows, steps, rate in product((1, 2), (16, 32, 64), (2e-3, 4e-3))
)
START = Recipe("start", 64, 2, 60, 4e-3)
"""What a user might have written before asking; budget and learning rate of the suggestion are its."""

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


def suggested(epsilon: float, data: Path, folder: Path, console: Console) -> dict[str, Any]:
    """What the first setting of `plan --suggest` sets in the config."""
    start = config(START, epsilon, KEYS[0], data, folder)
    tokenizer = models.load_tokenizer(start)
    prepared = prepared_data(Run(start), tokenizer, console)
    size = Size.of(models.load_model(start, prepared.classes, len(tokenizer)))
    (first,) = suggest(start, prepared.train.shape(), size, ROWS, count=1)["ranked"]
    return dict(first["settings"])


def trained(runs: Sequence[Config], console: Console) -> Row:
    """Train one setting, with each of some run keys, or resume."""
    losses = []
    for each in runs:
        console.say(Path(each.run).name)
        outcome = fine_tune(Run(each), console)
        if not outcome.finished:
            raise KeyboardInterrupt
        assert outcome.final
        losses.append(outcome.final["loss"])
    first = runs[0]
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
        outcome.guarantee.noise_multiplier,
        tuple(losses),
    )


def run(data: Path, folder: Path) -> dict[str, Any]:
    """Train everything, or resume, and compare on held-out users."""
    console = Console()
    found = {epsilon: _against_grid(epsilon, data, folder, console) for epsilon in EPSILONS}
    tables = (f"epsilon {epsilon:g}\n\n{own.pop('markdown')}" for epsilon, own in found.items())
    return {f"{epsilon:g}": own for epsilon, own in found.items()} | {"markdown": "\n\n".join(tables)}


def _against_grid(epsilon: float, data: Path, folder: Path, console: Console) -> dict[str, Any]:
    def own(recipe: Recipe, key: int) -> Config:
        return config(recipe, epsilon, key, data, folder)

    grid = {each: trained([own(each, 0)], console) for each in GRID}
    best = min(grid, key=lambda each: grid[each].loss)
    chosen = suggested(epsilon, data, folder, console)
    runs = [
        altered(own(START, key), chosen | {"run": str(folder / f"suggested-{epsilon:g}-{key}")})
        for key in KEYS
    ]
    found, again = trained(runs[:1], console), []
    if not found.is_of_the_setting_of(grid[best]):
        found, again = trained(runs, console), [trained([own(best, key) for key in KEYS], console)]
    others = [trained([each], console) for each in beside(data, folder)] if epsilon == EPSILONS[0] else []
    kinds: dict[str, Sequence[Row]] = {
        "grid": list(grid.values()),
        "grid's best, again": again,
        "**suggested**": [found],
        "beside": others,
    }
    return {
        "suggested": asdict(found),
        "grid": [asdict(row) for row in grid.values()],
        "again": [asdict(row) for row in again],
        "others": [asdict(row) for row in others],
        "of_the_best": found.perplexity / again[0].perplexity if again else 1.0,
        "markdown": _table(kinds, grid[best].perplexity),
    }


def beside(data: Path, folder: Path) -> list[Config]:
    """At a higher rate, with independent noise and with noise correlated over all steps; and with averages."""
    epsilon = EPSILONS[0]
    faster, averaged = (config(recipe, epsilon, 0, data, folder) for recipe in (FASTER, AVERAGED))
    bands = {"privacy.bands": FASTER.steps, "run": str(folder / f"correlated-{epsilon:g}-0")}
    averages = [
        {
            "train.average.kind": kind,
            "train.schedule": schedule,
            "run": str(folder / f"{kind}-{schedule}-{epsilon:g}-0"),
        }
        for kind, schedule in AVERAGES
    ]
    return [faster, altered(faster, bands), *(altered(averaged, each) for each in averages)]


def _table(kinds: dict[str, Sequence[Row]], best: float) -> str:
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
            f"{row.noise_multiplier:.4g}",
            ", ".join(f"{loss:.3f}" for loss in row.losses),
            f"{row.loss:.3f}",
            f"{row.perplexity:.1f}",
            f"{row.perplexity / best - 1:+.1%}",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)
