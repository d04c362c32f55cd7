"""What `confide plan --suggest` sets, for studies that train it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from confide.config.loading import check
from confide.models import loading as models
from confide.planning import rates
from confide.planning.cost import Size
from confide.planning.progress import COMMON_TOKENS, SCALED
from confide.planning.suggest import suggest
from confide.runs.folder import Run
from confide.runs.preparation import prepared_data
from studies.runner.grid import Keys
from studies.runner.study import Work

SEARCHED, SUGGESTED = "best of the search", "suggested"
K, STEPS, RATE, EPSILON = "privacy.rows_per_unit", "train.steps", "train.learning_rate", "privacy.epsilon"
BANDS, SAMPLING, SCALES = "privacy.bands", "privacy.sampling", "privacy.scales"
COMMON = "privacy.common_tokens"
NOISE = "noise"
"""What a search tries as well; the config of a run has bands."""
INDEPENDENT, CORRELATED = "independent", "correlated"
CORRELATED_SCALED = "correlated, with scales"
FASTER = 2
"""What the rates of correlated noise are over those of independent noise, since less noise stays in the weights."""


DEALT = 4
"""Steps an epoch from which on users are dealt into bins: of fewer, rounding changes the rows of a step too much."""


def correlated(count: int, keys: Keys, noise: str = CORRELATED) -> Keys:
    """Return the keys of a run with noise that is correlated over as many steps as its users allow, if over any.

    Args:
        count: users there are. Each keeps a step of an epoch; where an epoch has few, steps draw from groups in turn.
        noise: `CORRELATED`, or `CORRELATED_SCALED`.
    """
    epoch = count / keys["train.batch"]
    in_bins = epoch >= DEALT
    bands = min(keys[STEPS], round(epoch) if in_bins else int(epoch))
    if bands < 2:
        return dict(keys)
    found = {**keys, BANDS: bands, RATE: FASTER * keys[RATE]}
    if in_bins:
        found[SAMPLING] = "bins"
    if noise == CORRELATED_SCALED:
        found |= {SCALES: dict(SCALED), COMMON: COMMON_TOKENS}
    return found


def as_suggested(chosen: Mapping[float, Keys], keys: Keys) -> Keys:
    """Return a run's keys with those that the suggestion for its epsilon sets."""
    return {**keys, **chosen[keys[EPSILON]]}


class Suggestions(NamedTuple):
    """What `plan --suggest` says of a text.

    Attributes:
        units: there are to train on.
        chosen: by epsilon, the keys that the first suggestion sets.
        weights: that train.
        higher: the rates of what trains, over those of whole weights.
    """

    units: int
    chosen: dict[float, Keys]
    weights: int
    higher: float


def suggested(work: Work, raw: dict[str, Any], epsilons: Sequence[float], rows: float) -> Suggestions:
    """Ask the planner what it suggests at each epsilon.

    Args:
        raw: a config without an epsilon. Its run folder gets the prepared data.
        rows: computed in all.
    """

    def at(epsilon: float) -> dict[str, Any]:
        return raw | {"privacy": raw["privacy"] | {"epsilon": epsilon}}

    starts = {epsilon: check(at(epsilon), "a study's suggestion") for epsilon in epsilons}
    first = next(iter(starts.values()))  # they have the same data
    tokenizer = models.load_tokenizer(first)
    prepared = prepared_data(Run(first), tokenizer, work.console)
    shape = prepared.train.shape()
    weights = Size.of(models.load_model(first, prepared.classes, len(tokenizer)))
    found: dict[float, Keys] = {
        epsilon: dict(suggest(start, shape, weights, rows, count=1)["ranked"][0]["settings"])
        for epsilon, start in starts.items()
    }
    return Suggestions(shape.units, found, weights.trainable, rates.higher(first, weights))


def written(settings: str) -> str:
    """Write in words what a search or a suggestion has chosen.

    Args:
        settings: the column of a row, in JSON.
    """
    found = json.loads(settings)
    said = f"{found[STEPS]} step{'s' * (found[STEPS] != 1)}"
    if "train.batch" in found:
        said += f" of {found['train.batch']:g} users"
    if K in found:
        said += f", {found[K]} row{'s' * (found[K] != 1)} of each"
    is_correlated = found.get(NOISE) in (CORRELATED, CORRELATED_SCALED)
    if RATE in found:
        said += f", rate {(FASTER if is_correlated else 1) * found[RATE]:g}"
    if found.get(SAMPLING) == "bins":
        said += ", each once an epoch"
    if is_correlated:
        said += ", correlated noise"
    if found.get(NOISE) == CORRELATED_SCALED or found.get(SCALES):
        said += ", scales"
    if found.get(BANDS, 1) > 1:
        said += f", noise correlated over {found[BANDS]} steps"
    mechanism = found.get("privacy.mechanism")
    return f"{mechanism}: {said}" if mechanism else said
