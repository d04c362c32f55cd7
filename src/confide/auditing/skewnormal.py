"""The skew-normal distribution (Azzalini 1985), fitted by moments."""

import math
from dataclasses import dataclass

import numpy as np
from scipy import special

from confide.utils.errors import InputError

REPLICATES = 199  # samples that give the distance's distribution
_MOST = 0.99  # skewness; a skew-normal distribution's stays below 0.9953


@dataclass(frozen=True)
class SkewNormal:
    """A skew-normal distribution: xi + omega (delta |u| + sqrt(1 - delta^2) v) with standard normal u and v."""

    xi: float
    omega: float
    delta: float

    @classmethod
    def fit(cls, values: np.ndarray) -> "SkewNormal":
        """Fit by mean, variance and skewness, the last limited to possible values.

        Raises:
            InputError: all values are the same.
        """
        mean, scale = float(values.mean()), float(values.std())
        if not scale > 1e-9 * max(1.0, abs(mean)):
            raise InputError("candidates: all have the same loss, so no distribution can be fitted to them")
        skewness = float(np.clip((((values - mean) / scale) ** 3).mean(), -_MOST, _MOST))
        power = abs(skewness) ** (2 / 3)
        delta = math.copysign(
            math.sqrt(math.pi / 2 * power / (power + (2 - math.pi / 2) ** (2 / 3))), skewness
        )
        omega = scale / math.sqrt(1 - 2 * delta**2 / math.pi)
        return cls(mean - omega * delta * math.sqrt(2 / math.pi), omega, delta)

    def below(self, values: np.ndarray | float) -> np.ndarray:
        """Compute the share of the distribution below each value, to about 1e-16."""
        z = (np.asarray(values, dtype=np.float64) - self.xi) / self.omega
        alpha = self.delta / math.sqrt(1 - self.delta**2)
        shares: np.ndarray = np.clip(special.ndtr(z) - 2 * special.owens_t(z, alpha), 0.0, 1.0)
        return shares

    def draw(self, count: int, generator: np.random.Generator) -> np.ndarray:
        u, v = generator.standard_normal((2, count))
        drawn: np.ndarray = self.xi + self.omega * (self.delta * np.abs(u) + math.sqrt(1 - self.delta**2) * v)
        return drawn

    def distance(self, values: np.ndarray) -> float:
        """Compute Kolmogorov and Smirnov's distance: the greatest difference from the values' own distribution."""
        shares, n = self.below(np.sort(values)), len(values)
        steps = np.arange(n + 1) / n
        return float(max((steps[1:] - shares).max(), (shares - steps[:-1]).max()))

    def goodness(self, values: np.ndarray, generator: np.random.Generator) -> float:
        """Compute the p-value of the distance of values that this distribution was fitted to.

        Samples of the fitted distribution are fitted again: with parameters estimated from the data, distances are
        smaller than textbook tables assume.
        """
        own = self.distance(values)
        further = 0
        for _ in range(REPLICATES):
            sample = self.draw(len(values), generator)
            further += SkewNormal.fit(sample).distance(sample) >= own
        return (1 + further) / (REPLICATES + 1)
