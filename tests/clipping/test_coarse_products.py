"""Settings under which float32 products are not float32: the bound on norms would not hold."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from confide.clipping import ClippedSum
from confide.utils.errors import InputError
from tests.clipping.nets import EACH, IDS, ONES, TestNet, ids_loss


@pytest.mark.parametrize(
    ("name", "value", "is_coarse"),
    [
        ("NVIDIA_TF32_OVERRIDE", "1", True),
        ("NVIDIA_TF32_OVERRIDE", "0", False),
        ("ONEDNN_DEFAULT_FPMATH_MODE", "BF16", True),
        ("DNNL_DEFAULT_FPMATH_MODE", "any", True),
        ("DNNL_DEFAULT_FPMATH_MODE", "strict", False),
    ],
)
def test_environment_variables(
    name: str, value: str, is_coarse: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    if is_coarse:
        with pytest.raises(InputError, match=f"environment variable {name}={value}"):
            ClippedSum(TestNet(nn.Linear(6, 6)), ids_loss, 1.0)
    else:
        ClippedSum(TestNet(nn.Linear(6, 6)), ids_loss, 1.0)


def test_products_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever it is that makes them coarse."""
    product = torch.bmm
    monkeypatch.setattr(torch, "bmm", lambda a, b: product(a.bfloat16(), b.bfloat16()).float())
    with pytest.raises(InputError, match="float32 products on cpu are coarser"):
        ClippedSum(TestNet(nn.Linear(6, 6)), ids_loss, 1.0)


def test_a_precision_that_cannot_be_read_is_refused_when_it_comes_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clipped = ClippedSum(TestNet(nn.Linear(6, 6)), ids_loss, 1.0)

    def unreadable() -> str:
        raise RuntimeError("mix of the legacy and new APIs")

    monkeypatch.setattr(torch, "get_float32_matmul_precision", unreadable)
    with pytest.raises(InputError, match=r"use torch\.set_float32_matmul_precision"):
        clipped.add(IDS, EACH, ONES)


@pytest.mark.parametrize("precision", ["high", "medium"])
def test_coarse_forward_passes_leave_norms_exact(precision: str) -> None:
    plain = ClippedSum(TestNet(nn.Linear(6, 6)), ids_loss, 1.0)
    torch.set_float32_matmul_precision(precision)
    try:
        plain.add(IDS, EACH, ONES)
        ClippedSum(TestNet(nn.Linear(6, 6)), ids_loss, 1.0)
        assert torch.get_float32_matmul_precision() == precision
    finally:
        torch.set_float32_matmul_precision("highest")
