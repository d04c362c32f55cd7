"""Handle one parameter during one backward pass: collect its uses, compute its norms, add its scaled sum."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from confide.clipping.factors import (
    Lookup,
    Outer,
    PerRow,
    Table,
    Use,
    add_weighted,
    norm_error,
    run_norms,
)
from confide.clipping.units import Units

# A squared norm that is rounded up by more than this share of itself is computed again in float64, as is the sum.
_DOUBTFUL = 0.05

# Cost of one element of a dense gradient in addition to its product (it is written, measured and summed), in units of
# one product of a Gram matrix, half of which is computed. Measured by benchmarks/cost_model.py.
_TOUCHED = 20

# Lengths are rounded, too, but by less than this factor: their sums have at most 16,000 terms at a time, of one sign.
_LONGER = 1.001


def dense_is_faster(units: Units, positions: int, p: int, q: int) -> bool:
    """Return True if, by the cost model, a dense p x q gradient per unit is less work than the Gram norm.

    With n positions per unit, the Gram norm takes n^2 (p + q) / 2 products that a dense gradient does not need. The
    product that forms a dense gradient replaces the product of the clipped sum. But a dense gradient has to be
    written and read.

    Args:
        positions: positions per row; a unit of k rows has k times as many.
    """
    return _TOUCHED * units.count * p * q <= units.pairs * positions**2 * (p + q) / 2


@dataclass
class Allowance:
    """The bytes that slots may hold in addition to the inputs and output gradients of their layers.

    Ordinary training reaches its peak memory where torch computes the loss from the largest output: several copies of
    that output exist then. They are freed before the first layer's gradient arrives. So dense gradients may take as
    much memory as those copies, plus the memory of the factors that they replace, without raising the peak.
    """

    left: int

    def covers(self, needed: int, replaced: int) -> bool:
        """Return True if `needed` bytes may replace `replaced` ones; if so, count them as held."""
        if needed - replaced > self.left:
            return False
        self.left -= needed - replaced
        return True


@dataclass(frozen=True)
class _Errors:
    """Errors of factors, as shares of a unit's length or its square: see `rounding`.

    Attributes:
        gram: of a squared norm from inner products.
        sum: of the term that is added for the unit.
        matrix: of a norm from a matrix formed for that; 1, which makes every bound too large, where none is formed.
    """

    gram: float | Tensor = 0.0
    sum: float | Tensor = 0.0
    matrix: float | Tensor = 0.0

    @classmethod
    def of(cls, use: Outer, units: Units) -> _Errors:
        matrix = use.matrix_error() if use.has_half_products else 1.0
        return cls(use.gram_error(units), use.sum_error(units.count), matrix)

    def or_larger(self, other: _Errors) -> _Errors:
        return _Errors(max(self.gram, other.gram), max(self.sum, other.sum), max(self.matrix, other.matrix))

    @classmethod
    def stack(cls, errors: Sequence[_Errors], device: torch.device) -> _Errors:
        """Stack the errors of several slots, each as float64[slots, 1]."""
        values = [[own.gram, own.sum, own.matrix] for own in errors]
        return cls(*torch.tensor(values, dtype=torch.float64, device=device).T[..., None])

    def bounds(self, norms: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Bound norms that were taken of matrices as if they were taken of factors.

        The way in which a unit's gradient is held depends on the other rows of the batch; its bound must not.

        Args:
            norms: float64[..., U].
            lengths: float64[..., U].

        Returns:
            float64[..., U], the bounds: those from inner products; if too large, those from a matrix that is formed.
            bool[..., U], True if these are too large as well.
        """
        bounds = (norms.square() + self.gram * lengths.square()).sqrt_() + self.sum * lengths
        closer = norms + (self.matrix + self.sum) * lengths
        bounds = torch.where(_is_doubtful(bounds, norms), closer, bounds)
        return bounds, _is_doubtful(bounds, norms)


def _is_doubtful(bounds: Tensor, norms: Tensor) -> Tensor:
    """Tell which bounds are far above the norms, which must be exact or rounded up themselves."""
    return bounds.square() > (1 + _DOUBTFUL) * norms.square()


class Slot:
    """Collects the uses of one parameter; exact also for parameters with several uses (tied weights).

    Args:
        shape: shape of the parameter.
        units: units of the batch, on the parameter's device.
        uses: number of uses that the forward pass saw.
        allowance: memory allowance of the pass.
        dense: float32[U, *shape]. If given, the units' gradients are added to it, whatever the cost model says.
    """

    def __init__(
        self, shape: torch.Size, units: Units, uses: int, allowance: Allowance, dense: Tensor | None = None
    ) -> None:
        self._shape = shape
        self._units = units
        self._awaited = uses
        self._allowance = allowance
        self._dense = dense
        self._outers: list[Outer] = []
        self._lookups: list[Lookup] = []
        self._table: Table | None = None
        self._norms: Tensor | None = None
        self._doubt: Tensor | None = None
        self._is_doubtful: Tensor | None = None  # bool[U, 1], by unit
        self._measures = dense is None
        self._lengths: Tensor | None = None  # lengths of the folded uses, float64[U]
        self._errors = _Errors()  # of the folded uses, if they were held in factors
        self._is_to_lift = False

    def receive(self, use: Use) -> None:
        """Receive one use, from inside the backward pass. After the last awaited use, compute the norms."""
        if self._awaited == 0:
            raise AssertionError(
                "a use arrived that the forward pass did not make: its norm would be left out"
            )
        if self._dense is not None or isinstance(use, PerRow) or self._is_better_dense(use):
            self._fold(use)
        elif isinstance(use, Outer):
            self._outers.append(use)
        else:
            self._lookups.append(use)
        self._awaited -= 1
        if self._awaited == 0 and self._measures:
            self._measure()

    def _is_better_dense(self, use: Use) -> bool:
        if not isinstance(use, Outer) or self._outers:
            return False
        p, q = self._shape
        return dense_is_faster(self._units, use.positions, p, q) and self._allowance.covers(
            4 * self._units.count * p * q, use.bytes
        )

    def _fold(self, use: Use) -> None:
        fresh = self._dense is None
        if self._dense is None:
            self._dense = torch.empty(self._units.count, *self._shape, device=use.device)
            for lookup in self._lookups:
                lookup.add_to(self._dense, self._units, fresh)
                fresh = False
            self._lookups.clear()
        use.add_to(self._dense, self._units, fresh)
        if isinstance(use, Outer) and self._measures:
            lengths = use.lengths(self._units)
            self._lengths = lengths if self._lengths is None else self._lengths + lengths
            self._errors = self._errors.or_larger(_Errors.of(use, self._units))

    def norms(self) -> Tensor | None:
        """Return norms of parts of each unit's gradient, [U, parts], or None if the loss did not use the parameter.

        Their squares, in float64, add up to the squared norm of the unit's gradient.
        """
        settle([self])
        return self._norms

    @property
    def doubt(self) -> Tensor | None:
        """True if some unit's norm may be mostly rounding error: bool[], on the device. None if that cannot be."""
        if self._norms is None and (self._dense is not None or self._outers or self._lookups):
            self._measure()  # the use of an output that the loss ignored never arrives
        return self._doubt

    def resolve(self, is_doubtful: bool) -> None:
        """Compute norms and sum in float64 if a norm is doubtful; afterwards none is."""
        if is_doubtful and self._takes_matrices:
            is_doubtful = bool(self._replace_doubtful(*self._bounded_by_matrices()).any())
        if is_doubtful:
            self._outers = [use.double() for use in self._outers]
            self._lookups = [use.double() for use in self._lookups]
            self._replace_doubtful(*self._bounded())
        self._lookups = []  # replaced by their table
        self._doubt = None

    def _measure(self) -> None:
        if self._dense is not None:
            self._norms = run_norms(self._dense).mul_(1 + norm_error(self._dense))
            self._is_to_lift = self._lengths is not None
            return
        if self._outers:
            self._outers = [Outer.join(self._outers)]
        if self._lookups:
            self._lookups = [Lookup.join(self._lookups)]
        if self._takes_matrices and dense_is_faster(self._units, self._outers[0].positions, *self._shape):
            self._norms, self._is_doubtful = self._bounded_by_matrices()
        else:
            self._norms, self._is_doubtful = self._bounded()
        self._doubt = None if self._is_doubtful is None else self._is_doubtful.any()

    @property
    def _takes_matrices(self) -> bool:
        """True if norms can be taken of matrices that are formed for that alone."""
        return not self._lookups and all(use.has_half_products for use in self._outers)

    def _replace_doubtful(self, norms: Tensor, is_doubtful: Tensor | None) -> Tensor:
        """Give the doubtful units these norms. Return which are still doubtful, bool[U, 1].

        The other units keep their norms, which must not depend on the batch; their sum only gets more exact.
        """
        assert self._norms is not None
        assert self._is_doubtful is not None
        assert is_doubtful is not None
        self._norms = torch.where(self._is_doubtful, norms, self._norms)
        self._is_doubtful = self._is_doubtful & is_doubtful
        return self._is_doubtful

    @staticmethod
    def lift(slots: Sequence[Slot]) -> None:
        """Give norms of dense gradients the bounds that factors would have; for all slots in a few operations."""
        by_device: dict[torch.device, list[Slot]] = {}
        for slot in slots:
            if slot._is_to_lift and slot._norms is not None:
                by_device.setdefault(slot._norms.device, []).append(slot)
        for device, own in by_device.items():
            parts = [slot._norms for slot in own if slot._norms is not None]
            norms = torch.stack([torch.linalg.vector_norm(x, dim=1, dtype=torch.float64) for x in parts])
            lengths = torch.stack([slot._lengths for slot in own if slot._lengths is not None]) * _LONGER
            bounds, is_as_it_is = _Errors.stack([slot._errors for slot in own], device).bounds(norms, lengths)
            lifted = torch.where(is_as_it_is | (norms == 0), norms, bounds)
            for slot, values in zip(own, lifted, strict=True):
                slot._norms, slot._is_to_lift = values[:, None], False

    def _bounded_by_matrices(self) -> tuple[Tensor, Tensor]:
        """Compute the bounds of `_bounded` from the matrices themselves: float64[U, 1] and bool[U, 1]."""
        [outer] = self._outers
        norms = outer.matrix_squares(self._units).sqrt_()
        bounds, doubtful = _Errors.of(outer, self._units).bounds(norms, outer.lengths(self._units) * _LONGER)
        return bounds[:, None], doubtful[:, None]

    def _bounded(self) -> tuple[Tensor, Tensor | None]:
        """Compute upper bounds on the norms from the factors, in their precision.

        Returns:
            float64[U, 1], at least the norm of the vector that is added for each unit (see `rounding`).
            bool[U, 1], True if too much of the bound is rounding error; None if that cannot be.
        """
        units = self._units
        tables = [lookup.table(units, self._shape[0]) for lookup in self._lookups]
        self._table = tables[0] if tables else None
        of_table = self._table.squares(units) if self._table else None
        if not self._outers:
            assert of_table is not None
            self._lookups = []
            return of_table.sqrt_()[:, None], None
        [outer] = self._outers
        squares, lengths = outer.squares(units)
        lengths *= _LONGER
        slack = outer.gram_error(units) * lengths.square()
        if of_table is not None:
            [lookup] = self._lookups
            cross = lookup.cross(outer, units)
            squares += 2 * cross + of_table
            slack += 2 * lookup.cross_error(outer, units) * lengths * lookup.lengths(units) * _LONGER
        squares.clamp_(min=0)
        norms = (squares + slack).sqrt_().add_(lengths, alpha=outer.sum_error(units.count))
        return norms[:, None], (norms.square() > (1 + _DOUBTFUL) * squares)[:, None]

    def add_scaled(self, total: Tensor, scale: Tensor, fresh: bool = False) -> None:
        """Add sum_u scale_u * (unit u's gradient) to total, float32[*shape]; scale is float32[U].

        The old values of a fresh total are ignored and replaced.
        """
        if self._dense is not None:
            add_weighted(total.view(-1), self._dense.view(len(scale), -1), scale, fresh)
            return
        for outer in self._outers:
            outer.add_scaled(total, scale[self._units.of_row], fresh)
            fresh = False
        if self._table is not None:
            self._table.add_scaled(total, scale, fresh)

    def gradient(self, unit: int) -> Tensor:
        """Return the gradient of one unit, float32[*shape]. The norms must be known."""
        if self._dense is not None:
            return self._dense[unit].clone()
        others = torch.arange(self._units.count, device=self._units.of_row.device) != unit
        rows = others[self._units.of_row]
        found = torch.zeros(self._shape, dtype=torch.float32, device=rows.device)
        for outer in self._outers:  # without the others, whose infinite values would turn it into nan
            outer.without(rows).add_scaled(found, (~rows).float(), fresh=False)
        if self._table is not None:
            self._table.without(others).add_scaled(found, (~others).float(), fresh=False)
        return found

    def leave_out(self, units: Tensor) -> None:
        """Set the gradients of the given units, bool[U], to 0: scaling by 0 would turn infinite values into nan."""
        units = units.to(self._units.of_row.device)
        rows = units[self._units.of_row]
        self._outers = [use.without(rows) for use in self._outers]
        if self._table is not None:
            self._table = self._table.without(units)
        if self._dense is not None:
            self._dense[units] = 0


def settle(slots: Sequence[Slot]) -> None:
    """Make the norms of all slots final. A GPU is asked once for all of them, not once per slot."""
    doubts = [(slot, slot.doubt) for slot in slots if slot.doubt is not None]
    Slot.lift(slots)
    if not doubts:
        return
    device = doubts[0][1].device
    answers = torch.stack([doubt.to(device) for _, doubt in doubts]).tolist()
    for (slot, _), is_doubtful in zip(doubts, answers, strict=True):
        slot.resolve(is_doubtful)
