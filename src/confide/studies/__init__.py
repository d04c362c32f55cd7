"""Experiments that anyone can repeat, one file each: `confide study NAME`."""

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from confide.errors import InputError

_REGISTRY = {
    "user-level": "confide.studies.user_level",
    "enron-cleaning": "confide.studies.enron_cleaning",
    "secret-protection": "confide.studies.secret_protection",
    "selective": "confide.studies.selective",
}
NAMES = tuple(_REGISTRY)


def find(name: str) -> Callable[[Path, Path], dict[str, Any]]:
    """The `run(data, folder)` of a study: works in `folder`, returns facts and a Markdown table.

    Raises:
        InputError: no such study.
    """
    if name not in _REGISTRY:
        raise InputError(f"{name!r} is not a study; there are {', '.join(NAMES)}")
    run: Callable[[Path, Path], dict[str, Any]] = import_module(_REGISTRY[name]).run
    return run
