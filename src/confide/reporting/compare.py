"""Compare runs: what each claims, and what it reached."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from confide.reporting.claim_lines import Table
from confide.reporting.facts import Facts, Measured
from confide.reporting.figures import Figure, compared
from confide.reporting.verdict import share_of_gain, strength, value_of
from confide.utils.errors import InputError
from confide.utils.rounding import at_least, at_most


@dataclass(frozen=True)
class Comparison:
    """Runs side by side.

    Attributes:
        rows: the facts of each, as JSON has them.
        sentences: what may and what may not be compared.
        figure: privacy against utility; None with fewer than two runs that were evaluated.
    """

    rows: Sequence[dict[str, Any]]
    sentences: Sequence[str]
    table: Table
    figure: Figure | None


def compare(runs: Sequence[Facts]) -> Comparison:
    """Compare runs that were read with what was measured.

    Raises:
        InputError: fewer than two runs.
    """
    if len(runs) < 2:
        raise InputError("give two runs or more to compare")
    names = _names(runs)
    key = _key(runs)
    head = (
        "run",
        "strength",
        "epsilon",
        "delta",
        "noise multiplier",
        "steps",
        f"held-out {key}",
        "share of the gain",
    )
    rows = [_row(name, run, key) for name, run in zip(names, runs, strict=True)]
    points = [
        (name, run.guarantee.epsilon, float(value))
        for name, run in zip(names, runs, strict=True)
        if 0 < run.guarantee.epsilon < math.inf and (value := _value(run, key)) is not None
    ]
    figure = compared(f"{key.capitalize()} by epsilon", "epsilon", key, points) if len(points) > 1 else None
    facts = [
        run.to_json() | {"run": name, "share_of_gain": share_of_gain(_of(run))}
        for name, run in zip(names, runs, strict=True)
    ]
    return Comparison(facts, _comparable(runs), Table(head, rows), figure)


def _names(runs: Sequence[Facts]) -> list[str]:
    """Return a name for each run; those that share one get a number."""
    names = [run.name for run in runs]
    return [name if names.count(name) == 1 else f"{name} ({place})" for place, name in enumerate(names, 1)]


def _of(run: Facts) -> Measured:
    if run.measured is None:
        raise AssertionError("a comparison needs what was measured")
    return run.measured


def _key(runs: Sequence[Facts]) -> str:
    """Return what the runs are compared by: what all of them measured, perplexity before accuracy before loss."""
    finals = [final for run in runs if (final := _of(run).evaluation("final")) is not None]
    return next(
        (key for key in ("perplexity", "accuracy") if finals and all(key in f for f in finals)), "loss"
    )


def _value(run: Facts, key: str) -> float | None:
    final = _of(run).evaluation("final")
    return None if final is None else final.get(key)


def _row(name: str, run: Facts, key: str) -> list[str]:
    guarantee, value, share = run.guarantee, _value(run, key), share_of_gain(_of(run))
    return [
        name,
        strength(guarantee),
        at_most(guarantee.epsilon),
        at_most(guarantee.delta, 3),
        at_least(guarantee.noise_multiplier, 4),
        f"{guarantee.steps:,}",
        "-" if value is None else value_of(key, value),
        "-" if share is None else f"{share:.0%}",
    ]


def _comparable(runs: Sequence[Facts]) -> list[str]:
    """Say what stands against a comparison of the epsilons and of the losses."""
    found = []
    for name, values in (
        ("protect different units", {run.guarantee.unit for run in runs}),
        ("compare different worlds", {run.guarantee.adjacency for run in runs}),
        ("are of different kinds", {run.guarantee.notion for run in runs}),
        ("are proved or estimated", {"proved" if run.guarantee.theorem else "estimated" for run in runs}),
    ):
        if len(values) > 1:
            found.append(
                f"The claims {name}: {'; '.join(sorted(values))}. Their epsilons cannot be compared."
            )
    if len({run.guarantee.delta for run in runs}) > 1:
        found.append(
            "The claims have different deltas. Compare epsilons at one delta, by the curves of the runs' pages."
        )
    if len({run.base for run in runs}) > 1:
        found.append("The base models differ, so a difference in utility is not the price of privacy alone.")
    same_rows = {str((_of(run).data or {}).get("eval")) for run in runs}
    if len(same_rows) > 1:
        found.append("The held-out text differs, so the figures of utility cannot be compared.")
    return found or ["All claims are of one kind, one unit and one delta. Their epsilons can be compared."]
