"""Compute a model's output layer at the places that a loss reads, and on a CPU into rows that begin at cache lines.

A masked language model is asked for about one token in seven. The logits of the others, the largest product of a small
model, need not be made.

If the vocabulary is not a multiple of 16 tokens, such as GPT-2's 50,257, rows of logits begin anywhere. The
largest product of the forward pass then takes longer than one that writes whole cache lines. Values are the same
up to rounding.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from confide.models.fast.onednn import LINE
from confide.models.fast.switch import is_on


def logits_at(model: nn.Module, places: Tensor, forward: Callable[[], Tensor]) -> Tensor:
    """Return the logits of some places of each row: float[B, P, vocabulary].

    The output layer is given what stands there and nothing else, if the model has one that takes each place by itself;
    otherwise the logits of all places are made first. A row's places are its own, so that its gradient is too.

    Args:
        places: int64[B, P], which may name one that does not count.
        forward: computes the logits of all places, float[B, T, vocabulary].
    """
    find = getattr(model, "get_output_embeddings", None)
    head = find() if find is not None and is_on() else None
    narrowed = False

    def narrow(module: nn.Module, given: tuple[Any, ...]) -> tuple[Any, ...] | None:
        nonlocal narrowed
        if not given or given[0].dim() != 3 or len(given[0]) != len(places):
            return None  # such as the tokens of all rows in one line, without padding
        narrowed = True
        return (_taken(given[0], places), *given[1:])

    # Before other hooks, so that the taps see what the layer is given in the end.
    handle = None if head is None else head.register_forward_pre_hook(narrow, prepend=True)
    try:
        logits = forward()
    finally:
        if handle is not None:
            handle.remove()
    return logits if narrowed else _taken(logits, places)


def _taken(values: Tensor, places: Tensor) -> Tensor:
    return values.gather(1, places[:, :, None].expand(-1, -1, values.shape[-1]))


@contextmanager
def aligned(model: nn.Module) -> Iterator[None]:
    """Align the logits inside the context, if the output layer is an ordinary one in float32 on a CPU.

    This is not done if no gradient is asked for: torch's loss would then make a whole copy of such logits.
    """
    find = getattr(model, "get_output_embeddings", None)
    head = find() if find is not None and is_on() and torch.is_grad_enabled() else None
    if not isinstance(head, nn.Linear) or not _gains(head):
        yield
        return
    head.forward = partial(_forward, head)  # type: ignore[method-assign]  # of this module alone, and for a while
    try:
        yield
    finally:
        del head.forward


def _gains(head: nn.Linear) -> bool:
    is_plain = type(head) is nn.Linear and "forward" not in vars(head) and head.bias is None
    return is_plain and head.weight.device.type == "cpu" and head.out_features % LINE != 0


def _forward(head: nn.Linear, given: Tensor) -> Tensor:
    weight = head.weight
    if not (given.dtype == weight.dtype == torch.float32) or torch.is_autocast_enabled("cpu"):
        return functional.linear(given, weight)
    logits: Tensor = _Product.apply(given, weight)  # type: ignore[no-untyped-call]
    return logits


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, given: Tensor, weight: Tensor) -> Tensor:
        rows, width = given.flatten(0, -2), len(weight)
        shape, apart = (*given.shape[:-1], width), -(-width // LINE) * LINE
        strides = [apart * math.prod(shape[i + 1 : -1]) for i in range(len(shape) - 1)]
        # Not a view of something larger: models may write into their logits.
        logits = given.new_empty_strided(shape, (*strides, 1))
        torch.mm(rows, weight.T, out=logits.flatten(0, -2))
        needs_given, needs_weight = ctx.needs_input_grad
        ctx.save_for_backward(rows if needs_weight else None, weight if needs_given else None)
        return logits

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None]:
        rows, weight = ctx.saved_tensors
        flat = grad.flatten(0, -2)
        of_given = None if weight is None else (flat @ weight).unflatten(0, grad.shape[:-1])
        return of_given, None if rows is None else flat.T @ rows
