"""One parameter's share of one backward pass: its uses as they arrive, its norms, its scaled sum."""

from __future__ import annotations

import torch
from torch import Tensor

from confide.clipping.factors import Lookup, Outer, PerRow, Use, row_squares
from confide.clipping.units import Units


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
        parts: list[Tensor] = []
        if self._outers:
            self._outers = [Outer.join(self._outers)]
            parts.append(self._outers[0].squares(self._units))
        if self._lookups:
            self._lookups = [Lookup.join(self._lookups)]
            parts.append(self._lookups[0].squares(self._units, self._shape[0]))
        if self._outers and self._lookups:
            parts.append(2 * self._lookups[0].cross(self._outers[0], self._units))
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
