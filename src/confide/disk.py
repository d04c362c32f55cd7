"""Files that are whole or not there, and on disk when we say so."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def sync(path: Path) -> None:
    """Wait until a file or folder entry is on disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A path to write that becomes `path` in one go: a reader finds the old file or the new one."""
    building = path.with_name(f".{path.name}.new")
    try:
        yield building
        sync(building)
        building.rename(path)
    except BaseException:
        building.unlink(missing_ok=True)
        raise


def write_text(path: Path, text: str) -> None:
    """Write a file in one go."""
    with whole_file(path) as building:
        building.write_text(text, "utf-8")
