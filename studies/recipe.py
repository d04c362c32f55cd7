"""The same compute, better spent: users a step, chunks of each and the learning rate, at the same epsilon.

20 Newsgroups as in `user_level`, with a third of the rows. The chosen recipe draws more users a step and one chunk of
each where the plain one draws two; both ask for as many chunks in all. It is held against the plain recipe without
privacy, on held-out senders, with three run keys.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean
from typing import Any

from confide.config.loading import check
from confide.config.schema import Config
from confide.runs.folder import Run
from confide.runs.loop import Outcome, fine_tune
from confide.training.metrics import gap_closed
from confide.utils.console import Console
from confide.utils.rounding import at_least, at_most
from studies import corpora, main

EPSILONS = (8.0, 3.0)
DELTA = 1e-5
SEEDS = 3


@dataclass(frozen=True)
class Recipe:
    """How a run spends its rows: `batch` users a step, `rows` of each, `steps` of them."""

    name: str
    batch: int
    rows: int
    steps: int
    learning_rate: float


PLAIN = Recipe("plain", 256, 2, 60, 2e-3)
CHOSEN = Recipe("chosen", 512, 1, 60, 4e-3)


@dataclass(frozen=True)
class Row:
    """A recipe at an epsilon, or None without privacy; a loss and a share of the gap for each run key.

    The gap is from the base model to the plain recipe without privacy, with the same key.
    """

    recipe: Recipe
    epsilon: float | None
    noise_multiplier: float
    losses: tuple[float, ...]
    closed: tuple[float, ...]


def config(recipe: Recipe, epsilon: float, seed: int, data: Path, folder: Path) -> Config:
    """Of one run; its key is published, so that the numbers can be repeated."""
    name = f"{recipe.name}-{at_most(epsilon, 6)}-{seed}"
    where = f"study recipe, {name}"
    raw = {
        "model": "bundled",
        "adapter": {"kind": "full"},
        "data": corpora.posts(data, "20newsgroups", 0.05),
        "privacy": {
            "mechanism": "uls",
            "epsilon": epsilon,
            "delta": DELTA,
            "rows_per_unit": recipe.rows,
            "selection": "random-chunk",
            "published_key": f"study recipe {seed}",
        },
        "train": {
            "steps": recipe.steps,
            "batch": float(recipe.batch),
            "learning_rate": recipe.learning_rate,
            "schedule": "linear",
            "precision": "bf16",
        },
        "run": str(folder / name),
    }
    return check(raw, where)


@dataclass(frozen=True)
class _Study:
    data: Path
    folder: Path
    console: Console

    def train(self, recipe: Recipe, epsilon: float, seed: int, twin: bool = False) -> Outcome:
        """Train, or resume."""
        privacy = "without privacy" if twin else f"epsilon {at_most(epsilon, 6)}"
        self.console.say(f"{recipe.name}, {privacy}, seed {seed}")
        outcome = fine_tune(
            Run(config(recipe, epsilon, seed, self.data, self.folder), twin=twin), self.console
        )
        if not outcome.finished:
            raise KeyboardInterrupt
        return outcome

    def rows(self) -> Iterator[Row]:
        chosen = {
            epsilon: [self.train(CHOSEN, epsilon, seed) for seed in range(SEEDS)] for epsilon in EPSILONS
        }
        twins = [self.train(PLAIN, EPSILONS[0], seed, twin=True) for seed in range(SEEDS)]
        base = chosen[EPSILONS[0]][0].base  # as of every run
        assert base
        gaps = [(base["loss"], _loss(twin)) for twin in twins]
        yield _row(PLAIN, None, twins, gaps)
        for epsilon, found in chosen.items():
            yield _row(CHOSEN, epsilon, found, gaps)


def _loss(outcome: Outcome) -> float:
    assert outcome.final
    return outcome.final["loss"]


def _row(
    recipe: Recipe, epsilon: float | None, found: Sequence[Outcome], gaps: Sequence[tuple[float, float]]
) -> Row:
    losses = tuple(map(_loss, found))
    closed = tuple(gap_closed(base, loss, twin) for loss, (base, twin) in zip(losses, gaps, strict=True))
    noise = 0.0 if epsilon is None else found[0].guarantee.noise_multiplier
    return Row(recipe, epsilon, noise, losses, closed)


def run(data: Path, folder: Path) -> dict[str, Any]:
    """Train everything, or resume, and compare on held-out users."""
    rows = list(_Study(data, folder, Console()).rows())
    return {"rows": [asdict(row) for row in rows], "markdown": _table(rows)}


def _table(rows: Sequence[Row]) -> str:
    lines = [
        "| recipe | users a step | chunks of each | steps | learning rate | epsilon | noise multiplier | s / n | "
        "loss, by run key | mean | share of the gain, by run key | mean |",
        "|" + 12 * "---|",
    ]
    for row in rows:
        recipe = row.recipe
        cells = [
            recipe.name,
            str(recipe.batch),
            str(recipe.rows),
            str(recipe.steps),
            f"{recipe.learning_rate:g}",
            "inf" if row.epsilon is None else at_most(row.epsilon, 6),
            at_least(row.noise_multiplier, 5) if row.noise_multiplier else "",
            f"{row.noise_multiplier / recipe.batch:.3g}" if row.noise_multiplier else "",
            ", ".join(f"{loss:.3f}" for loss in row.losses),
            f"{mean(row.losses):.3f}",
            ", ".join(f"{share:.1%}" for share in row.closed),
            f"{mean(row.closed):.1%}",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    main(run)
