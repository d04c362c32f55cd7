"""Loss, perplexity and accuracy on held-out rows, in batches of rows of like length."""

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import nn

from confide.errors import InputError
from confide.noise import RunKey
from confide.tasks import Task
from confide.units import UnitGraph

_HIDE = RunKey.from_text("evaluation")  # the same hidden tokens for every model that is compared


@torch.no_grad()
def row_losses(
    model: nn.Module,
    task: Task,
    graph: UnitGraph,
    micro_tokens: int = 8192,
    progress: Callable[[int], None] | None = None,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(sum of token losses, predicted tokens, correct predictions) of every row: float64, int64, int64 [M]."""
    losses = np.zeros(graph.n_rows)
    counts, correct = np.zeros(graph.n_rows, np.int64), np.zeros(graph.n_rows, np.int64)
    order = np.argsort(graph.row_lengths, kind="stable")
    masked = task.kind == "masked-lm"
    was_training = model.training
    model.eval()
    start = 0
    while start < len(order):
        stop = start + 1
        while stop < len(order) and (stop - start + 1) * graph.row_lengths[order[stop]] <= micro_tokens:
            stop += 1
        rows = order[start:stop]
        labels = None if graph.labels is None else np.asarray(graph.labels[rows])
        hide = [_HIDE.stream("evaluation", "hide", int(row)) for row in rows] if masked else None
        loss, counted, hit = task.token_losses(model, task.collate(graph.fetch(rows), labels, hide))
        losses[rows] = (loss * counted).sum(1).double().cpu().numpy()
        counts[rows] = counted.sum(1).cpu().numpy()
        correct[rows] = (hit & counted).sum(1).cpu().numpy()
        if progress is not None:
            progress(len(rows))
        start = stop
    model.train(was_training)
    return losses, counts, correct


def perplexities(model: nn.Module, task: Task, graph: UnitGraph, micro_tokens: int = 8192) -> np.ndarray:
    """Perplexity of every row under `model`: float64[M]."""
    losses, counts, _ = row_losses(model, task, graph, micro_tokens)
    return np.exp(losses / np.maximum(counts, 1))


def evaluate(
    model: nn.Module, task: Task, graph: UnitGraph, micro_tokens: int = 8192
) -> dict[str, float | int]:
    """Loss and perplexity weighted by tokens, and accuracy, over all rows of `graph`.

    Returns:
        `loss` (nats a token, or a row for classes), `perplexity`, `accuracy`, `tokens`, `rows`, `units`.
    """
    losses, counts, correct = row_losses(model, task, graph, micro_tokens)
    tokens = int(counts.sum())
    if tokens == 0:
        raise InputError("data.eval: the held-out rows hold nothing to predict")
    loss = float(losses.sum() / tokens)
    if not math.isfinite(loss):
        raise InputError(
            "the model's loss on the held-out rows is not a number: the training diverged, "
            "lower train.learning_rate and choose another `run` folder"
        )
    return {
        "loss": loss,
        "perplexity": math.exp(min(loss, 700.0)),
        "accuracy": float(correct.sum() / tokens),
        "tokens": tokens,
        "rows": graph.n_rows,
        "units": graph.n_units,
    }
