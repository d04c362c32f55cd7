"""The part of a unit graph that planning and accounting may see."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from confide.data.by_unit import Pairs


@dataclass(frozen=True, eq=False)
class Shape:
    """Counts, and which rows belong to which unit: no token and no length. Public under a zero-out claim.

    Attributes:
        rows_per_unit: int64[N], read-only.
        rows: M, including rows without a unit.
        offsets, rows_of_units: int64[N + 1] and int64[incidences]; the rows of unit u are
            `rows_of_units[offsets[u]:offsets[u + 1]]`. None where only counts are known.
        names: the units' names, in their order.
        folder: the graph's folder, in which derived data may be cached; None if the graph is not on disk.
        pairs: all pairs of a row and one of its units, in blocks that are read and not mapped; None if the graph is not
            on disk.
    """

    rows_per_unit: np.ndarray
    rows: int
    tokens: int
    single_owner: bool
    offsets: np.ndarray | None = field(default=None, repr=False)
    rows_of_units: np.ndarray | None = field(default=None, repr=False)
    names: Callable[[], list[str]] = field(default=list, repr=False)
    folder: Path | None = None
    pairs: Callable[[], Iterator[Pairs]] | None = field(default=None, repr=False)

    @property
    def units(self) -> int:
        return len(self.rows_per_unit)

    @property
    def incidences(self) -> int:
        """The number of pairs of a row and one of its units; equal to `rows` if every row has one owner."""
        return int(self.rows_per_unit.sum())
