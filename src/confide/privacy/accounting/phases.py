"""Runs of more than one phase, and phases that do not touch the protected data."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from confide.privacy.accounting.curves import Direction, PrivacyProfile, compose
from confide.privacy.accounting.pairs import FINE, DominatingPair, sketch
from confide.utils.rounding import at_least


@dataclass(frozen=True)
class Untouched:
    """A phase that computes nothing from the protected data: both worlds give the same output, whatever the noise.

    Attributes:
        words: why that is so.
    """

    words: str

    def curve(self, noise_multiplier: float, interval: float = FINE) -> PrivacyProfile:
        same = Direction(np.array([0.0]), np.array([0.0]))
        return PrivacyProfile(same, same, 0.0)

    def describe(self) -> str:
        return self.words


@dataclass(frozen=True)
class After:
    """A phase at a noise of its own, and then a process whose noise is still to be chosen, if there is one.

    Formal guarantee: see `confide.privacy.accounting.curves.compose`.

    Attributes:
        words: a description of the phase, for `describe`.
    """

    phase: DominatingPair
    phase_noise: float
    process: DominatingPair | None
    words: str = field(default="", compare=False)

    def curve(self, noise_multiplier: float, interval: float = FINE) -> PrivacyProfile:
        then = None if self.process is None else self.process.curve(noise_multiplier, interval)
        return self._before(then, interval)

    def estimate(self, noise_multiplier: float, interval: float) -> PrivacyProfile:
        """Estimate the curve for a search, as `pairs.sketch` says."""
        then = None if self.process is None else sketch(self.process)(noise_multiplier, interval)
        return self._before(then, interval)

    def _before(self, then: PrivacyProfile | None, interval: float) -> PrivacyProfile:
        first = self.phase.curve(self.phase_noise, interval)
        if then is None:
            return first
        if math.isinf(first.epsilon(0.5)) or math.isinf(then.epsilon(0.5)):
            return PrivacyProfile.unprotected()
        return compose([first, then])

    def describe(self) -> str:
        first = (
            f"With noise multiplier {at_least(self.phase_noise, 6)}: {self.words or self.phase.describe()}"
        )
        return first if self.process is None else f"{first} After that: {self.process.describe()}"
