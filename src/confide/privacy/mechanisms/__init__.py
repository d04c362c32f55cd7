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
    """The class behind a name of the config.

    Raises:
        InputError: no such mechanism.
    """
    if name not in registry.MECHANISMS:
        raise InputError(f"privacy.mechanism: {name!r} is not one of {', '.join(NAMES)}")
    found: type[Mechanism] = registry.mechanism(name)
    return found


def build(config: "Config") -> "Mechanism":
    """The mechanism that a config describes."""
    return find(config.privacy.mechanism).from_config(config)


def needs_of(config: "Config") -> "DataNeeds":
    """The data needs of the mechanism that a config names."""
    return find(config.privacy.mechanism).needs


def family(mechanism: "Mechanism") -> tuple[str, ...]:
    """Names of the mechanisms that protect the same unit by other means, its own among them; () if it has none."""
    if not mechanism.family:
        return ()
    return tuple(name for name in NAMES if find(name).family == mechanism.family)
