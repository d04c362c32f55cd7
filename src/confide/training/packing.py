"""Split a logical batch into physical micro-batches. The rows of a unit stay together, or the unit has its own."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from confide.privacy.sampling import Draw
from confide.training.line_packing import WIDEST, shared


@dataclass(frozen=True)
class Open:
    """A unit of a micro-batch that other micro-batches, or other ranks, hold lines of, too.

    Attributes:
        number: its number within the micro-batch.
        unit: its number in the draw.
        ends: whether its last line on this rank is here.
        holders: as of a `Pack`; empty if the unit lies on one rank.
    """

    number: int
    unit: int
    ends: bool
    holders: tuple[int, ...] = ()


@dataclass(frozen=True)
class Pack:
    """Rows of one micro-batch, as positions in the draw.

    Attributes:
        lines: the rows of each line; one row per line if none are shared.
        units: int64[lines], the unit of each line, numbered from 0 within the micro-batch.
        parts: if not empty, the pack is rows of one unit, which are not added up in one micro-batch but in these.
        holders: if not empty, the pack is a piece of a unit whose other pieces these ranks hold; the first of them
            clips the whole.
        unit: of a piece, the number of its unit in the draw.
        opens: the units that are not whole in this micro-batch; see `lockstep`.
    """

    lines: tuple[np.ndarray, ...]
    units: np.ndarray
    parts: tuple["Pack", ...] = ()
    holders: tuple[int, ...] = ()
    unit: int = -1
    opens: tuple[Open, ...] = ()

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


def a_pass(micro_tokens: int) -> int:
    """Return the assumed fixed cost of a pass, in tokens."""
    return max(PASS, micro_tokens // 64)


def price(packs: Iterable[Pack], draw: Draw, micro_tokens: int) -> int:
    """Return what packs cost, in tokens: those of their lines, padding included, and those of their passes."""
    each = [own for pack in packs for own in pack.parts or (pack,) if own.lines]
    widths = [max(sum(len(draw.rows[i]) for i in line) for line in own.lines) for own in each]
    return sum(len(own.lines) * width for own, width in zip(each, widths, strict=True)) + a_pass(
        micro_tokens
    ) * len(each)


IDLE = Pack.of([])  # a pass that a rank takes only because the others do


@dataclass(frozen=True)
class Lines:
    """Lines of a draw, unit by unit: the lines of unit u are those from starts[u] to starts[u + 1]."""

    rows: list[np.ndarray]
    widths: np.ndarray
    starts: np.ndarray

    @classmethod
    def of(cls, draw: Draw, micro_tokens: int, packs_rows: bool) -> "Lines":
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

    def of_unit(self, unit: int) -> np.ndarray:
        """Return the lines of a unit, the narrowest first, so that lines of similar width are neighbours."""
        own = np.arange(self.starts[unit], self.starts[unit + 1])
        ordered: np.ndarray = own[np.argsort(self.widths[own], kind="stable")]
        return ordered

    def in_parts(self, lines: np.ndarray, micro_tokens: int) -> Pack:
        """Return a pack of lines of one unit, in the order of their width, split into parts that fit."""
        parts: list[np.ndarray] = []
        first = 0
        for last in range(1, len(lines) + 1):
            if last == len(lines) or (last - first + 1) * self.widths[lines[last]] > micro_tokens:
                parts.append(lines[first:last])
                first = last
        return self.of_parts(parts)

    def of_parts(self, parts: Sequence[np.ndarray]) -> Pack:
        """Return a pack of one unit from the lines of its parts; some may be empty."""
        packs = tuple(self._some(lines, np.zeros(len(lines), np.int64)) for lines in parts)
        lines = tuple(line for each in packs for line in each.lines)
        return Pack(lines, np.zeros(len(lines), np.int64), packs)

    def _some(self, lines: np.ndarray, units: np.ndarray) -> Pack:
        return Pack(tuple(self.rows[line] for line in lines), units)


def pack(draw: Draw, micro_tokens: int, packs_rows: bool = False) -> Iterator[Pack]:
    """Split a draw into micro-batches of at most `micro_tokens` tokens, padding included.

    Units are taken in the order of their longest line, so that the lines of a micro-batch are of similar length.

    Args:
        packs_rows: rows of a unit may share a line; see `line_packing`.
    """
    if draw.rows:
        lines = Lines.of(draw, micro_tokens, packs_rows)
        yield from packed(np.arange(draw.groups), lines, micro_tokens)


def alone(draw: Draw, micro_tokens: int, packs_rows: bool = False) -> Iterator[Pack]:
    """Yield each unit by itself, in the order of the draw; a unit too large for a micro-batch comes in parts."""
    lines = Lines.of(draw, micro_tokens, packs_rows)
    is_large = lines.is_large(micro_tokens)
    for unit in range(draw.groups):
        yield lines.in_parts(lines.of_unit(unit), micro_tokens) if is_large[unit] else lines.pack([unit])


def packed(units: np.ndarray, lines: Lines, micro_tokens: int) -> Iterator[Pack]:
    """Put units into micro-batches; those too large for one come first, in parts."""
    is_large = lines.is_large(micro_tokens)
    for unit in units[is_large[units]].tolist():
        yield lines.in_parts(lines.of_unit(unit), micro_tokens)
    small = units[~is_large[units]]
    for some in cut(small[np.argsort(lines.longest[small], kind="stable")], lines, micro_tokens):
        yield lines.pack(some.tolist())


def cut(units: np.ndarray, lines: Lines, micro_tokens: int) -> Iterator[np.ndarray]:
    """Cut units, in the order of their longest line, into micro-batches with the lowest cost of padding and passes.

    Full micro-batches would be the fewest. But if few are enough, each would hold lines of all lengths.
    """
    most, widths = len(units), lines.longest[units]
    ends = np.cumsum([0, *np.diff(lines.starts)[units]])
    fixed = a_pass(micro_tokens)
    cost, begins = np.zeros(most + 1, np.int64), np.zeros(most, np.int64)
    for last in range(most):
        fits = np.searchsorted(ends, ends[last + 1] - micro_tokens // widths[last])
        first = min(int(fits), last)  # a single unit is always allowed: a row may be longer than the limit
        tokens = (ends[last + 1] - ends[first : last + 1]) * widths[last]
        costs = cost[first : last + 1] + tokens + fixed
        best = int(costs.argmin())
        cost[last + 1], begins[last] = costs[best], first + best
    cuts = [most]
    while cuts[-1] > 0:
        cuts.append(int(begins[cuts[-1] - 1]))
    for stop, start in pairwise(cuts):
        yield units[start:stop]
