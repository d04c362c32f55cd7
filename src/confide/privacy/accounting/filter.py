"""The Renyi filter: a budget at every order, fixed before a run, and steps that choose their noise while it lasts."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from dp_accounting import dp_event
from dp_accounting.privacy_accountant import NeighboringRelation
from dp_accounting.rdp import rdp_privacy_accountant as rdp

from confide.privacy.accounting.curves import Array, Direction, PrivacyProfile, compose
from confide.privacy.accounting.pairs import FINE, DominatingPair, MixtureOfGaussians, checked
from confide.utils.rounding import at_least, at_most

ORDERS = np.array([*range(2, 65), 80, 96, 128, 192, 256, 384, 512, 768, 1024])
"""Orders at which budgets are kept, all of them integers. For other orders, dp_accounting's series converges for some
noises and not for others; where it does not, a step would seem to cost more than any budget.
"""

RELEASE = 5.0
"""Default ratio of (noise / sampling probability) of a release to that of a planned step. At large noise the cost is
proportional to (q / s)^2, so a release then costs 1/25 of a step; elsewhere less.
"""

_LEAST = 1e-12
"""Divergences below this are rounding errors of either sign, and are counted as this much."""


@dataclass(frozen=True, order=True)
class SampledGaussian:
    """One release of a sum plus N(0, s^2), to which a unit adds a vector of norm at most 1 with probability q."""

    q: float
    noise_multiplier: float

    @property
    def cost(self) -> Array:
        """The Renyi divergence at `ORDERS` of a unit against the same unit zeroed out, the larger of both directions.

        Source: `dp_accounting`, after Mironov, Talwar and Zhang 2019, section 3.3.
        """
        return _cost(self)


@lru_cache(maxsize=4096)
def _cost(release: SampledGaussian) -> Array:
    accountant = rdp.RdpAccountant(ORDERS.tolist(), NeighboringRelation.REPLACE_SPECIAL)
    event = dp_event.GaussianDpEvent(release.noise_multiplier)
    accountant.compose(dp_event.PoissonSampledDpEvent(release.q, event))
    cost: Array = np.maximum(accountant.rdp, _LEAST)
    cost.flags.writeable = False
    return cost


def _total(releases: Counter[SampledGaussian]) -> Array:
    """Add up the costs of all releases in one fixed order: equal releases give equal sums, to the bit."""
    total = np.zeros(len(ORDERS))
    for release in sorted(releases):
        total += releases[release] * release.cost
    return total


class RenyiFilter:
    """Admits releases, each with a noise that may depend on all results before it, until a budget is spent.

    Formal guarantee: Feldman and Zrnic 2021, Theorem 3.1: if in every case the divergences of order alpha add up to at
    most R(alpha), each taken given the results before it, then all results together are (alpha, R(alpha))-RDP. `spend`
    ensures that at every order at once. Whether a release is made may depend on released results, and on no other
    private value.

    Attributes:
        limit: R at `ORDERS`, fixed before the first release.
    """

    def __init__(self, limit: Array):
        self.limit = limit
        self._made: Counter[SampledGaussian] = Counter()

    @property
    def spent(self) -> Array:
        """The sum of the divergences so far, at `ORDERS`."""
        return _total(self._made)

    def allows(self, release: SampledGaussian) -> bool:
        """Tell whether a release fits in the rest of the budget, at every order."""
        return bool(np.all(_total(self._made + Counter([release])) <= self.limit))

    def spend(self, release: SampledGaussian) -> None:
        """Pay for a release, before it is looked at.

        Raises:
            AssertionError: it does not fit.
        """
        if not self.allows(release):
            raise AssertionError("a release that the privacy budget does not allow")
        self._made[release] += 1


@dataclass(frozen=True)
class RenyiBudget:
    """The budget of a run whose steps multiply the noise multiplier s by factors that they learn from releases.

    R(alpha) is the cost of `steps` planned steps. Each consists of a release, and of a sum to which a unit adds with
    probability q, with noise `planned` times s. `RenyiFilter` decides how many steps the run takes, and with which
    factors.

    Formal guarantee: a run that spends through a `RenyiFilter` with `limit` is R(alpha)-RDP at every order, in both
    directions, however many steps it takes. Its curve is the conversion of Canonne, Kamath and Steinke 2020
    (Proposition 12) at the best order for each delta; at negative epsilons each direction follows from the other.

    If no factor may be below `planned`, the curve is a tighter one. Each step then has the noise of a planned step or
    more, and there are at most `steps`, whatever came before. So each is dominated by the pair of a planned step, and
    each release by that of a release; all of them together are dominated by the composition of `steps` pairs of each
    kind, although factors and the end of the run follow from results (Zhu, Dong and Wang 2022, Theorem 10).

    Attributes:
        q: the sampling probability of a step.
        steps: the number of planned steps.
        planned: the factor of a planned step.
        release_q: the sampling probability of a release.
        release_noise: the noise multiplier of a release, None for one in proportion to s.
        least: no step may have a smaller factor.
    """

    q: float
    steps: int
    planned: float
    release_q: float
    release_noise: float | None = None
    least: float = 0.0

    @property
    def is_fixed(self) -> bool:
        """True if no step may cost more than a planned one, so that pairs compose."""
        return self.least >= self.planned

    def step(self, noise_multiplier: float, factor: float) -> SampledGaussian:
        """Return a step whose noise is multiplied by `factor`.

        Raises:
            AssertionError: the factor is below the least, which the curve may rest on.
        """
        if factor < self.least:
            raise AssertionError(f"a step with a factor of {factor}, below the least of {self.least}")
        return SampledGaussian(self.q, factor * noise_multiplier)

    def release(self, noise_multiplier: float) -> SampledGaussian:
        """Return the release from which a step learns its factor."""
        noise = self.release_noise
        return SampledGaussian(
            self.release_q, self.release_share * noise_multiplier if noise is None else noise
        )

    @property
    def release_share(self) -> float:
        """A release's noise multiplier in units of s, if it is in proportion."""
        return RELEASE * self.planned * self.release_q / self.q

    def limit(self, noise_multiplier: float) -> Array:
        """Compute R at `ORDERS`."""
        planned = Counter({self.step(noise_multiplier, self.planned): self.steps})
        return _total(planned + Counter({self.release(noise_multiplier): self.steps}))

    def curve(self, noise_multiplier: float, interval: float = FINE) -> PrivacyProfile:
        if not self.is_fixed or noise_multiplier == 0:
            return curve_of(self.limit(checked(noise_multiplier)))
        step, release = self.step(noise_multiplier, self.planned), self.release(noise_multiplier)
        found = [
            MixtureOfGaussians.bernoulli(one.q, self.steps).curve(one.noise_multiplier, interval)
            for one in (step, release)
        ]
        return (
            compose(found)
            if all(np.isfinite(one.epsilon(0.5)) for one in found)
            else PrivacyProfile.unprotected()
        )

    def describe(self) -> str:
        noise = (
            f"{at_least(self.release_share)} times the noise multiplier"
            if self.release_noise is None
            else at_least(self.release_noise)
        )
        if self.is_fixed:
            return (
                f"{self.steps} planned steps. In each a unit takes part with probability {at_most(self.q, 6)}, under "
                f"Gaussian noise of {at_least(self.planned, 6)} times the noise multiplier, after a release in which "
                f"it takes part with probability {at_most(self.release_q, 6)}, under Gaussian noise of {noise}. No "
                "step may have less noise than a planned one, so the claim is the same after fewer steps and with "
                "more noise."
            )
        return (
            f"A budget of Renyi divergence at {len(ORDERS)} orders, from {ORDERS[0]:g} to {ORDERS[-1]:g}, fixed before "
            f"the first step: the cost of {self.steps} planned steps. In each a unit takes part with probability "
            f"{at_most(self.q, 6)}, under Gaussian noise of {at_least(self.planned, 6)} times the "
            f"noise multiplier, after a release in "
            f"which it takes part with probability {at_most(self.release_q, 6)}, under Gaussian noise "
            f"of {noise}. A Renyi "
            "filter stops the run before it would pass the budget at any order, so the claim is the same after fewer "
            "steps."
        )


@dataclass(frozen=True)
class Scaled:
    """A process whose noise is counted at `factor` times the noise multiplier."""

    process: DominatingPair
    factor: float

    def curve(self, noise_multiplier: float, interval: float = FINE) -> PrivacyProfile:
        return self.process.curve(self.factor * noise_multiplier, interval)

    def describe(self) -> str:
        return (
            f"{self.process.describe()} The noise is counted at {at_least(self.factor, 6)} times "
            f"the noise multiplier."
        )


def curve_of(divergences: Array) -> PrivacyProfile:
    """Compute the curve of anything that is RDP with these divergences at `ORDERS`, in both directions.

    Formal guarantee: every vertex is a pair of `dp_accounting`; H(-e) of one direction is 1 - e^-e (1 - H(e)) of the
    other.
    """
    if not np.isfinite(divergences).any():
        return PrivacyProfile.unprotected()
    deltas = np.geomspace(0.5, 1e-20, 300)
    epsilons = np.array([rdp.compute_epsilon(ORDERS, divergences, delta)[0] for delta in deltas])
    rising = np.flatnonzero(np.diff(epsilons, prepend=0.0) > 0)
    epsilons, deltas = epsilons[rising], deltas[rising]
    at_zero = rdp.compute_delta(ORDERS, divergences, 0.0)[0]
    below = -np.expm1(-epsilons) + np.exp(-epsilons) * deltas
    direction = Direction(
        np.concatenate([-epsilons[::-1], [0.0], epsilons]),
        np.minimum.accumulate(np.concatenate([below[::-1], [at_zero], deltas])),
    )
    return PrivacyProfile(direction, direction, 0.0)
