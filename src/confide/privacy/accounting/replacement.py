"""The cost of replacing a unit's text by another: at most twice zeroing it out, and less where that can be proved."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from dp_accounting.pld import pld_pmf
from dp_accounting.pld import privacy_loss_distribution as pld
from dp_accounting.pld.privacy_loss_mechanism import ConnectDotsBounds
from scipy.special import log_ndtr, ndtr, ndtri

from confide.privacy.accounting.composing import mirrored
from confide.privacy.accounting.curves import PrivacyProfile, exchanged
from confide.privacy.accounting.pairs import FINE, DominatingPair, Grid, MixtureOfGaussians, checked, sketch
from confide.utils.rounding import at_most

_BEYOND = -float(ndtri(math.exp(-50) / 4))
"""Standard deviations beyond which a tail goes to infinite loss, as in dp_accounting."""


@dataclass(frozen=True)
class Replacement:
    """T steps in which a unit takes part with probability q; its text is replaced by any other.

    Formal guarantee: given the other units' contributions, a step is P = (1-q) N(0, s^2) + q N(u, s^2) in the one
        world and
    Q = (1-q) N(0, s^2) + q N(v, s^2) in the other, |u| <= 1, |v| <= 1. For e^e = g >= 1,
        P - g Q = q (N(u) - h R),  h = g + (g-1)(1-q)/q >= 1,  R = (1-b) N(0) + b N(v),  b = g / h,
    so H_g(P, Q) = q H_h(N(u), R). Shifted by -u this is N(0) against a mixture of Gaussians at distances
    |u| <= 1 and |v - u| <= 2, which is no larger than for distances 1 and 2 in one direction (Choquette-Choo et
    al. 2023, Corollary 4.7: the pair of `MixtureOfGaussians`), and that is met at u = 1, v = -1. For g < 1,
    H_g(P, Q) = 1 - g + g H_(1/g)(Q, P), which has the same form. So (1-q) N(0) + q N(1) against
    (1-q) N(0) + q N(-1) dominates, in both directions at once, and steps compose (Zhu, Dong and Wang 2022). Its
    loss is odd and increasing in x, with the inverse s^2 (e/2 + asinh(((1-q)/q) e^(1/2s^2) sinh(e/2))).
    """

    q: float
    steps: int

    def curve(self, noise_multiplier: float, interval: float = FINE) -> PrivacyProfile:
        s = checked(noise_multiplier)
        if s == 0:
            return PrivacyProfile.unprotected()
        loss = _Loss(self.q, s)
        grid = Grid(interval, 2 * self.q / s, self.steps, 1)
        return grid.curve(lambda h: pld.PrivacyLossDistribution(loss.dots(h), None), loss)

    def describe(self) -> str:
        return (
            f"On each of {self.steps} steps a unit takes part with probability {at_most(self.q, 6)}; "
            f"what one unit does is "
            "compared with what any other text in its place would do, under Gaussian noise."
        )


@dataclass(frozen=True)
class _Loss:
    """Privacy loss of one step of `Replacement`."""

    q: float
    s: float

    def _place(self, epsilon: np.ndarray) -> np.ndarray:
        """Compute x at which the loss is epsilon."""
        if self.q == 1:
            return self.s**2 * epsilon / 2
        half = np.abs(epsilon) / 2
        with np.errstate(divide="ignore"):
            # log sinh(half), and asinh(z) = log(2 z) for large z: neither overflows
            log_sinh = np.where(
                half > 1,
                half + np.log1p(-np.exp(-2 * half)) - math.log(2),
                np.log(np.sinh(np.minimum(half, 1))),
            )
        log_z = math.log1p(-self.q) - math.log(self.q) + 1 / (2 * self.s**2) + log_sinh
        inner = np.where(log_z > 30, math.log(2) + log_z, np.arcsinh(np.exp(np.minimum(log_z, 30))))
        place: np.ndarray = self.s**2 * np.sign(epsilon) * (half + inner)
        return place

    def _at(self, x: float) -> float:
        """Compute the loss at x."""
        up, down = (math.log(self.q) + (side * x - 0.5) / self.s**2 for side in (1, -1))
        stay = math.log1p(-self.q) if self.q < 1 else -math.inf
        return float(np.logaddexp(stay, up) - np.logaddexp(stay, down))

    def delta(self, epsilon: np.ndarray) -> np.ndarray:
        """Compute H(epsilon) of one step, at epsilons of any sign."""
        x, s, q = self._place(epsilon), self.s, self.q
        with np.errstate(over="ignore"):
            out, stay = np.exp(epsilon + log_ndtr((-1 - x) / s)), np.exp(epsilon + log_ndtr(-x / s))
        found = q * (ndtr((1 - x) / s) - out)
        if q < 1:  # for q = 1, `stay` may overflow, and 0 times infinity is NaN
            found += (1 - q) * (ndtr(-x / s) - stay)
        delta: np.ndarray = np.clip(found, 0.0, 1.0)
        return delta

    def connect_dots_bounds(self) -> ConnectDotsBounds:
        most = self._at(1 + _BEYOND * self.s)
        return ConnectDotsBounds(epsilon_upper=most, epsilon_lower=-most)

    def dots(self, interval: float) -> pld_pmf.DensePLDPmf:
        """Build the pessimistic connect-the-dots distribution on multiples of `interval`."""
        high = math.ceil(self._at(1 + _BEYOND * self.s) / interval)
        return mirrored(interval, self.delta(np.arange(high + 1) * interval))


@dataclass(frozen=True)
class Exchanged:
    """A process under replace-one of which only the cost of zeroing a unit out is known.

    Formal guarantee: one text is zeroed out, and then the other is put in: a removal and then an addition, as in
    `curves.exchanged`. The cost is at most (2 epsilon, (1 + e^epsilon) delta), in each direction separately: a bound
    on true positives, and the best of many runs (`Repeated`), use each direction alone. There is no privacy loss
    distribution behind it, so it composes with other phases by basic composition alone.
    """

    process: DominatingPair

    def curve(self, noise_multiplier: float, interval: float = FINE) -> PrivacyProfile:
        return exchanged(self.process.curve(noise_multiplier, interval))

    def estimate(self, noise_multiplier: float, interval: float) -> PrivacyProfile:
        """Estimate the curve for a search, as `pairs.sketch` says."""
        return exchanged(sketch(self.process)(noise_multiplier, interval))

    def describe(self) -> str:
        return (
            f"{self.process.describe()} Any other text in its place is reached by zeroing it out and then putting the "
            "other in."
        )


def replaced(process: DominatingPair) -> DominatingPair:
    """Return a process under replace-one, from the one under zero-out.

    Formal guarantee: `Replacement` if a unit takes part as a whole or not at all; else `Exchanged`.
    """
    if isinstance(process, MixtureOfGaussians):
        if process.values == (0.0, 1.0):
            return Replacement(process.probabilities[1], process.steps)
        if process.values == (1.0,):
            return Replacement(1.0, process.steps)
    return Exchanged(process)
