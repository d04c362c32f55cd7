"""Compute the loss from a frozen output layer a chunk of tokens at a time, so that the logits are never whole.

16,384 tokens of a vocabulary of 128,256 have logits of 8 GB in float32, and autograd keeps as much again. Here each
chunk's logits are made, turned into losses and forgotten; the backward pass makes them again.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from confide.models.fast.cross_entropy import IGNORE

_LOGITS = {
    "cuda": 1 << 26
}  # of a chunk: 256 MB in float32. On a CPU logits are whole, since that takes less time.


def chunk_of(model: nn.Module, device: torch.device, trains_on: str | None = None) -> int:
    """Return how many tokens a chunk has; 0 if the logits are to be whole.

    They are whole on a CPU, and if the output layer trains or is no plain linear layer. They are whole, too, if the
    model changes the logits once they are made, as some do by a factor or a soft cap.

    Args:
        device: where the model is.
        trains_on: the kind of device on which it will train, if not this one.
    """
    head, kind = _frozen_head(model), trains_on or device.type
    if kind not in _LOGITS or head is None or not _are_untouched(model, device):
        return 0
    return max(1, _LOGITS[kind] // head.out_features)


def _frozen_head(model: nn.Module) -> nn.Linear | None:
    find = getattr(model, "get_output_embeddings", None)
    head = find() if find is not None else None
    if type(head) is not nn.Linear or any(p.requires_grad for p in head.parameters()):
        return None
    return head if "forward" not in vars(head) else None


def _are_untouched(model: nn.Module, device: torch.device) -> bool:
    """Tell whether the model's logits are what its output layer returned, and nothing was written into them.

    The model is tried as it is trained, with gradients, and its logits are compared with those that would be made here.
    """
    ids = torch.arange(4, device=device)[None]
    was_training = model.training
    model.train()
    try:
        with torch.enable_grad():
            with without_head(model, torch.clone) as returned:
                output = model(input_ids=ids).logits
            whole = model(input_ids=ids).logits.detach().float()
            made = logits_of(model, output.detach()[0])[None] if output.dim() == 3 else whole
    finally:
        model.train(was_training)
    if made.shape != whole.shape or not torch.allclose(made, whole, rtol=1e-3, atol=1e-3):
        return False
    return (
        len(returned) == 1 and output is returned[0] and output._version == 0 and output.shape[:2] == (1, 4)
    )


@contextmanager
def without_head(
    model: nn.Module, copy: Callable[[Tensor], Tensor] = lambda given: given
) -> Iterator[list[Tensor]]:
    """Let the output layer return what it is given, or a copy of it. Yield the list of what it returned."""
    head = _frozen_head(model)
    assert head is not None
    returned: list[Tensor] = []

    def through(given: Tensor) -> Tensor:
        returned.append(copy(given))
        return returned[-1]

    vars(head)["forward"] = through  # of this module alone, and for a while
    try:
        yield returned
    finally:
        del vars(head)["forward"]


def chunked_cross_entropy(model: nn.Module, hidden: Tensor, targets: Tensor, chunk: int) -> Tensor:
    """Compute -log softmax(head(hidden))[target] of each place: float32[n]; 0 where the target is IGNORE.

    Logits of places that are not predicted are not made at all. They are computed in the type that autocast says.

    Args:
        model: its output layer is a plain linear one, and frozen.
        hidden: float[n, width], what the output layer would be given.
        targets: int64[n].
        chunk: places whose logits are made at a time.
    """
    head, dtype = _head_and_type(model, hidden)
    counted = (targets != IGNORE).nonzero()[:, 0]
    losses: Tensor = _Chunked.apply(hidden[counted].to(dtype), head, targets[counted], chunk)  # type: ignore[no-untyped-call]
    return torch.zeros(len(targets), device=hidden.device).index_put((counted,), losses)


def logits_of(model: nn.Module, hidden: Tensor) -> Tensor:
    """Compute the logits of a few places: float32[n, vocabulary]."""
    head, dtype = _head_and_type(model, hidden)
    return next(_logits(hidden.to(dtype), head, max(1, len(hidden))))


def _head_and_type(model: nn.Module, hidden: Tensor) -> tuple[nn.Linear, torch.dtype]:
    head = _frozen_head(model)
    assert head is not None
    kind, dtype = hidden.device.type, head.weight.dtype
    return head, torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else dtype


class _Chunked(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, head: nn.Linear, targets: Tensor, chunk: int) -> Tensor:
        ctx.save_for_backward(hidden, targets)
        ctx.head, ctx.chunk = head, chunk
        losses = [
            functional.cross_entropy(logits, own, reduction="none")
            for logits, own in zip(_logits(hidden, head, chunk), targets.split(chunk), strict=True)
        ]
        return torch.cat(losses)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        hidden, targets = ctx.saved_tensors
        weight = ctx.head.weight.to(hidden.dtype)
        found = torch.empty_like(hidden)
        pieces = zip(
            _logits(hidden, ctx.head, ctx.chunk),
            targets.split(ctx.chunk),
            grad.split(ctx.chunk),
            found.split(ctx.chunk),
            strict=True,
        )
        for logits, own, weights, into in pieces:
            softmax = logits.softmax(-1).mul_(weights[:, None])
            softmax.scatter_add_(1, own[:, None], -weights[:, None])
            torch.mm(softmax.to(hidden.dtype), weight, out=into)
        return found, None, None, None


def _logits(hidden: Tensor, head: nn.Linear, chunk: int) -> Iterator[Tensor]:
    """Yield the logits of each chunk, in float32."""
    weight = head.weight.to(hidden.dtype)
    bias = None if head.bias is None else head.bias.to(hidden.dtype)
    with torch.autocast(hidden.device.type, enabled=False):
        for some in hidden.split(chunk):
            yield functional.linear(some, weight, bias).float()
