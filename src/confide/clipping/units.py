"""Group the rows of a batch by unit, laid out so that whole units are contiguous."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor


@dataclass(frozen=True)
class Group:
    """Consecutive units that have equally many rows, so that one batched product serves them all.

    Attributes:
        rows: the group's rows, after sorting.
        units: the group's units, in the internal numbering.
        rows_each: number of rows of each of these units.
    """

    rows: slice
    units: slice
    rows_each: int

    def by_unit(self, values: Tensor) -> Tensor:
        """Group by unit: [rows, positions, width] of the whole batch -> [units, rows_each * positions, width]."""
        rows, positions, width = values.shape
        if self.rows != slice(0, rows):
            values = values[self.rows]
        return values.reshape(-1, self.rows_each * positions, width)

    def of_units(self, values: Tensor) -> Tensor:
        """Select the values of the group's units: [all units, ...] -> [units, ...]."""
        return values if self.units == slice(0, len(values)) else values[self.units]


@dataclass(frozen=True)
class Units:
    """The units of one batch, renumbered so that units of equal size are neighbours.

    Attributes:
        order: int64[B], the sorted row -> the caller's row; None if the batch already is in order.
        number: int64[U], the caller's unit id -> the internal number.
        of_row: int64[B], the sorted row -> its unit's internal number.
        groups: the units by size.
    """

    order: Tensor | None
    number: Tensor
    of_row: Tensor
    groups: tuple[Group, ...]
    _copies: dict[torch.device, Units] = field(default_factory=dict, repr=False, compare=False)

    @property
    def count(self) -> int:
        return self.number.numel()

    @property
    def rows(self) -> int:
        return self.of_row.numel()

    @cached_property
    def pairs(self) -> int:
        """The number of pairs of rows of one unit, over all units.

        Times the square of a row's positions, it is the number of pairs of positions.
        """
        return sum((group.units.stop - group.units.start) * group.rows_each**2 for group in self.groups)

    @classmethod
    def one(cls, rows: int) -> Units:
        """Put all rows in one unit."""
        return cls(
            order=None,
            number=torch.zeros(1, dtype=torch.int64),
            of_row=torch.zeros(rows, dtype=torch.int64),
            groups=(Group(slice(0, rows), slice(0, 1), rows),),
        )

    @classmethod
    def of(cls, unit: Tensor) -> Units:
        """Make units from the unit id of every row, int64[B], in any order; the ids are 0..U-1, and each has a row.

        Raises:
            ValueError: the ids are not whole numbers from 0 without a gap.
        """
        unit = unit.detach().to("cpu")
        if unit.dim() != 1 or unit.is_floating_point() or unit.is_complex():
            raise ValueError("unit must be a vector of whole numbers, one for each row")
        unit = unit.to(torch.int64)
        if unit.numel() and int(unit.min()) < 0:
            raise ValueError("unit ids must be 0..U-1, without a gap")
        size = torch.bincount(unit)
        if unit.numel() and int(size.min()) == 0:
            raise ValueError("unit ids must be 0..U-1, without a gap")

        by_size = torch.argsort(size, stable=True)  # internal number -> caller's id
        number = torch.empty_like(by_size)
        number[by_size] = torch.arange(by_size.numel())
        internal = number[unit]
        order = torch.argsort(internal, stable=True)
        in_order = bool((order == torch.arange(order.numel())).all())
        return cls(None if in_order else order, number, internal[order], _groups(size[by_size]))

    def on(self, device: torch.device) -> Units:
        """Return the same units on a device. Their tensors are copied only once: the host waits for a copy."""
        if device == self.of_row.device:
            return self
        if device not in self._copies:
            order = None if self.order is None else self.order.to(device)
            self._copies[device] = Units(order, self.number.to(device), self.of_row.to(device), self.groups)
        return self._copies[device]

    def total(self, values: Tensor) -> Tensor:
        """Sum values, one for each sorted row, over each unit: float64[U]."""
        result = torch.zeros(self.count, dtype=torch.float64, device=values.device)
        return result.index_add_(0, self.of_row, values.double())

    def sort(self, values: Tensor) -> Tensor:
        """Bring the caller's rows into the sorted order."""
        return values if self.order is None else values.index_select(0, self.order)


def _groups(sizes: Tensor) -> tuple[Group, ...]:
    """Group equal sizes, from the units' sizes in increasing order."""
    groups: list[Group] = []
    row = first = 0
    each, counts = torch.unique_consecutive(sizes, return_counts=True)
    for rows_each, units in zip(each.tolist(), counts.tolist(), strict=True):
        groups.append(Group(slice(row, row + rows_each * units), slice(first, first + units), rows_each))
        row, first = row + rows_each * units, first + units
    return tuple(groups)
