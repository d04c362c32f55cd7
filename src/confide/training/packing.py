"""Split a logical batch into physical micro-batches. The rows of a unit stay together, or the unit has its own."""

import heapq
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from confide.privacy.sampling import Draw
from confide.training.line_packing import WIDEST, shared


@dataclass(frozen=True)
class Pack:
    """Rows of one micro-batch, as positions in the draw.

    Attributes:
        lines: the rows of each line; one row per line if none are shared.
        units: int64[lines], the unit of each line, numbered from 0 within the micro-batch.
        parts: if not empty, the pack is one unit that is too large for one micro-batch, split into these.
    """

    lines: tuple[np.ndarray, ...]
    units: np.ndarray
    parts: tuple["Pack", ...] = ()

    @classmethod
    def of(cls, lines: Sequence[Sequence[int]]) -> "Pack":
        """Return a pack of these lines, all of one unit."""
        return cls(tuple(np.array(line) for line in lines), np.zeros(len(lines), np.int64))

    @property
    def rows(self) -> np.ndarray:
        """Positions in the draw, line by line."""
        return np.concatenate((*self.lines, np.zeros(0, np.int64)))


# Assumed fixed cost of a pass over a micro-batch, apart from its tokens, in tokens: somewhat more than the cost
# measured for a small model on a CPU. For a larger micro-batch, such as a GPU's, a 64th of its tokens; that
# cost is not measured.
PASS = 128

IDLE = Pack.of([])  # a pass that a rank takes only because the others do
ONE = Pack.of([[0]])  # the first row of the draw


@dataclass(frozen=True)
class _Lines:
    """Lines of a draw, unit by unit: the lines of unit u are those from starts[u] to starts[u + 1]."""

    rows: list[np.ndarray]
    widths: np.ndarray
    starts: np.ndarray

    @classmethod
    def of(cls, draw: Draw, micro_tokens: int, packs_rows: bool) -> "_Lines":
        lengths = np.array([len(row) for row in draw.rows])
        starts = np.searchsorted(draw.group, np.arange(draw.groups + 1))
        if not packs_rows or len(lengths) == draw.groups:
            return cls(list(np.arange(len(lengths))[:, None]), lengths, starts)
        widest = min(WIDEST * int(lengths.max()), micro_tokens)
        by_unit = [
            [first + np.array(line) for line in shared(lengths[first:last].tolist(), widest)]
            for first, last in pairwise(starts)
        ]
        rows = [line for unit in by_unit for line in unit]
        widths = np.array([lengths[line].sum() for line in rows])
        return cls(rows, widths, np.cumsum([0, *map(len, by_unit)]))

    @property
    def longest(self) -> np.ndarray:
        """The width of each unit's widest line."""
        return np.maximum.reduceat(self.widths, self.starts[:-1])

    @property
    def tokens(self) -> np.ndarray:
        """Tokens of each unit, padding included."""
        counts: np.ndarray = np.diff(self.starts) * self.longest
        return counts

    def is_large(self, micro_tokens: int) -> np.ndarray:
        """Tell which units have several lines that do not fit in one micro-batch."""
        large: np.ndarray = (self.tokens > micro_tokens) & (np.diff(self.starts) > 1)
        return large

    def pack(self, units: Iterable[int]) -> Pack:
        """Put whole units into one micro-batch."""
        each = [np.arange(self.starts[unit], self.starts[unit + 1]) for unit in units]
        return self._some(np.concatenate(each), np.repeat(np.arange(len(each)), [len(own) for own in each]))

    def parts(self, unit: int, micro_tokens: int, ranks: int) -> Iterator[Pack]:
        """Split a large unit: one pack for each rank."""
        own = np.arange(self.starts[unit], self.starts[unit + 1])
        order = own[np.argsort(self.widths[own], kind="stable")]
        parts: list[np.ndarray] = []
        first = 0
        for last in range(1, len(order) + 1):
            if last == len(order) or (last - first + 1) * self.widths[order[last]] > micro_tokens:
                parts.append(order[first:last])
                first = last
        parts += [order[:0]] * (-len(parts) % ranks)
        packs = [self._some(lines, np.zeros(len(lines), np.int64)) for lines in parts]
        for rank in range(ranks):
            mine = tuple(packs[rank::ranks])
            lines = tuple(line for each in mine for line in each.lines)
            yield Pack(lines, np.zeros(len(lines), np.int64), mine)

    def _some(self, lines: np.ndarray, units: np.ndarray) -> Pack:
        return Pack(tuple(self.rows[line] for line in lines), units)


def pack(draw: Draw, micro_tokens: int, packs_rows: bool = False) -> Iterator[Pack]:
    """Split a draw into micro-batches of at most `micro_tokens` tokens, padding included.

    Units are taken in the order of their longest line, so that the lines of a micro-batch are of similar length.

    Args:
        packs_rows: rows of a unit may share a line; see `line_packing`.
    """
    yield from share(draw, micro_tokens, 1, packs_rows)[0]


def share(draw: Draw, micro_tokens: int, ranks: int, packs_rows: bool = False) -> list[list[Pack]]:
    """Split a draw over ranks, and each rank's share into micro-batches.

    A unit that is too large for one micro-batch is split over all ranks. Such units come first, in the same order
    everywhere, with equally many parts on each rank (some may be empty). Each other unit goes whole to the rank
    with the fewest tokens so far, the largest unit first.
    """
    packs: list[list[Pack]] = [[] for _ in range(ranks)]
    if not draw.rows:
        return packs
    lines = _Lines.of(draw, micro_tokens, packs_rows)
    is_large = lines.is_large(micro_tokens)
    for unit in np.flatnonzero(is_large).tolist():
        for rank, large in enumerate(lines.parts(unit, micro_tokens, ranks)):
            packs[rank].append(large)
    for rank, units in enumerate(_dealt(np.flatnonzero(~is_large), lines.tokens, ranks)):
        packs[rank] += _packed(units[np.argsort(lines.longest[units], kind="stable")], lines, micro_tokens)
    return packs


def alone(draw: Draw, micro_tokens: int, packs_rows: bool = False) -> Iterator[Pack]:
    """Yield each unit by itself, in the order of the draw; a unit too large for a micro-batch comes in parts."""
    lines = _Lines.of(draw, micro_tokens, packs_rows)
    is_large = lines.is_large(micro_tokens)
    for unit in range(draw.groups):
        yield from lines.parts(unit, micro_tokens, 1) if is_large[unit] else [lines.pack([unit])]


def _dealt(units: np.ndarray, tokens: np.ndarray, ranks: int) -> list[np.ndarray]:
    """Deal units to ranks, so that the ranks have about equally many tokens."""
    loads = [(0, rank) for rank in range(ranks)]
    hands: list[list[int]] = [[] for _ in range(ranks)]
    for unit in units[np.argsort(-tokens[units], kind="stable")]:
        load, rank = heapq.heappop(loads)
        hands[rank].append(int(unit))
        heapq.heappush(loads, (load + int(tokens[unit]), rank))
    return [np.array(sorted(hand), np.int64) for hand in hands]


def _packed(units: np.ndarray, lines: _Lines, micro_tokens: int) -> Iterator[Pack]:
    """Cut units, in the order of their longest line, into micro-batches with the lowest cost of padding and passes.

    Full micro-batches would be the fewest. But if few are enough, each would hold lines of all lengths.
    """
    most, widths = len(units), lines.longest[units]
    ends = np.cumsum([0, *np.diff(lines.starts)[units]])
    a_pass = max(PASS, micro_tokens // 64)
    cost, begins = np.zeros(most + 1, np.int64), np.zeros(most, np.int64)
    for last in range(most):
        fits = np.searchsorted(ends, ends[last + 1] - micro_tokens // widths[last])
        first = min(int(fits), last)  # a single unit is always allowed: a row may be longer than the limit
        tokens = (ends[last + 1] - ends[first : last + 1]) * widths[last]
        costs = cost[first : last + 1] + tokens + a_pass
        best = int(costs.argmin())
        cost[last + 1], begins[last] = costs[best], first + best
    cuts = [most]
    while cuts[-1] > 0:
        cuts.append(int(begins[cuts[-1] - 1]))
    for stop, start in pairwise(cuts):
        yield lines.pack(units[start:stop].tolist())
