"""Split a compute budget between users and rows: noise of the ways (Charles et al. 2024, section 3, app. C, I).

And the strategies of appendix I.1, which `cohorts` tries on text and `mean-estimation` on made-up users.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from confide.planning.user_sampling import Place, Split, doubled, estimate_and_double, noise_variance
from confide.privacy.accounting import MixtureOfGaussians
from confide.privacy.mechanisms.base import calibrated
from confide.utils.errors import InputError

OWN, PRINTED, LEAST, ORACLE = (
    "Estimate-and-Double",
    "Algorithm 3 as printed",
    "least noise variance",
    "greedy local oracle",
)
MENDED = f"{OWN} (noise over users)"
"""What claims call it. Algorithm 3 as printed has s(2n) / s(n), which is 1 or more, so that it never adds users."""
COHORT, GROUP, RANDOM = "max cohort", "max group size", "random"

Strategy = Callable[[float], Split]
"""What makes a budget, in rows a step, a split."""


@dataclass(frozen=True)
class Target:
    """The user-level guarantee that noise must meet, on so many users and steps."""

    epsilon: float
    delta: float
    steps: int
    users: int

    def uls_noise(self, n: float) -> float:
        """Least noise multiplier of user-level sampling with n users expected a step (Charles et al. 2024, Theorem 2).

        Raises:
            InputError: n is more than there are users, or no noise meets the target.
        """
        process = MixtureOfGaussians.bernoulli(n / self.users, self.steps)
        return calibrated(process, self.epsilon, self.delta)

    def els_noise(self, batch: float, group_size: int, rows: int) -> float:
        """Return the least noise multiplier of ELS with `batch` rows expected a step (Charles et al. 2024, Theorem 1).

        Args:
            group_size: the most rows that a user has in use.
            rows: in use, of all users.

        Raises:
            InputError: `batch` is more than there are rows, or no noise meets the target.
        """
        process = MixtureOfGaussians.binomial(group_size, batch / rows, self.steps)
        return calibrated(process, self.epsilon, self.delta)


def splits(budget: float, ks: Iterable[int], least: float, most: float) -> list[Split]:
    """The splits of a budget with k among `ks` and n from `least` to `most`.

    Raises:
        InputError: there is none.
    """
    found = [Split(k, budget / k) for k in ks if least <= budget / k <= most]
    if not found:
        raise InputError(
            f"budget: no k that was given spends {budget:g} rows a step on {least:g} to {most:g} users"
        )
    return found


def uls_variances(
    choices: Sequence[Split], norm: Callable[[int], float], noise_multiplier: Callable[[float], float]
) -> list[tuple[Split, float]]:
    """Each split with the noise variance of user-level sampling at it, the least first; of equals the most users.

    Args:
        norm: k -> L(k), of the mean gradient of k rows of a user; `gradient_norms` measures it.
        noise_multiplier: n -> s(n), with n users expected a step.
    """
    found = [(s, noise_variance(noise_multiplier(s.n), norm(s.k), s.n)) for s in choices]
    return sorted(found, key=lambda pair: (pair[1], -pair[0].n))


# strategies (Charles et al. 2024, appendix I.1) ------------------------------------------------------------
def greedy_local_oracle(
    loss: Callable[[Split], float], start: Split, budget: float, most_k: int, users: int
) -> tuple[Place, ...]:
    """As `estimate_and_double`, by the loss that training with either doubling would end at: what no estimate beats,
    where one doubling is looked at at a time."""

    def by_k(split: Split) -> float:
        return loss(Split(2 * split.k, split.n))

    def by_n(split: Split) -> float:
        return loss(Split(split.k, 2 * split.n))

    return doubled(start, budget, most_k, users, by_k, by_n)


def max_cohort(choices: Sequence[Split]) -> Split:
    """The split with the most users."""
    return max(choices, key=lambda split: split.n)


def max_group_size(choices: Sequence[Split]) -> Split:
    """The split with the most rows a user."""
    return max(choices, key=lambda split: split.k)


def random_split(choices: Sequence[Split], generator: np.random.Generator) -> Split:
    """Any of the splits, with equal probability."""
    return choices[int(generator.integers(len(choices)))]


def strategies(
    norm: Callable[[int], float],
    noise_multiplier: Callable[[float], float],
    loss: Callable[[Split], float],
    start: Split,
    ks: Sequence[int],
    users: int,
) -> dict[str, Strategy]:
    """Return the strategies by name. A random choice is not among them: it is another one each time.

    Args:
        norm, noise_multiplier: as in `uls_variances`.
        loss: that a split ends at, which the oracle alone sees.
        start: what doublings start from; no split has fewer users.
        ks: the rows a user that may be chosen, in order.
        users: the most that a step may expect.
    """

    def choices(budget: float) -> list[Split]:
        return splits(budget, ks, start.n, users)

    def estimated(noise: Callable[[float], float], budget: float) -> Split:
        return estimate_and_double(norm, noise, start, budget, ks[-1], users)[-1].split

    return {
        OWN: lambda budget: estimated(noise_multiplier, budget),
        PRINTED: lambda budget: estimated(lambda n: n * noise_multiplier(n), budget),
        LEAST: lambda budget: uls_variances(choices(budget), norm, noise_multiplier)[0][0],
        ORACLE: lambda budget: greedy_local_oracle(loss, start, budget, ks[-1], users)[-1].split,
        COHORT: lambda budget: max_cohort(choices(budget)),
        GROUP: lambda budget: max_group_size(choices(budget)),
    }
