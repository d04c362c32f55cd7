"""Small helpers for measurements that need no training."""

from __future__ import annotations

import math

from confide.runs.provenance import code_version
from studies.runner.study import Row


def version() -> Row:
    """Return the column that says which code measured."""
    return {"version": code_version()}


def number(value: float) -> str:
    """Write a number in three digits; infinity as a word."""
    return f"{value:.3g}" if math.isfinite(value) else "infinite"
