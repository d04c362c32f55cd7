"""What a config may name, and the class that answers to each name. To add a mechanism: write its file, add its line.

The names stand below the classes, as entry points of packages do: a config is read, and its faults are told, without
importing any class but the one that it names.
"""

from importlib import import_module
from typing import Any

MECHANISMS = {
    "none": "confide.privacy.mechanisms.none:NonPrivate",
    "adaptive": "confide.privacy.mechanisms.adaptive:AdaptiveNoise",
    "concentration": "confide.privacy.mechanisms.concentration:Concentration",
    "dp-sgd": "confide.privacy.mechanisms.dp_sgd:DPSGD",
    "uls": "confide.privacy.mechanisms.uls:UserLevelSampling",
    "els": "confide.privacy.mechanisms.els:ExampleLevelSampling",
    "group": "confide.privacy.mechanisms.group:GroupPrivacy",
    "owners": "confide.privacy.mechanisms.owners:Owners",
    "redacted": "confide.privacy.mechanisms.redacted:RedactedOnly",
    "secret": "confide.privacy.mechanisms.secret:SecretProtection",
    "selective": "confide.privacy.mechanisms.selective:Selective",
    "crt": "confide.privacy.mechanisms.crt:ConfidentiallyRedacted",
}


def section(mechanism: str) -> str:
    """The key of the config section that holds a mechanism's own settings."""
    return mechanism.replace("-", "_")


def mechanism(name: str) -> Any:
    """The class behind a mechanism's name, one of MECHANISMS."""
    module, _, attribute = MECHANISMS[name].partition(":")
    return getattr(import_module(module), attribute)
