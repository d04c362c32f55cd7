"""The rows that a unit may contribute: a fixed choice before training, or a fresh one at every step.

Rules of Chua et al. 2024 ("Mind the Privacy Unit!"): random, longest, shortest, highest and lowest
perplexity, each with a cap per unit (section 4.1), and random chunks for user sampling (section 5.1).

*Formal guarantee.* A choice costs no privacy only if the unit it chooses within is the unit that is claimed
(never example-level), every row has one owner, a model that scores rows has seen none of them, and random
choices are independent from unit to unit. The functions here do their part: the choice for a unit is a
function of that unit's rows and of the key stream at that unit's own places, whatever else is in the graph or
was drawn with it. Zeroing out one unit then moves no other unit's rows.
"""

from typing import Protocol

import numpy as np

from confide.data.shape import Shape
from confide.data.unit_graph import UnitGraph
from confide.utils.errors import InputError

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
    return int(np.median(shape.rows_per_unit))


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
    does: accounting must count such a row as often as it is listed.

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
    rows = np.asarray(graph.unit_rows)
    counts = np.diff(graph.unit_offsets)
    units = np.repeat(np.arange(graph.n_units), counts)
    order = np.lexsort((_scores(rule, graph, stream, perplexity)[rows], units))  # stable: ties keep row order
    if resample:
        places = np.tile(np.arange(cap), graph.n_units) % np.repeat(counts, cap)
        repeated: np.ndarray = rows[order[np.repeat(graph.unit_offsets[:-1], cap) + places]]
        return repeated
    rank = np.arange(len(rows)) - np.repeat(graph.unit_offsets[:-1], counts)
    chosen: np.ndarray = rows[order[rank < cap]]
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


def _scores(rule: str, graph: UnitGraph, stream: Bits, perplexity: np.ndarray | None) -> np.ndarray:
    """Compute one number per row; the rows with the smallest are chosen."""
    if rule == "random":
        return stream.uint64(graph.n_rows)
    if rule in ("longest", "shortest"):
        return -graph.row_lengths if rule == "longest" else graph.row_lengths
    if perplexity is None or len(perplexity) != graph.n_rows:
        raise InputError(f"selection {rule!r} needs the perplexity of each of the {graph.n_rows} rows")
    scores = np.asarray(perplexity, dtype=np.float64)
    if not np.isfinite(scores).all():
        raise InputError(f"row {int(np.argmin(np.isfinite(scores)))} has no finite perplexity to select by")
    return -scores if rule == "highest-ppl" else scores


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
