"""Rows kept so that no unit has more than a number of them, for rows that may have several owners.

Pairs of a row and a unit are sorted out of core. Memory holds an array by row, one by unit, and one block of pairs.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from confide.data import sorting
from confide.data.by_unit import Pairs
from confide.utils.errors import InputError


def bound_greedily(
    pairs: Iterable[Pairs],
    count: int,
    n_rows: int,
    n_units: int,
    cap: int | np.ndarray,
    folder: Path | None = None,
) -> np.ndarray:
    """Keep rows so that no unit has more than `cap` of them and no row could be added; bool[M].

    The rule is fixed and reads the incidence alone. Rows are taken in order of their number of owners, then of their
    own number, and kept if every owner has room. A row without an owner is kept.

    Args:
        pairs: all pairs of a row and one of its units, in any order.
        count: how many pairs there are.
        n_rows, n_units: M and N.
        cap: rows of a unit; or int64[N], at least 0, each unit's own.
        folder: where pairs are sorted if they are many; default: the system's temporary folder.

    Raises:
        InputError: one cap for all is below 1, or pairs cannot be sorted there.
    """
    if not isinstance(cap, np.ndarray) and cap < 1:
        raise InputError(f"rows_per_unit is {cap}: a unit needs at least 1 row")
    bits = np.uint64(max(n_rows - 1, 0).bit_length())
    keyed = (
        sorting.records(owners.view(np.uint64) << bits | rows.view(np.uint64), units)
        for rows, units, owners in pairs
    )
    limit, budget = (n_units + 1) << int(bits), min(sorting.BUDGET, sorting.BLOCK)
    kept = np.ones(n_rows, dtype=np.bool_)
    room = np.array(np.broadcast_to(cap, n_units), dtype=np.int64)
    begun: list[np.ndarray] = []  # pairs of one row that has more than a block of them
    for block in sorting.sorted_blocks(keyed, limit, count, sorting.scratch(folder), budget):
        begun.append(block)
        if sum(map(len, begun)) < int(block[0, 0] >> bits):
            continue
        whole, begun = np.concatenate(begun), []
        keys = np.ascontiguousarray(whole[:, 0])
        starts = np.flatnonzero(np.append(True, keys[1:] != keys[:-1]))
        rows = (keys[starts] & np.uint64((1 << int(bits)) - 1)).view(np.int64)
        kept[rows] = _with_room(np.ascontiguousarray(whole[:, 1]).view(np.int64), starts, room)
    return kept


def pairs_of(offsets: np.ndarray, rows: np.ndarray, n_rows: int) -> Iterator[Pairs]:
    """Yield the pairs of an incidence that is given by unit, as in `row_weights`: all at once."""
    yield (
        rows,
        np.repeat(np.arange(len(offsets) - 1), np.diff(offsets)),
        np.bincount(rows, minlength=n_rows)[rows],
    )


def _with_room(units: np.ndarray, starts: np.ndarray, room: np.ndarray) -> np.ndarray:
    """Say of each row whether all its owners have room for it and those kept before it; take that off their room.

    Most rows are decided together: an owner without room refuses all of its rows, and one whose rows here are no more
    than its room refuses none. The others are taken one by one.

    Args:
        units: int64[n], the owners of one row after the other.
        starts: where each row starts in `units`.
        room: int64[N], how many more rows each unit may have; changed.
    """
    taken = np.minimum.reduceat(room[units], starts) > 0
    of_row = np.repeat(np.arange(len(starts)), np.diff(starts, append=len(units)))
    alive = taken[of_row]
    of_row = of_row[alive]
    present, local = np.unique(units[alive], return_inverse=True)
    scarce = (np.bincount(local, minlength=len(present)) > room[present])[local]
    own, row = local[scarce].tolist(), of_row[scarce]
    begins = np.flatnonzero(np.diff(row, prepend=-1))
    ends = begins + np.diff(begins, append=len(row))
    left = room[present].tolist()
    for number, first, last in zip(row[begins].tolist(), begins.tolist(), ends.tolist(), strict=True):
        if all(left[unit] for unit in own[first:last]):
            for unit in own[first:last]:
                left[unit] -= 1
        else:
            taken[number] = False
    room[present] -= np.bincount(local[taken[of_row]], minlength=len(present))
    return taken
