"""Sorting of more records than fit in memory.

A record is one or two 64-bit words: its key, and what comes along with it. Records are dealt by the leading bits of
their keys to files of a temporary folder, each file is sorted in memory, and a file that is too large is dealt again.
So memory is bounded by `budget`, whatever the keys are, and time is linear in the number of records.
"""

import os
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from io import RawIOBase
from pathlib import Path

import numpy as np

from confide.utils.errors import InputError

BUDGET = 1 << 22  # records sorted in memory at a time
BLOCK = 1 << 20  # records read or dealt at a time
_FILES = 256  # open at a time, at most; the number of a file then fits in a byte


def records(keys: np.ndarray, values: np.ndarray | None = None) -> np.ndarray:
    """Return records of these keys, and of these 64-bit values if there are any: uint64[n, 1] or uint64[n, 2]."""
    columns = (keys,) if values is None else (keys, values)
    made = np.empty((len(keys), len(columns)), dtype=np.uint64)
    for place, column in enumerate(columns):
        made[:, place] = column.view(np.uint64)
    return made


def sorted_blocks(
    blocks: Iterable[np.ndarray], limit: int, count: int, folder: Path, budget: int | None = None
) -> Iterator[np.ndarray]:
    """Yield all records by ascending key, in blocks; records of one key stay in the order in which they came.

    Args:
        blocks: `records`, a bounded number at a time.
        limit: all keys are below it; at most 2^64.
        count: the number of records.
        folder: where files are made while records do not fit in memory; they are gone when the iterator is closed.
        budget: records that are sorted in memory; default: `BUDGET`.

    Raises:
        InputError: the disk is full, or the folder cannot be written.
    """
    budget = BUDGET if budget is None else budget
    if count <= budget:
        together = [block for block in blocks if len(block)]
        if together:
            yield _in_order(together.pop() if len(together) == 1 else np.concatenate(together))
        return
    try:
        with tempfile.TemporaryDirectory(prefix=".sorting-", dir=folder) as place:
            yield from _dealt(blocks, 0, limit, count, Path(place), budget)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise InputError(f"{folder}: {count:,} records cannot be sorted there: {reason}") from error


def scratch(folder: Path | None) -> Path:
    """Return where to sort what belongs to a folder: in it, or in the system's temporary folder if it is read-only."""
    return folder if folder is not None and os.access(folder, os.W_OK) else Path(tempfile.gettempdir())


def _dealt(
    blocks: Iterable[np.ndarray], low: int, high: int, count: int, folder: Path, budget: int
) -> Iterator[np.ndarray]:
    """Yield records whose keys lie in [low, high) by ascending key: more of them than fit in memory."""
    if high - low == 1:
        yield from blocks
        return
    wanted = min(_FILES, 2 * -(-count // budget))
    shift = max(0, (high - low - 1).bit_length() - (wanted - 1).bit_length())
    files = ((high - low - 1) >> shift) + 1
    paths = [folder / f"{place}.bin" for place in range(files)]
    counts = np.zeros(files, dtype=np.int64)
    columns = 1
    with ExitStack() as stack:
        # Without a buffer of their own: a block already gives each file many records at once.
        opened = [stack.enter_context(open(path, "wb", buffering=0)) for path in paths]
        for block in blocks:
            columns = block.shape[1]
            of_file = ((block[:, 0] - np.uint64(low)) >> np.uint64(shift)).astype(np.uint8)
            grouped = np.take(block, np.argsort(of_file, kind="stable"), axis=0)
            sizes = np.bincount(of_file, minlength=files)
            ends = np.cumsum(sizes)
            for place in np.flatnonzero(sizes).tolist():
                _write(opened[place], grouped[ends[place] - sizes[place] : ends[place]])
            counts += sizes
    for place, (path, own) in enumerate(zip(paths, counts.tolist(), strict=True)):
        if own > budget:
            first = low + (place << shift)
            inner = folder / str(place)
            inner.mkdir()
            last = min(high, first + (1 << shift))
            yield from _dealt(_read(path, columns), first, last, own, inner, budget)
            inner.rmdir()
        elif own:
            yield _in_order(np.fromfile(path, dtype=np.uint64).reshape(-1, columns))
        path.unlink()


def _write(file: RawIOBase, part: np.ndarray) -> None:
    left = part.reshape(-1).view(np.uint8).data
    while len(left):  # a file without a buffer may take less than it is given
        left = left[file.write(left) :]


def _read(path: Path, columns: int) -> Iterator[np.ndarray]:
    with open(path, "rb") as file:
        while len(block := np.fromfile(file, dtype=np.uint64, count=BLOCK * columns)):
            yield block.reshape(-1, columns)


def _in_order(block: np.ndarray) -> np.ndarray:
    if block.shape[1] == 1:  # equal records cannot be told apart, so the faster sort does
        block.sort(axis=0)
        return block
    return np.take(block, np.argsort(block[:, 0], kind="stable"), axis=0)
