"""Likelihoods of whole rows under a causal language model: plain passes, without a cache."""

import contextlib
import inspect
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import nn

from confide.models.loading import positions
from confide.utils.errors import Diverged, InputError

MEMORY = 1 << 30  # bytes that logits, and the temporaries of a softmax over them, may take, about


@contextlib.contextmanager
def reading(model: nn.Module) -> Iterator[None]:
    """Put the model into evaluation mode without gradients, and restore its mode afterwards."""
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        model.train(was_training)


def following(model: Any, ids: torch.Tensor, count: int) -> torch.Tensor:
    """Compute the logits of each row's last `count` tokens, each from the tokens before it: (B, count, V), >= float32.

    Args:
        ids: int64 (B, T) with T > count, rows of one length, so that nothing is padded.
    """
    inner = model.get_base_model() if hasattr(model, "get_base_model") else model
    more = {}
    if "logits_to_keep" in inspect.signature(inner.forward).parameters:
        more["logits_to_keep"] = count  # logits are by far the largest thing in the pass
    logits: torch.Tensor = model(input_ids=ids[:, :-1], use_cache=False, **more).logits[:, -count:]
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def chosen(logits: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """Compute the log-probability of each of `ids` (...) under logits (..., V): (...), nats."""
    return logits.gather(-1, ids[..., None])[..., 0] - logits.logsumexp(-1)


def together(model: Any, length: int, micro_tokens: int) -> int:
    """Return how many rows of `length` tokens one pass reads.

    The rows have no more than `micro_tokens` tokens, and no more than memory has room for.
    """
    vocabulary: int = model.get_input_embeddings().num_embeddings
    return max(1, min(micro_tokens, MEMORY // (4 * 4 * vocabulary)) // length)


def totals(model: Any, rows: list[np.ndarray], micro_tokens: int = 8192) -> np.ndarray:
    """Compute the log-probability of each row, the sum over all its tokens but the first: float64[n], nats.

    Raises:
        Diverged: a log-probability is not a number.
    """
    device = next(model.parameters()).device
    lengths = np.array([len(row) for row in rows])
    found = np.zeros(len(rows))
    with reading(model):
        for length in np.unique(lengths[lengths > 1]):
            alike = np.flatnonzero(lengths == length)
            at_once = together(model, int(length), micro_tokens)
            for first in range(0, len(alike), at_once):
                places = alike[first : first + at_once]
                ids = torch.from_numpy(np.stack([rows[i] for i in places]).astype(np.int64)).to(device)
                each = chosen(following(model, ids, int(length) - 1), ids[:, 1:])
                found[places] = each.double().sum(1).cpu().numpy()
    check_numbers(found)
    return found


def check_numbers(values: np.ndarray) -> None:
    """Raise Diverged if a value is not a number."""
    if np.isnan(values).any():
        raise Diverged("the model's log-probabilities are not numbers: its training diverged")


def longest(model: Any) -> int | None:
    """Return how many tokens a model can read, or None if that is not limited."""
    return positions(model.config)


def refuse_long(model: Any, length: int, key: str) -> None:
    """Raise InputError, which names `key`, if rows have more tokens than a model can read."""
    limit = longest(model)
    if limit is not None and length > limit:
        raise InputError(f"{key}: {length} tokens are more than the {limit} that the model can read")
