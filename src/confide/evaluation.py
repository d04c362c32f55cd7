"""Loss, perplexity and accuracy on held-out rows, in batches of rows of like length."""

import math
from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import nn

from confide.errors import Diverged, InputError
from confide.noise import RunKey
from confide.ranks import Ranks
from confide.sharding import is_sharded, rest
from confide.tasks import Batch, Task
from confide.units import UnitGraph

_HIDE = RunKey.from_text("evaluation")  # the same hidden tokens for every model that is compared


@torch.no_grad()
def row_losses(
    model: nn.Module,
    task: Task,
    graph: UnitGraph,
    micro_tokens: int = 8192,
    progress: Callable[[int], None] | None = None,
    ranks: Ranks | None = None,
    among: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(sum of token losses, predicted tokens, correct predictions) of every row: float64, int64, int64 [M].

    Several ranks share the rows, and all get everything. `among` names the rows, int64[M]; None: all of the graph.
    """
    ranks = ranks or Ranks()
    among = np.arange(graph.n_rows) if among is None else among
    found = torch.zeros((3, len(among)), dtype=torch.float64)
    was_training = model.training
    model.eval()
    for places, idle in _dealt(list(batches(graph.lengths_of(among), micro_tokens)), ranks, model):
        rows = among[places]
        loss, counted, hit = task.token_losses(model, collated(task, graph, rows))
        if idle:
            continue
        sums = ((loss * counted).sum(1).double(), counted.sum(1), (hit & counted).sum(1))
        found[:, torch.from_numpy(places)] = torch.stack([values.double() for values in sums]).cpu()
        if progress is not None:
            progress(len(rows))
    model.train(was_training)
    rest(model)
    found = found.to(ranks.device)
    ranks.add_up([found])
    losses, counts, correct = found.cpu().numpy()
    return losses, counts.astype(np.int64), correct.astype(np.int64)


def collated(task: Task, graph: UnitGraph, rows: np.ndarray) -> Batch:
    """Rows as a batch; of a masked LM the tokens that are hidden are the same whenever a row is evaluated."""
    labels = None if graph.labels is None else np.asarray(graph.labels[rows])
    masked = task.kind == "masked-lm"
    hide = [_HIDE.stream("evaluation", "hide", int(row)) for row in rows] if masked else None
    return task.collate(graph.fetch(rows), labels, hide)


def batches(lengths: np.ndarray, micro_tokens: int) -> Iterator[np.ndarray]:
    """Places in `lengths` of one batch of rows after another, of like length."""
    order = np.argsort(lengths, kind="stable")
    start = 0
    while start < len(order):
        stop = start + 1
        while stop < len(order) and (stop - start + 1) * lengths[order[stop]] <= micro_tokens:
            stop += 1
        yield order[start:stop]
        start = stop


def _dealt(batches: list[np.ndarray], ranks: Ranks, model: nn.Module) -> Iterator[tuple[np.ndarray, bool]]:
    """This rank's batches, and whether it only goes along: a split model's passes are taken by all ranks together."""
    own = batches[ranks.number :: ranks.size]
    yield from ((rows, False) for rows in own)
    if is_sharded(model) and len(own) * ranks.size < len(batches):
        yield batches[0][:1], True


def perplexities(
    model: nn.Module, task: Task, graph: UnitGraph, micro_tokens: int = 8192, ranks: Ranks | None = None
) -> np.ndarray:
    """Perplexity of every row under `model`: float64[M]."""
    losses, counts, _ = row_losses(model, task, graph, micro_tokens, ranks=ranks)
    return np.exp(losses / np.maximum(counts, 1))


def evaluate(
    model: nn.Module, task: Task, graph: UnitGraph, micro_tokens: int = 8192, ranks: Ranks | None = None
) -> dict[str, float | int]:
    """Loss and perplexity weighted by tokens, and accuracy, over all rows of `graph`.

    Returns:
        `loss` (nats a token, or a row for classes), `perplexity`, `accuracy`, `tokens`, `rows`, `units`.
    """
    losses, counts, correct = row_losses(model, task, graph, micro_tokens, ranks=ranks)
    tokens = int(counts.sum())
    if tokens == 0:
        raise InputError("data.eval: the held-out rows hold nothing to predict")
    loss = float(losses.sum() / tokens)
    if not math.isfinite(loss):
        raise Diverged(
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
