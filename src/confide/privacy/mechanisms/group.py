"""Group Privacy: example-level DP turned into user-level DP as a black box (Chua et al. 2024, Algorithm 1)."""

import math
from dataclasses import dataclass, replace
from typing import ClassVar

from confide.privacy.accounting import (
    BallsInBins,
    DominatingPair,
    FixedBins,
    GroupOf,
    MixtureOfGaussians,
)
from confide.privacy.correlated_noise import INDEPENDENT, Correlation
from confide.privacy.mechanisms.rows import CappedRows
from confide.privacy.sampling import Sampling


@dataclass(frozen=True)
class GroupPrivacy(CappedRows):
    """At most k rows of each user; example-level accounting, then the group privacy lemma.

    Formal guarantee: (epsilon, delta)-DP for one user under zero-out adjacency, from example-level
    (epsilon / k, delta (e^(epsilon/k) - 1) / (e^epsilon - 1)). It is never tighter than `els` on the same
    draws. It is here as the baseline of Chua et al. 2024 and Charles et al. 2024; a plan shows els next to it.
    """

    name: ClassVar[str] = "group"
    notion: ClassVar[str] = "user-level DP"
    family: ClassVar[str] = "user-level"
    suggested_caps: ClassVar[tuple[int | str, ...]] = (2, 4, 8)

    @property
    def unit(self) -> str:
        return "all rows of one user"

    def _account(self, most: int, sampling: Sampling, steps: int) -> DominatingPair:
        return GroupOf(example_level(sampling, steps), max(most, 1))


def example_level(sampling: Sampling, steps: int, correlation: Correlation = INDEPENDENT) -> DominatingPair:
    """Return the process of a unit that has one row.

    Formal guarantee, with correlated noise: in bins that of `FixedBins`. Else that of Choquette-Choo et al. 2023,
    Theorem 4: a unit's group has its turn in at most ceil(T / bands) of T steps. A column of C ends before the next
    turn's begins, so each turn is a release of its own, of N(Bernoulli(bands q) v, s^2 |v|^2 I) with v the column, in
    which the unit moves C X by |v| clip norms.

    Args:
        correlation: the matrix C by which noise is correlated; banded by `sampling.bands` if there are groups.
    """
    if sampling.keeps_bins:
        return FixedBins.of(sampling.bins, steps, correlation)
    if sampling.groups > 1:
        turns = math.ceil(steps / sampling.groups)
        process = MixtureOfGaussians.bernoulli(sampling.groups * sampling.rate, turns)
        return replace(
            process, words=f"{process.words} (of {steps} steps, those in which its group has its turn)"
        )
    if sampling.kind == "bins":
        return BallsInBins(sampling.bins, steps)
    return under_a_cap(MixtureOfGaussians.bernoulli(sampling.rate, steps), sampling)


def under_a_cap(process: MixtureOfGaussians, sampling: Sampling) -> MixtureOfGaussians:
    """Return the process of Poisson draws that are made anew while they hold more than `sampling.cap`: it is the same.

    Formal guarantee, zero-out adjacency: a unit that contributes nothing is still drawn, and counts. So both worlds
    draw alike. Take as given which rows of others are in the step; let there be u of them. The number of the unit's own
    rows in it is then distributed as without a cap, under the condition that it is at most cap - u. That is
    stochastically no larger, so the step is dominated by the same pair (`MixtureOfGaussians`). So is the mixture over
    all u, by joint convexity. Under replace-one both worlds draw alike as well, and the argument is the same.

    If a random part of a larger draw were kept, this would not hold. A unit would take the place of another, which
    moves the sum by up to two clip norms.
    """
    if sampling.kind != "truncated":
        return process
    return replace(process, words=f"{process.words} (a step of more than {sampling.cap} is drawn anew)")
