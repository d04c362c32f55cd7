"""The mechanisms, one file each. To add one: write its file, add its line in `confide.config.registry`.

A mechanism is a frozen value that answers five questions (`base.Mechanism`): who is protected, which rows
may a unit contribute, what does a step draw, how is it combined, what does that guarantee. The loop, the
planner and the claims ask those and never a name.
"""

from typing import TYPE_CHECKING

from confide.config import registry
from confide.utils.errors import InputError

if TYPE_CHECKING:
    from confide.config.schema import Config
    from confide.privacy.mechanisms.base import Mechanism

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
