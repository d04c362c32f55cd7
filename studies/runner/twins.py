"""What training with privacy gains of what training without it gains, on the same draws and with settings of its own.

Studies that ask this have two grids: one whose arms are tuned with privacy, and which trains their twins with the same
settings; and one that tunes the twins for themselves, with as many trials.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import mean

from confide.training.metrics import gap_closed
from studies.runner import users
from studies.runner.findings import interval
from studies.runner.grid import NOTHING, Grid
from studies.runner.study import Row

EPSILON = "privacy.epsilon"
TUNED = ", tuned without privacy"


def with_twins(
    grid: Grid, epsilons: Sequence[float], tuned: Sequence[float], tunes_twins: bool = True
) -> list[Grid]:
    """Return a grid at some epsilons and without privacy, and one of arms that are tuned without privacy.

    Args:
        tunes_twins: False for the first alone.
    """
    bare = (math.inf,)
    arms = tuple(replace(arm, name=arm.name + TUNED) for arm in grid.arms)
    found = [replace(grid, at={EPSILON: (*epsilons, *bare)}, tuned_at={EPSILON: tuple(tuned)})]
    if tunes_twins:
        found.append(replace(grid, arms=arms, at={EPSILON: bare}, tuned_at={EPSILON: bare}))
    return found


def without_repeats(rows: Sequence[Row]) -> list[Row]:
    """Leave out the model before training where both grids have measured it."""
    found, seen = [], set()
    for row in rows:
        if row["arm"] == NOTHING and row["text"] in seen:
            continue
        if row["arm"] == NOTHING:
            seen.add(row["text"])
        found.append(row)
    return found


def base(rows: Sequence[Row], text: str) -> float:
    """Return the test loss of the model before training."""
    return next(float(row["loss"]) for row in rows if (row["text"], row["arm"]) == (text, NOTHING))


def best_twin(rows: Sequence[Row], text: str) -> str:
    """Return the arm that is best on the test without privacy, with whatever settings: a gain is held against it."""
    bare = {
        str(row["arm"])
        for row in rows
        if (row["text"], row["part"], row[EPSILON]) == (text, "test", math.inf) and row["arm"] != NOTHING
    }
    losses = {arm: mean(users.at(rows, text, arm, math.inf).values()) for arm in sorted(bare)}
    return min((arm for arm in losses if math.isfinite(losses[arm])), key=lambda arm: losses[arm])


def gained(
    rows: Sequence[Row], text: str, arm: str, epsilon: float, twin: str | None = None
) -> dict[int, float]:
    """Return by run key how much of the gain without privacy an arm has.

    Args:
        twin: the arm whose gain without privacy counts; the arm's own twin, with its settings, by default.
    """
    own, theirs = users.at(rows, text, arm, epsilon), users.at(rows, text, twin or arm, math.inf)
    before = base(rows, text)
    return {key: gap_closed(before, own[key], theirs[key]) for key in sorted(own.keys() & theirs.keys())}


def percents(found: Mapping[int, float]) -> str:
    """Write shares by run key as a mean with its interval, or that there are none."""
    values = tuple(found.values())
    if not values:
        return "not measured"
    middle = f"{mean(values):.0%}"
    if len(values) < 2:
        return middle
    low, high = interval(values)
    return f"{middle} ({low:.0%} to {high:.0%})"
