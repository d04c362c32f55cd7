"""From the units of each row to the rows of each unit, in bounded memory: the half of a unit graph that is sorted."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from confide.data import sorting
from confide.utils.errors import InputError

Pairs = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Rows, units, and how many units each of the rows has: int64[n] each."""


def incidences(
    owners: Path, owner_offsets: Path | None, rows: int, block: int | None = None
) -> Iterator[Pairs]:
    """Yield all pairs of a row and one of its units by row.

    The files are read, not mapped: the system counts mapped pages as memory of the process.

    Args:
        owners: the units of row 0, then of row 1, ...: int64.
        owner_offsets: where each row starts in `owners`, int64[rows + 1]; None if each row has one unit.
        block: pairs at a time; default: that of `sorting`.
    """
    block = sorting.BLOCK if block is None else block
    with open(owners, "rb") as file:
        if owner_offsets is None:
            for first in range(0, rows, block):
                units = np.fromfile(file, "<i8", min(block, rows - first))
                yield np.arange(first, first + len(units)), units, np.ones(len(units), dtype=np.int64)
            return
        with open(owner_offsets, "rb") as starts:
            begin = np.fromfile(starts, "<i8", 1)
            for first in range(0, rows, block):
                ends = np.concatenate([begin, np.fromfile(starts, "<i8", min(block, rows - first))])
                begin = ends[-1:]
                numbers = np.arange(first, first + len(ends) - 1)
                for low in range(int(ends[0]), int(begin[0]), block):  # rows may have any number of units
                    high = min(low + block, int(begin[0]))
                    within = np.diff(np.clip(ends, low, high))
                    units = np.fromfile(file, "<i8", high - low)
                    yield np.repeat(numbers, within), units, np.repeat(np.diff(ends), within)


def write_by_unit(
    folder: Path, owners: Path, owner_offsets: Path | None, rows: int, pairs: int, units: int
) -> tuple[Path, Path]:
    """Write `unit_rows.bin` and `unit_offsets.bin` into `folder`, and return their paths.

    Pairs of a unit and a row are sorted as one number each. No pair occurs twice, and each unit has a row.

    Args:
        owners, owner_offsets, rows: as for `incidences`.
        pairs: the number of incidences.
        units: N.

    Raises:
        InputError: a pair of numbers needs more than 64 bits.
    """
    bits = (rows - 1).bit_length()
    if (units - 1).bit_length() + bits > 64:
        raise InputError(f"{rows:,} rows and {units:,} units are more than a unit graph can hold")
    mask, shift = np.uint64((1 << bits) - 1), np.uint64(bits)

    def keyed() -> Iterator[np.ndarray]:
        for row, unit, _ in incidences(owners, owner_offsets, rows):
            yield sorting.records(unit.view(np.uint64) << shift | row.view(np.uint64))

    done = met = 0  # pairs written, and units begun
    last = -1
    paths = folder / "unit_rows.bin", folder / "unit_offsets.bin"
    with open(paths[0], "wb") as by_unit, open(paths[1], "wb") as offsets:
        for block in sorting.sorted_blocks(keyed(), units << bits, pairs, folder):
            keys = block[:, 0]
            of_unit = (keys >> shift).astype(np.int64)
            begins = np.flatnonzero(np.diff(of_unit, prepend=last))
            offsets.write((done + begins).astype("<i8").data)
            by_unit.write((keys & mask).astype("<i8").data)
            done, met, last = done + len(keys), met + len(begins), int(of_unit[-1])
        offsets.write(np.array([done], "<i8").data)
    if (done, met) != (pairs, units):
        raise AssertionError(f"sorted {done} pairs of {met} units, not {pairs} of {units}")
    return paths
