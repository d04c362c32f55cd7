"""A logical batch as physical micro-batches. A unit's rows stay together, or the unit has its own."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from confide.sampling import Draw


@dataclass(frozen=True)
class Pack:
    """Rows of one micro-batch, as positions in the draw; `units` are numbered from 0 within it.

    A `parts` that is not empty says instead: one unit, too large for one micro-batch, in these parts.
    """

    rows: np.ndarray
    units: np.ndarray
    parts: tuple[np.ndarray, ...] = ()


def pack(draw: Draw, micro_tokens: int) -> Iterator[Pack]:
    """Split a draw into micro-batches of at most `micro_tokens` tokens, padding included.

    Units are taken in the order of their longest row, so that rows of a micro-batch are of like length.
    """
    if not draw.rows:
        return
    lengths = np.array([len(row) for row in draw.rows])
    starts = np.searchsorted(draw.group, np.arange(draw.groups + 1))
    longest = np.maximum.reduceat(lengths, starts[:-1])
    held: list[int] = []
    rows = 0
    for unit in np.argsort(longest, kind="stable"):
        own, width = int(starts[unit + 1] - starts[unit]), int(longest[unit])
        if own * width > micro_tokens and own > 1:
            yield _large(np.arange(starts[unit], starts[unit + 1]), lengths, micro_tokens)
            continue
        if held and (rows + own) * width > micro_tokens:
            yield _whole(held, starts)
            held, rows = [], 0
        held.append(int(unit))
        rows += own
    if held:
        yield _whole(held, starts)


def _whole(units: list[int], starts: np.ndarray) -> Pack:
    rows = [np.arange(starts[unit], starts[unit + 1]) for unit in units]
    return Pack(np.concatenate(rows), np.repeat(np.arange(len(units)), [len(part) for part in rows]))


def _large(rows: np.ndarray, lengths: np.ndarray, micro_tokens: int) -> Pack:
    order = rows[np.argsort(lengths[rows], kind="stable")]
    parts: list[np.ndarray] = []
    first = 0
    for last in range(1, len(order) + 1):
        if last == len(order) or (last - first + 1) * lengths[order[last]] > micro_tokens:
            parts.append(order[first:last])
            first = last
    return Pack(order, np.zeros(len(order), np.int64), tuple(parts))
