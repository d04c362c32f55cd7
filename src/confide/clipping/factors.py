"""One parameter's gradient for every row, in the factored form in which the backward pass yields it.

A linear layer's gradient for one row is sum_t left_t (x) right_t over the row's positions t: the layer's
input and its output gradient say all, and are far smaller than one matrix for every row. From them come
the norm of a unit's gradient (Goodfellow 2015 for one position; Li et al. 2022, "ghost clipping", for
several) and, once every unit's factor is known, the clipped sum as one product (Bu et al. 2023,
"book-keeping": no second backward pass).

All arithmetic is float32 whatever the factors' type: a norm taken in bf16 is wrong by parts in a hundred,
and then clipped vectors exceed the bound that the noise was made for.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from confide.clipping.units import Units

# Columns of a half-precision factor turned to float32 at a time: bounds the copy of a vocabulary-wide one.
_BLOCK = 4096

# Positions from which a Gram matrix is halved; below, the products are too small to gain.
_SPLIT = 128


@contextmanager
def exact(device: torch.device) -> Iterator[None]:
    """Float32 products that are float32: neither autocast nor TF32 inside."""
    precision = torch.get_float32_matmul_precision()
    with torch.no_grad(), torch.autocast(device.type, enabled=False):
        if precision == "highest":
            yield
            return
        torch.set_float32_matmul_precision("highest")
        try:
            yield
        finally:
            torch.set_float32_matmul_precision(precision)


def row_squares(values: Tensor) -> Tensor:
    """[U, ...] -> float64[U], the squared norm of each slice.

    Short runs are summed in float32 and their sums in float64: one float32 norm over a long run is biased
    low (by 3e-3 at 40 million elements), which would let clipped vectors exceed the bound.
    """
    flat = values.reshape(values.shape[0], -1, values.shape[-1] if values.dim() > 1 else 1)
    if flat.shape[-1] > _BLOCK:  # a wide vector, such as a bias over the vocabulary
        return flat.double().square().sum((1, 2))
    return torch.linalg.vector_norm(flat, dim=-1).double().square().sum(-1)


def _wide(values: Tensor) -> Tensor:
    """At least float32."""
    return values if values.dtype == torch.float64 else values.float()


def _blocks(values: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """Column blocks in float32 (or float64); the whole at once where no copy is needed."""
    width = values.shape[-1]
    step = width if values.dtype in (torch.float32, torch.float64) else _BLOCK
    for start in range(0, width, step):
        columns = slice(start, min(start + step, width))
        yield columns, _wide(values[..., columns])


def _inner(first: Tensor, second: Tensor) -> Tensor:
    """[u, n, width], [u, m, width] of one type -> float32[u, n, m], inner products of positions."""
    if first.dtype == second.dtype and first.dtype in (torch.float32, torch.float64):
        return torch.bmm(first, second.mT)
    total = torch.zeros(first.shape[0], first.shape[1], second.shape[1], device=first.device)
    for (_, a), (_, b) in zip(_blocks(first), _blocks(second), strict=True):
        total.baddbmm_(a, b.mT)
    return total


def _gram_squares(left: Tensor, right: Tensor) -> Tensor:
    """[u, n, p], [u, n, q] -> float64[u], squared norms of the matrices sum_t left_t (x) right_t.

    The Gram matrices are symmetric: of long ones, only what lies on and below the diagonal is computed.
    """
    n = left.shape[1]
    if n < _SPLIT:
        return _total(_inner(left, left).mul_(_inner(right, right)))
    half = n // 2
    below = _inner(left[:, half:], left[:, :half]).mul_(_inner(right[:, half:], right[:, :half]))
    return (
        _gram_squares(left[:, :half], right[:, :half])
        + _gram_squares(left[:, half:], right[:, half:])
        + 2 * _total(below)
    )


def _total(products: Tensor) -> Tensor:
    """float32[u, n, m] -> float64[u]"""
    return products.sum(-1).double().sum(-1)


@dataclass(frozen=True)
class Outer:
    """sum over positions of left (x) right: a matrix, out of a linear layer's input and output gradient.

    Attributes:
        left: [B, n, p] for a parameter of shape (p, q).
        right: [B, n, q].
    """

    left: Tensor
    right: Tensor

    @property
    def device(self) -> torch.device:
        return self.left.device

    @property
    def positions(self) -> int:
        return self.left.shape[1]

    @classmethod
    def join(cls, uses: list[Outer]) -> Outer:
        """Several uses of one parameter are one use with more positions: cross terms come by themselves."""
        if len(uses) == 1:
            return uses[0]
        return cls(torch.cat([use.left for use in uses], 1), torch.cat([use.right for use in uses], 1))

    def squares(self, units: Units) -> Tensor:
        """float64[U]: squared norm of each unit's matrix, from the two Gram matrices of its positions."""
        result = torch.empty(units.count, dtype=torch.float64, device=self.left.device)
        for group in units.groups:
            result[group.units] = _gram_squares(group.by_unit(self.left), group.by_unit(self.right))
        return result

    def magnitude(self, units: Units) -> Tensor:
        """float64[U]: sum_t |left_t|^2 |right_t|^2, what the squared norm would be if no positions cancelled."""
        long = [
            torch.linalg.vector_norm(x, dim=-1, dtype=torch.float32).double() for x in (self.left, self.right)
        ]
        return units.total((long[0] * long[1]).square().sum(1))

    def double(self) -> Outer:
        return Outer(self.left.double(), self.right.double())

    def add_to(self, dense: Tensor, units: Units) -> None:
        """Add each unit's matrix to dense, float32[U, p, q]."""
        for group in units.groups:
            left, right = group.by_unit(self.left), group.by_unit(self.right).float()
            for rows, block in _blocks(left):
                dense[group.units, rows].baddbmm_(block.mT, right)

    def add_scaled(self, total: Tensor, scale: Tensor) -> None:
        """Add sum_b scale_b * (row b's matrix) to total, float32[p, q]; scale is float32[B]."""
        p, q = total.shape
        each = scale[:, None, None]
        left, right = self.left, self.right
        if p <= q:  # scale the thinner factor: the other may be as wide as the vocabulary
            left = left * each
        else:
            right = right * each
        left, right = left.reshape(-1, p), right.reshape(-1, q)
        if right.dtype == torch.float32:
            for rows, block in _blocks(left):
                total[rows].addmm_(block.T, right)
        else:
            for columns, block in _blocks(right):
                total[:, columns].addmm_(left.T, block)


@dataclass(frozen=True)
class Lookup:
    """Output gradients scattered to the rows of a table by index: an embedding, without a one-hot matrix.

    Attributes:
        index: int64[B, n] for a parameter of shape (p, q).
        grad: [B, n, q]; zero where the index takes no gradient.
    """

    index: Tensor
    grad: Tensor

    @property
    def device(self) -> torch.device:
        return self.grad.device

    @property
    def positions(self) -> int:
        return self.index.shape[1]

    @classmethod
    def join(cls, uses: list[Lookup]) -> Lookup:
        if len(uses) == 1:
            return uses[0]
        return cls(torch.cat([use.index for use in uses], 1), torch.cat([use.grad for use in uses], 1))

    def squares(self, units: Units, table: int) -> Tensor:
        """float64[U]: squared norm of each unit's table, from those of its rows that it looks up."""
        of_row = units.of_row.to(self.index.device)
        keys, place = torch.unique(of_row[:, None] * table + self.index, return_inverse=True)
        grad = _wide(self.grad.flatten(0, 1))
        sums = torch.zeros(keys.numel(), grad.shape[-1], dtype=grad.dtype, device=grad.device)
        sums.index_add_(0, place.flatten(), grad)
        result = torch.zeros(units.count, dtype=torch.float64, device=self.grad.device)
        return result.index_add_(0, keys.div(table, rounding_mode="floor"), row_squares(sums))

    def magnitude(self, units: Units) -> Tensor:
        """float64[U]: the squared norm if nothing that meets in a table row cancelled."""
        long = torch.linalg.vector_norm(self.grad, dim=-1, dtype=torch.float32).double()
        return units.total(long.square().sum(1))

    def double(self) -> Lookup:
        return Lookup(self.index, self.grad.double())

    def cross(self, other: Outer, units: Units) -> Tensor:
        """float64[U]: inner product of each unit's table with its matrix of `other`, a tied parameter."""
        result = torch.empty(units.count, dtype=torch.float64, device=self.grad.device)
        for group in units.groups:
            index = group.by_unit(self.index[..., None])[..., 0]
            left, right = group.by_unit(other.left), _wide(group.by_unit(other.right))
            products = torch.bmm(right, _wide(group.by_unit(self.grad)).mT)
            products *= left.gather(2, index[:, None, :].expand(-1, left.shape[1], -1))
            result[group.units] = _total(products)
        return result

    def add_to(self, dense: Tensor, units: Units) -> None:
        """Add each unit's table to dense, float32[U, p, q]."""
        table = dense.shape[1]
        keys = units.of_row.to(self.index.device)[:, None] * table + self.index
        dense.view(-1, dense.shape[2]).index_add_(0, keys.flatten(), self.grad.flatten(0, 1).float())

    def add_scaled(self, total: Tensor, scale: Tensor) -> None:
        """Add sum_b scale_b * (row b's table) to total, float32[p, q]; scale is float32[B]."""
        grad = self.grad * scale[:, None, None]
        total.index_add_(0, self.index.flatten(), grad.flatten(0, 1))


@dataclass(frozen=True)
class PerRow:
    """Gradients that are small enough to have for every row: biases and the scales of norms.

    Attributes:
        grad: float32[B, *shape].
    """

    grad: Tensor

    @property
    def device(self) -> torch.device:
        return self.grad.device

    def add_to(self, dense: Tensor, units: Units) -> None:
        """Add each unit's gradient to dense, float32[U, *shape]."""
        for group in units.groups:
            rows = self.grad[group.rows]
            dense[group.units] += rows.unflatten(0, (-1, group.rows_each)).sum(1)


Use = Outer | Lookup | PerRow
