"""Files that are complete or absent, and on disk once a call says so."""

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from confide.utils.errors import InputError


def sync(path: Path) -> None:
    """Wait until a file or folder entry is on disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def private_files() -> Iterator[None]:
    """Create files for their owner alone within the block: files get mode 600, folders 700."""
    before = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(before)


def close_to_others(path: Path) -> None:
    """Remove the permissions of group and others from a file or folder, not from a folder's contents.

    Raises:
        InputError: they have permissions, and the file belongs to another user.
    """
    mode = stat.S_IMODE(path.stat().st_mode)
    if not mode & 0o077:
        return
    try:
        path.chmod(mode & 0o700)
    except PermissionError:
        raise InputError(
            f"{path} can be read by others (mode {mode:o}) and belongs to another user: choose another `run` folder"
        ) from None


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Yield a path to write that becomes `path` in one go: a reader finds the old file or the new one."""
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
