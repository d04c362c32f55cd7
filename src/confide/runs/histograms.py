"""Histograms that a run releases with its model, as their files: counted once, and the same each time it releases."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from confide.data import conditions as conditions_of
from confide.data import lengths as lengths_of
from confide.data.conditions import Conditions, Counted
from confide.data.lengths import BOUNDS, Lengths
from confide.data.unit_graph import UnitGraph
from confide.privacy.mechanisms.base import Mechanism
from confide.randomness.streams import RunKey
from confide.utils.files import write_text

if TYPE_CHECKING:
    from confide.config.data_section import Data

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


def header(mechanism: Mechanism, data: "Data", key: RunKey) -> dict[str, Any]:
    """Return what a run's ledger is bound to: how the histograms are made, and the list of conditions."""
    found: dict[str, Any] = (
        {} if mechanism.histograms is None else {"histograms": asdict(mechanism.histograms)}
    )
    listed = Conditions.of(data)
    if listed is not None:
        found["conditions"] = key.fingerprint(json.dumps(listed.to_json()).encode())
    return found


def doubts(release: Path) -> list[str]:
    """Return what is to be said of the counts of a release that may be noise alone."""
    found = [
        listed.doubt() for listed in (Conditions.load(release), Lengths.load(release)) if listed is not None
    ]
    return [doubt for doubt in found if doubt]


def write(folder: Path, conditions: Conditions | None, lengths: Lengths | None) -> None:
    """Write them into a release."""
    for name, found in ((conditions_of.FILE, conditions), (lengths_of.FILE, lengths)):
        if found is not None:
            write_text(folder / name, json.dumps(found.to_json(), indent=1) + "\n")
