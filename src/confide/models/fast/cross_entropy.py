"""Compute the loss at each place, and on a CPU its gradient without the copies that torch makes."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from confide.models.fast.switch import is_on

IGNORE = -100
_SMALL = 1e-30  # float32 holds a probability above it in full
_PIECE = 1 << 20  # logits that are copied at a time


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Compute -log softmax(logits)[target] of each place: float32[n]; 0 where the target is IGNORE.

    One backward pass may follow, not two.

    Args:
        logits: float[n, classes].
        targets: int64[n].
    """
    logits = logits.float()
    if is_on() and logits.requires_grad and torch.is_grad_enabled() and logits.device.type == "cpu":
        losses: Tensor = _OfSoftmax.apply(logits, targets)  # type: ignore[no-untyped-call]
        return losses
    return functional.cross_entropy(logits, targets, ignore_index=IGNORE, reduction="none")


class _OfSoftmax(torch.autograd.Function):
    """Keeps the softmax, and turns it into the gradient in place.

    Torch's own function keeps logarithms, exponentiates them again in its backward pass, and makes two more
    tensors of their size.
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor) -> Tensor:
        ignored = targets == IGNORE
        place = targets.masked_fill(ignored, 0)[:, None]
        softmax = _softmax(logits)
        own = softmax.gather(1, place)[:, 0]
        losses = own.log().neg_()
        rare = ((own < _SMALL) & ~ignored).nonzero()[:, 0]
        if len(rare):
            losses[rare] = -logits[rare].log_softmax(-1).gather(1, place[rare])[:, 0]
        ctx.save_for_backward(softmax, place, ignored)
        return losses.masked_fill_(ignored, 0)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        softmax, place, ignored = ctx.saved_tensors
        grad = grad.masked_fill(ignored, 0)[:, None]
        return softmax.mul_(grad).scatter_add_(1, place, -grad), None


def _softmax(logits: Tensor) -> Tensor:
    """Compute the softmax of each row. If rows of logits lie apart (`logits.py`), torch would first copy them all."""
    if logits.is_contiguous():
        return logits.softmax(-1)
    found = torch.empty(logits.shape, dtype=logits.dtype)
    rows = max(1, _PIECE // logits.shape[-1])
    for piece, own in zip(logits.split(rows), found.split(rows), strict=True):
        torch.softmax(piece, -1, out=own)
    return found
