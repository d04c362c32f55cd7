"""Count how often each number occurs among very many; the count gives their median, mean and bins."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

import numpy as np


@dataclass(frozen=True, eq=False)
class Tally:
    """The distinct values of whole numbers, and how often each occurs.

    It is small: numbers from 0 on that add up to S have at most sqrt(2 S) + 1 distinct values.

    Attributes:
        values: int64[K], ascending.
        counts: int64[K], above 0.
    """

    values: np.ndarray
    counts: np.ndarray

    @classmethod
    def of(cls, blocks: Iterable[np.ndarray]) -> Self:
        """Count the numbers of all blocks, int64 each."""
        values = counts = np.empty(0, dtype=np.int64)
        for block in blocks:
            own, times = np.unique(block, return_counts=True)
            merged = np.union1d(values, own)
            added = np.zeros(len(merged), dtype=np.int64)
            added[np.searchsorted(merged, values)] = counts
            added[np.searchsorted(merged, own)] += times
            values, counts = merged, added
        return cls(values, counts)

    @property
    def number(self) -> int:
        """The number of numbers."""
        return int(self.counts.sum())

    @property
    def most(self) -> int:
        return int(self.values[-1])

    @property
    def mean(self) -> float:
        return float(self.values @ self.counts) / self.number

    @property
    def median(self) -> float:
        """The middle number, or the mean of the two in the middle."""
        ends = np.cumsum(self.counts)
        middle = (self.number - 1) // 2, self.number // 2
        low, high = self.values[np.searchsorted(ends, middle, side="right")].tolist()
        return float(low + high) / 2

    def summary(self) -> dict[str, float]:
        """Return min, median, mean and max."""
        return {"min": int(self.values[0]), "median": self.median, "mean": self.mean, "max": self.most}

    def in_bins(self, edges: list[int]) -> list[int]:
        """Return how many numbers lie in each bin [edges[i], edges[i + 1])."""
        below = np.concatenate([[0], np.cumsum(self.counts)])[np.searchsorted(self.values, edges)]
        inside: list[int] = np.diff(below).tolist()
        return inside

    def in_doubling_bins(self) -> dict[int, int]:
        """Return how many numbers lie from 1 on, from 2 on, from 4 on and so on, up to the next bin, by that start."""
        starts = [1 << place for place in range(self.most.bit_length())]
        return dict(zip(starts, self.in_bins([*starts, 2 * starts[-1]]), strict=True))
