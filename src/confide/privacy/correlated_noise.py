"""Noise that is correlated over steps: later steps take back part of the noise that one step adds.

This is the matrix mechanism of differentially private training (Denisov et al. 2022). Let C be lower-triangular and
Toeplitz, X the clipped sum of each step and Z independent noise. The mechanism releases C X + Z; training uses
X + C^-1 Z, which follows from that. If units take part seldom, the weights after many steps hold far less noise than
with independent noise of the same guarantee. There are two kinds of C: `Banded` and `Buffered`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
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


@lru_cache(maxsize=64)
def decays(buffers: int) -> tuple[float, ...]:
    """Return the numbers whose powers have the coefficients of `Buffered` as their mean."""
    return tuple(math.cos((2 * i + 1) * math.pi / (4 * buffers)) ** 2 for i in range(buffers))


class Correlation(ABC):
    """A matrix C by which noise is correlated: lower-triangular and Toeplitz, without negative elements.

    The guarantee rests on the norm of its first column, which is computed from the coefficients in use.
    """

    @property
    @abstractmethod
    def exponent(self) -> float:
        """That of the power series of 1 - x which it follows."""

    @abstractmethod
    def column(self, steps: int) -> list[float]:
        """Compute the first elements of C's first column, of a run of so many steps; those that follow are 0."""

    @property
    @abstractmethod
    def sensitivity(self) -> float:
        """The norm of C's largest column: how far one clipped gradient moves C X, in clip norms."""

    @property
    @abstractmethod
    def copies(self) -> int:
        """The memory for the noise of a step and of those before it, in float32 copies of the trainable weights."""

    @property
    @abstractmethod
    def words(self) -> str:
        """What C has in each column."""

    @property
    @abstractmethod
    def binding(self) -> str:
        """What noise of the same key depends on, as text that no renaming in the code changes."""

    @property
    @abstractmethod
    def over(self) -> str:
        """Over which steps noise is correlated, in words."""

    @abstractmethod
    def noise(self, independent: Callable[[int], Vectors]) -> CorrelatedNoise | None:
        """Return what makes the noise of steps out of independent noise; None if noise is independent."""

    @property
    def is_independent(self) -> bool:
        """True if C is the identity."""
        return False

    @property
    def goes_on(self) -> bool:
        """True if the column has elements above 0 after any number of steps."""
        return False

    def noise_in_weights(self, rates: Sequence[float]) -> float:
        """Compute the standard deviation of the noise in the weights, root mean square over the steps.

        SGD takes steps of these learning rates, and a step's independent noise has a standard deviation of 1. C keeps
        this quantity small, for every weight alike. For AdamW it is a proxy.
        """
        return float(np.sqrt(self._variances(np.asarray(rates)).mean()))

    def walk_share(self, rates: Sequence[float]) -> float:
        """Compute how much of the noise of single steps stays in the weights, in the mean over the steps.

        It is the variance of the noise in the weights, over what it would be if steps had as much noise, but
        independent: 1 if it is, and less otherwise. An optimiser that divides by the length of gradient and noise
        together has steps of one length, of which this share walks at random.
        """
        walk = np.cumsum(np.asarray(rates) ** 2 * self._of_steps(len(rates)))
        return float(self._variances(np.asarray(rates)).sum() / walk.sum())

    def noise_in_steps(self, steps: int) -> float:
        """Compute the standard deviation of a step's noise over that of the first: root mean square over the steps."""
        return float(np.sqrt(self._of_steps(steps).mean()))

    def _variances(self, rates: np.ndarray) -> np.ndarray:
        """Compute the variance of the noise in the weights after each step."""
        steps = len(rates)
        inverse = self._inverse(steps)
        found = np.zeros(steps)
        for i in range(steps):
            found[i:] += np.cumsum(rates[i:] * inverse[: steps - i]) ** 2
        return found

    def _of_steps(self, steps: int) -> np.ndarray:
        """Compute the variance of each step's noise, float64[steps]."""
        found: np.ndarray = np.cumsum(self._inverse(steps) ** 2)
        return found

    def _inverse(self, steps: int) -> np.ndarray:
        """Compute the first column of C^-1, float64[steps]."""
        below = np.array(self.column(steps)[1:])
        found: np.ndarray = np.eye(1, steps)[0]
        for m in range(1, steps):
            reach = min(m, len(below))
            found[m] = -below[:reach] @ found[m - reach : m][::-1]
        return found


@dataclass(frozen=True)
class Banded(Correlation):
    """Noise of a step is taken back in part by the `bands` - 1 steps that follow.

    This is banded matrix factorisation (Choquette-Choo et al. 2023, "(Amplified) Banded Matrix Factorization: A unified
    approach to private training"). C holds the first `bands` coefficients of (1 - x)^(-a). They follow from the
    exponent a alone, so they are the same on every machine. a = 1/2 is the square root of the matrix of prefix sums,
    cut off at `bands`. For a number of bands and the learning rates of a run other exponents leave less noise in the
    weights under SGD: `exponent_for` takes the best. An optimiser over all coefficients gained at most 1% more in three
    settings, over all of a banded matrix that is not Toeplitz 2.5% in two (docs/decisions.md).

    Attributes:
        bands: 1 for independent noise.
        exponent: a.
    """

    bands: int = 1
    exponent: float = SQUARE_ROOT

    def column(self, steps: int) -> list[float]:
        return coefficients(self.bands, self.exponent)

    @property
    def sensitivity(self) -> float:
        return math.sqrt(math.fsum(c * c for c in coefficients(self.bands, self.exponent)))

    @property
    def copies(self) -> int:
        return 0 if self.is_independent else self.bands

    @property
    def words(self) -> str:
        return f"the first {self.bands} coefficients of (1 - x)^-{self.exponent:g} below one another"

    @property
    def binding(self) -> str:
        exponent = "" if self.exponent == SQUARE_ROOT else f" exponent {float(self.exponent).hex()}"
        return f"{self.bands}{exponent}"

    @property
    def over(self) -> str:
        return f"{self.bands} steps"

    @property
    def is_independent(self) -> bool:
        return self.bands == 1

    def noise(self, independent: Callable[[int], Vectors]) -> CorrelatedNoise | None:
        return None if self.is_independent else BandedNoise(self, independent)


@dataclass(frozen=True)
class Buffered(Correlation):
    """Noise of a step is taken back in part by all later steps, with the memory of a few sums over the past.

    This is a buffered linear Toeplitz matrix (Dvijotham et al. 2024, "Efficient and Near-Optimal Noise Generation for
    Streaming Differential Privacy"). Its coefficients are means of powers, c_k = (t_1^k + ... + t_d^k) / d, with d
    buffers and t_i = cos^2((2i - 1) pi / 4d). The coefficients of (1 - x)^(-1/2) are the moments of a beta
    distribution, and this is their Gauss-Chebyshev quadrature: the first 2d are exactly those of `Banded`. Later ones
    fall off as t_1^k, by a factor e in about 1.6 d^2 steps: three buffers reach some 15 steps back, and four 26.

    Attributes:
        buffers: d, at least 1.
    """

    buffers: int

    @property
    def exponent(self) -> float:
        return SQUARE_ROOT

    def column(self, steps: int) -> list[float]:
        powers = np.array(decays(self.buffers))[:, None] ** np.arange(steps)
        return [float(c) for c in powers.mean(axis=0)]

    @property
    def sensitivity(self) -> float:
        """That of a run without end, so that it depends on no number of steps; a column's norm is at most this."""
        each = decays(self.buffers)
        return math.sqrt(math.fsum(1 / (1 - a * b) for a in each for b in each)) / self.buffers

    @property
    def copies(self) -> int:
        return self.buffers + 1

    @property
    def words(self) -> str:
        powers = f"the mean of t_1^k, ..., t_{self.buffers}^k" if self.buffers > 1 else "t_1^k"
        return f"{powers} in the k-th place below the diagonal, with t_i = cos((2 i - 1) pi / {4 * self.buffers})^2,"

    @property
    def goes_on(self) -> bool:
        return True

    @property
    def binding(self) -> str:
        return f"1 buffers {self.buffers}"

    @property
    def over(self) -> str:
        return f"all later steps ({self.buffers} buffer{'s' * (self.buffers > 1)})"

    def noise(self, independent: Callable[[int], Vectors]) -> CorrelatedNoise:
        return BufferedNoise(self, independent)


INDEPENDENT = Banded()


def correlation_of(bands: int, buffers: int, exponent: float = SQUARE_ROOT) -> Correlation:
    """Return the matrix of `privacy.bands` and `privacy.buffers`, of which one alone correlates noise."""
    return Buffered(buffers) if buffers else Banded(bands, exponent)


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
                tried = Banded(bands, each / 100)
                variances = tried.sensitivity**2 * tried._variances(rates)
                found[each] = float(f"{variances.mean():.9g}"), float(f"{variances.max():.9g}")
        first = round(100 * SQUARE_ROOT)
        return min(
            (each for each in found if found[each][1] <= found[first][1]), key=lambda each: found[each][0]
        )

    near = best(range(round(100 * SQUARE_ROOT), HIGHEST + 1, 5))
    return best(range(max(round(100 * SQUARE_ROOT), near - 4), min(HIGHEST, near + 4) + 1)) / 100


class CorrelatedNoise(ABC):
    """C^-1 Z, one step after the other.

    Args:
        independent: step -> Z of that step, standard normal, of every parameter; called for steps that nothing was
            remembered of, such as those before a run was resumed.
    """

    def __init__(self, independent: Callable[[int], Vectors]):
        self._independent = independent
        self._next = 0

    def take_back(self, step: int, sums: Vectors, scale: float, tells: bool = False) -> Vectors:
        """Subtract the part of earlier noise that `step`, counted from 0, takes back: add scale * (C^-1 Z - Z).

        The step's own Z is added afterwards, in the same way as independent noise: what is released has been
        rounded once, after its noise was added. Ask for steps in order; skipped steps are computed too. The last one
        may be asked for again until it is remembered.

        Args:
            tells: return what was added, over the scale.

        Returns:
            C^-1 Z - Z of the step, or nothing. With Z added to it, it is what `remember` takes.
        """
        if step < self._next:
            raise AssertionError(f"step {step} comes after step {self._next}")
        while self._next < step:
            noise = self._independent(self._next)
            for name, own in noise.items():  # one at a time: all would take a copy more
                noise[name] = self._taken_back(name, own).add_(own)
            self._take_in(noise)
            del noise
        told: Vectors = {}
        for name, vector in sums.items():
            found = self._taken_back(name, vector)
            vector.add_(found, alpha=scale)
            if tells:
                told[name] = found
        return told

    def remember(self, step: int, noise: Vectors) -> None:
        """Take in C^-1 Z of a step that will not be started over, so that the next step need not make it again.

        Args:
            step: the one that was last asked for.
            noise: of that step. It is kept, and may be changed.
        """
        if step != self._next:
            raise AssertionError(f"step {step} is not the one that was asked for last, {self._next}")
        self._take_in(noise)

    def _take_in(self, noise: Vectors) -> None:
        try:
            self._keep(noise)
        except BaseException:  # a part of it may be done, and then a step that starts over must begin anew
            self._forget()
            raise
        self._next += 1

    @abstractmethod
    def _taken_back(self, name: str, like: torch.Tensor) -> torch.Tensor:
        """Compute C^-1 Z - Z of a parameter in the next step, in a new vector that is like another."""

    @abstractmethod
    def _keep(self, noise: Vectors) -> None:
        """Remember the noise of the step that follows those that are remembered."""

    def _forget(self) -> None:
        """Begin anew: the noise of all steps before is made again when the next one is asked for."""
        self._next = 0


class BandedNoise(CorrelatedNoise):
    """Noise by a banded matrix. It keeps that of the last `bands` - 1 steps."""

    def __init__(self, matrix: Banded, independent: Callable[[int], Vectors]):
        super().__init__(independent)
        self._below = coefficients(matrix.bands, matrix.exponent)[1:]
        self._said: deque[Vectors] = deque(maxlen=len(self._below))

    def _forget(self) -> None:
        super()._forget()
        self._said.clear()

    def _taken_back(self, name: str, like: torch.Tensor) -> torch.Tensor:
        found = like.new_zeros(like.shape)
        for c, before in zip(self._below, reversed(self._said), strict=False):
            found.sub_(before[name], alpha=c)
        return found

    def _keep(self, noise: Vectors) -> None:
        self._said.append(noise)


class BufferedNoise(CorrelatedNoise):
    """Noise by a buffered matrix. For each decay t it keeps the sum of t^k times the noise of k steps before."""

    def __init__(self, matrix: Buffered, independent: Callable[[int], Vectors]):
        super().__init__(independent)
        self._decays = decays(matrix.buffers)
        self._sums: list[Vectors] = [{} for _ in self._decays]

    def _forget(self) -> None:
        super()._forget()
        self._sums = [{} for _ in self._decays]

    def _taken_back(self, name: str, like: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor | None = None
        for t, before in zip(self._decays, self._sums, strict=True):
            if name not in before:  # here, where a step can start over if memory runs out
                before[name] = like.new_zeros(like.shape)
            share = t / len(self._decays)
            found = before[name].mul(-share) if found is None else found.sub_(before[name], alpha=share)
        assert found is not None
        return found

    def _keep(self, noise: Vectors) -> None:
        import torch

        for t, before in zip(self._decays, self._sums, strict=True):
            for name, each in noise.items():
                torch.add(each, before[name], alpha=t, out=before[name])  # one pass over the memory
