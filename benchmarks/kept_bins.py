"""How much noise is left in the weights by draws and noise that go together? python benchmarks/kept_bins.py

At the same epsilon, units, batch and steps: independent noise with Poisson draws and with balls in bins, noise that is
correlated over steps with groups that have their turns, and with bins that everybody keeps, by bands and by buffers.
All relative to the first.
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
from confide.privacy.correlated_noise import INDEPENDENT, Banded, Buffered, Correlation


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

    def in_weights(self, process: DominatingPair, matrix: Correlation = INDEPENDENT) -> float:
        """Root mean square over the steps of the noise in the weights, with SGD at a constant rate."""
        least = least_noise(process, self.epsilon, self.delta)
        return least * matrix.sensitivity * matrix.noise_in_weights([1.0] * self.steps)

    def found(self) -> Iterator[tuple[float, str]]:
        """Yield the noise in the weights of each way, the best of its matrices, and which that is."""
        yield self.in_weights(MixtureOfGaussians.bernoulli(1 / self.bins, self.steps)), ""
        yield self.in_weights(BallsInBins(self.bins, self.steps)), ""
        tried = [bands for bands in (4, 8, 16, 32, 64) if bands < self.bins] + [self.bins]
        groups = ((MixtureOfGaussians.bernoulli(b / self.bins, math.ceil(self.steps / b)), b) for b in tried)
        yield min((self.in_weights(process, Banded(b)), f" ({b} bands)") for process, b in groups)
        yield min((self.in_kept_bins(Banded(b)), f" ({b} bands)") for b in tried)
        yield min((self.in_kept_bins(Buffered(d)), f" ({d} buffer{'s' * (d > 1)})") for d in (1, 2, 3, 4, 5))

    def in_kept_bins(self, matrix: Correlation) -> float:
        return self.in_weights(FixedBins.of(self.bins, self.steps, matrix), matrix)


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
        "| units | steps an epoch | steps | epsilon | Poisson | bins | correlated, in groups | kept bins, bands "
        "| kept bins, buffers |"
    )
    print("|---" * 9 + "|")
    for setting in SETTINGS:
        first, *others = setting.found()
        cells = [f"{setting.units:,}", str(setting.bins), str(setting.steps), f"{setting.epsilon:g}", "1"]
        cells += [f"{noise / first[0]:.2f}{which}" for noise, which in others]
        print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
