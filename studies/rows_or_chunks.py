"""Whole rows or random chunks of a user's text, for user-wise DP-SGD: which is better where text is read from.

A row begins where a document begins, or where the row before it was full. A random chunk begins anywhere in what a user
wrote, and may run over the end of a document. Held-out rows are cut as rows are, which favours training on rows: here
held-out text is also read from random places on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from confide.data.loss_mask import ids_of
from confide.privacy.selection import random_chunks
from confide.randomness.streams import RunKey
from confide.runs.folder import Run
from confide.runs.job import Job
from confide.runs.loop import Outcome
from studies.runner import users
from studies.runner.findings import MARGIN, Finding, paired
from studies.runner.grid import Grid
from studies.runner.models import stories
from studies.runner.released import released
from studies.runner.study import Row, Scale, Study, Table, Work
from studies.runner.tables import change, perplexity, target
from studies.runner.users import ULS

EPSILON = "privacy.epsilon"
CHUNKS, ROWS = "random chunks", "random rows"
STARTS, ANYWHERE = "loss", "loss from random places"
READ = {STARTS: "as rows", ANYWHERE: "from random places on"}
"""Where held-out text is read, by the column of the loss there."""

_SMALL: dict[str, Any] = {
    "texts": users.TEXTS,
    "rows": 192,  # of as many users
    "steps": 16,
    "rates": (2e-3, 5e-3),
    "epsilons": (1.0, 8.0),
    "chunks": 4,  # of each test user
    "seeds": 5,
}
_SIZES: Mapping[Scale, dict[str, Any]] = {
    Scale.TINY: _SMALL
    | {
        "texts": ("newsgroups",),
        "rows": 8,
        "steps": 1,
        "rates": (5e-3,),
        "epsilons": (8.0,),
        "seeds": 2,
    },
    Scale.SMALL: _SMALL,
    Scale.FULL: _SMALL | {"rows": 1024, "steps": 1000, "rates": (1e-3, 2e-3)},
}


@dataclass(frozen=True)
class FromRandomPlaces:
    """Measure the loss on chunks of each test user's text, the same ones for every run.

    Attributes:
        chunks: how many of each user, of as many tokens as a row may have.
    """

    chunks: int

    def __call__(self, run: Run, outcome: Outcome) -> Row:
        with released(run) as job:
            return {ANYWHERE: loss_of(job, self.chunks)}


def loss_of(job: Job, k: int) -> float:
    """Return the mean loss of a token in k chunks of each held-out unit, in nats."""
    held_out = job.prepared.held_out
    assert held_out is not None
    stream = RunKey.from_text("study rows-or-chunks").stream("test", "chunks")
    units = np.arange(held_out.n_units)
    cut, _ = random_chunks(held_out, units, k, job.run.config.data.max_length, stream)
    chunks = [torch.from_numpy(ids_of(chunk).astype(np.int64)) for chunk in cut if len(chunk) > 1]
    total, tokens = 0.0, 0
    with torch.no_grad():
        for length in sorted({len(chunk) for chunk in chunks}):
            for batch in torch.stack([chunk for chunk in chunks if len(chunk) == length]).split(128):
                ids = batch.to(job.ranks.device)
                logits = job.model(input_ids=ids).logits[:, :-1].float()
                total += cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), reduction="sum").item()
                tokens += ids[:, 1:].numel()
    return total / tokens


def grid(work: Work) -> Grid:
    size = _SIZES[work.scale]
    rates = {"train.learning_rate": size["rates"]}
    return Grid(
        name="rows-or-chunks",
        texts=size["texts"],
        model=stories,
        keys=users.keys(size["steps"], **{"privacy.rows_per_unit": 1}),
        arms=tuple(
            replace(
                users.arm(ULS, size["rows"], rates, name, selection=selection),
                look=FromRandomPlaces(size["chunks"]),
            )
            for name, selection in ((CHUNKS, "random-chunk"), (ROWS, "random"))
        ),
        at={EPSILON: size["epsilons"]},
        tuned_at={EPSILON: size["epsilons"]},
        seeds=size["seeds"],
    )


def measure(work: Work) -> list[Row]:
    return grid(work).measured(work)


def at(rows: Sequence[Row], text: str, arm: str, epsilon: float, read: str) -> dict[int, float]:
    """Return the loss by run key of an arm at an epsilon, where held-out text is read in one of the two ways."""
    place = (text, arm, epsilon, "test")
    return {
        row["key"]: row[read] for row in rows if (row["text"], row["arm"], row[EPSILON], row["part"]) == place
    }


def gap(rows: Sequence[Row], text: str, epsilon: float, read: str) -> tuple[float, ...]:
    """Return the loss of training on rows less that on chunks, by run key."""
    return paired(*(at(rows, text, arm, epsilon, read) for arm in (ROWS, CHUNKS)))


def findings(rows: Sequence[Row]) -> list[Finding]:
    found = []
    for text in users.texts_of(rows):
        for epsilon in users.values(rows, EPSILON):
            where = f"at epsilon {target(epsilon)} ({text})"
            found += [
                Finding(
                    f"Where text is read as rows, training on rows is better by more than 1% {where}.",
                    "beyond the papers",
                    "loss with rows less that with chunks, on held-out rows",
                    gap(rows, text, epsilon, STARTS),
                    high=-MARGIN,
                    family=f"{text}, as rows",
                ),
                Finding(
                    f"Where text is read from random places on, training on chunks is better by more than 1% {where}.",
                    "beyond the papers",
                    "loss with rows less that with chunks, on held-out chunks",
                    gap(rows, text, epsilon, ANYWHERE),
                    low=MARGIN,
                    family=f"{text}, from random places",
                ),
            ]
    return found


def tables(rows: Sequence[Row]) -> list[Table]:
    heads = [
        "text",
        "epsilon",
        "held-out text is read",
        CHUNKS,
        ROWS,
        "rows against chunks",
        "learning rates",
    ]
    cells = [
        [
            text,
            target(epsilon),
            words,
            *(perplexity(at(rows, text, arm, epsilon, read)) for arm in (CHUNKS, ROWS)),
            change(gap(rows, text, epsilon, read)),
            " and ".join(users.settings(rows, text, arm, epsilon) for arm in (CHUNKS, ROWS)),
        ]
        for text in users.texts_of(rows)
        for epsilon in users.values(rows, EPSILON)
        for read, words in READ.items()
    ]
    note = (
        "Test perplexity; intervals are of 95% over run keys, and differences are paired by key. Of two learning rates "
        "the better one on validation rows is taken, for each arm and epsilon; where that is the larger one, a still "
        "larger one might be better. From random places: four chunks of each test user."
    )
    return [Table("Training on rows or on chunks", heads, cells, note)]


STUDY = Study(
    name="rows-or-chunks",
    paper="",
    shows=(),
    question="Should user-wise DP-SGD draw rows or chunks of a user's text?",
    measure=measure,
    findings=findings,
    tables=tables,
    minutes=25,
    deviations=users.DEVIATIONS,
    reads=users.READS,
    texts=_SMALL["texts"],
)
