"""Membership inference on a run of a study, while its model is there."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from confide.auditing import membership
from confide.auditing.membership import Side, columns, compressed_lengths, unit_of
from confide.config.loading import check
from confide.data.unit_graph import UnitGraph
from confide.runs.folder import Run
from confide.runs.job import Job
from confide.runs.loop import Outcome
from confide.utils.console import Console
from confide.utils.files import write_text
from studies.runner.study import Row

FPR = 0.01
BEFORE = "auroc before"
"""The column of the loss attack on the model before training: 1/2 if the two sides are of one kind."""

READS = "reads"
"""The column of how often a run reads each row of its text, in the mean."""


@dataclass(frozen=True)
class Attacked:
    """Looks whether rows that a run trained on can be told from rows of the test part, as they were before redaction.

    Attributes:
        of_unit: documents taken of each unit, as many as the test part has of each: the first of an article say what
            it is about, which alone would tell the sides apart.
        unit: the field that names the unit.
    """

    of_unit: int
    unit: str

    def __call__(self, run: Run, outcome: Outcome) -> Row:
        console = Console(quiet=True)
        plain = self._plain(run)
        before, job = Job.of(plain, console), Job.of(run, console)
        job.phase_runner().restore(job.trained()[1])
        train, held_out = before.prepared.train, before.prepared.held_out
        assert held_out is not None
        members = _of_units(train, np.arange(train.n_units))
        others, population = (_of_units(held_out, units) for units in halves(held_out.n_units))
        sides = []
        for graph, among in ((train, members), (held_out, others), (held_out, population)):
            own, base = (
                columns(each.model, each.task, graph, among, each.micro_tokens) for each in (job, before)
            )
            lengths = compressed_lengths(graph, own.rows, before.tokenizer)
            sides.append(Side(own, (base,), lengths, unit_of(graph, own.rows)))
        found = membership.attack(sides[0], sides[1], sides[2])
        losses = [{"loss": -side.references[0].loss} for side in sides[:2]]
        untrained = membership.compare(losses[0], losses[1], (_units(sides[0]), _units(sides[1])), (FPR,))
        shutil.rmtree(plain.folder, ignore_errors=True)
        plain.folder.with_suffix(".jsonl").unlink()
        reads = job.mechanism.all_steps * run.config.train.batch / job.prepared.train.n_rows
        return dict(_measured(found)) | {BEFORE: untrained.attacks["loss"].auroc.value, READS: reads}

    def _plain(self, run: Run) -> Run:
        """Return a run that is never trained, on some of the documents as they were before redaction."""
        config, folder = run.config, run.folder.with_name(f"{run.folder.name}-plain")
        lines = Path(config.data.train).read_text("utf-8").splitlines(keepends=True)
        write_text(folder.with_suffix(".jsonl"), "".join(self.some(lines)))
        data: dict[str, Any] = config.data.model_dump(mode="json", exclude_defaults=True)
        raw = {
            "model": str(config.model),
            "adapter": {"kind": "full"},
            "data": data | {"train": str(folder.with_suffix(".jsonl"))},
            "privacy": {"mechanism": "none", "published_key": config.privacy.published_key},
            "train": {"steps": 1, "batch": 1.0, "micro_tokens": config.train.micro_tokens},
            "run": str(folder),
        }
        return Run(check(raw, str(folder)))

    def some(self, lines: list[str]) -> Iterator[str]:
        """Yield the first documents of each unit."""
        taken = Counter[str]()
        for line in lines:
            unit = json.loads(line)[self.unit]
            taken[unit] += 1
            if taken[unit] <= self.of_unit:
                yield line


def halves(units: int) -> tuple[np.ndarray, np.ndarray]:
    """Return units that are held against members, and others for RMIA to compare with: two thirds and one."""
    return np.arange(units)[np.arange(units) % 3 > 0], np.arange(0, units, 3)


def _of_units(graph: UnitGraph, units: np.ndarray) -> np.ndarray:
    return np.unique(np.concatenate([graph.rows_of(int(unit)) for unit in units]))


def _units(side: Side) -> np.ndarray:
    assert side.units is not None
    return side.units


def _measured(found: membership.Membership) -> Iterator[tuple[str, float]]:
    """Yield each attack's AUROC, its accuracy if half of the rows are members, and the share found at `FPR`."""
    for name, rates in found.attacks.items():
        yield f"auroc {name}", rates.auroc.value
        yield f"accuracy {name}", rates.balanced_accuracy.value
        yield f"tpr {name}", next(rate.value for rate in rates.true_positive_rate if rate.fpr == FPR)
