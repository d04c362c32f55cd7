"""Deal the units of a draw to ranks, so that all are busy until the end.

A unit goes whole to one rank, which clips it. Only if that would leave ranks idle for long is a unit cut into pieces on
several ranks: their gradients are then sent to one of them, which clips the sum.

Ranks that hold a split model are dealt the same hands, and take their passes together: see `lockstep`.

Every rank deals for itself, and all must come to the same hands: a unit on two ranks would count twice. So costs are
whole numbers, and no choice hangs on how a machine rounds.
"""

import heapq
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

import numpy as np

from confide.privacy.sampling import Draw
from confide.training.packing import Lines, Pack, a_pass, packed

EXCHANGE = 512
"""Assumed cost of sending or receiving a gradient, in tokens: 4 bytes a weight at 450 GB/s take as long as 6 operations
a weight and token of so many tokens, at 4e14 operations a second. It is not measured; for LoRA it is much too high."""
_COARSE = 50  # a unit that costs more than this part of a rank's share is dealt by itself


@dataclass(frozen=True)
class Piece:
    """Some lines of a unit, which other ranks hold the rest of.

    Attributes:
        holders: the ranks that hold lines of it; the first of them clips the unit.
    """

    unit: int
    lines: np.ndarray
    holders: tuple[int, ...]


@dataclass(frozen=True)
class Hand:
    """What one rank is dealt: whole units, by their number in the draw, and pieces."""

    units: np.ndarray
    pieces: tuple[Piece, ...] = ()

    def exchanges(self, rank: int) -> int:
        """Return how many gradients the rank sends or receives."""
        return sum(len(piece.holders) - 1 if piece.holders[0] == rank else 1 for piece in self.pieces)


def share(draw: Draw, micro_tokens: int, ranks: int, number: int, packs_rows: bool = False) -> list[Pack]:
    """Return the micro-batches of rank `number` out of `ranks` that each hold the whole model.

    Every rank computes the same hands from the same draw. Pieces come first, in the same order on all ranks.
    """
    if not draw.rows:
        return []
    lines = Lines.of(draw, micro_tokens, packs_rows)
    hand = dealt(lines, micro_tokens, ranks)[number]
    pieces = [
        replace(lines.in_parts(piece.lines, micro_tokens), holders=piece.holders, unit=piece.unit)
        for piece in hand.pieces
    ]
    return pieces + list(packed(hand.units, lines, micro_tokens))


def dealt(lines: Lines, micro_tokens: int, ranks: int) -> list[Hand]:
    """Deal the units of a draw to ranks: whole, or in pieces if that ends sooner."""
    costs = _costs(lines, micro_tokens)
    even = int(costs.sum()) // ranks
    coarse, fine = np.flatnonzero(costs * _COARSE > even), np.flatnonzero(costs * _COARSE <= even)
    hands, loads = whole_units(coarse, costs[coarse], ranks)
    found = [Hand(np.array(hand, np.int64)) for hand in hands]
    if max(loads) > even + even // _COARSE + EXCHANGE:
        some, left = _in_pieces(coarse, lines, costs, even, ranks)
        ends = [
            load + EXCHANGE * hand.exchanges(rank)
            for rank, (load, hand) in enumerate(zip(left, some, strict=True))
        ]
        if max(ends) < max(loads):
            found, loads = some, ends
    more_of = _filled(fine[np.argsort(lines.longest[fine], kind="stable")], costs, loads)
    return [
        replace(hand, units=np.sort(np.concatenate([hand.units, more])))
        for hand, more in zip(found, more_of, strict=True)
    ]


def _costs(lines: Lines, micro_tokens: int) -> np.ndarray:
    """Return the cost of each unit: its tokens with padding, and its part of a pass."""
    plain = np.add.reduceat(
        lines.widths, lines.starts[:-1]
    )  # a large unit's parts are of lines of similar width
    tokens = np.where(lines.is_large(micro_tokens), plain, lines.tokens)
    costs: np.ndarray = tokens + tokens * a_pass(micro_tokens) // micro_tokens
    return costs


def whole_units(units: np.ndarray, costs: np.ndarray, ranks: int) -> tuple[list[list[int]], list[int]]:
    """Deal whole units, the costliest first, to the rank with the least so far (Graham 1969).

    Returns:
        The units of each rank, and what they cost.
    """
    queue = [(0, rank) for rank in range(ranks)]
    hands: list[list[int]] = [[] for _ in range(ranks)]
    for at in np.argsort(-costs, kind="stable").tolist():
        load, rank = queue[0]
        hands[rank].append(int(units[at]))
        heapq.heapreplace(queue, (load + int(costs[at]), rank))
    loads = {rank: load for load, rank in queue}
    return hands, [loads[rank] for rank in range(ranks)]


def _in_pieces(
    units: np.ndarray, lines: Lines, costs: np.ndarray, even: int, ranks: int
) -> tuple[list[Hand], list[int]]:
    """Deal units up to an even share of each rank, and cut those that fit nowhere along the rest (McNaughton 1959).

    A unit that fits nowhere costs more than is left of any rank's share. So a rank holds two pieces at most.

    Returns:
        What each rank is dealt, and what it costs.
    """
    queue, over = [(0, rank) for rank in range(ranks)], []
    hands: list[list[int]] = [[] for _ in range(ranks)]
    for unit in units[np.argsort(-costs[units], kind="stable")].tolist():
        load, rank = queue[0]
        if load + int(costs[unit]) <= even:
            hands[rank].append(unit)
            heapq.heapreplace(queue, (load + int(costs[unit]), rank))
        else:
            over.append(unit)
    order = sorted(queue)
    own = [lines.of_unit(unit) for unit in over]
    flat, whose = np.concatenate(own), np.repeat(over, [len(each) for each in own])
    share = np.concatenate(
        [
            lines.widths[each] * costs[unit] // lines.widths[each].sum()
            for unit, each in zip(over, own, strict=True)
        ]
    )
    cuts = _cuts(share, [max(0, even - load) for load, _ in order])
    loads, held = [0] * ranks, {unit: [] for unit in over}  # type: ignore[var-annotated]
    for (load, rank), (first, last) in zip(order, pairwise(cuts.tolist()), strict=True):
        loads[rank] = load + int(share[first:last].sum())
        for unit in dict.fromkeys(whose[first:last].tolist()):
            held[unit].append((rank, flat[first:last][whose[first:last] == unit]))
    pieces: list[list[Piece]] = [[] for _ in range(ranks)]
    for unit, some in held.items():
        if len(some) == 1:
            hands[some[0][0]].append(unit)
            continue
        for rank, its in some:
            pieces[rank].append(Piece(unit, its, tuple(holder for holder, _ in some)))
    return [
        Hand(np.array(hand, np.int64), tuple(its)) for hand, its in zip(hands, pieces, strict=True)
    ], loads


def _filled(units: np.ndarray, costs: np.ndarray, loads: list[int]) -> list[np.ndarray]:
    """Deal many cheap units, neighbours in the order of their longest line to one rank, so that little is padding."""
    level = _level(loads, int(costs[units].sum()))
    cuts = _cuts(costs[units], [max(0, level - load) for load in loads])
    return [units[first:last] for first, last in pairwise(cuts.tolist())]


def _level(loads: list[int], more: int) -> int:
    """Return the load of the ranks that get some of `more`, if it goes to those with the least."""
    sums = accumulate(sorted(loads))
    return min(-(-(own + more) // number) for number, own in enumerate(sums, 1))


def _cuts(costs: np.ndarray, rooms: list[int]) -> np.ndarray:
    """Cut a row of costs into one piece for each room, in proportion; int64[rooms + 1].

    Each cut goes to the nearest item, counted from the beginning, so that rounding does not add up.
    """
    ends, edges = np.concatenate([[0], np.cumsum(costs)]), list(accumulate(rooms))
    targets = np.array([edge * int(ends[-1]) // max(edges[-1], 1) for edge in edges[:-1]], np.int64)
    return np.concatenate([[0], _nearest(ends, targets), [len(costs)]])


def _nearest(ends: np.ndarray, targets: np.ndarray) -> np.ndarray:
    after = np.searchsorted(ends, targets)
    before = np.maximum(after - 1, 0)
    closer: np.ndarray = np.where(
        targets - ends[before] < ends[np.minimum(after, len(ends) - 1)] - targets, before, after
    )
    return closer
