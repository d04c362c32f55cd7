"""Represent one parameter's gradient for every row in the factored form that the backward pass yields.

A linear layer's gradient for one row is sum_t left_t (x) right_t over the row's positions t. The layer's input and
output gradient determine it, and they are far smaller than one matrix per row. They give the norm of a unit's
gradient (Goodfellow 2015 for one position; Li et al. 2022, "ghost clipping", for several). Once every unit's scale
factor is known, they give the clipped sum as one product (Bu et al. 2023, "book-keeping": no second backward pass).

All arithmetic is float32, whatever the type of the factors. A norm computed in bf16 is wrong by some percent, and
clipped vectors would then exceed the bound that the noise was calibrated for. Products of bf16 factors on a GPU are
float32, too: the GPU multiplies bf16 values exactly and adds up in float32, at the speed of bf16.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from confide.clipping.products import (
    BLOCK,
    PIECE,
    add_half_product,
    blocks,
    has_half_products,
    inner_error,
    inner_products,
    longest_sum,
    two_parts,
    wide,
)
from confide.clipping.rounding import CUT_OFF, ROUNDOFF, TWO_PARTS, gamma
from confide.clipping.units import Units

# Positions whose outer products are added up in one go, for the same reason, and the number of such sums that the
# error bound allows for. Both are constants: a unit's norm must not depend on the other rows of its batch.
_TOGETHER = 1024
_SUMS = 128

# Gradients at one entry of a table that the error bound allows for.
_AT_ONE_ENTRY = 4096

# Parts that a weighted sum over units is cut into, for threads.
_PARTS = 32

# Elements of a run whose norm is computed in float32, if a slice's size is a multiple of this.
_RUN = 1024

# Positions whose inner products with all earlier positions are computed at a time. A GPU takes more of them: it waits
# less for many products than for many calls.
_STRIP = 64
_GPU_STRIP = 256


def run_norms(values: Tensor) -> Tensor:
    """Compute norms of parts of each slice, [U, ...] -> [U, runs].

    Their squares, in float64, add up to the slice's squared norm. Only short runs are summed in float32: one
    float32 norm over a long run is biased low (by 3e-3 at 40 million elements), which would let clipped vectors
    exceed the bound.
    """
    if not values.numel():  # a rank may hold no part of a split bias
        return values.new_zeros(values.shape[0], 1)
    flat = values.reshape(values.shape[0], -1, _run(values))
    if flat.shape[-1] > BLOCK:  # a wide vector, such as a bias over the vocabulary
        flat = flat.double()
    norms: Tensor = torch.linalg.vector_norm(flat, dim=-1)
    return norms


def norm_error(values: Tensor) -> float:
    """Bound the relative amount by which a norm from `run_norms` may be too small."""
    run = _run(values)
    dtype = torch.float64 if run > BLOCK else values.dtype
    # Half the relative error of the sum of squares, plus the root and the product with this bound.
    return gamma(run / 2 + 4, ROUNDOFF[dtype])


def _run(values: Tensor) -> int:
    """Return how many elements `run_norms` sums in one go."""
    if math.prod(values.shape[1:]) % _RUN == 0:
        return _RUN  # shorter runs would be slower: each has a fixed cost
    return values.shape[-1] if values.dim() > 1 else 1


def add_weighted(total: Tensor, each: Tensor, scale: Tensor, fresh: bool) -> None:
    """Add sum_u scale_u each_u to total; float32[n], [U, n] and [U]. The old values of a fresh total are ignored."""
    units, width = each.shape
    beta = 0 if fresh else 1
    parts = math.gcd(width, _PARTS)
    if each.is_cuda or parts == 1:
        total.addmv_(each.T, scale, beta=beta)
        return
    # MKL runs one product with a vector in one thread, but spreads a batch of them over all threads.
    own = each.view(units, parts, -1).transpose(0, 1)
    total.view(parts, 1, -1).baddbmm_(scale.expand(parts, 1, units), own, beta=beta)


def row_squares(values: Tensor) -> Tensor:
    """Compute the squared norm of each slice, [U, ...] -> float64[U]."""
    return run_norms(values).double().square().sum(-1)


def _gram_squares(left: Tensor, right: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Compute squared norms and lengths from inner products in `dtype`.

    The Gram matrices are symmetric, so little more than the diagonal and the part below it is computed.

    Args:
        left: [u, n, p].
        right: [u, n, q].

    Returns:
        float64[u], the squared norms of the matrices sum_t left_t (x) right_t.
        float64[u], the lengths sum_t |left_t| |right_t|: the norms if all terms had one direction.
    """
    if dtype != torch.float32 or not has_half_products(left, right):
        # Convert once, not for each strip. Wide factors are converted block by block later.
        left, right = (x if x.shape[-1] > BLOCK else x.to(dtype) for x in (left, right))
    squares = torch.zeros(left.shape[0], dtype=torch.float64, device=left.device)
    lengths = torch.zeros_like(squares)
    strip = _GPU_STRIP if left.is_cuda else _STRIP
    for start in range(0, left.shape[1], strip):
        now, so_far = slice(start, start + strip), slice(0, start + strip)
        products = inner_products(left[:, now], left[:, so_far], dtype)
        products *= inner_products(right[:, now], right[:, so_far], dtype)
        squares += 2 * _total(products[..., :start]) + _total(products[..., start:])
        lengths += products[..., start:].diagonal(dim1=1, dim2=2).double().clamp(min=0).sqrt().sum(-1)
    return squares, lengths


def _matrix_squares(left: Tensor, right: Tensor) -> Tensor:
    """Compute squared norms of left^T right, rounded up: bf16[u, n, p] and [u, n, q] -> float64[u]."""
    matrices = torch.empty(left.shape[0], left.shape[2], right.shape[2], device=left.device)
    for start in range(0, left.shape[1], _TOGETHER):
        rows = slice(start, start + _TOGETHER)
        add_half_product(matrices, left[:, rows].mT, right[:, rows], start == 0)
    return row_squares(matrices).mul_((1 + norm_error(matrices)) ** 2)


def _type(values: Tensor) -> torch.dtype:
    """Return float32, unless the values are float64."""
    return torch.promote_types(values.dtype, torch.float32)


def _total(products: Tensor) -> Tensor:
    """Add up in float64, [u, n, m] -> float64[u]."""
    return products.sum(-1, dtype=torch.float64).sum(-1)


def _total_error(units: Units, positions: int, others: int) -> float:
    """Bound the error of a sum by `_total` over pairs of positions, strip after strip, as a share of sum |terms|."""
    rows = max(group.rows_each for group in units.groups)
    terms = rows * (positions + others) + _GPU_STRIP + rows * positions / _STRIP
    return gamma(terms, ROUNDOFF[torch.float64])


@dataclass(frozen=True)
class Outer:
    """The sum over positions of left (x) right: a matrix, from a linear layer's input and output gradient.

    Attributes:
        left: [B, n, p] for a parameter of shape (p, q).
        right: [B, n, q].
        dtype: type of the inner products that norms are computed from, and of the sum.
    """

    left: Tensor
    right: Tensor
    dtype: torch.dtype = torch.float32

    @property
    def device(self) -> torch.device:
        return self.left.device

    @property
    def positions(self) -> int:
        return self.left.shape[1]

    @property
    def width(self) -> int:
        """The number of terms of the longest sum in an inner product of two positions."""
        return max(longest_sum(x, y, self.dtype) for x, y in self._pairs)

    @property
    def _pairs(self) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
        return (self.left, self.left), (self.right, self.right)

    def gram_error(self, units: Units) -> float:
        """Bound the error of the squared norms from `squares`, as a share of the squared lengths."""
        a, b = (inner_error(x, y, self.dtype) for x, y in self._pairs)
        return (1 + a) * (1 + b) * (1 + ROUNDOFF[self.dtype]) - 1 + _total_error(units, self.positions, 0)

    def sum_error(self, more: int) -> float:
        """Bound the error of the term that `add_scaled` adds for a unit, as a share of the unit's length.

        Args:
            more: number of terms that others add to the same elements.
        """
        sums = -(-self.left.shape[0] * self.positions // _TOGETHER)
        if not self.has_half_products:
            return gamma(_TOGETHER + max(_SUMS, sums + more + 4), ROUNDOFF[self.dtype])
        of_piece = (1 + gamma(_TOGETHER, CUT_OFF)) * (1 + TWO_PARTS) - 1
        of_sums = gamma(max(_SUMS, 2 * sums + more + 4), ROUNDOFF[self.dtype])
        return of_piece + of_sums + of_piece * of_sums

    @property
    def has_half_products(self) -> bool:
        """True if the device itself multiplies the factors, with a float32 result."""
        return self.dtype == torch.float32 and has_half_products(self.left, self.right)

    def matrix_error(self) -> float:
        """Bound the error of the matrices that `matrix_squares` measures, as shares of the units' lengths."""
        sums = -(-self.left.shape[0] * self.positions // _TOGETHER)
        return gamma(_TOGETHER, CUT_OFF) + gamma(max(_SUMS, sums), ROUNDOFF[torch.float32]) * (1 + 2.0**-10)

    def matrix_squares(self, units: Units) -> Tensor:
        """Compute squared norms from the units' matrices, of which only a piece is held at a time: float64[U].

        For a GPU that multiplies half-precision factors. Each norm is rounded up, so it is at least that of the matrix
        as it was computed; see `matrix_error`.
        """
        result = torch.zeros(units.count, dtype=torch.float64, device=self.device)
        for group in units.groups:
            left, right = group.by_unit(self.left), group.by_unit(self.right)
            columns = max(1, min(left.shape[-1], PIECE // right.shape[-1]))
            some = max(1, PIECE // (columns * right.shape[-1]))
            for own, a, b in zip(
                group.of_units(result).split(some), left.split(some), right.split(some), strict=True
            ):
                for part in a.split(columns, -1):
                    own += _matrix_squares(part, b)
        return result

    @property
    def bytes(self) -> int:
        return self.left.nbytes + self.right.nbytes

    @classmethod
    def join(cls, uses: list[Outer]) -> Outer:
        """Join several uses of one parameter into one use with more positions, which includes the cross terms."""
        if len(uses) == 1:
            return uses[0]
        return cls(torch.cat([use.left for use in uses], 1), torch.cat([use.right for use in uses], 1))

    def squares(self, units: Units) -> tuple[Tensor, Tensor]:
        """Compute squared norms and lengths from the two Gram matrices of each unit's positions.

        Returns:
            float64[U], the squared norm of each unit's matrix.
            float64[U], its length sum_t |left_t| |right_t|: the norm if all positions had one direction.
        """
        result = torch.empty(2, units.count, dtype=torch.float64, device=self.left.device)
        for group in units.groups:
            found = _gram_squares(group.by_unit(self.left), group.by_unit(self.right), self.dtype)
            result[:, group.units] = torch.stack(found)
        return result[0], result[1]

    def lengths(self, units: Units) -> Tensor:
        """Compute the lengths sum_t |left_t| |right_t| without the Gram matrices: float64[U]."""
        left, right = (
            torch.linalg.vector_norm(x, dim=-1, dtype=_type(x)).double() for x in (self.left, self.right)
        )
        return units.total((left * right).sum(1))

    def double(self) -> Outer:
        """Return the same factors, with norms and sums in float64. A vocabulary-wide factor is not copied."""
        return Outer(self.left, self.right, torch.float64)

    def add_to(self, dense: Tensor, units: Units, fresh: bool) -> None:
        """Add each unit's matrix to dense, float32[U, p, q]; the old values of a fresh one are ignored."""
        for group in units.groups:
            left, right, each = group.by_unit(self.left), group.by_unit(self.right), group.of_units(dense)
            if has_half_products(left, right):
                add_half_product(each, left.mT, right, fresh)
                continue
            right = right.float()
            for rows, block in blocks(left):
                each[:, rows].baddbmm_(block.mT, right, beta=0 if fresh else 1)

    def add_scaled(self, total: Tensor, scale: Tensor, fresh: bool) -> None:
        """Add sum_b scale_b * (row b's matrix) to total, float32[p, q]; scale is float32[B]."""
        p, q = total.shape
        each = scale.to(self.dtype)[:, None, None]
        left, right = self.left, self.right
        if p <= q:  # scale the thinner factor: the other may be as wide as the vocabulary
            left = left * each
        else:
            right = right * each
        left, right = left.reshape(-1, p), right.reshape(-1, q)
        if self.dtype == torch.float64:  # all at once: between two pieces the sum would be rounded to float32
            _add_precisely(total, left, right, fresh)
            return
        # A float32 factor is taken apart as a whole: piece by piece, a GPU would wait for its host.
        pairs = [(left, right)]
        if self.has_half_products:
            pairs = [
                (part, right) if p <= q else (left, part) for part in two_parts(left if p <= q else right)
            ]
        for pair in pairs:
            for a, b in zip(*(factor.split(_TOGETHER) for factor in pair), strict=True):
                self._add_product(total, a, b, fresh)
                fresh = False

    def _add_product(self, total: Tensor, left: Tensor, right: Tensor, fresh: bool) -> None:
        """Add left^T right to total, in float32."""
        beta = 0 if fresh else 1
        if self.has_half_products:
            add_half_product(total[None], left.T[None], right[None], fresh)
        elif right.dtype == torch.float32:
            for rows, block in blocks(left):
                total[rows].addmm_(block.T, right, beta=beta)
        else:  # the thinner factor, which is scaled, is float32
            for columns, block in blocks(right):
                total[:, columns].addmm_(left.T, block, beta=beta)

    def times(self, factor: float | Tensor) -> Outer:
        """Return the matrices times a factor, or each of their rows times its own: [p, 1].

        One factor multiplies the thinner side: the other may be a vocabulary wide.
        """
        if isinstance(factor, Tensor):
            return Outer(self.left * factor[:, 0].to(self.left.dtype), self.right, self.dtype)
        if self.left.shape[-1] < self.right.shape[-1]:
            return Outer(self.left * factor, self.right, self.dtype)
        return Outer(self.left, self.right * factor, self.dtype)

    def without(self, rows: Tensor) -> Outer:
        """Return a copy with zeros in the given rows, bool[B]."""
        out = rows[:, None, None]
        return Outer(self.left.masked_fill(out, 0), self.right.masked_fill(out, 0), self.dtype)


def _add_precisely(total: Tensor, left: Tensor, right: Tensor, fresh: bool) -> None:
    """Add left^T right to total, float32; one of the two is float64, and so is the product until it is added."""
    if right.dtype == torch.float64:
        for rows, block in blocks(left, torch.float64):
            product = block.T @ right
            total[rows].copy_(product) if fresh else total[rows].add_(product)
    else:
        for columns, block in blocks(right, torch.float64):
            product = left.T @ block
            total[:, columns].copy_(product) if fresh else total[:, columns].add_(product)


@dataclass(frozen=True)
class Lookup:
    """Output gradients scattered to the rows of a table by index: an embedding without a one-hot matrix.

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

    def table(self, units: Units, entries: int) -> Table:
        """Sum each unit's gradients at each entry that it looks up in a table of `entries` entries."""
        keys, place = torch.unique(units.of_row[:, None] * entries + self.index, return_inverse=True)
        grad = wide(self.grad.flatten(0, 1))
        sums = torch.zeros(keys.numel(), grad.shape[-1], dtype=grad.dtype, device=grad.device)
        sums.index_add_(0, place.flatten(), grad)
        return Table(keys.div(entries, rounding_mode="floor"), keys.remainder(entries), sums)

    def lengths(self, units: Units) -> Tensor:
        """Compute the norms if all gradients met in one table row and had one direction: float64[U]."""
        return units.total(torch.linalg.vector_norm(wide(self.grad), dim=-1).double().sum(1))

    def times(self, factor: float | Tensor) -> Lookup:
        if isinstance(factor, Tensor):
            factor = factor[self.index].to(self.grad.dtype)
        return Lookup(self.index, self.grad * factor)

    def double(self) -> Lookup:
        return Lookup(self.index, self.grad.double())

    def cross(self, other: Outer, units: Units) -> Tensor:
        """Compute the inner product of each unit's table with its matrix of `other`, a tied parameter: float64[U]."""
        result = torch.empty(units.count, dtype=torch.float64, device=self.grad.device)
        for group in units.groups:
            index = group.by_unit(self.index[..., None])[..., 0]
            left, right = group.by_unit(other.left), group.by_unit(other.right)
            products = inner_products(right, group.by_unit(self.grad), other.dtype)
            products *= left.gather(2, index[:, None, :].expand(-1, left.shape[1], -1))
            result[group.units] = _total(products)
        return result

    def cross_error(self, other: Outer, units: Units) -> float:
        """Bound the error of `cross` against the product with `table`, as a share of the product of lengths.

        The sums of `table` are rounded, too.
        """
        pair = (other.right, self.grad)
        longest = self.positions * max(group.rows_each for group in units.groups)
        sums = max(_AT_ONE_ENTRY, longest)
        return (
            (1 + inner_error(*pair, other.dtype)) * (1 + ROUNDOFF[other.dtype])
            - 1
            + gamma(sums, ROUNDOFF[wide(self.grad).dtype])
            + _total_error(units, self.positions, other.positions)
        )

    def add_to(self, dense: Tensor, units: Units, fresh: bool) -> None:
        """Add each unit's table to dense, float32[U, p, q]; the old values of a fresh one are ignored."""
        if fresh:
            dense.zero_()
        table = dense.shape[1]
        keys = units.of_row[:, None] * table + self.index
        dense.view(-1, dense.shape[2]).index_add_(0, keys.flatten(), self.grad.flatten(0, 1).float())


@dataclass(frozen=True)
class Table:
    """Gradients of units with respect to a table, at the entries that they use.

    The values that are measured are the values that are added.

    Attributes:
        unit: int64[K], the unit of each gradient.
        entry: int64[K], its entry of the table; a unit has each entry at most once.
        sums: [K, q], the gradients, float32 or float64.
    """

    unit: Tensor
    entry: Tensor
    sums: Tensor

    def squares(self, units: Units) -> Tensor:
        """Compute the squared norm of each unit's table, rounded up: float64[U]."""
        result = torch.zeros(units.count, dtype=torch.float64, device=self.sums.device)
        result.index_add_(0, self.unit, row_squares(self.sums))
        return result.mul_((1 + norm_error(self.sums)) ** 2)

    def add_scaled(self, total: Tensor, scale: Tensor, fresh: bool) -> None:
        """Add sum_u scale_u * (unit u's table) to total, float32[p, q]; scale is float32[U]."""
        if fresh:
            total.zero_()
        scaled = self.sums * scale.to(self.sums.dtype)[self.unit][:, None]
        total.index_add_(0, self.entry, scaled.to(total.dtype))

    def without(self, units: Tensor) -> Table:
        """Return a copy with zeros for the given units, bool[U]."""
        return Table(self.unit, self.entry, self.sums.masked_fill(units[self.unit][:, None], 0))


@dataclass(frozen=True)
class PerRow:
    """Gradients that are small enough to be held for every row: those of biases and of the scales of norms.

    Attributes:
        grad: float32[B, *shape].
    """

    grad: Tensor

    @property
    def device(self) -> torch.device:
        return self.grad.device

    def times(self, factor: float | Tensor) -> PerRow:
        assert not isinstance(factor, Tensor), "only tables have factors of their own for each row"
        return PerRow(self.grad * factor)

    def add_to(self, dense: Tensor, units: Units, fresh: bool) -> None:
        """Add each unit's gradient to dense, float32[U, *shape]; the old values of a fresh one are ignored."""
        if fresh:
            dense.zero_()
        for group in units.groups:
            rows = self.grad[group.rows]
            dense[group.units] += (
                rows if group.rows_each == 1 else rows.unflatten(0, (-1, group.rows_each)).sum(1)
            )


Use = Outer | Lookup | PerRow
