"""One parameter's share of one backward pass: its uses as they arrive, its norms, its scaled sum."""

from __future__ import annotations

import torch
from torch import Tensor

from confide.clipping.factors import Lookup, Outer, PerRow, Use, row_squares
from confide.clipping.units import Units

# A squared norm this far below what its terms would give without cancelling is taken again in float64: a float32
# Gram matrix errs by 1e-7 of its terms, and a norm that comes out as 0 would not be clipped at all.
_CANCELLING = 1e-3
# Squared float32 error of the sum, for one position and unit magnitude: added to the norm, so that it covers rounding.
_ROUNDING = 1e-13


def materialise(units: int, parameter: int, activations: int) -> bool:
    """The cost model: is one dense gradient for each unit better than keeping the factors?

    With n positions a unit and a p x q matrix, the Gram norm costs n^2 (p + q) products more than a dense
    gradient, whose own product replaces the one that the clipped sum would need. So dense is never more
    arithmetic, only more memory: it is taken where it is no larger than what it lets go.

    Args:
        units: how many units the batch has.
        parameter: elements of the parameter.
        activations: elements of the inputs and output gradients of all its uses.
    """
    return units * parameter <= activations


class Slot:
    """Collects the uses of one parameter; exact for parameters with several (tied weights).

    Args:
        shape: the parameter's.
        units: of the batch.
        uses: how many uses the forward pass saw.
        activations: elements of their inputs and outputs.
        dense: float32[U, *shape] to add the units' gradients to, instead of what the cost model says.
    """

    def __init__(
        self, shape: torch.Size, units: Units, uses: int, activations: int, dense: Tensor | None = None
    ) -> None:
        self._shape = shape
        self._units = units
        self._awaited = uses
        self._dense = dense
        self._is_dense = dense is not None or materialise(units.count, shape.numel(), activations)
        self._outers: list[Outer] = []
        self._lookups: list[Lookup] = []
        self._squares: Tensor | None = None
        self._measures = dense is None

    def receive(self, use: Use) -> None:
        """Take one use in, from inside the backward pass; with the last one awaited the norms follow."""
        if self._dense is not None or isinstance(use, PerRow) or (self._is_dense and isinstance(use, Outer)):
            self._fold(use)
        elif isinstance(use, Outer):
            self._outers.append(use)
        else:
            self._lookups.append(use)
        self._awaited -= 1
        if self._awaited == 0 and self._measures:
            self._squares = self._measure()

    def _fold(self, use: Use) -> None:
        if self._dense is None:
            self._dense = torch.zeros(self._units.count, *self._shape, device=use.device)
            for lookup in self._lookups:
                lookup.add_to(self._dense, self._units)
            self._lookups.clear()
        use.add_to(self._dense, self._units)

    def squares(self) -> Tensor | None:
        """float64[U]: each unit's squared norm; None where the loss used the parameter not at all."""
        if self._squares is None and (self._dense is not None or self._outers or self._lookups):
            self._squares = self._measure()  # a use whose output the loss ignored never arrives
        return self._squares

    def _measure(self) -> Tensor:
        if self._dense is not None:
            return row_squares(self._dense)
        if self._outers:
            self._outers = [Outer.join(self._outers)]
        if self._lookups:
            self._lookups = [Lookup.join(self._lookups)]
        uses: list[Outer | Lookup] = [*self._outers, *self._lookups]
        magnitude = torch.stack([use.magnitude(self._units) for use in uses]).sum(0)
        squares = self._factored(self._outers, self._lookups)
        if bool((squares < _CANCELLING * magnitude).any()):
            squares = self._factored(
                [use.double() for use in self._outers], [use.double() for use in self._lookups]
            )
        # The sum that is added is float32: its rounding must not lift a clipped unit above the bound either.
        positions = sum(use.positions for use in uses)
        return squares.clamp_(min=0) + _ROUNDING * positions * magnitude

    def _factored(self, outers: list[Outer], lookups: list[Lookup]) -> Tensor:
        """float64[U]: squared norms from the factors, cross terms of a tied parameter included."""
        parts = [outer.squares(self._units) for outer in outers]
        parts += [lookup.squares(self._units, self._shape[0]) for lookup in lookups]
        if outers and lookups:
            parts.append(2 * lookups[0].cross(outers[0], self._units))
        return torch.stack(parts).sum(0)

    def add_scaled(self, total: Tensor, scale: Tensor) -> None:
        """Add sum_u scale_u * (unit u's gradient) to total, float32[*shape]; scale is float32[U]."""
        if self._dense is not None:
            total.view(-1).addmv_(self._dense.view(len(scale), -1).T, scale)
            return
        by_row = scale[self._units.of_row.to(scale.device)]
        for outer in self._outers:
            outer.add_scaled(total, by_row)
        for lookup in self._lookups:
            lookup.add_scaled(total, by_row)
