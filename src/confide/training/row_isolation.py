"""Test, before it is relied on, that a model keeps a row apart from the other rows and the padding of its batch.

A unit's part of a step is bounded only if nothing else in the step depends on that unit. A model that attends to
padding (a BERT that is loaded as a causal LM), or that divides by a figure of the whole batch, breaks this
silently.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import torch
from torch import nn

from confide.data.loss_mask import ids_of
from confide.distributed.ranks import Ranks
from confide.distributed.sharding import is_sharded, kind, rest
from confide.models.adapters import routes
from confide.randomness.streams import RunKey
from confide.training.line_packing import WIDEST
from confide.training.tasks import Batch, Task
from confide.utils.errors import InputError
from confide.utils.memory import ran_out

_PROBED = 128  # tokens of the longest row whose logits are compared
_FLOOD = 7  # one-token rows, next to which a row is tested
_NEAR = {True: 1e-3, False: 0.05}  # by float32 or not: tolerance, as a share of the largest logit
_COMPANY = 14  # rows apart from the two tested ones, among which a loss may pick
_ALIKE = {True: 1e-4, False: 0.05}  # the same for losses
_STILL = 1e-6  # the same for logits that are computed from the same numbers

_CHANCE = "chance"
_BY_CHANCE = (
    ", which no seed of a run decides: a layer draws while it trains (dropout, jitter or a router of its own). Switch "
    "that off in the model's config, or choose a model without it"
)
_NO_BOUND = (
    ", so that no bound on one unit's part of a step would hold. This is no model for task {}: a causal LM looks back "
    "only, and a BERT goes with masked-lm"
)


def check_row_independence(task: Task, model: nn.Module, rows: Sequence[np.ndarray], ranks: Ranks) -> None:
    """Refuse a model whose output for a row depends on the other rows or the padding. One rank tests for all.

    Of a split model, all ranks take the same passes together. The test makes passes without a gradient, in train mode,
    over a short row between longer ones. Then the longer rows and the padding change: the logits of the short row must
    not. Each row's logits must also be the same as without other rows. This must hold behind many rows of its first
    token, too: they need the same expert of a mixture, which may have room for only so many tokens. Nor may the logits
    change from pass to pass: such a run could be neither verified nor resumed.

    Experts multiply as many tokens at a time as are routed to them, so a mixture's logits may change by rounding.

    Args:
        model: whole, or split over the ranks.
        rows: rows to take two from; with none, nothing is tested.

    Raises:
        InputError: the output depends on other rows, on padding, or on chance.
    """
    found = _company(task, model, rows) if _tests(model, ranks) and len(rows) else ""
    if ranks.any(bool(found)):
        raise InputError(
            f"model: what {kind(model)} says of a row depends on {found or 'its company'}"
            + (_BY_CHANCE if found == _CHANCE else _NO_BOUND.format(task.facts.name))
        )


def check_loss_independence(task: Task, model: nn.Module, rows: Sequence[np.ndarray], ranks: Ranks) -> None:
    """Refuse a calling program's own loss if a row's loss is not a number of that row alone. One rank tests for all.

    Args:
        rows: rows to take two from; with none, nothing is tested.

    Raises:
        InputError: the loss has another shape than one number per row, or a row's loss depends on another row.
    """
    found = _joint(task, model, rows) if _tests(model, ranks) and len(rows) > 1 else ""
    if ranks.any(bool(found)):
        raise InputError(
            f"loss: {found or 'it is no loss of each row alone'}, so that no bound on one unit's part of a step would "
            "hold: return a float[B], each from its own row"
        )


def _tests(model: nn.Module, ranks: Ranks) -> bool:
    """Return True if this rank takes the test passes: the first, or every rank of a split model."""
    return ranks.first or is_sharded(model)


def _joint(task: Task, model: nn.Module, rows: Sequence[np.ndarray]) -> str:
    """Describe what is wrong with a loss; return an empty string if nothing is."""
    some = [*_two(rows), *(row[:_PROBED] for row in rows[:_COMPANY])]
    with _as_trained(task, model) as task:

        def losses(*chosen: np.ndarray) -> torch.Tensor:
            return task.row_loss(model, _batch(task, list(chosen)))

        try:
            together, each = losses(*some), [losses(row) for row in some]
        except InputError:
            raise
        except Exception as error:
            return f"it failed on {len(some)} rows ({type(error).__name__}: {str(error)[:200]})"
        if not isinstance(together, torch.Tensor) or together.shape != (len(some),):
            shape = tuple(together.shape) if isinstance(together, torch.Tensor) else type(together).__name__
            return f"of {len(some)} rows it gives a tensor of shape {shape}"
        alone = torch.cat(each)
        near = _ALIKE[together.dtype == torch.float32] * max(float(alone.abs().max()), 1e-3)
        if not bool((together - alone).abs().max() <= near):
            return "a row's loss depends on the row beside it"
    return ""


def _two(rows: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Return a short and a long row."""
    short, long = (ids_of(row)[:_PROBED] for row in (min(rows, key=len), max(rows, key=len)))
    if len(short) == len(long):  # rows of equal length have no padding until one is cut
        short = short[: max(1, len(short) // 2)]
    return short, long


def _company(task: Task, model: nn.Module, rows: Sequence[np.ndarray]) -> str:
    """Describe what a row's logits depend on, apart from the row; return an empty string if on nothing."""
    short, long = _two(rows)
    turned = np.concatenate(
        [long[:1], long[1:-1][::-1], long[1:][-1:]]
    )  # the ends may have a meaning: a class, an end of text
    if np.array_equal(turned, long):
        turned = (long + 1) % task.vocabulary
    with _as_trained(task, model) as task:

        def logits(batch: Batch, place: int, row: np.ndarray) -> torch.Tensor:
            own = task.logits(model, batch)[place]
            return own if task.facts.has_classes else own[: len(row)]

        together = _batch(task, [long, short, long])
        flood = np.full(len(long), short[0])
        before = logits(together, 1, short)
        if not before.isfinite().all():  # training reports this itself
            return ""
        near, still = _allowed(model, before)
        if _jitters(model) or not _gap(before, logits(together, 1, short)) <= still:
            return _CHANCE
        if not _gap(before, logits(_batch(task, [turned, short, turned]), 1, short)) <= still:
            return "the rows beside it"
        if not task.facts.has_classes:  # with classes, the padding token itself may mark where a row ends
            other = together["input_ids"].masked_fill(~together["real"], int(long[0]))
            if not _gap(before, logits({**together, "input_ids": other}, 1, short)) <= still:
                return "the padding behind it"
        for place, row in enumerate([long, short]):
            if not _gap(logits(_batch(task, [row]), 0, row), logits(together, place, row)) <= near:
                return "how many rows and how much padding it is with"
        if not _gap(before, logits(_batch(task, [*[flood] * _FLOOD, short]), _FLOOD, short)) <= near:
            return "how many tokens beside it are like its own"
    return ""


def _allowed(model: nn.Module, logits: torch.Tensor) -> tuple[float, float]:
    """Return the tolerances for logits: between batches of two shapes, and between batches of one shape."""
    size = float(logits.abs().max())
    near = _NEAR[logits.dtype == torch.float32] * size
    return near, near if routes(model) else _STILL * size


def _jitters(model: nn.Module) -> bool:
    """Return True if a router is configured to draw at random.

    It may do so for near-ties only, which a short test would miss.
    """
    return any(
        "jitter" in name and isinstance(value, float) and value > 0
        for module in model.modules()
        for name, value in vars(module).items()
    )


def _batch(task: Task, rows: list[np.ndarray]) -> Batch:
    key = RunKey.from_text("made up")
    hide = [
        key.stream("isolation", "row", 0, str(len(row))) for row in rows
    ]  # a row hides the same tokens whatever rows are around it
    return task.collate(rows, labels=np.zeros(len(rows), np.int64), hide=hide)


def detect_packing_support(task: Task, model: nn.Module, longest: int, ranks: Ranks) -> Task:
    """Return the task, with shared lines enabled if the model is seen to keep the rows of a line apart.

    The first rank tests for all. It makes two passes without a gradient over made-up lines. In the second pass,
    the first row of each line is another: the logits of the rows behind it must not change, and must be the same
    as without other rows. A line as wide as allowed must work, too.

    Args:
        model: whole, or split over the ranks.
        longest: tokens of the longest row.
    """
    if not task.facts.is_causal or "position_ids" not in task.extra or longest < 4:
        return task
    apart = not _tests(model, ranks) or _tried(task, model, longest)
    return replace(task, packs_rows=not ranks.any(not apart))


@contextmanager
def _as_trained(task: Task, model: nn.Module) -> Iterator[Task]:
    """Put the model in train mode without a gradient, and give the task without autocast, on the model's device."""
    was_training = model.training
    model.train()
    try:
        with torch.no_grad():
            yield replace(task, autocast=False, device=next(model.parameters()).device)
    finally:
        model.train(was_training)
        rest(model)


def _tried(task: Task, model: nn.Module, longest: int) -> bool:
    try:
        with _as_trained(task, model) as task:
            _line_logits(task, model, [[_made_up(task, 0, row, longest) for row in range(WIDEST)]])
            return _keeps_apart(task, model, min(longest, _PROBED))
    except (
        Exception
    ) as error:  # no room for so wide a line, or no such input: each model raises its own error
        if is_sharded(model) and ran_out(error):  # the other ranks are in the middle of the pass
            raise
        return False


def _keeps_apart(task: Task, model: nn.Module, longest: int) -> bool:
    third = longest // 3
    lines = [
        [_made_up(task, line, row, length) for row, length in enumerate(lengths)]
        for line, lengths in enumerate([(third, longest - third, longest), (longest // 2, longest)])
    ]
    changed = [[(rows[0] + 1) % task.vocabulary, *rows[1:]] for rows in lines]
    before, after = (_line_logits(task, model, each) for each in (lines, changed))
    apart = []
    for line, rows in enumerate(lines):
        ends = np.cumsum([len(row) for row in rows])
        for first, last, row in zip(ends, ends[1:], rows[1:], strict=False):
            alone, here = _line_logits(task, model, [[row]])[0], before[line, first:last]
            near, still = _allowed(model, alone)
            apart += [_gap(here, alone) <= near, _gap(here, after[line, first:last]) <= still]
    return all(apart)


def _made_up(task: Task, line: int, row: int, length: int) -> np.ndarray:
    stream = RunKey.from_text("made up").stream("lines", "row", line, str(row))
    return stream.below(np.full(length, task.vocabulary))


def _line_logits(task: Task, model: nn.Module, lines: Sequence[Sequence[np.ndarray]]) -> torch.Tensor:
    return task.logits(model, task.collate_lines(lines, [np.ones(len(rows)) for rows in lines]))


def _gap(one: torch.Tensor, other: torch.Tensor) -> float:
    return float((one - other).abs().max())
