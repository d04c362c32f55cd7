"""Experiments that anyone can repeat, one file each: `confide study NAME`."""

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from confide.utils.errors import InputError

_REGISTRY = {
    "user-level": "confide.studies.user_level",
    "enron-cleaning": "confide.studies.enron_cleaning",
    "secret-protection": "confide.studies.secret_protection",
    "selective": "confide.studies.selective",
    "concentration": "confide.studies.concentration",
    "adaptive": "confide.studies.adaptive",
    "exposure": "confide.studies.exposure",
    "extraction": "confide.studies.extraction",
    "user-inference": "confide.studies.user_inference",
    "recipe": "confide.studies.recipe",
    "suggestion": "confide.studies.suggestion",
}
_WITHOUT_DATA = {
    "mean-estimation": "confide.studies.mean_estimation",
    "noise-variance": "confide.studies.noise_variance",
}
NAMES = (*_REGISTRY, *_WITHOUT_DATA)


def run(name: str, data: Path | None, folder: Path) -> dict[str, Any]:
    """Run a study in `folder`: its facts, and a Markdown table.

    Args:
        data: the folder of public data sets; None for a study that makes its own numbers.

    Raises:
        InputError: no such study, data missing, or data for a study that reads none.
    """
    if name not in NAMES:
        raise InputError(f"{name!r} is not a study; there are {', '.join(NAMES)}")
    if name in _WITHOUT_DATA:
        if data is not None:
            raise InputError(f"DATA: study {name} reads no data; leave {data} out")
        alone: Callable[[Path], dict[str, Any]] = import_module(_WITHOUT_DATA[name]).run
        return alone(folder)
    if data is None:
        raise InputError(f"DATA: study {name} needs the folder that holds the public data sets")
    on_data: Callable[[Path, Path], dict[str, Any]] = import_module(_REGISTRY[name]).run
    return on_data(data, folder)
