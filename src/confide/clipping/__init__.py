"""Sums of clipped per-unit gradients, in one backward pass. Knows nothing of privacy."""

from confide.clipping.engine import ClippedSum, NonFiniteGradient, OutOfMemory, ran_out
from confide.clipping.rules import UnsupportedModule, UnsupportedParameter

__all__ = [
    "ClippedSum",
    "NonFiniteGradient",
    "OutOfMemory",
    "UnsupportedModule",
    "UnsupportedParameter",
    "ran_out",
]
