"""Estimate the mean of made-up users under privacy (Charles et al. 2024, appendix E): people, draws and steps.

The loss of a row x is |theta - x|^2 / 2, so its gradient is theta - x; the error is the squared distance of the last
theta from the population's mean.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import combinations

import numpy as np

from studies.parts.user_sampling import Target

N, K, D = 256, 16, 32  # users, rows of each, coordinates
DELTA = 1e-6
CLIPS = (1 / 8, 1 / 2)  # of the typical norm
RATES = tuple(2.0 ** (-8 + i / 2) for i in range(6))  # the share of its way to the mean that a step goes


@dataclass(frozen=True)
class Setting:
    """One experiment.

    Attributes:
        budget: rows expected a step.
        within: the standard deviation within a user (sigma_2).
        trials: how many choose clip norm and learning rate, and how many are reported on.
    """

    epsilon: float = 1.0
    budget: float = 64.0
    within: float = 1.0
    steps: int = 256
    trials: tuple[int, int] = (24, 72)

    def noise_multiplier(self, k: int | None) -> float:
        """Of ULS with k rows a user; of ELS with all K rows of every user where k is None."""
        target = Target(self.epsilon, DELTA, self.steps, N)
        return target.els_noise(self.budget, K, N * K) if k is None else target.uls_noise(self.budget / k)

    def norm(self, k: int | None) -> float:
        """About the norm of the mean gradient of k rows (None: of a row) of a user, at the mean."""
        return float(np.sqrt(D * (1 + self.within**2 / (k or 1))))


@dataclass(frozen=True, eq=False)
class People:
    """Trials, each with a population of its own.

    Attributes:
        mean: float32[trials, D], what is to be estimated.
        rows: float32[trials, N K, D]; the rows of user u are u K to u K + K - 1.
        user_means: float32[trials, N, D].
    """

    mean: np.ndarray
    rows: np.ndarray
    user_means: np.ndarray

    @classmethod
    def drawn(cls, within: float, trials: int) -> People:
        generator = np.random.default_rng(0)
        mean = generator.standard_normal((trials, D), dtype=np.float32)
        users = mean[:, None] + generator.standard_normal((trials, N, D), dtype=np.float32)
        own = generator.standard_normal((trials, N, K, D), dtype=np.float32)
        rows = users[:, :, None] + np.float32(within) * own
        return cls(mean, rows.reshape(trials, N * K, D), rows.mean(2))


@dataclass(frozen=True)
class Result:
    """How far from the mean one method ends at one setting.

    Attributes:
        tuned: mean error of the trials that chose clip norm and learning rate.
        errors: float64[trials that are reported on].
        clip, rate: what was chosen.
    """

    tuned: float
    errors: np.ndarray
    clip: float
    rate: float

    @property
    def error(self) -> float:
        return float(self.errors.mean())


# training ------------------------------------------------------------------------------------------------------
@lru_cache(maxsize=2)
def people(within: float, trials: int) -> People:
    return People.drawn(within, trials)


@cache
def result(setting: Setting, k: int | None) -> Result:
    """ULS with k rows a user, or ELS where k is None, with the clip norm and learning rate that some trials chose."""
    pairs = [(clip, rate) for clip in CLIPS for rate in RATES]
    clip = np.array([clip * setting.norm(k) for clip, _ in pairs], np.float32)
    # A clipped gradient is shorter by about its clip norm over the typical norm: the rate makes up for it.
    rate = np.array([rate / clip for clip, rate in pairs], np.float32)
    found = trained(setting, k, people(setting.within, sum(setting.trials)), clip, rate)
    tuning = setting.trials[0]
    tuned = found[:tuning].mean(0)
    best = int(tuned.argmin())
    return Result(float(tuned[best]), found[tuning:, best], *pairs[best])


def trained(setting: Setting, k: int | None, who: People, clip: np.ndarray, rate: np.ndarray) -> np.ndarray:
    """Squared distance from the mean after all steps of Algorithm 1 (k is None) or 2: float64[trials, pairs].

    Args:
        clip, rate: float32[pairs], tried side by side on the same draws and noise.
    """
    count = setting.budget if k is None else setting.budget / k
    noise = setting.noise_multiplier(k) * clip
    generator = np.random.default_rng(
        [round(1000 * setting.epsilon), round(1000 * setting.within), int(setting.budget), k or 0]
    )
    trials = len(who.mean)
    theta = np.zeros((trials, len(clip), D), np.float32)
    for _ in range(setting.steps):
        total = clipped_sum(theta, *drawn(who, k, count, generator), clip)
        total += noise[:, None] * generator.standard_normal((trials, 1, D), dtype=np.float32)
        theta -= (rate / np.float32(count))[:, None] * total
    errors: np.ndarray = ((theta - who.mean[:, None]) ** 2).sum(2, dtype=np.float64)
    return errors


def drawn(
    who: People, k: int | None, count: float, generator: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """A Poisson draw of `count` rows (k is None) or users: the rows, or the mean of k random rows of each user.

    Returns:
        float32[trials, most, D], and which of them are real: bool[trials, most].
    """
    trials, things = len(who.mean), N * K if k is None else N
    chosen = generator.random((trials, things), dtype=np.float32) < count / things
    sizes = chosen.sum(1)
    trial, thing = np.nonzero(chosen)
    place = np.arange(len(trial)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    vectors = np.zeros((trials, max(1, sizes.max()), D), np.float32)
    if k is None:
        vectors[trial, place] = who.rows[trial, thing]
    elif k == K:
        vectors[trial, place] = who.user_means[trial, thing]
    else:
        subsets, rows = all_subsets(k), who.rows.reshape(-1, D)
        own = (
            subsets[generator.integers(len(subsets), size=len(trial))] + (trial * N * K + thing * K)[:, None]
        )
        vectors[trial, place] = sum(rows[column] for column in own.T) / np.float32(k)
    return vectors, np.arange(vectors.shape[1]) < sizes[:, None]


@cache
def all_subsets(k: int) -> np.ndarray:
    """Every choice of k of a user's K rows: int64[choices, k]."""
    return np.array(list(combinations(range(K), k)))


def clipped_sum(theta: np.ndarray, vectors: np.ndarray, real: np.ndarray, clip: np.ndarray) -> np.ndarray:
    """Sum over the real vectors v of theta - v, clipped: float32[trials, pairs, D] for `theta` of that shape."""
    squares = (theta**2).sum(2)[:, :, None] - 2 * theta @ vectors.transpose(0, 2, 1)
    squares += (vectors**2).sum(2)[:, None]
    norms = np.sqrt(np.maximum(squares, 1e-12))
    weight = np.minimum(1, clip[:, None] / norms) * real[:, None]
    total: np.ndarray = theta * weight.sum(2)[:, :, None] - weight @ vectors
    return total
