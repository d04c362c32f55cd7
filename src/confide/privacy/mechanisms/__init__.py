"""The mechanisms, one file each. To add one: write its file, add its line in `confide.config.registry`.

A mechanism is a frozen value (`base.Mechanism`). Loop, planner, audits and claims ask it, and never look at its name.
"""

from typing import TYPE_CHECKING

from confide.config import registry
from confide.utils.errors import InputError

if TYPE_CHECKING:
    from confide.config.schema import Config
    from confide.privacy.mechanisms.base import Mechanism
    from confide.privacy.mechanisms.values import DataNeeds

NAMES = tuple(registry.MECHANISMS)


def find(name: str) -> "type[Mechanism]":
    """Return the mechanism class that a name of the config stands for.

    Raises:
        InputError: there is no such mechanism.
    """
    if name not in registry.MECHANISMS:
        raise InputError(f"privacy.mechanism: {name!r} is not one of {', '.join(NAMES)}")
    found: type[Mechanism] = registry.mechanism(name)
    return found


def build(config: "Config") -> "Mechanism":
    """Build the mechanism that a config describes."""
    return find(config.privacy.mechanism).from_config(config)


def needs_of(config: "Config") -> "DataNeeds":
    """Return the data needs of the mechanism that a config names."""
    return find(config.privacy.mechanism).needs


def family(mechanism: "Mechanism") -> tuple[str, ...]:
    """Return the names of all mechanisms that protect the same unit by other means.

    The mechanism's own name is among them. The result is () if it belongs to no family.
    """
    if not mechanism.family:
        return ()
    return tuple(name for name in NAMES if find(name).family == mechanism.family)
