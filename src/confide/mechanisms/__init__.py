"""The mechanisms, one file each. To add one: write its file, add its line here.

A mechanism is a frozen value that answers five questions (`base.Mechanism`): who is protected, which rows
may a unit contribute, what does a step draw, how is it combined, what does that guarantee. The loop, the
planner and the claims ask those and never a name.
"""

from collections.abc import Iterator
from importlib import import_module
from typing import TYPE_CHECKING

from confide.errors import InputError
from confide.yaml_text import shown

if TYPE_CHECKING:
    from confide.mechanisms.base import Mechanism
    from confide.settings import Config

_REGISTRY = {
    "none": "confide.mechanisms.none:NonPrivate",
    "adaptive": "confide.mechanisms.adaptive:AdaptiveNoise",
    "concentration": "confide.mechanisms.concentration:Concentration",
    "dp-sgd": "confide.mechanisms.dp_sgd:DPSGD",
    "group": "confide.mechanisms.group:GroupPrivacy",
    "els": "confide.mechanisms.els:ExampleLevelSampling",
    "owners": "confide.mechanisms.owners:Owners",
    "redacted": "confide.mechanisms.redacted:RedactedOnly",
    "secret": "confide.mechanisms.secret:SecretProtection",
    "selective": "confide.mechanisms.selective:Selective",
    "uls": "confide.mechanisms.uls:UserLevelSampling",
    "crt": "confide.mechanisms.crt:ConfidentiallyRedacted",
}
NAMES = tuple(_REGISTRY)


def find(name: str) -> "type[Mechanism]":
    """The class behind a name of the config.

    Raises:
        InputError: no such mechanism.
    """
    if name not in _REGISTRY:
        raise InputError(f"privacy.mechanism: {name!r} is not one of {', '.join(NAMES)}")
    module, _, attribute = _REGISTRY[name].partition(":")
    found: type[Mechanism] = getattr(import_module(module), attribute)
    return found


def build(config: "Config") -> "Mechanism":
    """The mechanism that a config describes."""
    return find(config.privacy.mechanism).from_config(config)


def faults(config: "Config") -> Iterator[tuple[str, str]]:
    """(key, sentence) for each impossible combination of privacy settings."""
    try:
        mechanism = find(config.privacy.mechanism)
    except InputError:
        import difflib

        near = difflib.get_close_matches(config.privacy.mechanism[:99], NAMES, 1, 0.4)
        hint = f", did you mean {near[0]}?" if near else ""
        yield "privacy.mechanism", f"{shown(config.privacy.mechanism)} is not one of {', '.join(NAMES)}{hint}"
        return
    yield from mechanism.faults(config)
    yield from _foreign(config)


def _foreign(config: "Config") -> Iterator[tuple[str, str]]:
    """Settings of another mechanism, which would be read by nobody."""
    from confide.settings import Adaptive, Policy, Redacted, Secrets

    name, privacy = config.privacy.mechanism, config.privacy
    for key, owners, stated in (
        ("secrets", ("secret",), config.secrets != Secrets()),
        ("detector", ("selective", "redacted", "crt"), config.detector != Policy()),
        ("redacted", ("selective", "crt"), config.redacted != Redacted()),
        ("adaptive", ("adaptive",), config.adaptive != Adaptive()),
        ("privacy.accountant", ("secret",), privacy.accountant != "blow-up"),
        ("privacy.bounding", ("owners",), privacy.bounding != "greedy"),
        ("privacy.tau", ("concentration",), privacy.tau is not None),
    ):
        if stated and name not in owners:
            yield (
                key,
                f"is for mechanism {', '.join(owners)}, and this is {name}: remove it, or choose {owners[0]}",
            )
