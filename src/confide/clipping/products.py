"""Multiply the factors of gradients in float32, and bound the rounding errors of the products.

Products of bf16 factors on a GPU are float32, too: the GPU multiplies bf16 values exactly and adds up in float32, at
the speed of bf16. Its sums are cut off where a CPU's are rounded, so they are kept shorter (see `rounding.CUT_OFF`).
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from confide.clipping.rounding import CUT_OFF, ROUNDOFF, gamma

# Columns of a half-precision factor converted to float32 at a time. Bounds the copy of a vocabulary-wide factor.
BLOCK = 4096

# Elements of a temporary matrix that a GPU holds at a time.
PIECE = 1 << 26

# Columns of two factors that are multiplied and added up in one go: the longer a sum, the larger its rounding error.
# The other two are for half precision on a GPU's tensor cores; the last is for factors as wide as a vocabulary, which
# would otherwise be cut into hundreds of blocks.
_SHORT = 128
_HALF_BLOCK = 256
_HALF_BLOCK_OF_WIDE = 512
_WIDE = 1 << 14


def wide(values: Tensor) -> Tensor:
    """Convert to float32, unless the type is float64."""
    return values if values.dtype == torch.float64 else values.float()


def blocks(
    values: Tensor, dtype: torch.dtype = torch.float32, size: int | None = None
) -> Iterator[tuple[slice, Tensor]]:
    """Yield column blocks converted to `dtype`, of `size` columns; without a size, all at once if no copy is needed."""
    if size is None and values.dtype == dtype:
        yield slice(None), values
        return
    size = min(size or BLOCK, BLOCK)
    for start in range(0, values.shape[-1], size):
        columns = slice(start, start + size)
        yield columns, values[..., columns].to(dtype)


def has_half_products(*factors: Tensor) -> bool:
    """Tell whether the device itself multiplies these bf16 factors with a float32 result, as GPUs do."""
    return all(x.is_cuda and x.dtype == torch.bfloat16 for x in factors)


def add_half_product(total: Tensor, first: Tensor, second: Tensor, fresh: bool) -> None:
    """Add the product of bf16[u, n, m] and bf16[u, m, k] to total, float32[u, n, k]; sums are float32.

    The old values of a fresh total are ignored.
    """
    torch.baddbmm(total, first, second, out_dtype=torch.float32, beta=0 if fresh else 1, out=total)


def two_parts(values: Tensor) -> Iterator[Tensor]:
    """Split float32 values into a sum of two bf16 tensors. What is left over is below 2**-18 of a value."""
    first = values.bfloat16()
    yield first
    yield (values - first.float()).bfloat16()


def inner_products(first: Tensor, second: Tensor, dtype: torch.dtype) -> Tensor:
    """Compute inner products of positions: [u, n, width], [u, m, width] of one type -> [u, n, m] in `dtype`."""
    size = longest_sum(first, second, dtype)
    shape = (first.shape[0], first.shape[1], second.shape[1])
    if dtype == torch.float32 and has_half_products(first, second):
        total = torch.empty(shape, dtype=dtype, device=first.device)
        for start in range(0, first.shape[-1], size):
            columns = slice(start, start + size)
            add_half_product(total, first[..., columns], second[..., columns].mT, start == 0)
        return total
    if size >= first.shape[-1] and first.dtype == second.dtype == dtype:
        return torch.bmm(first, second.mT)
    total = torch.zeros(shape, dtype=dtype, device=first.device)
    for (_, a), (_, b) in zip(blocks(first, dtype, size), blocks(second, dtype, size), strict=True):
        total.baddbmm_(a, b.mT)
    return total


def longest_sum(first: Tensor, second: Tensor, dtype: torch.dtype) -> int:
    """Return how many terms an inner product adds up in one go."""
    width = max(1, first.shape[-1])
    if dtype != torch.float32:
        return width
    if not has_half_products(first, second):
        return min(width, _SHORT)
    return min(width, _HALF_BLOCK_OF_WIDE if width > _WIDE else _HALF_BLOCK)


def inner_error(first: Tensor, second: Tensor, dtype: torch.dtype) -> float:
    """Bound the error of `inner_products`, as a share of the sum of |terms|."""
    size = longest_sum(first, second, dtype)
    is_half = dtype == torch.float32 and has_half_products(first, second)
    of_block = gamma(size, CUT_OFF if is_half else ROUNDOFF[dtype])
    of_blocks = gamma(-(-first.shape[-1] // size), ROUNDOFF[dtype])
    return of_block + of_blocks + of_block * of_blocks
