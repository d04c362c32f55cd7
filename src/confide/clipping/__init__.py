"""Sum clipped per-unit gradients, in one backward pass. This package contains no privacy accounting."""

from confide.clipping.engine import ClippedSum, NonFiniteGradient
from confide.clipping.rule import UnsupportedModule, UnsupportedParameter

__all__ = [
    "ClippedSum",
    "NonFiniteGradient",
    "UnsupportedModule",
    "UnsupportedParameter",
]
