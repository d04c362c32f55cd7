"""Verify that steps draw as the accounting supposes: whom it counts, with the stated probability, and anew each time.

What is drawn is counted over many steps. Counts are held against the probabilities of the claim.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from confide.privacy.mechanisms.rows import CappedRows
from confide.privacy.mechanisms.values import Sampler
from confide.privacy.mechanisms.weighted import WeightedRows
from confide.privacy.sampling import OwnRates, Sampling, StopTraining
from confide.runs.job import Job
from confide.runs.verify_steps import Check

PHASE = "verify draws"
ENOUGH = 20_000
"""Rows that are drawn for the check, about; but two draws at least."""
MOST_STEPS = 64
KEPT = "kept bins"
"""The kind of draws of which everybody keeps the bin."""
ALARM = 1e-9  # probability that correct draws fail a comparison


def draw_checks(job: Job) -> Iterator[Check]:
    """Yield the checks of the draws of a job of one stage."""
    graph = job.prepared.train
    sampler = job.mechanism.sampler(graph, job.key, PHASE, lambda: np.ones(graph.n_rows))
    if sampler.possible_rows() is not None:
        yield _rows_in_use(job, sampler)
    drawn = _drawn(job, sampler)
    if drawn is not None:
        yield drawn.as_accounted()


def _rows_in_use(job: Job, sampler: Sampler) -> Check:
    """Check that as many rows may be drawn as are accounted for, and no more of a unit."""
    parameters, graph, rows = job.setting.parameters, job.prepared.train, sampler.possible_rows()
    assert rows is not None
    times = np.bincount(rows, minlength=graph.n_rows)
    if isinstance(job.mechanism, CappedRows | WeightedRows):
        of_unit = np.zeros(graph.n_units, np.int64)
        for numbers, units, _ in graph.incidences():
            np.add.at(of_unit, units, times[numbers])
        most = int(of_unit.max(initial=0))
    else:
        most = int(times.max(initial=0))  # each row is a unit
    counted = parameters.rows_per_unit
    ok = len(rows) == parameters.rows and (counted is None or most <= counted)
    detail = f"{len(rows):,} rows, {parameters.rows:,} accounted for; at most {most:,} of a unit"
    detail += f", {counted:,} counted" if counted is not None else ""
    return Check("no unit has more rows in use than are counted", ok, detail)


def _drawn(job: Job, sampler: Sampler) -> "Drawn | None":
    """Draw many steps; None if draws do not say whom they drew, or if other rows are in use than are accounted for."""
    parameters, rows = job.setting.parameters, sampler.possible_rows()
    if rows is not None and len(rows) != parameters.rows:
        return None
    repeats = rows is not None and len(np.unique(rows)) < len(rows)
    sampling = parameters.sampling
    period = _period(sampling)
    steps = max(2, min(MOST_STEPS, int(ENOUGH / max(parameters.rows_per_step, 1.0))))
    ids: dict[int, np.ndarray] = {}
    for number in _steps(steps, period):
        draw = sampler.draw(number)
        if isinstance(draw, StopTraining):
            break
        if draw.unit_ids is None:
            return None
        ids[number] = draw.unit_ids
    names = np.arange(parameters.units) if rows is None else rows
    rates = sampling.rates if isinstance(sampling, OwnRates) else np.full(len(names), parameters.mean_rate)
    of_name = np.zeros(int(names.max(initial=-1)) + 1)
    np.add.at(of_name, names, rates)  # a row may be listed several times
    return Drawn(ids, of_name, _kind(sampling), period, job.mechanism.draws, repeats)


def _kind(sampling: Sampling | OwnRates) -> str:
    """Return the kind of draws: that of sampling, or `KEPT`."""
    if isinstance(sampling, OwnRates):
        return "poisson"
    return KEPT if sampling.keeps_bins else sampling.kind


def _steps(most: int, period: int) -> list[int]:
    """Choose about so many steps: whole pairs of periods, or the beginnings of two."""
    if 2 * period <= most:
        return list(range(most - most % (2 * period)))
    first = range(min(period, (most + 1) // 2))
    return [*first, *(period + number for number in first)]


def _period(sampling: Sampling | OwnRates) -> int:
    """Return the number of steps among which nobody is drawn twice: an epoch of bins, or one turn of each group."""
    if isinstance(sampling, OwnRates):
        return 1
    return sampling.bins if sampling.kind == "bins" else sampling.bands


@dataclass(frozen=True)
class Drawn:
    """Who was drawn at some steps.

    Attributes:
        ids: by step, the numbers of the drawn units or rows.
        rates: by number, the probability in the mean over steps; 0 for those that are not in use.
        kind: of sampling, or `KEPT`.
        period: steps among which nobody is drawn twice; 1 if steps are independent.
        what: "units" or "rows".
        repeats: rows are listed several times, and drawn each time for itself.
    """

    ids: dict[int, np.ndarray]
    rates: np.ndarray
    kind: str
    period: int
    what: str
    repeats: bool = False

    def as_accounted(self) -> Check:
        """Check the draws. Steps of `shuffle` depend on each other, so of these only the size is looked at."""
        wrong = [*self._strangers(), *self._too_many()]
        if self.kind != "shuffle" and not self.repeats:
            wrong += [*self._again(), *self._too_often(), *self._apart()]
        total = sum(map(len, self.ids.values()))
        detail = f"{total:,} {self.what} in {len(self.ids)} draws, {self.rates.sum() * len(self.ids):,.0f} expected"
        return Check("draws are those that are accounted for", not wrong, "; ".join([detail, *wrong]))

    def _strangers(self) -> Iterator[str]:
        for number, drawn in self.ids.items():
            if not self.repeats and len(np.unique(drawn)) < len(drawn):
                yield f"step {number} has some {self.what} twice, each clipped by itself"
                return
            if len(drawn) and (drawn.max() >= len(self.rates) or not self.rates[drawn].all()):
                yield f"step {number} has {self.what} that are not accounted for"
                return

    def _too_many(self) -> Iterator[str]:
        total, expected = sum(map(len, self.ids.values())), float(self.rates.sum()) * len(self.ids)
        # Groups and bins are alike but for one. A batch of `shuffle` may have some of the next order, and no one twice.
        # Where everybody keeps the bin, the second epoch has the sizes of the first, and their chances add up.
        room = len(self.ids) + (2 * _spread(expected / 2) if self.kind == KEPT else _spread(expected))
        if total > expected + room or (total < expected - room and self.kind != "shuffle"):
            yield "far from it"

    def _again(self) -> Iterator[str]:
        """Compare pairs of steps that are independent: who is in both?"""
        first = [number for number in self.ids if number // self.period % 2 == 0]
        pairs = [(number, number + self.period) for number in first if number + self.period in self.ids]
        both = sum(len(np.intersect1d(self.ids[one], self.ids[other])) for one, other in pairs)
        if self.kind == KEPT:
            before = sum(len(self.ids[one]) for one, _ in pairs)
            if both < before:
                yield f"{both:,} are drawn again in the same step of the next epoch, and all {before:,} should be"
            return
        # With bands a group is one of `period`, and each of it has that many times the probability.
        grouped = self.period if self.kind != "bins" else 1
        expected = float((self.rates**2).sum()) * grouped * len(pairs)
        room = len(pairs) * (grouped > 1) + _spread(expected)
        if abs(both - expected) > room:
            yield f"{both:,} are drawn again in the next of two independent steps, {expected:,.0f} expected"

    def _too_often(self) -> Iterator[str]:
        """Look for single ones who are drawn far more often than they should be."""
        if self.period > 1:
            return
        times = np.zeros(len(self.rates))
        for drawn in self.ids.values():
            times[drawn[drawn < len(times)]] += 1
        expected = self.rates * len(self.ids)
        if (times > expected + _spread(expected, len(self.rates))).any():
            yield f"one of the {self.what} is drawn {times.max():.0f} times"

    def _apart(self) -> Iterator[str]:
        """Check that nobody is drawn twice in one period; with bands, that nobody changes the group."""
        if self.period == 1:
            return
        seen = np.full(len(self.rates), -1)
        for number, drawn in self.ids.items():
            drawn = drawn[drawn < len(seen)]
            epoch, place = divmod(number, self.period)
            mine = place if self.kind != "bins" else number
            others = seen[drawn] >= 0
            if self.kind == "bins":
                others &= seen[drawn] // self.period == epoch
            else:
                others &= seen[drawn] != mine
            if others.any():
                yield f"{int(others.sum()):,} of step {number} were drawn when they had no turn"
                return
            seen[drawn] = mine


def _spread(expected: float | np.ndarray, tests: int = 1) -> float | np.ndarray:
    """Return how far a sum of independent 0s and 1s may lie from its mean, by Bernstein's inequality at `ALARM`."""
    nats = math.log(2 * tests / ALARM)
    return nats / 3 + np.sqrt((nats / 3) ** 2 + 2 * nats * np.asarray(expected))
