"""Pick measurements and write them in the cells of tables."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from confide.utils.rounding import at_most
from studies.runner.findings import interval
from studies.runner.study import Row


def losses(rows: Sequence[Row], columns: Mapping[str, Any], part: str = "test") -> dict[int, float]:
    """Return the loss by run key of the rows whose columns have these values."""
    return {
        row["key"]: row["loss"]
        for row in rows
        if row["part"] == part and all(row.get(name) == value for name, value in columns.items())
    }


def perplexity(found: Mapping[int, float]) -> str:
    """Write the geometric mean of perplexities over run keys, with its 95% interval."""
    return _with_interval(tuple(found.values()), lambda loss: f"{math.exp(loss):.2f}")


def change(gaps: Sequence[float]) -> str:
    """Write paired differences of losses as a change of the perplexity, with the 95% interval of their mean."""
    return _with_interval(tuple(gaps), percent)


def target(epsilon: float) -> str:
    """Write the epsilon that a run was asked for."""
    return at_most(epsilon, 6) if math.isfinite(epsilon) else "infinity"


def percent(gap: float) -> str:
    return f"{math.expm1(gap):+.1%}"


def _with_interval(values: tuple[float, ...], shown: Any) -> str:
    if not values:
        return ""
    middle = shown(sum(values) / len(values))
    if len(values) < 2:
        return str(middle)
    low, high = interval(values)
    return f"{middle} ({shown(low)} to {shown(high)})"
