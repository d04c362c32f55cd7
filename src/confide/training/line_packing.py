"""Several rows of one unit in one line of a batch, so that a unit whose rows differ in length is not mostly padding.

Rows of a line keep positions of their own, by which the model tells them apart: none attends to another. Whether a
model does is seen before it is relied on (`row_isolation.sharing`). Privacy does not hang on it: all rows of a line
are one unit's, and are clipped together however they are computed.
"""

import heapq
from collections.abc import Sequence

import numpy as np

WIDEST = 2  # of a line, in longest rows: attention takes time by the line's width
WORTH = 0.9  # of the tokens with padding that must be left for lines to be shared: plain batches need no mask

_TRIED = 16  # numbers of lines for a unit, at most


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
