"""Small helpers for measurements that need no training."""

from __future__ import annotations

import math

import torch

from confide.runs.provenance import code_version
from studies.runner.study import Row


def version() -> Row:
    """Return the column that says which code measured."""
    return {"version": code_version()}


def device() -> Row:
    """Return the column that says what computed: the name of the GPU, or CPU."""
    return {"device": torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"}


def number(value: float) -> str:
    """Write a number in three digits; infinity as a word."""
    return f"{value:.3g}" if math.isfinite(value) else "infinite"
