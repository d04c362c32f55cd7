"""Histograms of the private text that are released with a model: what a unit adds to them, their noise and their cost.

Each unit, be it a user or a row, adds one vector to each histogram: the shares of its documents over the cells. A user
of a thousand documents adds no more than one with a single document. All histograms of a run are one release with
Gaussian noise, made once.

Formal guarantee: take H histograms, and let v(U) be the vectors of unit U, one after the other. v(U) is a function of
the rows of U alone, so a change of U changes nothing else in the sum: a row tells of a condition where a document
begins in it, and lengths are counted of users only, since a document may have several rows. Canaries that were not
planted leave empty rows, so no run has both. Each of the H parts has entries of at least 0 with a sum of at most 1, so
a norm of at most 1, and |v(U)| <= sqrt(H).

- Zero-out and add-or-remove: the sum moves by v(U), by at most sqrt(H).
- Replace-one, v in the place of u: |u - v|^2 = |u|^2 + |v|^2 - 2 <u, v> <= 2 H, since entries of at least 0 have a
  product of at least 0. The sum moves by at most sqrt(2) sqrt(H).

The noise on each cell has the standard deviation `noise_multiplier` times sqrt(H). In units of that, the release is
N(1, s^2) against N(0, s^2), or N(sqrt(2), s^2) under replace-one, in both directions (`Histograms.pair`). Its noise is
independent of that of the steps, so the two compose by adding privacy losses (`accounting.After`, and Zhu, Dong and
Wang 2022 for pairs that dominate). Rounding, cutting at 0 and dividing by the sum use nothing but the noised counts
(post-processing).

Vectors are rounded down to multiples of 2^-30, so their entries are still at least 0 with a sum of at most 1. They are
added as whole numbers, so no sum is rounded. The noise is of the streams that make that of the steps
(`randomness.streams`). What is released is rounded to whole numbers, far coarser than the grid on which noise lies: at
the largest `noise_multiplier` that is allowed, 10,000, the noise has steps of 1/100 of a count at most.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from confide.data.conditions import CLEAR
from confide.data.lengths import BOUNDS
from confide.data.unit_graph import UnitGraph
from confide.privacy.accounting import After, DominatingPair, MixtureOfGaussians
from confide.randomness.streams import RunKey
from confide.utils.errors import InputError
from confide.utils.rounding import at_least, at_most

if TYPE_CHECKING:
    from confide.config.schema import Config
    from confide.privacy.guarantee import Guarantee

GRID = 1 << 30
"""What a vector's entries are multiples of, inverted."""

_ENTRIES = 1 << 22  # of vectors that are made at a time, and rows that are looked at
_NAMES = {"conditions": "how often each condition of the list occurs", "lengths": "how long documents are"}


def named_in(claim: Guarantee) -> tuple[str, ...]:
    """Return the names of the histograms that a claim says were released beside the model."""
    return tuple(name for name, words in _NAMES.items() if words in claim.protected_output)


@dataclass(frozen=True)
class Histograms:
    """The histograms of a run.

    Attributes:
        of: their names, "conditions" and "lengths".
        noise_multiplier: standard deviation of the noise, in units of what one unit may add to all of them.
    """

    of: tuple[str, ...]
    noise_multiplier: float

    @classmethod
    def asked(cls, config: Config) -> Histograms | None:
        """Return the histograms of a config; None if it asks for none."""
        section = config.privacy.histograms
        return cls(tuple(section.of), section.noise_multiplier) if section.of else None

    @property
    def deviation(self) -> float:
        """Standard deviation of the noise on each count, where a unit adds at most 1 to each histogram."""
        return self.noise_multiplier * math.sqrt(len(self.of))

    def pair(self, adjacency: str) -> MixtureOfGaussians:
        """Return the pair that dominates the release, to be accounted at `noise_multiplier`."""
        distance = math.sqrt(2) if adjacency == "replace-one" else 1.0
        return MixtureOfGaussians((distance,), (1.0,), 1)

    def before(self, process: DominatingPair, adjacency: str) -> After:
        """Return a process together with the release of the histograms."""
        where = "sqrt(2) of that lie between the vectors of two texts. " if adjacency == "replace-one" else ""
        told = (
            f"the counts of {self.words} are released once, with Gaussian noise; a unit adds the shares of its own "
            f"documents, vectors whose norm is at most what the noise multiplier is relative to. {where}"
        )
        return After(self.pair(adjacency), self.noise_multiplier, process, told.strip())

    def check_within(self, epsilon: float, delta: float, adjacency: str) -> None:
        """Check that the histograms leave something of a target to the training.

        Raises:
            InputError: they cost as much by themselves, or more.
        """
        alone = self.pair(adjacency).curve(self.noise_multiplier).epsilon(delta)
        if alone >= epsilon:
            raise InputError(
                f"privacy.histograms.noise_multiplier: the counts alone cost epsilon {at_most(alone, 4)} of the "
                f"{at_most(epsilon, 4)} of privacy.epsilon: give them more noise"
            )

    @property
    def words(self) -> str:
        """What is counted, in words."""
        return " and of ".join(_NAMES[name] for name in self.of)

    @property
    def short(self) -> str:
        """What is released, in a few words."""
        noise = at_least(self.noise_multiplier, 6)
        return f"counts of {' and '.join(self.of)} with noise multiplier {noise}, which epsilon covers"

    @property
    def output(self) -> str:
        """What is released, in words, for a claim."""
        return (
            f"and beside it the counts of {self.words}, made once with Gaussian noise of standard deviation "
            f"{at_least(self.deviation, 6)} (noise multiplier {at_least(self.noise_multiplier, 6)}), which epsilon "
            "covers too"
        )

    def doubts(self, units: int, conditions: int) -> Iterator[str]:
        """Yield what to say before training where the noise is as large as what is counted.

        Args:
            units: how many are counted; private under add-or-remove.
            conditions: how many the list has.
        """
        for name, cells in self.cells(conditions).items():
            if CLEAR * self.deviation * cells > units:
                noise = at_least(self.deviation, 3)
                yield (
                    f"privacy.histograms: {units:,} units make {at_most(units / cells, 3)} in each of the {cells} "
                    f"counts of {name} on average, and the noise on a count has a standard deviation of {noise}: what "
                    "is counted will be noise for the most part. A smaller noise_multiplier counts better, and leaves "
                    "less of epsilon to the training"
                )

    def cells(self, conditions: int) -> dict[str, int]:
        """Return the number of cells of each histogram.

        Args:
            conditions: how many the list has.
        """
        return {name: conditions if name == "conditions" else len(BOUNDS) for name in self.of}

    def released(
        self, graph: UnitGraph, conditions: int, by_user: bool, key: RunKey
    ) -> dict[str, tuple[int, ...]]:
        """Count, and add noise: the same noise each time, for a key that is bound to config and data.

        Args:
            graph: the training rows.
            conditions: how many the list has.
            by_user: a unit is one of the graph's; else it is a row.
            key: of the run.
        """
        sums = {
            name: sum(each.sum(axis=0) for each in each_vector(graph, name, cells, by_user))
            for name, cells in self.cells(conditions).items()
        }
        return {
            name: tuple(np.rint(counts).astype(np.int64).tolist())
            for name, counts in self.noised(sums, key).items()
        }

    def noised(self, sums: dict[str, np.ndarray], key: RunKey) -> dict[str, np.ndarray]:
        """Add noise to what units add up to, in multiples of 1 / `GRID`: float64[cells] of each histogram."""
        found = {}
        for name, total in sums.items():
            # Other cells, or the same noise at another size, would give away the counts beside these.
            item = f"{name} {BOUNDS if name == 'lengths' else ''} {self.deviation!r}"
            noise = key.stream("histograms", "counts", 0, item).normal(len(total)).numpy()
            found[name] = total / GRID + self.deviation * noise
        return found


def each_vector(graph: UnitGraph, name: str, cells: int, by_user: bool) -> Iterator[np.ndarray]:
    """Yield what units add to a histogram, some at a time, in order: int64[units, cells], in multiples of 1 / `GRID`.

    Args:
        name: of the histogram.
        cells: how many it has.
        by_user: a unit is one of the graph's; else it is a row.
    """
    for low, high in blocks(graph, cells, by_user):
        yield vectors_of(graph, name, cells, by_user, low, high)


def blocks(graph: UnitGraph, cells: int, by_user: bool) -> Iterator[tuple[int, int]]:
    """Yield ranges of units whose vectors, and whose rows, fit into memory together: all units, in order."""
    units, size = graph.n_units if by_user else graph.n_rows, max(1, _ENTRIES // cells)
    low = 0
    while low < units:
        high = min(low + size, units)
        if by_user:  # at least one unit, however many rows it has
            most = np.searchsorted(graph.unit_offsets, graph.unit_offsets[low] + _ENTRIES, "right") - 1
            high = min(high, max(low + 1, int(most)))
        yield low, high
        low = high


def vectors_of(graph: UnitGraph, name: str, cells: int, by_user: bool, low: int, high: int) -> np.ndarray:
    """Return what the units from `low` to `high` - 1 add: see `each_vector`.

    Raises:
        InputError: the graph does not tell where documents begin.
    """
    if graph.documents is None:
        raise InputError(f"{graph.folder}: does not tell where documents begin: prepare the data again")
    n = high - low
    if by_user:
        offsets = np.asarray(graph.unit_offsets[low : high + 1])
        rows, of_units = graph.unit_rows[offsets[0] : offsets[-1]], np.diff(offsets)
        owner, marks = np.repeat(np.arange(n), of_units), np.array(graph.documents[rows])
        # No document reaches over two users, whatever the marks say.
        first = (offsets[:-1] - offsets[0])[of_units > 0]
        marks[first] = np.maximum(marks[first], 0)
    else:
        rows, owner = np.arange(low, high), np.arange(n)
        marks = np.asarray(graph.documents[low:high])
    begins = np.flatnonzero(marks >= 0)
    if not len(begins):
        return np.zeros((n, cells), np.int64)
    if name == "conditions":
        cell = marks[begins].astype(np.int64) - 1
    else:
        cell = np.searchsorted(BOUNDS[:-1], np.add.reduceat(graph.lengths_of(rows), begins))
    owner, falls = owner[begins], (cell >= 0) & (cell < cells)
    counts = np.bincount(owner[falls] * cells + cell[falls], minlength=n * cells).reshape(n, cells)
    documents = np.bincount(owner, minlength=n)
    found: np.ndarray = counts.astype(np.int64) * GRID // np.maximum(documents, 1)[:, None]
    return found
