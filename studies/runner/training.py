"""Train the runs of a study, or find what they came to: by the processes of this machine or of a Ray cluster."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from confide.config.loading import check
from confide.distributed.ranks import Ranks
from confide.randomness.seal import Seal
from confide.runs.data_source import files_of, source_of
from confide.runs.folder import Run
from confide.runs.given import Given
from confide.runs.job import Job
from confide.runs.loop import Outcome, fine_tune
from confide.utils.console import Console
from confide.utils.files import write_text
from studies.runner.rows import device, version
from studies.runner.study import Row, Work

Look = Callable[[Run, Outcome], Row]
"""Measures more of a finished run, while its model is there. Its `repr` says all that it depends on."""

_ROWS = "rows-"
"""How the names of folders begin in which runs lend each other rows."""


class Unreleased(Run):
    """A run of a study: what it trained is measured and thrown away."""

    releases = False

    def binding(self) -> str:
        """Bind draws and noise to the run key and the rows alone, so that all arms of a run key have the same ones.

        What they do to all arms then drops out of the differences. Runs of a product never share noise: two outputs
        with the same noise give away more than each. Here the run keys are published, and nothing is protected.
        """
        return ""

    def once(self, name: str, compute: Callable[[], NDArray[Any]], ranks: Ranks, seal: Seal) -> NDArray[Any]:
        """Take the scores of rows from an earlier run of the same rows and model; they take half of a run."""
        return super().once(name, partial(self._shared, compute), ranks, seal)

    def borrow_rows(self) -> None:
        """Take the rows that an earlier run prepared, if code, source and run key are the same.

        To prepare rows takes a third of a run with redaction.
        """
        kept = self._kept_rows()
        if kept.is_dir() and not self.data.exists():
            try:
                shutil.copytree(kept, self.data, copy_function=os.link)
            except OSError:  # another command forgets them at this moment
                shutil.rmtree(self.data, ignore_errors=True)

    def lend_rows(self) -> None:
        """Keep the rows for later runs."""
        kept = self._kept_rows()
        if not kept.exists():
            own = kept.with_suffix(f".{os.getpid()}")
            shutil.rmtree(own, ignore_errors=True)  # of a process of that number that was killed
            shutil.copytree(self.data, own, copy_function=os.link)
            with suppress(OSError):  # another process has lent the same in the meantime
                own.rename(kept)
            shutil.rmtree(own, ignore_errors=True)

    def _kept_rows(self) -> Path:
        config = self.config
        asked = json.dumps(
            [version(), source_of(config, self.given), files_of(config), config.privacy.published_key]
        )
        return self.root.parent / f"{_ROWS}{hashlib.sha256(asked.encode()).hexdigest()[:16]}"

    def _shared(self, compute: Callable[[], NDArray[Any]]) -> NDArray[Any]:
        config, rows = self.config, self.data / "train"
        asked = hashlib.sha256()
        for part in (version(), config.model, config.adaptive.scorer, config.train.micro_tokens, config.base):
            asked.update(f"{part}\n".encode())
        for file in ("tokens.bin", "row_offsets.bin"):
            asked.update(hashlib.sha256((rows / file).read_bytes()).digest())
        kept = self.root.parent / f"scores-{asked.hexdigest()[:16]}.npy"
        if not kept.exists():
            own = kept.with_suffix(f".{os.getpid()}.npy")  # other processes may compute the same
            np.save(own, compute())
            own.replace(kept)
        found: NDArray[Any] = np.load(kept)
        return found


@dataclass(frozen=True)
class Trained:
    """A run to train and measure.

    Attributes:
        columns: what tells it apart in the study's table.
        raw: its config.
        is_twin: without clipping and noise, on the same draws.
        trains: False to measure the model as it was.
        folder: where it works; its result lies beside.
        look: what is measured beside the loss.
        given: the objects that a calling program would pass, an optimiser of its own among them.
    """

    columns: Row
    raw: dict[str, Any]
    is_twin: bool
    trains: bool
    folder: Path
    look: Look | None = None
    given: Given = field(default_factory=Given)

    @classmethod
    def of(
        cls,
        columns: Row,
        raw: dict[str, Any],
        is_twin: bool,
        trains: bool,
        root: Path,
        look: Look | None = None,
        given: Given | None = None,
    ) -> Self:
        given = given or Given()
        beside = (() if look is None else (repr(look),)) + ((given.names,) if given else ())
        asked = json.dumps([raw, is_twin, trains, *beside], sort_keys=True)
        folder = root / hashlib.sha256(asked.encode()).hexdigest()[:16]
        return cls(columns, raw, is_twin, trains, folder, look, given)

    def followed(self, look: Look) -> Self:
        """Return the same run, of which something else is measured."""
        name = hashlib.sha256(repr(look).encode()).hexdigest()[:8]
        return replace(self, look=look, folder=self.folder.with_name(f"{self.folder.name}-{name}"))

    @property
    def result(self) -> Path:
        return self.folder.with_suffix(".json")

    def measure(self) -> Row:
        """Train, or resume, and measure."""
        began = time.monotonic()
        config = check(self.raw | {"run": str(self.folder)}, str(self.folder))
        run = Unreleased(config, self.is_twin, self.given)
        run.borrow_rows()
        if not self.trains:
            found = Job.of(run, Console(quiet=True)).evaluate()
            assert found is not None
            measured = figures(found)
        else:
            outcome = fine_tune(run)
            if not outcome.finished:
                raise KeyboardInterrupt
            assert outcome.final is not None
            measured = figures(outcome.final)
            for phase, found in outcome.after.items():
                measured |= {f"{name} after {phase}": value for name, value in figures(found).items()}
            if not self.is_twin:
                measured |= {
                    "noise_multiplier": outcome.guarantee.noise_multiplier,
                    "epsilon": outcome.guarantee.epsilon,
                    "rows_per_unit": outcome.guarantee.rows_per_unit,
                }
            if self.look is not None:
                measured |= self.look(run, outcome)
        run.lend_rows()
        measured |= {"seconds": round(time.monotonic() - began, 1), **version(), **device()}
        shutil.rmtree(self.folder, ignore_errors=True)
        return measured


def job_of(raw: dict[str, Any], folder: Path, work: Work) -> Job:
    """Return the job of a config that is looked at and does not train."""
    return Job.of(Run(check(raw | {"run": str(folder)}, str(folder))), work.console)


def figures(found: Mapping[str, float | int]) -> Row:
    """Return what a study keeps of an evaluation: perplexity, or where rows have classes, accuracy and their number."""
    names = ("loss", "perplexity") if "perplexity" in found else ("loss", "accuracy", "rows")
    return {name: found[name] for name in names}


@dataclass(frozen=True)
class _Training:
    """The job of each process."""

    def ready(self) -> Callable[[Trained], Row]:
        return _measured


def _measured(run: Trained) -> Row:
    return run.measure()


def trained(runs: Sequence[Trained], work: Work, what: str) -> list[Row]:
    """Return the rows of runs, in their order. Each result is kept once it is there, for the next time."""
    (work.folder / "runs").mkdir(parents=True, exist_ok=True)
    for run in runs:
        if not work.has(run.result) and (kept := work.kept(run.columns)) is not None:
            write_text(run.result, json.dumps(kept))
    left = {run.folder: run for run in runs if not work.has(run.result)}
    if left:
        if work.again is not None:
            for (
                folder,
                run,
            ) in left.items():  # nothing that an earlier command left there counts, now or later
                shutil.rmtree(folder, ignore_errors=True)
                run.result.unlink(missing_ok=True)
        done = len(runs) - len(left)
        with (
            work.crew.workers(_Training(), "a process that trains") as workers,
            work.console.track(what, len(runs), done) as track,
        ):
            for run, row in zip(left.values(), workers.map(left.values()), strict=True):
                write_text(run.result, json.dumps(row))
                work.made(run.result)
                track()
    return [run.columns | json.loads(run.result.read_text("utf-8")) for run in runs]


def forget_rows(work: Work) -> None:
    """Remove the rows that runs lent each other: only runs of the same code can use them."""
    for kept in (work.folder / "runs").glob(f"{_ROWS}*"):
        shutil.rmtree(kept, ignore_errors=True)
