"""The files of a unit graph: their names, the header that lists them, and how they are mapped."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from confide.data import sorting
from confide.utils.errors import InputError

FORMAT, VERSION = "confide unit graph", 1
META = "meta.json"
ARRAYS = (
    "tokens",
    "row_offsets",
    "unit_rows",
    "unit_offsets",
    "owners",
    "owner_offsets",
    "names",
    "name_offsets",
    "labels",
    "documents",
)


def read_header(folder: Path) -> dict[str, Any]:
    """Read the header of a graph. Raises InputError if there is none, or it is of another kind or version."""
    path = folder / META
    try:
        header = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{folder} is not a unit graph: {META} cannot be read there") from error
    except ValueError as error:
        raise InputError(f"{path} is damaged: prepare the data again") from error
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise InputError(f"{folder} is not a unit graph: its {META} is of another kind")
    if header.get("version") != VERSION:
        raise InputError(
            f"{folder} is a unit graph of version {header.get('version')}, and this confide reads "
            f"version {VERSION}: prepare the data again"
        )
    return header


def map_array(folder: Path, name: str, entry: dict[str, Any]) -> np.ndarray:
    """Map one array of a graph into memory. Raises InputError if the file has not the size that was written."""
    path = folder / f"{name}.bin"
    dtype = np.dtype(entry["type"])
    expected = dtype.itemsize * entry["length"]
    size = path.stat().st_size if path.exists() else 0
    if size != expected:
        raise InputError(f"{path} has {size} bytes where {expected} were written: prepare the data again")
    # A plain array over the map: slicing a memmap object costs ten times as much.
    return np.asarray(np.memmap(path, dtype=dtype, mode="r"))


def differences(folder: Path, name: str) -> Iterator[np.ndarray]:
    """Yield how far each of an array of offsets lies from the one before, int64, a block at a time.

    The file is read, not mapped: the system counts mapped pages as memory of the process.
    """
    with open(folder / f"{name}.bin", "rb") as file:
        last = np.fromfile(file, "<i8", 1)
        while len(some := np.fromfile(file, "<i8", sorting.BLOCK)):
            yield np.diff(some, prepend=last)
            last = some[-1:]
