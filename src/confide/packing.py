"""A logical batch as physical micro-batches. A unit's rows stay together, or the unit has its own."""

import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

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


IDLE = Pack(np.zeros(0, np.int64), np.zeros(0, np.int64))  # a pass that a rank takes only because others do


def pack(draw: Draw, micro_tokens: int) -> Iterator[Pack]:
    """Split a draw into micro-batches of at most `micro_tokens` tokens, padding included.

    Units are taken in the order of their longest row, so that rows of a micro-batch are of like length.
    """
    yield from share(draw, micro_tokens, 1)[0]


def share(draw: Draw, micro_tokens: int, ranks: int) -> list[list[Pack]]:
    """Split a draw over ranks, and each rank's share into micro-batches.

    A unit that is too large for one micro-batch is split over all ranks: it comes first, in the same order
    everywhere, with as many parts on each rank as there are to have (some may be empty). Of the others each
    goes whole to the rank that has the fewest tokens so far, the largest first.
    """
    shares: list[list[Pack]] = [[] for _ in range(ranks)]
    if not draw.rows:
        return shares
    lengths = np.array([len(row) for row in draw.rows])
    starts = np.searchsorted(draw.group, np.arange(draw.groups + 1))
    longest = np.maximum.reduceat(lengths, starts[:-1])
    tokens = np.diff(starts) * longest
    is_large = (tokens > micro_tokens) & (np.diff(starts) > 1)
    for unit in np.flatnonzero(is_large):
        for rank, large in enumerate(
            _large(np.arange(starts[unit], starts[unit + 1]), lengths, micro_tokens, ranks)
        ):
            shares[rank].append(large)
    for rank, units in enumerate(_dealt(np.flatnonzero(~is_large), tokens, ranks)):
        shares[rank] += _packed(
            units[np.argsort(longest[units], kind="stable")], starts, longest, micro_tokens
        )
    return shares


def alone(draw: Draw, micro_tokens: int) -> Iterator[Pack]:
    """Each unit by itself, in the order of the draw; one that is too large for a micro-batch in parts."""
    lengths = np.array([len(row) for row in draw.rows])
    starts = np.searchsorted(draw.group, np.arange(draw.groups + 1))
    for first, last in pairwise(starts):
        rows = np.arange(first, last)
        if len(rows) > 1 and len(rows) * lengths[rows].max() > micro_tokens:
            yield from _large(rows, lengths, micro_tokens, 1)
        else:
            yield Pack(rows, np.zeros(len(rows), np.int64))


def _dealt(units: np.ndarray, tokens: np.ndarray, ranks: int) -> list[np.ndarray]:
    """Units to ranks, so that ranks have about equally many tokens."""
    loads = [(0, rank) for rank in range(ranks)]
    hands: list[list[int]] = [[] for _ in range(ranks)]
    for unit in units[np.argsort(-tokens[units], kind="stable")]:
        load, rank = heapq.heappop(loads)
        hands[rank].append(int(unit))
        heapq.heappush(loads, (load + int(tokens[unit]), rank))
    return [np.array(sorted(hand), np.int64) for hand in hands]


def _packed(units: np.ndarray, starts: np.ndarray, longest: np.ndarray, micro_tokens: int) -> Iterator[Pack]:
    held: list[int] = []
    rows = 0
    for unit in units:
        own, width = int(starts[unit + 1] - starts[unit]), int(longest[unit])
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


def _large(rows: np.ndarray, lengths: np.ndarray, micro_tokens: int, ranks: int) -> Iterator[Pack]:
    """One pack for each rank."""
    order = rows[np.argsort(lengths[rows], kind="stable")]
    parts: list[np.ndarray] = []
    first = 0
    for last in range(1, len(order) + 1):
        if last == len(order) or (last - first + 1) * lengths[order[last]] > micro_tokens:
            parts.append(order[first:last])
            first = last
    parts += [order[:0]] * (-len(parts) % ranks)
    for rank in range(ranks):
        own = tuple(parts[rank::ranks])
        yield Pack(np.concatenate(own), np.zeros(sum(map(len, own)), np.int64), own)
