"""User-level DP for rows that may have several owners, such as mail with its sender and recipients."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from confide.data.shape import Shape
from confide.privacy.mechanisms.weighted import WeightedRows, kept_greedily, solved
from confide.privacy.selection import cap_of


@dataclass(frozen=True)
class Owners(WeightedRows):
    """Rows are weighted so that no owner has more than `rows_per_unit` of them.

    `greedy` keeps a row if each of its owners still has room. `program` weighs rows by the linear program of Ganesh et
    al. 2025 ("Hush!") with the same bound for every owner, and keeps more of them.

    Formal guarantee: (epsilon, delta)-DP for one user under zero-out adjacency, in which all rows that the user
    owns, alone or with others, count for nothing. The claim is that of the worst user. The bounding is a function of
    the graph alone, which is public and alike in both worlds, and so costs nothing.
    """

    rows_per_unit: int | str = 4
    bounding: str = "greedy"
    name: ClassVar[str] = "owners"
    reads: ClassVar[tuple[str, ...]] = ("privacy.bounding",)
    notion: ClassVar[str] = "multi-owner user-level DP"
    suggested_caps: ClassVar[tuple[int | str, ...]] = (1, 2, 4, 8, 16)
    bound_key: ClassVar[str] = "privacy.rows_per_unit"

    @property
    def unit(self) -> str:
        return "all rows that one user owns, alone or with others"

    def cap(self, shape: Shape) -> int:
        return cap_of(self.rows_per_unit, shape)

    def weights(self, shape: Shape) -> np.ndarray:
        cap = self.cap(shape)
        if self.bounding == "program":
            return solved(shape, np.full(shape.units, float(cap)), "auto")
        return kept_greedily(shape, cap)
