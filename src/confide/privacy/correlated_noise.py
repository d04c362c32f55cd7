"""Noise that is correlated over steps: later steps take back part of the noise that one step adds.

This is banded matrix factorisation (Choquette-Choo et al. 2023, "(Amplified) Banded Matrix Factorization: A unified
approach to private training"). Let C be lower-triangular, Toeplitz and `bands` wide, X the clipped sum of each step
and Z independent noise. The mechanism releases C X + Z; training uses X + C^-1 Z, which follows from that. If units
take part seldom, the weights after many steps hold far less noise than with independent noise of the same guarantee.

C holds the first `bands` coefficients of (1 - x)^(-a). They follow from the exponent a alone, so they are the same on
every machine. a = 1/2 is the square root of the matrix of prefix sums, cut off at `bands`. For a number of bands and
the learning rates of a run other exponents leave less noise in the weights under SGD: `exponent_for` takes the best.
An optimiser over all coefficients gained at most 1% more in three settings, over all of a banded matrix that is not
Toeplitz 2.5% in two (docs/decisions.md). Whatever a is, the guarantee rests on the norm of C's largest column, which is
computed from the coefficients in use.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from confide.config.schedule import share_of_peak

if TYPE_CHECKING:  # accounting needs numbers alone, and torch takes seconds to import
    import torch

    Vectors = dict[str, torch.Tensor]


SQUARE_ROOT = 0.5
"""The exponent of the square root of prefix sums."""

HIGHEST = 70
"""The largest exponent that is tried, in hundredths: with larger ones the noise of a single step grows fast."""

_LONGEST = (
    10_000  # steps; for a longer run, exponents are compared in one of so many steps with the same schedule
)


def coefficients(bands: int, exponent: float = SQUARE_ROOT) -> list[float]:
    """Compute the first column of C: the series of (1 - x)^(-exponent), for 1/2 that is 1, 1/2, 3/8 ..."""
    found = [1.0]
    for k in range(1, bands):
        found.append(found[-1] * (k - 1 + exponent) / k)
    return found


def sensitivity(bands: int, exponent: float = SQUARE_ROOT) -> float:
    """Compute the norm of C's largest column: how far one clipped gradient moves C X, in clip norms."""
    return math.sqrt(math.fsum(c * c for c in coefficients(bands, exponent)))


def copies(bands: int) -> int:
    """Return the memory for the noise of a step and of those before it, in float32 copies of the trainable weights."""
    return bands if bands > 1 else 0


def noise_in_weights(bands: int, rates: Sequence[float], exponent: float = SQUARE_ROOT) -> float:
    """Compute the standard deviation of the noise in the weights, root mean square over the steps.

    SGD takes steps of these learning rates, and a step's independent noise has a standard deviation of 1. Banded
    matrix factorisation keeps this quantity small, for every weight alike. For AdamW it is a proxy.
    """
    return float(np.sqrt(_variances(bands, exponent, np.asarray(rates)).mean()))


def walk_share(bands: int, rates: Sequence[float], exponent: float = SQUARE_ROOT) -> float:
    """Compute how much of the noise of single steps stays in the weights, in the mean over the steps.

    It is the variance of the noise in the weights, over what it would be if steps had as much noise, but independent:
    1 with one band, and less with more. An optimiser that divides by the length of gradient and noise together has
    steps of one length, of which this share walks at random.
    """
    walk = np.cumsum(np.asarray(rates) ** 2 * _of_steps(bands, exponent, len(rates)))
    return float(_variances(bands, exponent, np.asarray(rates)).sum() / walk.sum())


def noise_in_steps(bands: int, steps: int, exponent: float = SQUARE_ROOT) -> float:
    """Compute the standard deviation of a step's noise, root mean square over the steps, relative to a first one's."""
    return float(np.sqrt(_of_steps(bands, exponent, steps).mean()))


def compared_rates(steps: int, schedule: str, warmup: int) -> list[float]:
    """Return the learning rates of a run, over their peak; of a very long run those of a shorter one of its shape."""
    if steps > _LONGEST:
        warmup, steps = warmup * _LONGEST // steps, _LONGEST
    return [share_of_peak(step, steps, schedule, warmup) for step in range(steps)]


@lru_cache(maxsize=64)
def exponent_for(bands: int, steps: int, schedule: str, warmup: int) -> float:
    """Choose the exponent with the least noise in the weights, root mean square over the steps of a schedule.

    It is a multiple of 0.01, found among those of 0.05 and then around the best of them. Only those count with which
    the noise after no step is above the largest after any step with the square root. Noise is compared by its first
    nine digits, so that rounding, which may differ between machines, decides nothing.
    """
    if bands == 1:
        return SQUARE_ROOT
    rates = np.array(compared_rates(steps, schedule, warmup))
    found: dict[int, tuple[float, float]] = {}

    def best(hundredths: range) -> int:
        for each in hundredths:
            if each not in found:
                variances = sensitivity(bands, each / 100) ** 2 * _variances(bands, each / 100, rates)
                found[each] = float(f"{variances.mean():.9g}"), float(f"{variances.max():.9g}")
        first = round(100 * SQUARE_ROOT)
        return min(
            (each for each in found if found[each][1] <= found[first][1]), key=lambda each: found[each][0]
        )

    near = best(range(round(100 * SQUARE_ROOT), HIGHEST + 1, 5))
    return best(range(max(round(100 * SQUARE_ROOT), near - 4), min(HIGHEST, near + 4) + 1)) / 100


def _variances(bands: int, exponent: float, rates: np.ndarray) -> np.ndarray:
    """Compute the variance of the noise in the weights after each step."""
    steps = len(rates)
    inverse = _inverse(bands, steps, exponent)
    found = np.zeros(steps)
    for i in range(steps):
        found[i:] += np.cumsum(rates[i:] * inverse[: steps - i]) ** 2
    return found


def _of_steps(bands: int, exponent: float, steps: int) -> np.ndarray:
    """Compute the variance of each step's noise, float64[steps]."""
    found: np.ndarray = np.cumsum(_inverse(bands, steps, exponent) ** 2)
    return found


def _inverse(bands: int, steps: int, exponent: float) -> np.ndarray:
    """Compute the first column of C^-1, float64[steps]."""
    below = np.array(coefficients(min(bands, steps), exponent)[1:])
    found: np.ndarray = np.eye(1, steps)[0]
    for m in range(1, steps):
        reach = min(m, len(below))
        found[m] = -below[:reach] @ found[m - reach : m][::-1]
    return found


class BandedNoise:
    """What C^-1 Z is beside Z, one step after the other. It keeps the noise of the last `bands` - 1 steps.

    Args:
        independent: step -> Z of that step, standard normal, of every parameter; called again for steps that were
            taken
            before a run was resumed.
        exponent: of C.
    """

    def __init__(self, bands: int, independent: Callable[[int], Vectors], exponent: float = SQUARE_ROOT):
        self._below = coefficients(bands, exponent)[1:]
        self._independent = independent
        self._said: deque[Vectors] = deque(maxlen=bands - 1)
        self._next = 0

    def take_back(self, step: int, sums: Vectors, scale: float) -> None:
        """Subtract the part of earlier noise that `step`, counted from 0, takes back: add scale * (C^-1 Z - Z).

        The step's own Z is added afterwards, in the same way as noise without bands: what is released has been
        rounded once, after its noise was added. Ask for steps in order; skipped steps are computed too. The last one
        may be asked for again.
        """
        if step < self._next:
            raise AssertionError(f"step {step} comes after step {self._next}")
        while self._next < step:
            found = self._independent(self._next)
            self._subtract(found, 1.0)
            self._said.append(found)
            self._next += 1
        self._subtract(sums, scale)

    def _subtract(self, vectors: Vectors, scale: float) -> None:
        for c, before in zip(self._below, reversed(self._said), strict=False):
            for name, vector in vectors.items():
                vector.sub_(before[name], alpha=c * scale)
