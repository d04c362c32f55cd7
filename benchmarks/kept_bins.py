"""How much noise is left in the weights by draws and noise that go together? python benchmarks/kept_bins.py

At the same epsilon, units, batch and steps: independent noise with Poisson draws and with balls in bins, noise that is
correlated over steps with groups that have their turns, and with bins that everybody keeps. All relative to the first.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from confide.privacy.accounting import (
    BallsInBins,
    DominatingPair,
    FixedBins,
    MixtureOfGaussians,
    delta_default,
    least_noise,
)
from confide.privacy.correlated_noise import coefficients, noise_in_weights, sensitivity


@dataclass(frozen=True)
class Setting:
    """An epoch has `bins` steps, and each unit takes part in one of so many steps on average."""

    units: int
    bins: int
    steps: int
    epsilon: float

    @property
    def delta(self) -> float:
        return delta_default(self.units, self.units)

    def in_weights(self, process: DominatingPair, bands: int) -> float:
        """Root mean square over the steps of the noise in the weights, with SGD at a constant rate."""
        least = least_noise(process, self.epsilon, self.delta)
        return least * sensitivity(bands) * noise_in_weights(bands, [1.0] * self.steps)

    def found(self) -> Iterator[tuple[float, int]]:
        """Yield the noise in the weights of each way, the best of its bands, and these."""
        yield self.in_weights(MixtureOfGaussians.bernoulli(1 / self.bins, self.steps), 1), 1
        yield self.in_weights(BallsInBins(self.bins, self.steps), 1), 1
        tried = [bands for bands in (4, 8, 16, 32, 64) if bands < self.bins] + [self.bins]
        groups = ((MixtureOfGaussians.bernoulli(b / self.bins, math.ceil(self.steps / b)), b) for b in tried)
        yield min((self.in_weights(process, b), b) for process, b in groups)
        kept = ((FixedBins(self.bins, self.steps, tuple(coefficients(b))), b) for b in tried)
        yield min((self.in_weights(process, b), b) for process, b in kept)


SETTINGS = (
    Setting(2_007, 10, 24, 8.0),
    Setting(2_007, 10, 24, 3.0),
    Setting(8_155, 16, 60, 8.0),
    Setting(8_155, 16, 60, 3.0),
    Setting(8_155, 16, 60, 1.0),
    Setting(100_000, 50, 200, 8.0),
    Setting(100_000, 50, 200, 3.0),
)


def main() -> None:
    print(
        "| units | steps an epoch | steps | epsilon | Poisson | bins | correlated, in groups | correlated, kept bins |"
    )
    print("|---" * 8 + "|")
    for setting in SETTINGS:
        first, *others = setting.found()
        cells = [f"{setting.units:,}", str(setting.bins), str(setting.steps), f"{setting.epsilon:g}", "1"]
        cells += [
            f"{noise / first[0]:.2f}" + (f" ({bands} bands)" if bands > 1 else "") for noise, bands in others
        ]
        print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
