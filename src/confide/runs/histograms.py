"""Histograms that a run releases with its model, as their files: counted once, and the same each time it releases."""

import json
from pathlib import Path

from confide.data import conditions as conditions_of
from confide.data import lengths as lengths_of
from confide.data.conditions import Conditions, Counted
from confide.data.lengths import BOUNDS, Lengths
from confide.data.unit_graph import UnitGraph
from confide.privacy.mechanisms.base import Mechanism
from confide.randomness.streams import RunKey
from confide.utils.files import write_text

UNITS = {"units": "user", "rows": "row"}
"""What a unit is, by what a step draws."""


def counted(
    mechanism: Mechanism, graph: UnitGraph, key: RunKey, conditions: Conditions | None
) -> tuple[Conditions | None, Lengths | None]:
    """Return the list of conditions with the shares that are released, and the lengths if they are counted.

    The key is bound to the config, the data and the base model, and the noise follows from it. So a run that releases
    again, or ended and goes on, gives away nothing new.
    """
    asked = mechanism.histograms
    if asked is None:
        return conditions, None
    size = 0 if conditions is None else len(conditions.listed)
    found = {
        name: Counted(UNITS[mechanism.draws], asked.deviation, counts)
        for name, counts in asked.released(graph, size, mechanism.draws == "units", key).items()
    }
    if conditions is not None and "conditions" in found:
        conditions = conditions.with_counts(found["conditions"])
    return conditions, Lengths(BOUNDS, found["lengths"]) if "lengths" in found else None


def write(folder: Path, conditions: Conditions | None, lengths: Lengths | None) -> None:
    """Write them into a release."""
    for name, found in ((conditions_of.FILE, conditions), (lengths_of.FILE, lengths)):
        if found is not None:
            write_text(folder / name, json.dumps(found.to_json(), indent=1) + "\n")
