"""What `confide plan --suggest` sets, for studies that train it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from confide.config.loading import check
from confide.models import loading as models
from confide.planning.cost import Size
from confide.planning.suggest import suggest
from confide.runs.folder import Run
from confide.runs.preparation import prepared_data
from studies.runner.grid import Keys
from studies.runner.study import Work

SEARCHED, SUGGESTED = "best of the search", "suggested"
K, STEPS, RATE, EPSILON = "privacy.rows_per_unit", "train.steps", "train.learning_rate", "privacy.epsilon"


def as_suggested(chosen: Mapping[float, Keys], keys: Keys) -> Keys:
    """Return a run's keys with those that the suggestion for its epsilon sets."""
    return {**keys, **chosen[keys[EPSILON]]}


def suggested(
    work: Work, raw: dict[str, Any], epsilons: Sequence[float], rows: float
) -> tuple[int, dict[float, Keys]]:
    """Return the number of units, and the keys that the first suggestion sets, by epsilon.

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
    return shape.units, found
