"""Several rows of one unit in one line of a batch, so that a unit whose rows differ in length is not mostly padding.

Rows of a line keep positions of their own, by which the model tells them apart: none attends to another. Whether a
model does is seen before it is relied on. Privacy does not hang on it: all rows of a line are one unit's, and are
clipped together however they are computed.
"""

import heapq
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import nn

from confide.noise import RunKey
from confide.ranks import Ranks
from confide.tasks import Task

WIDEST = 2  # of a line, in longest rows: attention takes time by the line's width
WORTH = 0.9  # of the tokens with padding that must be left for lines to be shared: plain batches need no mask

_TRIED = 16  # numbers of lines for a unit, at most
_PROBED = 128  # tokens of the longest made-up row whose logits are compared
_NEAR = {True: 1e-3, False: 0.05}  # of the largest logit, that two of float32 or of fewer bits may differ by
_STILL = 1e-6  # the same, of logits that come from the same numbers


def shared(lengths: Sequence[int] | np.ndarray, widest: int) -> list[list[int]]:
    """Which rows of a unit stand in one line, such that lines and padding together are small.

    Args:
        lengths: tokens of the unit's rows.
        widest: tokens that a line may hold; a row that is longer has a line of its own.

    Returns:
        Rows by line; a line for each row where others would save little.
    """
    rows, longest, total = len(lengths), max(lengths), sum(lengths)
    best, least = [[i] for i in range(rows)], WORTH * rows * longest
    widest = max(widest, longest)
    fewest = -(-total // widest)
    for count in sorted({*range(fewest, fewest + 4), *(round(fewest * 1.25**i) for i in range(_TRIED))}):
        if count >= rows or max(total, count * longest) >= least:  # no line is narrower than the longest row
            break
        lines, width = _balanced(lengths, count)
        if width <= widest and count * width < least:
            best, least = lines, count * width
    return best


def _balanced(lengths: Sequence[int] | np.ndarray, count: int) -> tuple[list[list[int]], int]:
    """Rows in so many lines of about one width, the longest row first to the shortest line (Graham 1969)."""
    lines: list[list[int]] = [[] for _ in range(count)]
    widths = [(0, line) for line in range(count)]
    for row in np.argsort(-np.asarray(lengths), kind="stable").tolist():
        width, line = widths[0]
        heapq.heapreplace(widths, (width + int(lengths[row]), line))
        lines[line].append(row)
    return lines, max(widths)[0]


def sharing(task: Task, model: nn.Module, longest: int, ranks: Ranks) -> Task:
    """The task, with lines that rows share if the model is seen to keep those apart; the first rank looks for all.

    Two passes without a gradient over made-up lines, of which the second has another first row in each line: the logits
    of the rows behind it must not change, and must be what they are without company. And a line as wide as any must do.

    Args:
        model: whole, not yet split over the ranks.
        longest: tokens of the longest row.
    """
    if task.kind != "causal-lm" or "position_ids" not in task.extra or longest < 4:
        return task
    apart = not ranks.first or _tried(task, model, longest)
    return replace(task, shares=not ranks.any(not apart))


def _tried(task: Task, model: nn.Module, longest: int) -> bool:
    task = replace(task, autocast=False, device=next(model.parameters()).device)
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            _logits(task, model, [[_made_up(task, 0, row, longest) for row in range(WIDEST)]])
            return _keeps_apart(task, model, min(longest, _PROBED))
    except Exception:  # no room for so wide a line, or no such input: each model says so in its own way
        return False
    finally:
        model.train(was_training)


def _keeps_apart(task: Task, model: nn.Module, longest: int) -> bool:
    third = longest // 3
    lines = [
        [_made_up(task, line, row, length) for row, length in enumerate(lengths)]
        for line, lengths in enumerate([(third, longest - third, longest), (longest // 2, longest)])
    ]
    changed = [[(rows[0] + 1) % task.vocabulary, *rows[1:]] for rows in lines]
    before, after = (_logits(task, model, each) for each in (lines, changed))
    apart = []
    for line, rows in enumerate(lines):
        ends = np.cumsum([len(row) for row in rows])
        for first, last, row in zip(ends, ends[1:], rows[1:], strict=False):
            alone, here = _logits(task, model, [[row]])[0], before[line, first:last]
            size = float(alone.abs().max())
            apart.append(_gap(here, alone) <= _NEAR[alone.dtype == torch.float32] * size)
            apart.append(_gap(here, after[line, first:last]) <= _STILL * size)
    return all(apart)


def _made_up(task: Task, line: int, row: int, length: int) -> np.ndarray:
    stream = RunKey.from_text("made up").stream("lines", "row", line, str(row))
    return stream.below(np.full(length, task.vocabulary))


def _logits(task: Task, model: nn.Module, lines: Sequence[Sequence[np.ndarray]]) -> torch.Tensor:
    return task.logits(model, task.collate_lines(lines, [np.ones(len(rows)) for rows in lines]))


def _gap(one: torch.Tensor, other: torch.Tensor) -> float:
    return float((one - other).abs().max())
