"""What is known of a base model's past: an earlier run that moved it, whose claim adds up with this run's."""

import json
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from torch import nn

from confide.models.names import location
from confide.privacy.strength import TAUGHT
from confide.utils.rounding import at_most

_MOVED: WeakKeyDictionary[nn.Module, bytes] = WeakKeyDictionary()
"""Models that a run of this process moves, with the digest of the weights that they had before."""


def note(model: nn.Module, base: bytes) -> None:
    """Remember that a run moves a model, and the digest of the weights that it has before."""
    _MOVED.setdefault(model, base)


def earlier_run(model: nn.Module, base: bytes, name: str) -> str | None:
    """Say what an earlier private run, if any, made of a model; None if nothing is known of one.

    A run of this process is known, and one whose `guarantee.json` lies beside the weights.

    Args:
        base: the digest of its weights now. A model that has the weights of before again has no past.
        name: of the model in the config.
    """
    if _MOVED.get(model, base) != base:
        return _sentence("of this program")
    for place in (name, getattr(getattr(model, "config", None), "_name_or_path", "") or ""):
        claim = _claim(Path(location(place)) / "guarantee.json") if place else None
        if claim is not None:
            return _sentence(claim)
    return None


def _sentence(which: str) -> str:
    return f"{TAUGHT} ({which}): where it read text of the same people, what both tell of them adds up"


def _claim(path: Path) -> str | None:
    try:
        found: Any = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(found, dict) or "notion" not in found:
        return None
    if found["notion"] == "none":
        return "without privacy"
    epsilon, delta = found.get("epsilon"), found.get("delta")
    if not isinstance(epsilon, int | float) or not isinstance(delta, int | float):
        return str(found["notion"])
    return f"{found['notion']} with epsilon {at_most(epsilon)} at delta {at_most(delta)}"
