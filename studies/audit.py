"""Faults put into a mechanism on purpose, and whether `confide verify` and `confide audit` find them.

Each run claims what a sound one claims. `verify` checks the run's own model and rows before training, `audit` then
plays the claim's game with canaries, from the released model and from every noised sum. A sound run must pass both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import patch

import numpy as np
from scipy.stats import binomtest

from confide.auditing.attack import audit
from confide.auditing.options import Options
from confide.clipping import ClippedSum
from confide.config.loading import check
from confide.privacy.mechanisms.rows import RowSampler
from confide.privacy.mechanisms.uls import UnitSampler
from confide.privacy.mechanisms.weighted import WeightedRows
from confide.privacy.sampling import Draw, OwnRates, Sampling
from confide.privacy.selection import select
from confide.randomness.streams import add_noise
from confide.runs.folder import Run
from confide.runs.job import Job
from confide.runs.loop import fine_tune
from confide.runs.verify import verify
from confide.utils.console import Console
from confide.utils.rounding import at_least, percent_at_least, percent_at_most
from studies.runner import corpora
from studies.runner.findings import Finding
from studies.runner.models import stories
from studies.runner.rows import version
from studies.runner.study import Row, Scale, Study, Table, Work
from studies.runner.training import Trained, trained

SOUND = "none"
NO_NOISE, HALF_NOISE = "no noise", "half the noise"
NO_CLIPPING, SAMPLING, UNBOUNDED = "no clipping", "the same draw in every step", "a unit's rows not bounded"
FAULTS = (NO_NOISE, HALF_NOISE, NO_CLIPPING, SAMPLING, UNBOUNDED)
EPSILON, COPIES = 2.0, 4
_SEVERAL = {"rows_per_unit": 1, "selection": "random"}
MECHANISMS: Mapping[str, dict[str, Any]] = {
    "dp-sgd": {},
    "adaptive": {},
    "els": _SEVERAL,
    "group": _SEVERAL,
    "uls": {"rows_per_unit": COPIES, "selection": "random"},
    "owners": {"rows_per_unit": 1},
}
OF_ONE_ROW = ("dp-sgd", "adaptive")  # a unit has no second row
_SIZES: Mapping[Scale, dict[str, Any]] = {
    Scale.TINY: {
        "mechanisms": ("els",),
        "faults": (SOUND, NO_NOISE),
        "documents": 30,
        "canaries": 8,
        "steps": 1,
        "batch": 4.0,
        "seeds": 1,
    },
    Scale.SMALL: {
        "mechanisms": tuple(MECHANISMS),
        "faults": (SOUND, *FAULTS),
        "documents": 400,
        "canaries": 300,
        "steps": 10,
        "batch": 64.0,
        "seeds": 3,
    },
}
_SIZES = {**_SIZES, Scale.FULL: _SIZES[Scale.SMALL] | {"steps": 20, "seeds": 20}}


# the faults ----------------------------------------------------------------------------------------------------
def put_in(fault: str) -> AbstractContextManager[Any]:
    """Return a context in which every step of this process has the fault."""
    return _FAULTS[fault]()


@contextmanager
def _less_noise(factor: float) -> Iterator[None]:
    def less(vectors: Any, noise_scale: float, *more: Any, **named: Any) -> None:
        add_noise(vectors, noise_scale * factor, *more, **named)

    with patch("confide.training.step.add_noise", less):
        yield


@contextmanager
def _no_clipping() -> Iterator[None]:
    begin = ClippedSum.__init__

    def unclipped(
        self: ClippedSum, model: Any, loss: Any, clip_norm: float | None, ranks: Any = None
    ) -> None:
        begin(self, model, loss, None if clip_norm is None else 1e6 * clip_norm, ranks)

    with patch.object(ClippedSum, "__init__", unclipped):
        yield


@contextmanager
def _one_draw() -> Iterator[None]:
    with ExitStack() as patches:
        for kind in (Sampling, OwnRates):
            patches.enter_context(patch.object(kind, "draw", _first(kind.draw)))
        yield


def _first(draw: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
    def first(self: Any, n: int, key: Any, phase: str, step: int) -> np.ndarray:
        return draw(self, n, key, phase, 0)

    return first


@contextmanager
def _unbounded() -> Iterator[None]:
    """Use all rows of some units where some rows of all were counted, or clip each row of a unit by itself."""
    draw = UnitSampler.draw

    def row_by_row(self: UnitSampler, step: int) -> Draw:
        drawn = draw(self, step)
        ids = None if drawn.unit_ids is None else drawn.unit_ids[drawn.group]
        ones = np.ones(len(drawn.rows), np.float32)
        return replace(drawn, group=np.arange(len(drawn.rows)), weight=ones, unit_ids=ids)

    def whole_units(rule: str, graph: Any, cap: int, *rest: Any, **more: Any) -> np.ndarray:
        counted = select(rule, graph, cap, *rest, **more)  # another number of rows would stop the run
        rows = select(rule, graph, graph.n_rows, *rest, **more)
        place = np.random.default_rng(0).permutation(graph.n_units)
        units = np.array([graph.owners_of(row)[0] for row in rows])
        return rows[np.argsort(place[units], kind="stable")][: len(counted)]

    def all_rates(self: WeightedRows, graph: Any, key: Any, phase: str, score: Any) -> RowSampler:
        rates = OwnRates(np.full(graph.n_rows, min(1.0, self.batch / graph.n_rows)))
        return RowSampler(graph, np.arange(graph.n_rows), rates, key, phase)

    with (
        patch.object(UnitSampler, "draw", row_by_row),
        patch("confide.privacy.mechanisms.rows.select", whole_units),
        patch.object(WeightedRows, "sampler", all_rates),
    ):
        yield


_FAULTS: Mapping[str, Callable[[], AbstractContextManager[Any]]] = {
    SOUND: nullcontext,
    NO_NOISE: lambda: _less_noise(0.0),
    HALF_NOISE: lambda: _less_noise(0.5),
    NO_CLIPPING: _no_clipping,
    SAMPLING: _one_draw,
    UNBOUNDED: _unbounded,
}


# the runs ------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class _Tried(Trained):
    """A run with a fault, verified, trained and audited."""

    def measure(self) -> Row:
        raw = self.raw | {"run": str(self.folder)}
        quiet = Console(quiet=True)
        with put_in(self.columns["fault"]):
            checked = verify(Job.of(Run(check(raw)), quiet))
            run = Run(check(raw))
            outcome = fine_tune(run, quiet)
            if not outcome.finished:
                raise KeyboardInterrupt
            found = audit(Job.of(run, quiet), Options(attacks=("claim",)))
        checks: Any = checked["checks"]
        return {
            "verify": int(not checked["ok"]),
            "failed": "; ".join(each["name"] for each in checks if not each["ok"]),
            "audit": int(found.verdict == "violation"),
            "verdict": found.verdict,
            "bound": max((game.bound for game in found.games), default=0.0),
            "claimed": outcome.guarantee.epsilon,
            **version(),
        }


def measure(work: Work) -> list[Row]:
    return trained(list(asked(work)), work, f"{STUDY.name}: runs")


def asked(work: Work) -> Iterator[_Tried]:
    size, model = _SIZES[work.scale], stories(work)
    data = corpora.posts(work.source("20newsgroups").parent, "20newsgroups", 0.1)
    for mechanism in size["mechanisms"]:
        one = mechanism in OF_ONE_ROW
        for fault in size["faults"]:
            if fault == UNBOUNDED and one:
                continue
            for seed in range(1, size["seeds"] + 1):
                raw = {
                    "model": str(model),
                    "adapter": {"kind": "full"},
                    "data": data | {"max_documents": size["documents"]},
                    "privacy": {
                        "mechanism": mechanism,
                        "epsilon": EPSILON,
                        "delta": 1e-5,
                        "published_key": f"study audit {mechanism} {fault} {seed}",
                        **MECHANISMS[mechanism],
                    },
                    "canaries": {
                        "count": size["canaries"],
                        "family": "rare-tokens",
                        "tokens": 8,
                        "insertions": 1 if one else COPIES,
                        "white_box": True,
                    },
                    "train": {
                        "steps": size["steps"],
                        "batch": size["batch"],
                        "learning_rate": 5e-3,
                        "micro_tokens": 2048,
                        "eval_on_start": False,
                    },
                }
                columns: Row = {"study": STUDY.name, "scale": str(work.scale)}
                columns |= {"mechanism": mechanism, "fault": fault, "key": seed}
                yield _Tried.of(columns, raw, False, True, work.folder / "runs")


# what was found ------------------------------------------------------------------------------------------------
def _by_key(rows: Sequence[Row], fault: str, column: str) -> tuple[float, ...]:
    """Return, for each run key, the share of mechanisms at which a check raised the alarm."""
    own = [row for row in rows if row["fault"] == fault]
    keys = sorted({row["key"] for row in own})
    return tuple(float(np.mean([row[column] for row in own if row["key"] == key])) for key in keys)


def findings(rows: Sequence[Row]) -> list[Finding]:
    found = []
    faults = [fault for fault in FAULTS if any(row["fault"] == fault for row in rows)]
    for column in ("verify", "audit"):
        found.append(
            Finding(
                f"confide {column} raises no alarm at a sound mechanism.",
                "confide's own claim",
                "share of the mechanisms at which it does; of an audit, one in twenty is allowed",
                _by_key(rows, SOUND, column),
                high=0.0 if column == "verify" else 0.05,
                unit="share",
            )
        )
        for fault in faults:
            found.append(
                Finding(
                    f"confide {column} finds {fault} at every mechanism.",
                    "confide's own claim",
                    "share of the mechanisms at which it does",
                    _by_key(rows, fault, column),
                    low=1.0,
                    family=column,
                    unit="share",
                )
            )
    return found


def detected(rows: Sequence[Row], column: str) -> str:
    """Write how often a check raised the alarm, with the exact 95% interval of the rate."""
    if not rows:
        return ""
    times, runs = sum(row[column] for row in rows), len(rows)
    interval = binomtest(times, runs).proportion_ci(0.95, "exact")
    low, high = percent_at_least(interval.low, 0), percent_at_most(interval.high, 0)
    return f"{times} of {runs} ({low} to {high})"


def tables(rows: Sequence[Row]) -> list[Table]:
    faults = list(dict.fromkeys(row["fault"] for row in rows))
    found = []
    for column in ("verify", "audit"):
        cells = [
            [
                mechanism,
                *(
                    detected(
                        [row for row in rows if (row["mechanism"], row["fault"]) == (mechanism, fault)],
                        column,
                    )
                    for fault in faults
                ),
            ]
            for mechanism in dict.fromkeys(row["mechanism"] for row in rows)
        ]
        heads = ["mechanism", *(f"fault: {fault}" for fault in faults)]
        note = "Runs at which the alarm was raised, of all, with exact 95% intervals. A unit of one row has no others."
        found.append(Table(f"Found by confide {column}", heads, cells, note))
    cells = [
        [fault, at_least(float(np.median([row["bound"] for row in rows if row["fault"] == fault])), 3)]
        for fault in faults
    ]
    note = (
        f"Medians over mechanisms and run keys; every run claims epsilon {EPSILON:.0f} at most. A bound is of 95% "
        "confidence, from the better of two views: the released model, and every noised sum."
    )
    return [*found, Table("Lower bound on epsilon by the audit", ["fault", "bound"], cells, note)]


STUDY = Study(
    name="audit",
    paper="",
    shows=(),
    question="Are faults in a mechanism found by verifying and by auditing it?",
    measure=measure,
    findings=findings,
    tables=tables,
    minutes=50,
    deviations="stories260K on 400 posts of 20 Newsgroups, 300 canaries, 10 steps. secret, selective, crt and "
    "concentration are not tried: their claims have other games.",
    reads=("20newsgroups",),
)
