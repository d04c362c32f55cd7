"""The paths that a GPU takes with bf16 factors, on the CPU: its product is emulated, exact terms and float32 sums."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from confide.clipping import factors, products
from confide.clipping.rounding import CUT_OFF, gamma


def take_half_products(
    monkeypatch: pytest.MonkeyPatch, taken: list[tuple[torch.dtype, int]] | None = None, worst: int = 0
) -> None:
    """Multiply bf16 factors as a GPU does.

    Args:
        taken: gets the type and the number of terms of each product.
        worst: 1 or -1 for products that are as far above or below their size as rounding could make them.
    """

    def add(total: Tensor, first: Tensor, second: Tensor, fresh: bool) -> None:
        if taken is not None:
            taken.append((first.dtype, first.shape[2]))
        product = torch.bmm(first.float(), second.float())
        if worst:
            largest = torch.bmm(first.float().abs(), second.float().abs())
            product += worst * product.sign() * gamma(first.shape[2], CUT_OFF) * largest
        total.copy_(product) if fresh else total.add_(product)

    for module in (factors, products):
        monkeypatch.setattr(module, "add_half_product", add)
        monkeypatch.setattr(
            module, "has_half_products", lambda *given: all(x.dtype == torch.bfloat16 for x in given)
        )
