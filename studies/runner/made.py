"""Make a folder in one go, though another process may be making the same one."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Callable
from pathlib import Path


def made(folder: Path, make: Callable[[Path], None]) -> Path:
    """Return a folder that `make` has written, now or before.

    Two studies may work in one place and want the same text: who comes second keeps what the first one made.
    """
    if not folder.exists():
        building = folder.with_name(f".{folder.name}.{uuid.uuid4().hex}.new")
        building.mkdir(parents=True)
        try:
            make(building)
            building.rename(folder)
        except OSError:
            if not folder.exists():
                raise
        finally:
            shutil.rmtree(building, ignore_errors=True)
    return folder
