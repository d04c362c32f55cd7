"""Deal the units of a draw to ranks that hold a split model. They take each pass together, as its weights are gathered.

If each rank can hold a whole gradient (`clipping.sums.fits_whole`), units are dealt as to ranks that work apart. Then
each rank cuts its lines into passes that cost about as much as those of the others. A pass may end within a unit: what
it finds of the unit's gradient is kept until the unit's last line has come.

If not, a unit that is larger than a micro-batch is spread over all ranks, which add up its gradient after each pass.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from confide.privacy.sampling import Draw
from confide.training.packing import IDLE, Lines, Open, Pack, a_pass, cut
from confide.training.schedule import Hand, dealt, whole_units

_WHOLE = 16  # a unit below this part of a micro-batch stays in one pass
_SIZES = (32, 26, 20, 14, 8)  # of a pass, in 32nds of a micro-batch: those that are tried
_NEAR = (2, -2, 1, -1)  # then those near the best of them


def share_together(
    draw: Draw, micro_tokens: int, ranks: int, number: int, packs_rows: bool = False
) -> list[Pack]:
    """Return the micro-batches of rank `number`, as many as the others have, if each holds a whole gradient."""
    return _together(draw, micro_tokens, ranks, [number], packs_rows)[0]


def shares_together(draw: Draw, micro_tokens: int, ranks: int) -> list[list[Pack]]:
    """Return `share_together` of every rank."""
    return _together(draw, micro_tokens, ranks, range(ranks), packs_rows=False)


def _together(
    draw: Draw, micro_tokens: int, ranks: int, numbers: Iterable[int], packs_rows: bool
) -> list[list[Pack]]:
    if not draw.rows:
        return [[] for _ in numbers]
    lines = Lines.of(draw, micro_tokens, packs_rows)
    rows = [_Row.of(lines, hand, micro_tokens) for hand in dealt(lines, micro_tokens, ranks)]
    cuts = _even_cuts(rows, micro_tokens)
    return [
        [rows[number].pack(lines, first, last) for first, last in pairwise(cuts[number].tolist())]
        for number in numbers
    ]


@dataclass(frozen=True)
class _Row:
    """A rank's lines in their order: those of one unit are neighbours, and neighbours are of similar width.

    Attributes:
        lines, units: the lines, and the unit of each.
        costs: the tokens of each; of a small unit, padding included.
        may_cut: whether a pass may end before each line: bool[lines].
        holders: of each unit that other ranks hold lines of, too, all of these ranks.
    """

    lines: np.ndarray
    units: np.ndarray
    costs: np.ndarray
    may_cut: np.ndarray
    holders: dict[int, tuple[int, ...]]

    @classmethod
    def of(cls, lines: Lines, hand: Hand, micro_tokens: int) -> "_Row":
        is_large = lines.is_large(micro_tokens)
        large = [lines.of_unit(unit) for unit in hand.units[is_large[hand.units]].tolist()]
        large = [piece.lines for piece in hand.pieces] + sorted(large, key=len, reverse=True)
        # Units go from narrow lines to wide ones and back in turn, the last to the narrow ones, with which small units
        # begin. So a pass over the end of one and the beginning of the next needs little padding.
        turned = [own[:: 1 if (len(large) - place) % 2 == 0 else -1] for place, own in enumerate(large)]
        small = hand.units[~is_large[hand.units]]
        small = small[np.argsort(lines.longest[small], kind="stable")]
        of_small = [np.arange(lines.starts[unit], lines.starts[unit + 1]) for unit in small.tolist()]
        order = np.concatenate([*turned, *of_small, np.zeros(0, np.int64)])
        units = np.searchsorted(lines.starts, order, side="right") - 1
        costs = np.where(is_large[units], lines.widths[order], lines.longest[units])
        begins = np.diff(units, prepend=-1) != 0
        may_cut = begins | (lines.tokens[units] * _WHOLE > micro_tokens)
        return cls(order, units, costs, may_cut, {piece.unit: piece.holders for piece in hand.pieces})

    def pack(self, lines: Lines, first: int, last: int) -> Pack:
        """Return the micro-batch of the lines from `first` to `last`."""
        if first == last:
            return IDLE
        found, numbers = np.unique(self.units[first:last], return_inverse=True)
        before, after = self.units[:first][-1:], self.units[last:][:1]
        opens = []
        for number, unit in enumerate(found.tolist()):
            if unit in before or unit in after or unit in self.holders:
                opens.append(Open(number, unit, unit not in after, self.holders.get(unit, ())))
        return Pack(tuple(lines.rows[line] for line in self.lines[first:last]), numbers, opens=tuple(opens))


def _even_cuts(rows: list[_Row], micro_tokens: int) -> np.ndarray:
    """Cut each rank's lines into as many passes as the others', of similar cost: int64[ranks, passes + 1].

    Smaller passes need less padding, and each pass has a cost of its own: of several sizes, the cheapest is taken.
    """
    found: dict[int, tuple[int, np.ndarray]] = {}

    def find(most: int) -> None:
        if most not in found:
            cuts = _cuts(rows, most)
            cost = _costs(cuts, rows).max(0).sum() + (cuts.shape[1] - 1) * a_pass(micro_tokens)
            found[most] = int(cost), cuts

    for size in _SIZES:
        find(micro_tokens * size // 32)
    best = min(found, key=lambda most: found[most][0])
    for more in _NEAR:
        find(min(micro_tokens, best + micro_tokens * more // 32))
    most = max(int(row.costs.sum()) for row in rows)
    fewest = -(-most // micro_tokens)
    for passes in (fewest, fewest + 1):
        find(-(-most // passes))
    return min(found.values(), key=lambda tried: tried[0])[1]


def _cuts(rows: list[_Row], most: int) -> np.ndarray:
    """Fill passes up to `most` tokens each, rank by rank; those with fewer passes have empty ones at the end."""
    found = []
    for row in rows:
        costs, cuts, widest, first, allowed = row.costs.tolist(), [0], 0, 0, 0
        for place, may_cut in enumerate(row.may_cut.tolist()):
            allowed = place if may_cut else allowed
            widest = max(widest, costs[place])
            if (place + 1 - first) * widest > most and place > first:
                first = allowed if allowed > first else place
                cuts.append(first)
                widest = max(costs[first : place + 1])
        found.append([*cuts, len(costs)])
    passes = max(map(len, found))
    return np.array([cuts + cuts[-1:] * (passes - len(cuts)) for cuts in found])


def _costs(cuts: np.ndarray, rows: list[_Row]) -> np.ndarray:
    """Return the tokens of each rank's passes, padding included: int64[ranks, passes]."""
    found = np.zeros((len(rows), cuts.shape[1] - 1), np.int64)
    for own, firsts, row in zip(found, cuts, rows, strict=True):
        counts = np.diff(firsts)
        if len(row.lines):
            own[counts > 0] = np.maximum.reduceat(row.costs, firsts[:-1][counts > 0])
        own *= counts
    return found


def share_spread(
    draw: Draw, micro_tokens: int, ranks: int, number: int, packs_rows: bool = False
) -> list[Pack]:
    """Return the micro-batches of rank `number`, as many as the others have, if no rank holds a whole gradient.

    A unit larger than a micro-batch is spread over all ranks, line by line. Such units come first, in the same order
    everywhere, with equally many parts on each rank (some may be empty). Each other unit goes whole to one rank, and
    units of similar length go into one pass, so that no rank waits for a longer line of another.
    """
    if not draw.rows:
        return []
    lines = Lines.of(draw, micro_tokens, packs_rows)
    is_large = lines.is_large(micro_tokens)
    large = [_spread(lines, unit, micro_tokens, ranks, number) for unit in np.flatnonzero(is_large).tolist()]
    small = np.flatnonzero(~is_large)
    order = small[np.argsort(lines.longest[small], kind="stable")]
    for together in cut(order, lines, micro_tokens * ranks):
        for hands in _at_once(together, lines, micro_tokens, ranks):
            large.append(lines.pack(hands[number]) if hands[number] else IDLE)
    return large


def _at_once(units: np.ndarray, lines: Lines, micro_tokens: int, ranks: int) -> Iterator[list[list[int]]]:
    """Deal units of similar length to ranks for one pass, or for two if some rank's lines would not fit."""
    counts = np.diff(lines.starts)[units]
    hands, most = whole_units(units, counts, ranks)
    if max(most) * lines.longest[units].max() <= micro_tokens or len(units) <= ranks:
        yield hands
        return
    half = len(units) // 2
    for some in (units[:half], units[half:]):
        yield from _at_once(some, lines, micro_tokens, ranks)


def _spread(lines: Lines, unit: int, micro_tokens: int, ranks: int, number: int) -> Pack:
    """Return a rank's part of a unit that all ranks compute together: every `ranks`-th line, in as few passes as do."""
    order = lines.of_unit(unit)
    return lines.of_parts([part[number::ranks] for part in _passes(lines, order, micro_tokens, ranks)])


def _passes(lines: Lines, order: np.ndarray, micro_tokens: int, ranks: int) -> Iterator[np.ndarray]:
    """Cut lines, the narrowest first, into passes of which each rank takes every `ranks`-th line."""
    first = 0
    for last in range(1, len(order) + 1):
        if last == len(order) or -(-(last - first + 1) // ranks) * lines.widths[order[last]] > micro_tokens:
            yield order[first:last]
            first = last
