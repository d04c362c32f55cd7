"""The rows that a unit may contribute: a fixed choice before training, or a fresh one at every step.

Rules of Chua et al. 2024 ("Mind the Privacy Unit!"): random, longest, shortest, highest and lowest
perplexity, each with a cap per unit (section 4.1), and random chunks for user sampling (section 5.1).

*Formal guarantee.* A choice costs no privacy only if the unit it chooses within is the unit that is claimed
(never example-level), every row has one owner, a model that scores rows has seen none of them, and random
choices are independent from unit to unit. The functions here do their part: the choice for a unit is a
function of that unit's rows and of the key stream at that unit's own places, whatever else is in the graph or
was drawn with it. Zeroing out one unit then moves no other unit's rows.
"""

from collections.abc import Callable, Iterator
from typing import Protocol

import numpy as np

from confide.data import sorting
from confide.data.shape import Shape
from confide.data.unit_graph import UnitGraph
from confide.utils.errors import InputError
from confide.utils.tally import Tally

RULES = ("random", "longest", "shortest", "highest-ppl", "lowest-ppl")


class Bits(Protocol):
    """A stream of independent uniform 64-bit integers with random access, such as `streams.Stream`."""

    def uint64(self, n: int, start: int = 0) -> np.ndarray: ...


def cap_of(given: int | str, shape: Shape) -> int:
    """Return rows per unit as a number, where `given` may be `median`."""
    return median_cap(shape) if given == "median" else int(given)


def median_cap(shape: Shape) -> int:
    """Compute the median of rows per unit, rounded down (Charles et al. 2024, appendix H: a good cap for ELS).

    It is a statistic of the graph: public under zero-out adjacency, and to be listed as public in the claim.
    """
    counts = shape.rows_per_unit
    blocks = (counts[first : first + sorting.BLOCK] for first in range(0, len(counts), sorting.BLOCK))
    return int(Tally.of(blocks).median)


def select(
    rule: str,
    graph: UnitGraph,
    cap: int,
    stream: Bits,
    perplexity: np.ndarray | None = None,
    resample: bool = False,
) -> np.ndarray:
    """Choose the rows in use once: at most `cap` of each unit.

    With `resample`, a unit with fewer rows repeats them in order until it has `cap`, as the paper's Group Privacy
    does: accounting must count such a row as often as it is listed. Memory holds the chosen rows and one block of the
    others.

    Args:
        rule: one of the rules above.
        graph: the unit graph.
        cap: rows per unit, at most.
        stream: random bits.
        perplexity: float[M] under a model that saw no private row; needed by `highest-ppl` and `lowest-ppl`.
        resample: repeat rows of units with fewer than `cap`.

    Returns:
        Row numbers, int64, ordered by unit and, within a unit, from the rule's first choice to its last (ties: the
            earlier
        row first).

    Raises:
        InputError: the rule is unknown, the cap is below 1, a perplexity is missing or not finite, or a row of the
            graph
            has several owners.
    """
    if rule not in RULES:
        raise InputError(f"selection {rule!r} chooses no rows before training: use one of {', '.join(RULES)}")
    if cap < 1:
        raise InputError(f"rows_per_unit is {cap}: a unit needs at least 1 row")
    require_single_owner(graph)
    score = _scores(rule, graph, stream, perplexity)
    owned = graph.rows_per_unit()
    many = cap * graph.n_units if resample else int(np.minimum(owned.values, cap) @ owned.counts)
    chosen, done = np.empty(many, dtype=np.int64), 0
    for rows in _chosen(graph, score, cap, resample):
        chosen[done : done + len(rows)] = rows
        done += len(rows)
    if done != many:
        raise AssertionError(f"chose {done} rows where {many} are to be had")
    return chosen


def random_rows(graph: UnitGraph, units: np.ndarray, k: int, stream: Bits) -> tuple[np.ndarray, np.ndarray]:
    """Choose up to k distinct rows of each drawn unit, uniformly without replacement.

    A unit with at most k rows gives them all. Unit u reads places u*k to u*k + k - 1 of the stream, so pass another
    stream at every step.

    Returns:
        Two int64 arrays of equal length: row numbers, and for each the place in `units` of its unit.

    Raises:
        InputError: a row of the graph has several owners.
    """
    require_single_owner(graph)
    chosen = [_subset(graph.rows_of(unit), stream.uint64(k, start=unit * k)) for unit in units.tolist()]
    places = np.repeat(np.arange(len(units)), [len(rows) for rows in chosen])
    return np.concatenate([np.empty(0, dtype=np.int64), *chosen]), places


def random_chunks(
    graph: UnitGraph, units: np.ndarray, k: int, length: int, stream: Bits
) -> tuple[list[np.ndarray], np.ndarray]:
    """Choose k random windows of `length` tokens from each drawn unit's rows, concatenated.

    Each window starts anywhere in [0, L - length] with equal probability, L being the unit's tokens; rows carry their
    own separators. A unit with L <= length gives one chunk of all its tokens, since k chunks would be k copies. Only
    the rows under a window are read. For stream and errors see `random_rows`.

    Returns:
        The chunks, in the graph's token type, and for each, int64, the place in `units` of its unit.
    """
    require_single_owner(graph)
    chunks: list[np.ndarray] = []
    places: list[int] = []
    for place, unit in enumerate(units.tolist()):
        rows = graph.rows_of(unit)
        ends = np.cumsum(graph.lengths_of(rows))
        free = max(0, int(ends[-1]) - length)
        draws = stream.uint64(k, start=unit * k) if free else np.zeros(1, dtype=np.uint64)
        for draw in draws.tolist():
            chunks.append(_window(graph, rows, ends, draw % (free + 1), length))
            places.append(place)
    return chunks, np.array(places, dtype=np.int64)


def require_single_owner(graph: UnitGraph) -> None:
    """Raise InputError if a row of the graph has several owners."""
    if not graph.single_owner:
        raise InputError(
            f"rows of {graph.folder} have several owners, so rows cannot be chosen owner by owner: "
            "removing one owner would change the rows of another; use the mechanism 'owners'"
        )


def _scores(
    rule: str, graph: UnitGraph, stream: Bits, perplexity: np.ndarray | None
) -> Callable[[int, int], np.ndarray]:
    """Return a function of rows first to last that gives one number per row; the rows with the smallest are chosen."""
    if rule == "random":
        return lambda first, last: stream.uint64(last - first, start=first)
    if rule in ("longest", "shortest"):
        sign = -1 if rule == "longest" else 1
        path = (
            graph.folder / "row_offsets.bin"
        )  # read: the system counts mapped pages as memory of the process
        return lambda first, last: (
            sign * np.diff(np.fromfile(path, "<i8", last - first + 1, offset=8 * first))
        )
    if perplexity is None or len(perplexity) != graph.n_rows:
        raise InputError(f"selection {rule!r} needs the perplexity of each of the {graph.n_rows} rows")
    known = np.asarray(perplexity, dtype=np.float64)
    if not np.isfinite(known).all():
        raise InputError(f"row {int(np.argmin(np.isfinite(known)))} has no finite perplexity to select by")
    return lambda first, last: -known[first:last] if rule == "highest-ppl" else known[first:last]


def _chosen(
    graph: UnitGraph, score: Callable[[int, int], np.ndarray], cap: int, resample: bool
) -> Iterator[np.ndarray]:
    """Yield the chosen rows of one unit after the other, many units at a time."""
    held: list[np.ndarray] = []  # the best rows so far of a unit that may go on in the next block
    for found in _by_unit(graph, score):
        units, rows, scores = found
        if held:
            units, rows, scores = map(np.concatenate, zip(held, found, strict=True))
        order = np.lexsort((scores, units))  # stable: ties keep row order
        starts = np.flatnonzero(np.diff(units, prepend=-1))
        counts = np.diff(starts, append=len(units))
        best = order[np.arange(len(order)) - np.repeat(starts, counts) < cap]
        done = np.searchsorted(units[best], units[-1])
        yield _repeated(units[best[:done]], rows[best[:done]], cap if resample else None)
        held = [column[best[done:]] for column in (units, rows, scores)]
    yield _repeated(held[0], held[1], cap if resample else None)


def _by_unit(
    graph: UnitGraph, score: Callable[[int, int], np.ndarray]
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Yield units, rows and scores of rows, by unit and then by row, in blocks of bounded size.

    A unit lies in one block, unless it is larger than a block. Scores are made row by row and sorted out of core: an
    array of all of them, read at the places of each unit's rows, would have to be in memory.
    """
    bits = np.uint64((graph.n_rows - 1).bit_length())
    kind = score(0, 1).dtype

    def scored() -> Iterator[np.ndarray]:
        for rows, units, _ in graph.incidences():
            scores = score(int(rows[0]), int(rows[-1]) + 1)
            yield sorting.records(units.view(np.uint64) << bits | rows.view(np.uint64), scores)

    folder = sorting.scratch(graph.folder)
    limit, budget = graph.n_units << int(bits), min(sorting.BUDGET, sorting.BLOCK)
    for block in sorting.sorted_blocks(scored(), limit, graph.n_rows, folder, budget):
        keys = block[:, 0]
        rows = (keys & np.uint64((1 << int(bits)) - 1)).view(np.int64)
        yield (keys >> bits).view(np.int64), rows, block[:, 1].copy().view(kind)


def _repeated(units: np.ndarray, rows: np.ndarray, times: int | None) -> np.ndarray:
    """Repeat the rows of each unit, which lie together, in order until there are `times`; all as they are if None."""
    if times is None:
        return rows
    starts = np.flatnonzero(np.diff(units, prepend=-1))
    counts = np.diff(starts, append=len(units))
    places = np.tile(np.arange(times), len(starts)) % np.repeat(counts, times)
    repeated: np.ndarray = rows[np.repeat(starts, times) + places]
    return repeated


def _subset(rows: np.ndarray, draws: np.ndarray) -> np.ndarray:
    """Choose a uniform subset of as many rows as there are draws, in ascending order (Floyd's algorithm).

    Reducing a 64-bit draw modulo n changes no row's probability by more than n / 2^64 of it.
    """
    if len(rows) <= len(draws):
        return rows
    chosen: set[int] = set()
    for last, draw in enumerate(draws.tolist(), start=len(rows) - len(draws)):
        place = draw % (last + 1)
        chosen.add(last if place in chosen else place)
    return rows[np.fromiter(sorted(chosen), np.int64, len(chosen))]


def _window(graph: UnitGraph, rows: np.ndarray, ends: np.ndarray, start: int, length: int) -> np.ndarray:
    """Return tokens start to start + length of the concatenated rows; `ends` holds the end of each row."""
    first = int(np.searchsorted(ends, start, side="right"))
    last = int(np.searchsorted(ends, start + length, side="left"))
    parts = graph.fetch(rows[first : last + 1])
    parts[0] = parts[0][start - (int(ends[first - 1]) if first else 0) :]
    return np.concatenate(parts)[:length]
