"""Does `plan --suggest` choose well? Its first setting against a grid of twelve, at three epsilons.

20 Newsgroups as in `recipe`, a quarter of its rows. The grid varies the chunks of a user a step, the number of steps
and the learning rate; the suggestion sees the shape of the data alone, and keeps the learning rate that it was given.
The planner's one constant was fitted to the grids' settings of one chunk at the rate of 4e-3 at the first two epsilons,
where this shows whether one constant can describe both; at the third it predicts. Other mechanisms and caps are not
trained.

At the first epsilon, beside them, one setting of the grid with noise that is correlated over all steps, which bears a
higher rate, and with independent noise at that rate.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import product
from math import exp
from pathlib import Path
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


FASTER = Recipe("faster", 240, 1, 32, 6e-3)
"""A setting of the grid at a higher rate, where each user may take part in one step if noise is correlated over all."""


@dataclass(frozen=True)
class Row:
    """A setting that was trained; its loss is on held-out users."""

    name: str
    mechanism: str
    batch: float
    rows: int | str
    steps: int
    learning_rate: float
    bands: int
    noise_multiplier: float
    loss: float

    @property
    def perplexity(self) -> float:
        return exp(self.loss)


def suggested(epsilon: float, data: Path, folder: Path, console: Console) -> Config:
    """The config of the first setting of `plan --suggest`, with draws of its own should it be one of the grid's."""
    start = config(START, epsilon, 1, data, folder)
    tokenizer = models.load_tokenizer(start)
    prepared = prepared_data(Run(start), tokenizer, console)
    size = Size.of(models.load_model(start, prepared.classes, len(tokenizer)))
    first = suggest(start, prepared.train.shape(), size, ROWS, count=1)["ranked"][0]
    return altered(start, first["settings"] | {"run": str(folder / f"suggested-{epsilon:g}-1")})


def trained(each: Config, console: Console) -> Row:
    """Train, or resume."""
    console.say(Path(each.run).name)
    outcome = fine_tune(Run(each), console)
    if not outcome.finished:
        raise KeyboardInterrupt
    assert outcome.final
    return Row(
        Path(each.run).name,
        each.privacy.mechanism,
        each.train.batch,
        each.privacy.rows_per_unit,
        each.train.steps,
        each.train.learning_rate,
        each.privacy.bands,
        outcome.guarantee.noise_multiplier,
        outcome.final["loss"],
    )


def run(data: Path, folder: Path) -> dict[str, Any]:
    """Train everything, or resume, and compare on held-out users."""
    console = Console()
    found = {epsilon: _against_grid(epsilon, data, folder, console) for epsilon in EPSILONS}
    tables = (f"epsilon {epsilon:g}\n\n{own.pop('markdown')}" for epsilon, own in found.items())
    return {f"{epsilon:g}": own for epsilon, own in found.items()} | {"markdown": "\n\n".join(tables)}


def _against_grid(epsilon: float, data: Path, folder: Path, console: Console) -> dict[str, Any]:
    grid = [trained(config(each, epsilon, 0, data, folder), console) for each in GRID]
    found = trained(suggested(epsilon, data, folder, console), console)
    others = [trained(each, console) for each in faster(data, folder)] if epsilon == EPSILONS[0] else []
    best = min(row.perplexity for row in grid)
    return {
        "suggested": asdict(found),
        "grid": [asdict(row) for row in grid],
        "others": [asdict(row) for row in others],
        "of_the_best": found.perplexity / best,
        "markdown": _table({"grid": grid, "**suggested**": [found], "beside": others}, best),
    }


def faster(data: Path, folder: Path) -> tuple[Config, Config]:
    """At a higher rate: with independent noise, and with noise correlated over all steps."""
    plain = config(FASTER, EPSILONS[0], 0, data, folder)
    bands = {"privacy.bands": FASTER.steps, "run": str(folder / f"correlated-{EPSILONS[0]:g}-0")}
    return plain, altered(plain, bands)


def _table(kinds: dict[str, Sequence[Row]], best: float) -> str:
    lines = [
        "| setting | mechanism | units or rows a step | chunks of each | steps | learning rate | noise | "
        "noise multiplier | loss | perplexity | of the grid's best |",
        "|" + 11 * "---|",
    ]
    named = [(name, row) for name, rows in kinds.items() for row in rows]
    for name, row in sorted(named, key=lambda pair: pair[1].loss):
        cells = [
            name,
            row.mechanism,
            f"{row.batch:.4g}",
            str(row.rows),
            str(row.steps),
            f"{row.learning_rate:g}",
            "independent" if row.bands == 1 else f"correlated over {row.bands} steps",
            f"{row.noise_multiplier:.4g}",
            f"{row.loss:.3f}",
            f"{row.perplexity:.1f}",
            f"{row.perplexity / best - 1:+.1%}",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)
