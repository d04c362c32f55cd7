"""What a config may name, and the class that answers to each name.

To add a mechanism or a task: write its file, add its line.

The names stand below the classes, as entry points of packages do: a config is read, and its faults are told, without
importing any class but the one that it names.
"""

from importlib import import_module
from typing import Any

from confide.config.task_facts import TaskFacts

MECHANISMS = {
    "none": "confide.privacy.mechanisms.none:NonPrivate",
    "dp-sgd": "confide.privacy.mechanisms.dp_sgd:DPSGD",
    "uls": "confide.privacy.mechanisms.uls:UserLevelSampling",
    "els": "confide.privacy.mechanisms.els:ExampleLevelSampling",
    "group": "confide.privacy.mechanisms.group:GroupPrivacy",
    "owners": "confide.privacy.mechanisms.owners:Owners",
    "concentration": "confide.privacy.mechanisms.concentration:Concentration",
    "adaptive": "confide.privacy.mechanisms.adaptive:AdaptiveNoise",
    "secret": "confide.privacy.mechanisms.secret:SecretProtection",
    "selective": "confide.privacy.mechanisms.selective:Selective",
    "redacted": "confide.privacy.mechanisms.redacted:RedactedOnly",
    "crt": "confide.privacy.mechanisms.crt:ConfidentiallyRedacted",
}
TASKS = {
    "causal-lm": "confide.training.tasks.causal_lm:CausalLM",
    "masked-lm": "confide.training.tasks.masked_lm:MaskedLM",
    "classification": "confide.training.tasks.classification:Classification",
}

SPECIAL_KEYS = (
    "secrets",
    "detector",
    "redacted",
    "adaptive",
    "privacy.accountant",
    "privacy.bounding",
    "privacy.tau",
)
"""Keys and sections that only those mechanisms read that list them in `reads`; under another they are refused. A new
mechanism has a section of its own (`Settings`) and adds nothing here."""


def section(mechanism: str) -> str:
    """The key of the config section that holds a mechanism's own settings."""
    return mechanism.replace("-", "_")


def mechanism(name: str) -> Any:
    """The class behind a mechanism's name, one of MECHANISMS."""
    return _named(MECHANISMS[name])


def task(name: str) -> Any:
    """The class behind a task's name, one of TASKS."""
    return _named(TASKS[name])


def task_facts(name: str) -> TaskFacts:
    """What is asked of a task without a model, by its name, one of TASKS."""
    facts: TaskFacts = task(name).facts
    return facts


def _named(place: str) -> Any:
    module, _, attribute = place.partition(":")
    return getattr(import_module(module), attribute)
