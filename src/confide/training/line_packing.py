"""Pack several rows of one unit into one line of a batch, so that rows of different lengths need little padding.

Each row of a line keeps its own positions. The model tells the rows apart by these, and no row attends to
another. Whether a model does so is tested before it is relied on (`row_isolation.detect_packing_support`).
Privacy does not depend on it: all rows of a line belong to one unit, and are clipped together however they are
computed.
"""

import heapq
from collections.abc import Sequence

import numpy as np

WIDEST = 2  # width of a line, in longest rows: attention takes time by the line's width
WORTH = 0.9  # lines are shared only if at most this share of the padded tokens is left: plain batches need no mask

_TRIED = 16  # numbers of lines tried for a unit, at most


def shared(lengths: Sequence[int] | np.ndarray, widest: int) -> list[list[int]]:
    """Choose which rows of a unit share a line, so that lines and padding together are few.

    Args:
        lengths: tokens of the unit's rows.
        widest: tokens that a line may hold; a longer row has a line of its own.

    Returns:
        Rows by line; one line for each row if sharing would save little.
    """
    rows, longest, total = len(lengths), max(lengths), sum(lengths)
    best, least = [[i] for i in range(rows)], WORTH * rows * longest
    widest = max(widest, longest)
    fewest = -(-total // widest)
    for count in sorted({*range(fewest, fewest + 4), *(_grown(fewest, i) for i in range(_TRIED))}):
        if count >= rows or max(total, count * longest) >= least:  # no line is narrower than the longest row
            break
        lines, width = _balanced(lengths, count)
        if width <= widest and count * width < least:
            best, least = lines, count * width
    return best


def _grown(count: int, times: int) -> int:
    """Return a count times 1.25^times, rounded, in whole numbers: every rank must find the same lines."""
    return int((2 * count * 5**times + 4**times) // (2 * 4**times))


def _balanced(lengths: Sequence[int] | np.ndarray, count: int) -> tuple[list[list[int]], int]:
    """Deal rows to `count` lines of similar width: the longest row first, to the shortest line (Graham 1969)."""
    lines: list[list[int]] = [[] for _ in range(count)]
    widths = [(0, line) for line in range(count)]
    for row in np.argsort(-np.asarray(lengths), kind="stable").tolist():
        width, line = widths[0]
        heapq.heapreplace(widths, (width + int(lengths[row]), line))
        lines[line].append(row)
    return lines, max(widths)[0]
