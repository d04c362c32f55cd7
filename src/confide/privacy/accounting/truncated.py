"""Poisson sampling cut at a cap: what a step with a bound on its size reveals of one row."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from dp_accounting.pld import privacy_loss_distribution as pld
from scipy import special, stats

from confide.privacy.accounting import composing
from confide.privacy.accounting.curves import PrivacyProfile
from confide.privacy.accounting.pairs import (
    ADD,
    FINE,
    REMOVE,
    Grid,
    MixtureLoss,
    MixtureOfGaussians,
    check_rate,
    check_steps,
    checked,
)
from confide.utils.errors import InputError
from confide.utils.rounding import at_most


@dataclass(frozen=True)
class TruncatedPoisson:
    """T steps of Poisson sampling cut at `cap` rows by a random subset; a unit is one row.

    Formal guarantee, zero-out adjacency: the row is replaced by one that is still drawn, may still displace others, and
    contributes 0. Let S be the other rows drawn. Whether |S| >= cap is counted as public, so each step is a mixture of
    two cases, which dominates; steps compose (Zhu, Dong and Wang 2022).

    |S| < cap: the row is in with probability q and displaces none: (1-q) N(0) + q N(1) against N(0), all of variance
    s^2.

    |S| >= cap: draw a random cap-subset U of S, and a random u in U. With probability r = E[q cap / (|S| + 1)] the row
    takes u's place. Given (U, u), which are independent of |S|, both worlds are (1-r) N(0) + r N(.), centred at
    y = g - g_u with the row and at y' = -g_u without, so that |y| <= 2, |y'| <= 1 and |y - y'| <= 1. By advanced
    joint convexity (Balle et al. 2018, Theorem 2), at e^e = 1 + (e^e' - 1) / r and b = e^(e' - e), the divergence is
        r H_e(N(y), (1-b) N(0) + b N(y'))  with the row against without it, and
        r H_e(N(y'), (1-b) N(0) + b N(y))  without against with, for e' >= 0.
    Shifted by -y, the first is N(0) against a mixture of Gaussians at distances |y| <= 2 and |y - y'| <= 1, no larger
    than for distances 2 and 1 in one direction (Choquette-Choo et al. 2023, Corollary 4.7). That is met at y = 2,
    y' = 1: it is H_e'((1-r) N(0) + r N(2), (1-r) N(0) + r N(1)). Shifted by -y', the second has distances of at most 1
    twice, and is at most r H_e(N(1), N(0)) = H_e'((1-r) N(0) + r N(1), N(0)). Negative e' follow from the other order:
    H_e'(P, Q) = 1 - e^e' + e^e' H_-e'(Q, P). At e' = 0 both bounds are r H_0(N(1), N(0)), and each order's bound is
    convex in e^e' there, too: its slope does not fall, as 1 - Phi(3/2s) - Phi(1/2s) <= 0. So each is the divergence of
    some pair.
    """

    size: int
    q: float
    cap: int
    steps: int

    def __post_init__(self) -> None:
        check_rate(self.q)
        check_steps(self.steps)
        if self.size < 1 or self.cap < 1:
            raise InputError("privacy.sampling: truncated needs at least one row and a cap of at least 1")

    @property
    def full(self) -> float:
        """The probability that at least `cap` other rows are drawn."""
        return float(stats.binom.sf(self.cap - 1, self.size - 1, self.q))

    @property
    def displacing(self) -> float:
        """The probability r that the row is used, given that at least `cap` other rows are drawn."""
        more = float(stats.binom.sf(self.cap, self.size, self.q))
        return more * self.cap / self.size / self.full if self.full else 0.0

    @property
    def mean(self) -> float:
        """The probability that the row is used."""
        return (1 - self.full) * self.q + self.full * self.displacing

    def curve(self, noise_multiplier: float, interval: float = FINE) -> PrivacyProfile:
        s = checked(noise_multiplier)
        if s == 0:
            return PrivacyProfile.unprotected()
        if self.full == 0:  # nothing is ever cut
            return MixtureOfGaussians.bernoulli(self.q, self.steps).curve(noise_multiplier, interval)
        step = _Step.of(self, s)
        grid = Grid(interval, self.mean / s, self.steps, 1)
        return grid.curve(step.distribution, *step.mixtures())

    def describe(self) -> str:
        return (
            f"On each of {self.steps} steps each of {self.size} rows is drawn with probability "
            f"{at_most(self.q, 6)}, and "
            f"of more than {self.cap} drawn rows a random {self.cap} are used; one row is compared with the same "
            "row zeroed out, under Gaussian noise."
        )


@dataclass(frozen=True)
class _Step:
    """One step's divergences, with the row against without it (removal), and the other way round (addition).

    Attributes:
        full: probability of the case in which the row displaces another, above 0.
        alone: removal and addition if it displaces none; None if it always displaces one.
        displacing: rate r, below 1: the row is one of more than `cap`.
        s: noise multiplier.
    """

    full: float
    alone: tuple[MixtureLoss, MixtureLoss] | None
    displacing: float
    s: float

    @classmethod
    def of(cls, process: TruncatedPoisson, s: float) -> _Step:
        alone = None
        if process.full < 1:
            alone = _mixture(1.0, process.q, s, REMOVE), _mixture(1.0, process.q, s, ADD)
        return cls(process.full, alone, process.displacing, s)

    def mixtures(self) -> list[MixtureLoss]:
        """Return mixtures whose losses reach at least as far as those of a step."""
        far = [_mixture(2.0, self.displacing, self.s, side) for side in (REMOVE, ADD)]
        return [*(self.alone or ()), *far]

    def distribution(self, interval: float) -> pld.PrivacyLossDistribution:
        """Build the pessimistic connect-the-dots distribution of a step."""
        bounds = [mixture.connect_dots_bounds() for mixture in self.mixtures()]
        most = max(max(float(each.epsilon_upper or 0), -float(each.epsilon_lower or 0)) for each in bounds)
        high = math.ceil(most / interval)
        epsilons = interval * np.arange(high + 1)
        forth, back = self._with(epsilons), self._without(epsilons)
        removal, addition = self.alone or (None, None)
        return pld.PrivacyLossDistribution(
            composing.connected(interval, -high, self._above(epsilons, removal, forth, back)),
            composing.connected(interval, -high, self._above(epsilons, addition, back, forth)),
        )

    def _above(
        self, epsilons: np.ndarray, alone: MixtureLoss | None, own: np.ndarray, other: np.ndarray
    ) -> np.ndarray:
        """Return the divergence less max(0, 1 - e^epsilon), from the least epsilon to the largest.

        Args:
            epsilons: from 0 on.
            alone: of the case in which the row displaces none.
            own, other: of the other case, in this order and in the reverse one, at these epsilons.
        """
        both = np.concatenate([-epsilons[:0:-1], epsilons])
        displaced = np.concatenate([(np.exp(-epsilons) * other)[:0:-1], own])
        apart = 0.0 if alone is None else (1 - self.full) * alone.above(both)
        found: np.ndarray = apart + self.full * displaced
        return found

    def _with(self, epsilons: np.ndarray) -> np.ndarray:
        """Return H((1-r) N(0) + r N(2), (1-r) N(0) + r N(1)) at epsilons from 0 on."""
        r, s = self.displacing, self.s
        x = _place(epsilons, r, s)
        upper = (1 - r) * special.ndtr(-x / s) + r * special.ndtr((2 - x) / s)
        lower = np.logaddexp(
            math.log1p(-r) + special.log_ndtr(-x / s), math.log(r) + special.log_ndtr((1 - x) / s)
        )
        found: np.ndarray = np.clip(upper - np.exp(epsilons + lower), 0.0, 1.0)
        return found

    def _without(self, epsilons: np.ndarray) -> np.ndarray:
        """Return H((1-r) N(0) + r N(1), N(0)) at epsilons from 0 on."""
        found: np.ndarray = np.maximum(_mixture(1.0, self.displacing, self.s, REMOVE).above(epsilons), 0.0)
        return found


def _mixture(distance: float, rate: float, s: float, side: object) -> MixtureLoss:
    """Return the losses of (1-rate) N(0) + rate N(distance) against N(0), scaled so that s = 1."""
    return MixtureLoss(1.0, [0.0, distance / s], [1 - rate, rate], adjacency_type=side)


def _place(epsilons: np.ndarray, r: float, s: float) -> np.ndarray:
    """Compute x from 3/2 on with log(((1-r) N(x; 0) + r N(x; 2)) / ((1-r) N(x; 0) + r N(x; 1))) = epsilon >= 0.

    The ratio is 1 at 3/2, grows from there on, and is at most e^((x - 3/2) / s^2), so the first bracket holds x. A
    place that is off by dx lowers the divergence by a term of order dx^2 only.
    """
    low = 1.5 + s**2 * epsilons
    high = low + 1.0
    while np.any(short := _loss(high, r, s)[0] < epsilons):
        high = np.where(short, 2 * high - 1.5, high)
    x = low
    for _ in range(200):
        loss, slope = _loss(x, r, s)
        low, high = np.where(loss < epsilons, x, low), np.where(loss < epsilons, high, x)
        with np.errstate(divide="ignore", invalid="ignore"):
            newton = x - (loss - epsilons) / slope
        moved = np.where((newton >= low) & (newton <= high), newton, (low + high) / 2)
        if np.max(np.abs(moved - x)) < 1e-10 * max(1.0, s):
            break
        x = moved
    return moved


def _loss(x: np.ndarray, r: float, s: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the logarithm of the ratio at x, and its derivative."""
    stay = math.log1p(-r)
    two, one = (math.log(r) + (at * x - at**2 / 2) / s**2 for at in (2, 1))
    above, below = np.logaddexp(stay, two), np.logaddexp(stay, one)
    return above - below, (2 * np.exp(two - above) - np.exp(one - below)) / s**2
