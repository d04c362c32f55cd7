"""Noise that is correlated over steps: later steps take back part of the noise that one step adds.

This is banded matrix factorisation (Choquette-Choo et al. 2023, "(Amplified) Banded Matrix Factorization: A unified
approach to private training"). Let C be lower-triangular, Toeplitz and `bands` wide, X the clipped sum of each step
and Z independent noise. The mechanism releases C X + Z; training uses X + C^-1 Z, which follows from that. If units
take part seldom, the weights after many steps hold far less noise than with independent noise of the same guarantee.

C is the square root of the matrix of prefix sums, cut off at `bands`: its coefficients are exact and the same on every
machine. The best ones for a given schedule are a few per cent better over a hundred steps, with momentum up to a fifth
(benchmarks/correlated.py).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:  # accounting needs numbers alone, and torch takes seconds to import
    import torch

    Vectors = dict[str, torch.Tensor]


def coefficients(bands: int) -> list[float]:
    """Compute the first column of C: 1, 1/2, 3/8 ..., the series of (1 - x)^(-1/2)."""
    found = [1.0]
    for k in range(1, bands):
        found.append(found[-1] * (2 * k - 1) / (2 * k))
    return found


def sensitivity(bands: int) -> float:
    """Compute the norm of C's largest column: how far one clipped gradient moves C X, in clip norms."""
    return math.sqrt(math.fsum(c * c for c in coefficients(bands)))


def copies(bands: int) -> int:
    """Return the memory for the noise of a step and of those before it, in float32 copies of the trainable weights."""
    return bands if bands > 1 else 0


def noise_in_weights(bands: int, rates: Sequence[float]) -> float:
    """Compute the standard deviation of the noise in the weights, root mean square over the steps.

    SGD takes steps of these learning rates, and a step's independent noise has a standard deviation of 1. Banded
    matrix factorisation keeps this quantity small, for every weight alike. For AdamW it is a proxy.
    """
    steps = len(rates)
    below = np.array(coefficients(min(bands, steps))[1:])
    inverse = np.eye(1, steps)[0]  # the first column of C^-1
    for m in range(1, steps):
        reach = min(m, len(below))
        inverse[m] = -below[:reach] @ inverse[m - reach : m][::-1]
    each = np.zeros((steps, steps))  # [t, i]: weight of noise i in the noise of step t
    for i in range(steps):
        each[i:, i] = inverse[: steps - i]
    after = np.cumsum(np.asarray(rates)[:, None] * each, axis=0)
    return float(np.sqrt((after**2).sum() / steps))


class BandedNoise:
    """C^-1 Z, one step after the other. It keeps the results of the last `bands` - 1 steps.

    Args:
        independent: step -> Z of that step, standard normal, of every parameter; called again for steps that were
            taken
            before a run was resumed.
    """

    def __init__(self, bands: int, independent: Callable[[int], Vectors]):
        self._below = coefficients(bands)[1:]
        self._independent = independent
        self._said: deque[Vectors] = deque(maxlen=bands - 1)
        self._next = 0

    def at(self, step: int) -> Vectors:
        """Return the noise of `step`, counted from 0. Ask for steps in order; skipped steps are computed too.

        The last one may be asked for again.
        """
        if step == self._next - 1:
            return self._said[-1]
        if step < self._next:
            raise AssertionError(f"step {step} comes after step {self._next - 1}")
        while True:
            found = self._independent(self._next)
            for c, before in zip(self._below, reversed(self._said), strict=False):
                for name, vector in found.items():
                    vector.sub_(before[name], alpha=c)
            self._said.append(found)
            self._next += 1
            if self._next > step:
                return found
