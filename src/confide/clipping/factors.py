"""One parameter's gradient for every row, in the factored form in which the backward pass yields it.

A linear layer's gradient for one row is sum_t left_t (x) right_t over the row's positions t: the layer's
input and its output gradient say all, and are far smaller than one matrix for every row. From them come
the norm of a unit's gradient (Goodfellow 2015 for one position; Li et al. 2022, "ghost clipping", for
several) and, once every unit's factor is known, the clipped sum as one product (Bu et al. 2023,
"book-keeping": no second backward pass).

All arithmetic is float32 whatever the factors' type: a norm taken in bf16 is wrong by parts in a hundred,
and then clipped vectors exceed the bound that the noise was made for. Products of half-precision factors on a
GPU are float32 too: of bf16 it multiplies exactly and adds up in float32, at the speed of bf16.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from confide.clipping.rounding import CUT_OFF, ROUNDOFF, gamma
from confide.clipping.units import Units

# Columns of a half-precision factor turned to float32 at a time: bounds the copy of a vocabulary-wide one.
_BLOCK = 4096

# Columns of two factors that are multiplied and added up in one go: the longer a sum, the more of it may be rounding.
# A GPU's tensor cores, which round more, take shorter ones of half precision.
_SHORT = 128
_HALF_BLOCK = 256

# Positions whose outer products are added up in one go, for the same reason; and how many of such sums are allowed for.
# Neither follows the batch: a unit's norm must not depend on the rows beside it.
_TOGETHER = 1024
_SUMS = 128

# Gradients that are allowed for at one entry of a table.
_AT_ONE_ENTRY = 4096

# Elements of a product on a GPU that is added to another tensor, at a time.
_PIECE = 1 << 26

# What a weighted sum over units is cut into, for threads.
_PARTS = 32

# Elements of a run whose norm is taken in float32, where a slice comes to that.
_RUN = 1024

# Positions whose inner products with all before them are taken at a time.
_STRIP = 64


def run_norms(values: Tensor) -> Tensor:
    """[U, ...] -> [U, runs], norms of parts of each slice: their squares, in float64, add up to its squared norm.

    Short runs are summed in float32: one float32 norm over a long run is biased low (by 3e-3 at 40 million
    elements), which would let clipped vectors exceed the bound.
    """
    if not values.numel():  # a rank may have nothing of a split bias
        return values.new_zeros(values.shape[0], 1)
    flat = values.reshape(values.shape[0], -1, _run(values))
    if flat.shape[-1] > _BLOCK:  # a wide vector, such as a bias over the vocabulary
        flat = flat.double()
    norms: Tensor = torch.linalg.vector_norm(flat, dim=-1)
    return norms


def norm_error(values: Tensor) -> float:
    """By how much of itself a norm from `run_norms` may be too small."""
    run = _run(values)
    dtype = torch.float64 if run > _BLOCK else values.dtype
    # Half of what the sum of squares errs by; and the root, with a product by this.
    return gamma(run / 2 + 4, ROUNDOFF[dtype])


def _run(values: Tensor) -> int:
    """Elements that a float32 sum of squares takes in one go."""
    if math.prod(values.shape[1:]) % _RUN == 0:
        return _RUN  # of runs that are shorter the calls weigh
    return values.shape[-1] if values.dim() > 1 else 1


def add_weighted(total: Tensor, each: Tensor, scale: Tensor, fresh: bool) -> None:
    """Add sum_u scale_u each_u to total; float32[n], [U, n] and [U]. What a fresh total holds does not count."""
    units, width = each.shape
    beta = 0 if fresh else 1
    parts = math.gcd(width, _PARTS)
    if each.is_cuda or parts == 1:
        total.addmv_(each.T, scale, beta=beta)
        return
    # MKL's product with a vector is one thread's; those of a batch are spread over all.
    own = each.view(units, parts, -1).transpose(0, 1)
    total.view(parts, 1, -1).baddbmm_(scale.expand(parts, 1, units), own, beta=beta)


def row_squares(values: Tensor) -> Tensor:
    """[U, ...] -> float64[U], the squared norm of each slice."""
    return run_norms(values).double().square().sum(-1)


def _wide(values: Tensor) -> Tensor:
    """At least float32."""
    return values if values.dtype == torch.float64 else values.float()


def _blocks(
    values: Tensor, dtype: torch.dtype = torch.float32, size: int | None = None
) -> Iterator[tuple[slice, Tensor]]:
    """Column blocks in a type, of a size; without one, the whole at once where no copy is needed."""
    if size is None and values.dtype == dtype:
        yield slice(None), values
        return
    size = min(size or _BLOCK, _BLOCK)
    for start in range(0, values.shape[-1], size):
        columns = slice(start, start + size)
        yield columns, values[..., columns].to(dtype)


def has_half_products(*factors: Tensor) -> bool:
    """Tell whether the device multiplies these bf16 factors into float32 by itself, as GPUs do."""
    return all(x.is_cuda and x.dtype == torch.bfloat16 for x in factors)


def _half_product(first: Tensor, second: Tensor) -> Tensor:
    """bf16[u, n, m], bf16[u, m, k] -> float32[u, n, k]: products are exact, sums float32."""
    return torch.bmm(first, second, out_dtype=torch.float32)


def _parts(values: Tensor) -> Iterator[Tensor]:
    """Float32 values as a sum of three in bf16, which together have float32's 24 bits."""
    for _ in range(3):
        part = values.bfloat16()
        yield part
        values = values - part.float()


def _inner(first: Tensor, second: Tensor, dtype: torch.dtype) -> Tensor:
    """[u, n, width], [u, m, width] of one type -> [u, n, m] in `dtype`, inner products of positions."""
    if dtype == torch.float32 and has_half_products(first, second):
        blocks = [x.split(_HALF_BLOCK, -1) for x in (first, second)]
        products = (_half_product(a, b.mT) for a, b in zip(*blocks, strict=True))
        return functools.reduce(Tensor.add_, products)
    size = _sum_size(first, second, dtype)
    if size >= first.shape[-1] and first.dtype == second.dtype == dtype:
        return torch.bmm(first, second.mT)
    total = torch.zeros(first.shape[0], first.shape[1], second.shape[1], dtype=dtype, device=first.device)
    for (_, a), (_, b) in zip(_blocks(first, dtype, size), _blocks(second, dtype, size), strict=True):
        total.baddbmm_(a, b.mT)
    return total


def _sum_size(first: Tensor, second: Tensor, dtype: torch.dtype) -> int:
    """Terms that an inner product adds up in one go."""
    if dtype != torch.float32:
        return max(1, first.shape[-1])
    return _HALF_BLOCK if has_half_products(first, second) else _SHORT


def _inner_terms(first: Tensor, second: Tensor, dtype: torch.dtype) -> int:
    """Count the terms that the rounding of an inner product depends on: those of a block, and the blocks."""
    width, size = first.shape[-1], _sum_size(first, second, dtype)
    return min(width, size) + -(-width // size)


def _roundoff(first: Tensor, second: Tensor, dtype: torch.dtype) -> float:
    return CUT_OFF if dtype == torch.float32 and has_half_products(first, second) else ROUNDOFF[dtype]


def _gram_squares(left: Tensor, right: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return the squared norms of the matrices sum_t left_t (x) right_t, and sum_t |left_t| |right_t|: float64[u] each.

    The second are the norms that the matrices would have if all terms had one direction. `left` is [u, n, p] and
    `right` [u, n, q]; inner products are in `dtype`.

    The Gram matrices are symmetric: little more is computed than what lies on and below the diagonal.
    """
    if dtype != torch.float32 or not has_half_products(left, right):  # once, and not for each strip
        left, right = (x if x.shape[-1] > _BLOCK else x.to(dtype) for x in (left, right))  # wide: by blocks
    squares = torch.zeros(left.shape[0], dtype=torch.float64, device=left.device)
    lengths = torch.zeros_like(squares)
    for start in range(0, left.shape[1], _STRIP):
        now, so_far = slice(start, start + _STRIP), slice(0, start + _STRIP)
        products = _inner(left[:, now], left[:, so_far], dtype)
        products *= _inner(right[:, now], right[:, so_far], dtype)
        squares += 2 * _total(products[..., :start]) + _total(products[..., start:])
        lengths += products[..., start:].diagonal(dim1=1, dim2=2).double().clamp(min=0).sqrt().sum(-1)
    return squares, lengths


def _total(products: Tensor) -> Tensor:
    """[u, n, m] -> float64[u], added up in float64."""
    return products.sum(-1, dtype=torch.float64).sum(-1)


def _total_error(units: Units, positions: int, others: int) -> float:
    """By how much of sum |terms| a sum over pairs of positions by `_total`, strip after strip, may be wrong."""
    rows = max(group.rows_each for group in units.groups)
    terms = rows * (positions + others) + _STRIP + rows * positions / _STRIP
    return gamma(terms, ROUNDOFF[torch.float64])


@dataclass(frozen=True)
class Outer:
    """sum over positions of left (x) right: a matrix, out of a linear layer's input and output gradient.

    Attributes:
        left: [B, n, p] for a parameter of shape (p, q).
        right: [B, n, q].
        dtype: of the inner products that norms are taken from, and of the sum.
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
        """Terms of the longest sum in an inner product of two positions."""
        return max(min(x.shape[-1], _sum_size(x, y, self.dtype)) for x, y in self._pairs)

    @property
    def _pairs(self) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
        return (self.left, self.left), (self.right, self.right)

    def gram_error(self, units: Units) -> float:
        """By how much of the squared lengths squared norms from `squares` may be wrong."""
        terms = 1 + sum(_inner_terms(x, y, self.dtype) for x, y in self._pairs)
        roundoff = max(_roundoff(x, y, self.dtype) for x, y in self._pairs)
        return gamma(terms, roundoff) + _total_error(units, self.positions, 0)

    def sum_error(self, more: int) -> float:
        """By how much of the lengths what `add_scaled` adds for a unit may be wrong.

        Args:
            more: terms that are added to the same elements by others.
        """
        sums = -(-self.left.shape[0] * self.positions // _TOGETHER)
        terms = _TOGETHER + max(_SUMS, sums + more + 4)
        return gamma(terms, _roundoff(self.left, self.right, self.dtype))

    @property
    def bytes(self) -> int:
        return self.left.nbytes + self.right.nbytes

    @classmethod
    def join(cls, uses: list[Outer]) -> Outer:
        """Several uses of one parameter are one use with more positions: cross terms come by themselves."""
        if len(uses) == 1:
            return uses[0]
        return cls(torch.cat([use.left for use in uses], 1), torch.cat([use.right for use in uses], 1))

    def squares(self, units: Units) -> tuple[Tensor, Tensor]:
        """Return the squared norm of each unit's matrix, and sum_t |left_t| |right_t|: float64[U] each.

        The first comes from the two Gram matrices of its positions. The second is what the norm would be if all
        positions had one direction.
        """
        result = torch.empty(2, units.count, dtype=torch.float64, device=self.left.device)
        for group in units.groups:
            found = _gram_squares(group.by_unit(self.left), group.by_unit(self.right), self.dtype)
            result[:, group.units] = torch.stack(found)
        return result[0], result[1]

    def lengths(self, units: Units) -> Tensor:
        """float64[U]: sum_t |left_t| |right_t|, without the Gram matrices."""
        left, right = (torch.linalg.vector_norm(_wide(x), dim=-1).double() for x in (self.left, self.right))
        return units.total((left * right).sum(1))

    def double(self) -> Outer:
        """Return the same factors, of which norms and sums are taken in float64: no copy of a vocabulary-wide one."""
        return Outer(self.left, self.right, torch.float64)

    def add_to(self, dense: Tensor, units: Units, fresh: bool) -> None:
        """Add each unit's matrix to dense, float32[U, p, q]; what a fresh one holds does not count."""
        for group in units.groups:
            left, right, each = group.by_unit(self.left), group.by_unit(self.right), group.of_units(dense)
            if has_half_products(left, right):
                some = max(1, _PIECE // each[0].numel())  # no second tensor as large as the first
                for own, a, b in zip(each.split(some), left.split(some), right.split(some), strict=True):
                    product = _half_product(a.mT, b)
                    own.copy_(product) if fresh else own.add_(product)
                continue
            right = right.float()
            for rows, block in _blocks(left):
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
        if self.dtype == torch.float64:  # at once: between two pieces the sum would be rounded to float32
            _add_precisely(total, left, right, fresh)
            return
        for some in zip(left.split(_TOGETHER), right.split(_TOGETHER), strict=True):
            self._add_product(total, *some, fresh)
            fresh = False

    def _add_product(self, total: Tensor, left: Tensor, right: Tensor, fresh: bool) -> None:
        """Add left^T right to total, in float32; the thinner one is float32, the other as it is."""
        p, q = total.shape
        beta = 0 if fresh else 1
        if has_half_products(self.left, self.right):
            thin, wide = (left, right) if p <= q else (right, left)
            for part in _parts(thin):
                pair = (part.T, wide) if p <= q else (wide.T, part)
                product = _half_product(pair[0][None], pair[1][None])[0]
                total.copy_(product) if fresh else total.add_(product)
                fresh = False
        elif right.dtype == torch.float32:
            for rows, block in _blocks(left):
                total[rows].addmm_(block.T, right, beta=beta)
        else:
            for columns, block in _blocks(right):
                total[:, columns].addmm_(left.T, block, beta=beta)

    def without(self, rows: Tensor) -> Outer:
        """With zeros in some rows, bool[B]."""
        out = rows[:, None, None]
        return Outer(self.left.masked_fill(out, 0), self.right.masked_fill(out, 0), self.dtype)


def _add_precisely(total: Tensor, left: Tensor, right: Tensor, fresh: bool) -> None:
    """Add left^T right to total, float32; one of the two is float64, and so is the product until it is added."""
    if right.dtype == torch.float64:
        for rows, block in _blocks(left, torch.float64):
            product = block.T @ right
            total[rows].copy_(product) if fresh else total[rows].add_(product)
    else:
        for columns, block in _blocks(right, torch.float64):
            product = left.T @ block
            total[:, columns].copy_(product) if fresh else total[:, columns].add_(product)


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

    def table(self, units: Units, entries: int) -> Table:
        """Sum each unit's gradients at each entry that it looks up, of `entries` entries."""
        keys, place = torch.unique(units.of_row[:, None] * entries + self.index, return_inverse=True)
        grad = _wide(self.grad.flatten(0, 1))
        sums = torch.zeros(keys.numel(), grad.shape[-1], dtype=grad.dtype, device=grad.device)
        sums.index_add_(0, place.flatten(), grad)
        return Table(keys.div(entries, rounding_mode="floor"), keys.remainder(entries), sums)

    def lengths(self, units: Units) -> Tensor:
        """float64[U]: the norm if all gradients met in one table row and had one direction."""
        return units.total(torch.linalg.vector_norm(_wide(self.grad), dim=-1).double().sum(1))

    def double(self) -> Lookup:
        return Lookup(self.index, self.grad.double())

    def cross(self, other: Outer, units: Units) -> Tensor:
        """float64[U]: inner product of each unit's table with its matrix of `other`, a tied parameter."""
        result = torch.empty(units.count, dtype=torch.float64, device=self.grad.device)
        for group in units.groups:
            index = group.by_unit(self.index[..., None])[..., 0]
            left, right = group.by_unit(other.left), group.by_unit(other.right)
            products = _inner(right, group.by_unit(self.grad), other.dtype)
            products *= left.gather(2, index[:, None, :].expand(-1, left.shape[1], -1))
            result[group.units] = _total(products)
        return result

    def cross_error(self, other: Outer, units: Units) -> float:
        """Return by how much `cross` may differ from the inner product with `table`, relative to both lengths' product.

        The sums of `table` are rounded too.
        """
        pair = (other.right, self.grad)
        terms = 1 + _inner_terms(*pair, other.dtype)
        longest = self.positions * max(group.rows_each for group in units.groups)
        sums = max(_AT_ONE_ENTRY, longest)
        return (
            gamma(terms, _roundoff(*pair, other.dtype))
            + gamma(sums, ROUNDOFF[_wide(self.grad).dtype])
            + _total_error(units, self.positions, other.positions)
        )

    def add_to(self, dense: Tensor, units: Units, fresh: bool) -> None:
        """Add each unit's table to dense, float32[U, p, q]; what a fresh one holds does not count."""
        if fresh:
            dense.zero_()
        table = dense.shape[1]
        keys = units.of_row[:, None] * table + self.index
        dense.view(-1, dense.shape[2]).index_add_(0, keys.flatten(), self.grad.flatten(0, 1).float())


@dataclass(frozen=True)
class Table:
    """Units' gradients by a table, at the entries where they have one: what is measured is what is added.

    Attributes:
        unit: int64[K], whose.
        entry: int64[K], which entry of the table; a unit has each but once.
        sums: [K, q], float32 or float64.
    """

    unit: Tensor
    entry: Tensor
    sums: Tensor

    def squares(self, units: Units) -> Tensor:
        """float64[U]: the squared norm of each unit's table, rounded up."""
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
        """With zeros for some units, bool[U]."""
        return Table(self.unit, self.entry, self.sums.masked_fill(units[self.unit][:, None], 0))


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

    def add_to(self, dense: Tensor, units: Units, fresh: bool) -> None:
        """Add each unit's gradient to dense, float32[U, *shape]; what a fresh one holds does not count."""
        if fresh:
            dense.zero_()
        for group in units.groups:
            rows = self.grad[group.rows]
            dense[group.units] += (
                rows if group.rows_each == 1 else rows.unflatten(0, (-1, group.rows_each)).sum(1)
            )


Use = Outer | Lookup | PerRow
