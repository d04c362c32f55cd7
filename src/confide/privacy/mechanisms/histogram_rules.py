"""Rules for the histograms that are released with a model."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from confide.config import registry
from confide.config.schema import Histograms
from confide.data.conditions import SHARE

if TYPE_CHECKING:
    from confide.config.schema import Config
    from confide.privacy.mechanisms.base import Mechanism

_EXACT = ("poisson", "truncated", "shuffle")
"""The samplings whose replace-one process has a privacy loss distribution, with which a release composes exactly."""


def histogram_errors(mechanism: "type[Mechanism]", config: "Config") -> Iterator[tuple[str, str]]:
    """Yield (key, sentence) for each setting that does not go with histograms, or histograms that nothing accounts."""
    asked, data, privacy = config.privacy.histograms, config.data, config.privacy
    of = "privacy.histograms.of"
    if not asked.of:
        if asked.noise_multiplier != Histograms().noise_multiplier:
            yield (
                "privacy.histograms.noise_multiplier",
                "nothing is counted: say what, in privacy.histograms.of",
            )
        return
    yield from accounting_errors(mechanism, privacy.adjacency or mechanism.compares, privacy.sampling)
    if not mechanism.counts:
        return
    if len(set(asked.of)) < len(asked.of):
        yield of, "names one twice"
    if (
        not registry.task_facts(config.task).is_causal
        or data.messages is not None
        or data.completion is not None
    ):
        yield of, "are for a model that writes documents of data.text"
    if data.eval_within is not None:
        yield "data.eval_within", "holds out rows of documents, and privacy.histograms counts whole ones"
    if "conditions" in asked.of:
        yield from _of_conditions(config)
    if "lengths" in asked.of and mechanism.draws == "rows":
        yield (
            of,
            "lengths: a document's length is of all its rows, and one of them is protected here: use uls",
        )
    if config.canaries.count:
        yield (
            "canaries.count",
            "a canary that is not planted leaves an empty row, which privacy.histograms would count",
        )


def accounting_errors(
    mechanism: "type[Mechanism]", adjacency: str, sampling: str
) -> Iterator[tuple[str, str]]:
    """Yield (key, sentence) where histograms and steps cannot be accounted together."""
    if not mechanism.counts:
        yield "privacy.histograms.of", f"are counted under uls and dp-sgd, not under {mechanism.name}"
    elif adjacency == "replace-one" and sampling not in _EXACT:
        yield (
            "privacy.sampling",
            f"{sampling} under replace-one does not compose exactly with privacy.histograms: use poisson",
        )


def _of_conditions(config: "Config") -> Iterator[tuple[str, str]]:
    data = config.data
    if not data.condition:
        yield "privacy.histograms.of", "conditions: data.condition names none"
    entries = data.conditions if isinstance(data.conditions, list) else []
    if any(isinstance(entry, Mapping) and SHARE in entry for entry in entries):
        yield "data.conditions", "states a share, and privacy.histograms counts the shares: leave it out"
