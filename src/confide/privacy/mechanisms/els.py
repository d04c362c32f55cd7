"""ELS: example-level sampling for user-level DP (Charles et al. 2024, Algorithm 1)."""

from dataclasses import dataclass
from typing import ClassVar

from confide.privacy.accounting import DominatingPair, MixtureOfGaussians
from confide.privacy.mechanisms.group import under_a_cap
from confide.privacy.mechanisms.rows import CappedRows
from confide.privacy.sampling import Sampling


@dataclass(frozen=True)
class ExampleLevelSampling(CappedRows):
    """At most G rows of each user are used; each row is drawn independently with probability p and clipped on its own.

    Formal guarantee: (epsilon, delta)-DP for one user under zero-out adjacency. Zeroing a user's rows out
    moves the sum by at most C X with X ~ Binomial(G, p), so T steps are dominated by the T-fold
    composition of N(X, s^2) against N(0, s^2), in both directions (Charles et al. 2024, Theorem 3). It is tight.
    Draws under a cap: see `group.under_a_cap`.
    """

    name: ClassVar[str] = "els"
    notion: ClassVar[str] = "user-level DP"
    family: ClassVar[str] = "user-level"
    suggested_caps: ClassVar[tuple[int | str, ...]] = (1, 2, 4, 8, 16, "median")

    @property
    def unit(self) -> str:
        return "all rows of one user"

    def _account(self, most: int, sampling: Sampling, steps: int) -> DominatingPair:
        return under_a_cap(MixtureOfGaussians.binomial(most, sampling.rate, steps), sampling)
