"""Measure loss, perplexity and accuracy on held-out rows, in batches of rows of similar length."""

import math
from collections import deque
from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import nn

from confide.data.unit_graph import UnitGraph
from confide.distributed.ranks import Ranks
from confide.distributed.sharding import is_sharded, rest
from confide.randomness.streams import RunKey
from confide.training.tasks import Batch, Task
from confide.utils.errors import Diverged, InputError
from confide.utils.memory import give_back, not_again, ran_out, too_long

_HIDE = RunKey.from_text("evaluation")  # the same tokens are hidden for every model that is compared


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
    """Compute the sum of token losses, the predicted tokens and the correct predictions of every row.

    Several ranks share the rows, and all ranks get all results. If memory does not suffice for `micro_tokens` at
    a time, the batches are halved.

    Args:
        among: int64[M], the rows to evaluate; None: all rows of the graph.

    Returns:
        (losses, tokens, correct): float64[M], int64[M], int64[M].

    Raises:
        InputError: memory does not suffice for one row; or the model is split, and its passes cannot be repeated.
    """
    ranks = ranks or Ranks()
    among = np.arange(graph.n_rows) if among is None else among
    found = torch.zeros((3, len(among)), dtype=torch.float64)
    was_training = model.training
    model.eval()
    lengths = graph.lengths_of(among)
    waiting = _dealt(list(batches(lengths, micro_tokens)), ranks, model)
    while waiting:
        places, idle = waiting.popleft()
        if (
            len(places) > 1 and len(places) * lengths[places].max() > micro_tokens
        ):  # too many, by what an earlier batch showed
            middle = len(places) // 2
            waiting.extendleft([(places[middle:], idle), (places[:middle], idle)])
            continue
        sums = _sums(model, task, graph, among[places])
        if sums is None:
            micro_tokens = _fewer(int(lengths[places].max()), len(places), model)
            give_back(ranks.device)
            waiting.appendleft((places, idle))
        elif not idle:
            found[:, torch.from_numpy(places)] = sums
            if progress is not None:
                progress(len(places))
    model.train(was_training)
    rest(model)
    found = found.to(ranks.device)
    ranks.add_up([found])
    losses, counts, correct = found.cpu().numpy()
    return losses, counts.astype(np.int64), correct.astype(np.int64)


def _sums(model: nn.Module, task: Task, graph: UnitGraph, rows: np.ndarray) -> torch.Tensor | None:
    """Compute the sums of `row_losses` for these rows: float64[3, B] on the CPU; None if memory does not suffice."""
    try:
        loss, counted, hit = task.token_losses(model, collated(task, graph, rows))
        sums = ((loss * counted).sum(1), counted.sum(1), (hit & counted).sum(1))
        return torch.stack([values.double() for values in sums]).cpu()
    except (RuntimeError, MemoryError) as error:
        if not ran_out(error):
            raise
        return None


def _fewer(longest: int, rows: int, model: nn.Module) -> int:
    """Return a smaller batch size in tokens, after `rows` rows of at most `longest` tokens did not fit."""
    if is_sharded(model):  # the other ranks are in the middle of the pass and cannot start over
        raise not_again(rows * longest)
    if rows == 1:
        raise too_long(longest)
    return rows * longest // 2


def collated(task: Task, graph: UnitGraph, rows: np.ndarray) -> Batch:
    """Collate rows into a batch. A masked LM hides the same tokens of a row in every evaluation."""
    labels = None if graph.labels is None else np.asarray(graph.labels[rows])
    hides = task.facts.hides_tokens
    hide = [_HIDE.stream("evaluation", "hide", int(row)) for row in rows] if hides else None
    return task.collate(graph.fetch(rows), labels, hide)


def batches(lengths: np.ndarray, micro_tokens: int) -> Iterator[np.ndarray]:
    """Yield batches of rows of similar length, as positions in `lengths`."""
    order = np.argsort(lengths, kind="stable")
    start = 0
    while start < len(order):
        stop = start + 1
        while stop < len(order) and (stop - start + 1) * lengths[order[stop]] <= micro_tokens:
            stop += 1
        yield order[start:stop]
        start = stop


def _dealt(batches: list[np.ndarray], ranks: Ranks, model: nn.Module) -> deque[tuple[np.ndarray, bool]]:
    """Return this rank's batches, each with a flag that is true if the rank only takes part in the pass.

    All ranks take the passes of a split model together, so a rank with fewer batches repeats one without counting it.
    """
    own = deque((rows, False) for rows in batches[ranks.number :: ranks.size])
    if is_sharded(model) and len(own) * ranks.size < len(batches):
        own.append((batches[0][:1], True))
    return own


def perplexities(
    model: nn.Module, task: Task, graph: UnitGraph, micro_tokens: int = 8192, ranks: Ranks | None = None
) -> np.ndarray:
    """Compute the perplexity of every row under `model`: float64[M]."""
    losses, counts, _ = row_losses(model, task, graph, micro_tokens, ranks=ranks)
    found: np.ndarray = np.exp(losses / np.maximum(counts, 1))
    return found


def evaluate(
    model: nn.Module, task: Task, graph: UnitGraph, micro_tokens: int = 8192, ranks: Ranks | None = None
) -> dict[str, float | int]:
    """Compute loss and accuracy over all predicted tokens of `graph`, or over all rows if these have classes.

    Returns:
        The figures of the task (`Task.figures`): `loss` (in nats per token, or per row for classes) and
        `accuracy`; for tokens also `perplexity` and `tokens`, the number of predicted tokens. Then `rows` and
        `units`.
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
    figures = task.figures(loss, float(correct.sum() / tokens), tokens)
    return {**figures, "rows": graph.n_rows, "units": graph.n_units}
