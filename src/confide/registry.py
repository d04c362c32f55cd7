"""What a config may name, and the class that answers to each name. To add a mechanism: write its file, add its line.

The names stand below the classes, as entry points of packages do: a config is read, and its faults are told, without
importing any class but the one that it names.
"""

from importlib import import_module
from typing import Any

MECHANISMS = {
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


def mechanism(name: str) -> Any:
    """The class behind a mechanism's name, one of MECHANISMS."""
    module, _, attribute = MECHANISMS[name].partition(":")
    return getattr(import_module(module), attribute)
