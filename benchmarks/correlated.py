"""Would noise that is correlated over steps beat independent noise? python benchmarks/correlated.py [--json]

Banded matrix factorisation (Choquette-Choo et al. 2023, "(Amplified) Banded Matrix Factorization") with cyclic Poisson
sampling of units, against DP-SGD at the same epsilon, batch and number of steps. "built" is the matrix that confide
uses, of one exponent for each schedule and number of bands, with its own best number of bands.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import numpy as np
from scipy.optimize import minimize
from scipy.signal import fftconvolve, lfilter

from confide.privacy.accounting import MixtureOfGaussians, delta_default, least_noise
from confide.privacy.correlated_noise import coefficients, exponent_for

Array = np.ndarray


@dataclass(frozen=True)
class Setting:
    """N units, n of them expected in a step, T steps, and the target."""

    units: int
    batch: int
    steps: int
    epsilon: float

    @property
    def rate(self) -> float:
        return self.batch / self.units

    def noise(self, bands: int) -> float:
        """Noise multiplier for a largest column norm of C of 1, certified.

        Units are dealt into `bands` groups, and step t draws from group t mod `bands` at `bands` times the rate: a unit
        meets ceil(T / bands) steps at most. A column of C has no more entries than there are steps to the group's
        next turn, so by the paper's amplification theorem the release is as private as DP-SGD of that many steps at
        that rate.
        """
        process = MixtureOfGaussians.bernoulli(min(1.0, bands * self.rate), math.ceil(self.steps / bands))
        return least_noise(process, self.epsilon, delta_default(self.units, self.units))

    def bands(self) -> list[int]:
        """Those tried, about 1.4 times apart, up to a rate of 1 or one turn for each unit.

        Of all with the same number of turns the least, which has the lowest rate.
        """
        most = min(self.steps, int(1 / self.rate + 1e-9))
        tried = {most} | {round(1.4**power) for power in range(40) if 1.4**power <= most}
        return sorted({math.ceil(self.steps / math.ceil(self.steps / bands)) for bands in tried})


SETTINGS = [
    Setting(units, batch, steps, epsilon)
    for units, batches, all_steps in (
        (117, (29, 58), (60,)),
        (8155, (256, 512, 1024), (30, 60, 120)),
        (342_477, (4096,), (2000, 10_000)),
    )
    for batch in batches
    for steps in all_steps
    for epsilon in (3.0, 8.0)
]


# workloads: what the noise of all steps does to the weights after each --------------------------------
class Workload(Protocol):
    """From the coefficients w of C^-1, float64[T], to the noise in the weights when each step's has variance 1."""

    def total(self, inverse: Array) -> tuple[float, Array]:
        """The variance summed over the weights after each step, and its gradient."""
        ...

    def last(self, inverse: Array) -> float:
        """The variance after the last step."""
        ...


class Toeplitz:
    """Noise of a step enters the weights `coefficients[m]` times after m more steps."""

    def __init__(self, coefficients: Array) -> None:
        self.coefficients = coefficients
        self.counts = np.arange(len(coefficients), 0, -1)

    def _response(self, inverse: Array) -> Array:
        return fftconvolve(self.coefficients, inverse)[: len(inverse)]

    def total(self, inverse: Array) -> tuple[float, Array]:
        response = self._response(inverse)
        return float(self.counts @ response**2), _correlate(2 * self.counts * response, self.coefficients)

    def last(self, inverse: Array) -> float:
        response = self._response(inverse)
        return float(response @ response)


class LinearDecay:
    """SGD with a learning rate of 1 - t / T at step t, counted from 0.

    Noise of step j adds (1 - j/T) S_m - R_m after m more steps, S and R being the prefix sums of w_i and of w_i i / T;
    the squares are summed over all j and m with j + m < T.
    """

    def __init__(self, steps: int) -> None:
        self.weight = np.arange(steps) / steps
        self.rates = 1 - self.weight
        # over the steps j that have m more after them, in the order of m
        self.sums = [np.cumsum(self.rates**power)[::-1] for power in (0, 1, 2)]

    def total(self, inverse: Array) -> tuple[float, Array]:
        s, r = np.cumsum(inverse), np.cumsum(self.weight * inverse)
        counts, sums, squares = self.sums
        total = squares @ s**2 - 2 * sums @ (s * r) + counts @ r**2
        by_s, by_r = 2 * (squares * s - sums * r), 2 * (counts * r - sums * s)
        return float(total), _suffix_sums(by_s) + self.weight * _suffix_sums(by_r)

    def last(self, inverse: Array) -> float:
        s, r = np.cumsum(inverse), np.cumsum(self.weight * inverse)
        response = self.rates[::-1] * s - r
        return float(response @ response)


def _suffix_sums(values: Array) -> Array:
    return np.cumsum(values[::-1])[::-1]


def _correlate(values: Array, kernel: Array) -> Array:
    """The adjoint of a causal convolution with `kernel`: sum over m of values[m] kernel[m - i], for each i."""
    return fftconvolve(values[::-1], kernel)[: len(values)][::-1]


WORKLOADS: dict[str, Callable[[int], Workload]] = {
    "constant rate": lambda steps: Toeplitz(np.ones(steps)),
    "momentum 0.9": lambda steps: Toeplitz(1 - 0.9 ** np.arange(1, steps + 1)),
    "linear decay": LinearDecay,
}


# factorisations ---------------------------------------------------------------------------------------
def inverse_of(bands: Array, steps: int) -> Array:
    """First column of C^-1, for C lower-triangular Toeplitz with 1 and `bands` on and below its diagonal."""
    impulse = np.zeros(steps)
    impulse[0] = 1.0
    found: Array = lfilter([1.0], np.concatenate([[1.0], bands]), impulse)
    return found


def factorise(workload: Workload, steps: int, bands: int) -> Array:
    """Coefficients below the diagonal with the least ||A C^-1||_F * (largest column norm of C), by L-BFGS.

    It starts from the coefficients of the inverse square root of a step's difference, which are best without a bound
    on the bands for the prefix sum.
    """

    def objective(below: Array) -> tuple[float, Array]:
        inverse = inverse_of(below, steps)
        if not np.abs(inverse).max() < 1e100:
            return math.inf, np.zeros_like(below)
        total, by_inverse = workload.total(inverse)
        column = 1 + below @ below
        twice = fftconvolve(inverse, inverse)[:steps]  # d inverse / d c_k is -(inverse * inverse), k later
        by_below = -_correlate(by_inverse, twice)[1:bands]
        return math.log(total) + math.log(column), by_below / total + 2 * below / column

    start = np.cumprod([(2 * k - 1) / (2 * k) for k in range(1, bands)])
    if bands == 1:
        return start
    found: Array = minimize(objective, start, jac=True, method="L-BFGS-B", options={"maxiter": 500}).x
    return found


@dataclass(frozen=True)
class Result:
    """The best number of bands for one workload. Errors are relative to DP-SGD's.

    error: root mean square over the weights after each step, which is what was minimised; last: after the last step;
    built: as error, of the matrix that confide uses, with built_bands.
    """

    setting: Setting
    workload: str
    plain_noise: float
    bands: int
    rate: float
    noise: float
    error: float
    last: float
    built: float
    built_bands: int


def compare(setting: Setting) -> list[Result]:
    """For each workload the number of bands with the least error."""
    noise = {bands: setting.noise(bands) for bands in setting.bands()}
    found = []
    for name, workload in WORKLOADS.items():
        own = workload(setting.steps)
        errors = {
            bands: _errors(own, setting.steps, factorise(own, setting.steps, bands), s)
            for bands, s in noise.items()
        }
        built = {
            bands: _errors(own, setting.steps, _built(name, setting.steps, bands), s)[0] / errors[1][0]
            for bands, s in noise.items()
        }
        best, built_best = min(errors, key=lambda bands: errors[bands][0]), min(built, key=built.__getitem__)
        error, last = (ours / plain for ours, plain in zip(errors[best], errors[1], strict=True))
        rate = min(1.0, best * setting.rate)
        found.append(
            Result(
                setting, name, noise[1], best, rate, noise[best], error, last, built[built_best], built_best
            )
        )
    return found


def _built(name: str, steps: int, bands: int) -> Array:
    """Coefficients below the diagonal of the matrix that confide uses; it knows nothing of momentum."""
    schedule = "linear" if name == "linear decay" else "constant"
    return np.array(coefficients(bands, exponent_for(bands, steps, schedule, 0))[1:])


def _errors(workload: Workload, steps: int, below: Array, noise: float) -> tuple[float, float]:
    """Standard deviation of the noise in the weights: (root mean square over the steps, after the last)."""
    inverse, sensitivity = inverse_of(below, steps), math.sqrt(1 + below @ below)
    total, _ = workload.total(inverse)
    return noise * sensitivity * math.sqrt(total / steps), noise * sensitivity * math.sqrt(
        workload.last(inverse)
    )


def table(results: Sequence[Result]) -> str:
    """Markdown: one line for each setting, and for each workload the relative errors and the best bands."""
    names = list(WORKLOADS)
    lines = [
        "| N | n | T | epsilon | noise multiplier | " + " | ".join(names) + " |",
        "|---" * (5 + len(names)) + "|",
    ]
    for setting in dict.fromkeys(result.setting for result in results):
        own = [result for result in results if result.setting == setting]
        cells = [f"{setting.units:,}", f"{setting.batch:,}", f"{setting.steps:,}", f"{setting.epsilon:g}"]
        cells += [f"{own[0].plain_noise:.3f}"]
        cells += [
            f"{r.error:.3f} ({r.bands} bands), last {r.last:.3f}; built {r.built:.3f} ({r.built_bands})"
            for r in own
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--units", type=int, help="only the settings with so many units")
    args = parser.parse_args()
    settings = [setting for setting in SETTINGS if args.units in (None, setting.units)]
    results = [result for setting in settings for result in compare(setting)]
    if args.json:
        rows: list[dict[str, Any]] = [asdict(result) for result in results]
        print(json.dumps(rows, indent=2))
        return
    print(
        "noise in the weights relative to DP-SGD at the same epsilon: root mean square over all steps, and after the"
    )
    print("last step; noise multiplier: of DP-SGD\n")
    print(table(results))


if __name__ == "__main__":
    main()
