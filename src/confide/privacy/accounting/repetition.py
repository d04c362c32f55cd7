"""A run repeated a random number of times with the best result released, and the privacy cost of that selection."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.optimize import brentq

from confide.privacy.accounting.curves import Array, Direction, PrivacyProfile
from confide.privacy.accounting.pairs import FINE, DominatingPair
from confide.utils.errors import InputError
from confide.utils.rounding import at_most

_FAR = 40.0
"""Losses beyond which 1 - e^-loss is 1 in float64."""


@dataclass(frozen=True)
class Trials:
    """The distribution of the number of runs: K >= 1 from a truncated negative binomial distribution.

    P(K = k) is proportional to (1-g)^k times the product over l < k of (l + shape) / (l + 1) (Papernot and Steinke
    2022, Definition 1). Shape 1 is geometric: after each trial it ends with probability g. Shape 0 is logarithmic: few
    trials most of the time, and many now and then.

    Attributes:
        mean: of K, above 1.
        shape: at least 0.
    """

    mean: float
    shape: float = 1.0

    def __post_init__(self) -> None:
        if not 1.001 <= self.mean <= 1e4:
            raise InputError(
                f"--trials: {self.mean:g} trials on average are no sweep: give a number above 1, at most 10,000"
            )
        if not 0 <= self.shape <= 100:
            raise InputError(
                f"--shape: {self.shape:g} is not between 0 and 100; 1 is the geometric distribution"
            )

    @cached_property
    def stop(self) -> float:
        """The parameter g that gives the mean, rounded in the direction of fewer trials."""
        low, high = 1e-4 / self.mean**2, 1 - 1e-9
        return float(brentq(lambda g: math.log(self._mean(g) / self.mean), low, high, xtol=1e-16)) * (
            1 + 1e-9
        )

    def _mean(self, g: float) -> float:
        if self.shape == 0:
            return (1 - g) / (g * -math.log(g))
        return self.shape * (1 - g) / (g * -math.expm1(self.shape * math.log(g)))

    def generating(self, x: float) -> float:
        """Compute E[x^K], for x in [0, 1]."""
        g = self.stop
        rest = math.log1p(-(1 - g) * x)
        if self.shape == 0:
            return rest / math.log(g)
        return math.expm1(-self.shape * rest) / math.expm1(-self.shape * math.log(g))

    def number(self, uniform: float) -> int:
        """Return K as a function of a uniform value in [0, 1)."""
        g, count = self.stop, 1
        if self.shape == 0:
            mass = (1 - g) / -math.log(g)
        else:
            mass = self.shape * (1 - g) / math.expm1(-self.shape * math.log(g))
        total = mass
        # Far in the tail the uniform's 53 bits no longer separate numbers; masses before the mean may be as small.
        while total <= uniform and (mass > 1e-17 or count <= self.mean):
            mass *= (1 - g) * (count + self.shape) / (count + 1)
            count += 1
            total += mass
        return count

    def describe(self) -> str:
        kinds = {0.0: "logarithmic", 1.0: "geometric"}
        kind = kinds.get(self.shape, f"truncated negative binomial of shape {self.shape:g}")
        return f"{at_most(self.mean, 6)} on average ({kind} distribution)"


@dataclass(frozen=True)
class Repeated:
    """`process` a random number of times, each time with settings drawn afresh; the best of all outputs is released.

    Formal guarantee: see `repeated`. Every setting that can be drawn must have this same process and noise.
    """

    process: DominatingPair
    trials: Trials

    def curve(self, noise_multiplier: float, interval: float = FINE) -> PrivacyProfile:
        return repeated(self.process.curve(noise_multiplier, interval), self.trials)

    def describe(self) -> str:
        return (
            f"{self.process.describe()} All this is done a random number of times, {self.trials.describe()}, and the "
            "best output alone is released."
        )


def repeated(curve: PrivacyProfile, trials: Trials) -> PrivacyProfile:
    """Compute the curve of K independent trials, K secret, of which the best alone is released, from the curve of one.

    Formal guarantee: a trial draws its settings from a distribution fixed without the data, and gives an output y with
    a score; y ~ Q in the one world, Q' in the other, and delta(e) bounds H_e(Q, Q'), delta'(e) bounds H_e(Q', Q). With
    f(x) = E[x^K], and E the event that a trial beats y (if scores are equal, by a uniform lot), the best is y with
    probability Q(y) E[f'(1 - Q(E))] over y's lot, and f'(1 - x) = mean (g / (g + (1-g) x))^(1 + shape) <= mean.
    For every a >= 0, Q'(E) <= e^a Q(E) + delta'(a), so
        (g + (1-g) Q'(E)) / (g + (1-g) Q(E)) <= r = max(e^a, 1 + delta'(a) (1-g) / g),
    and the best is y with a probability in the other world of at least r^-(1 + shape) Q'(y) / Q(y) times that in the
    one. Summed over y:
        H_e(best, best') <= mean delta(e - (1 + shape) log r),
    for the a that makes r least: a bound on the whole curve, in the manner of Koskela, Redberg and Wang 2024 ("Privacy
    Profiles for Private Selection"). At e = 0 two more bounds hold, and the smaller counts: the trials taken one by
        one
    give 1 - f(1 - delta(0)), and the line from -e to e > 0 gives (e^e - 1 + H_e + H'_e) / (e^e + 1), since below 0
    each direction follows from the other: H_-e = 1 - e^-e (1 - H'_e).
    """
    removal = _selected(curve.removal, curve.addition, trials)
    addition = _selected(curve.addition, curve.removal, trials)
    at_zero = min(_together(removal, addition), 1 - trials.generating(1 - curve.delta(0.0)))
    removal, addition = _from_zero(removal, at_zero), _from_zero(addition, at_zero)
    return PrivacyProfile(_both_signs(removal, addition), _both_signs(addition, removal), curve.interval)


def _selected(own: Direction, other: Direction, trials: Trials) -> Direction:
    """Compute vertices above 0 of H_e(best, best').

    Args:
        own: bounds one trial in the same direction.
        other: bounds one trial in the other direction.
        trials: distribution of the number of trials.
    """
    weight = (1 - trials.stop) / trials.stop
    above = other.epsilons >= 0
    a = np.append(other.epsilons[above], 0.0)
    deltas = np.append(other.deltas[above], other.delta(0.0))
    log_ratio = (1 + trials.shape) * float(np.maximum(a, np.log1p(weight * deltas)).min())
    epsilons, deltas = own.epsilons + log_ratio, trials.mean * own.deltas
    useful = (epsilons > 0) & (deltas < 1)
    if not useful.any():
        return Direction(np.array([max(float(epsilons[-1]), 1.0)]), np.array([min(1.0, float(deltas[-1]))]))
    return Direction(epsilons[useful], deltas[useful])


def _together(removal: Direction, addition: Direction) -> float:
    """Bound the divergence at 0 by both directions above 0."""
    epsilons = removal.epsilons[removal.epsilons < _FAR]
    if not len(epsilons):
        return 1.0
    deltas = removal.delta(epsilons) + addition.delta(epsilons)
    return min(1.0, float(((np.expm1(epsilons) + deltas) / (np.exp(epsilons) + 1)).min()))


def _from_zero(direction: Direction, at_zero: float) -> Direction:
    """Return a vertex at 0, and those above it that lie below every line from it to a later one."""
    epsilons, deltas = direction.epsilons, direction.deltas
    with np.errstate(over="ignore"):
        first = int(np.argmin((deltas - at_zero) / np.expm1(epsilons)))
    if deltas[first] >= at_zero:
        return Direction(np.array([0.0]), np.array([at_zero]))
    return Direction(np.append(0.0, epsilons[first:]), np.append(at_zero, deltas[first:]))


def _both_signs(own: Direction, other: Direction) -> Direction:
    """Return `own` from 0 on, and below 0 the bound that follows from the other direction."""
    near: Array = (other.epsilons > 0) & (other.epsilons < _FAR)
    epsilons, deltas = other.epsilons[near][::-1], other.deltas[near][::-1]
    return Direction(
        np.append(-epsilons, own.epsilons), np.append(1 - np.exp(-epsilons) * (1 - deltas), own.deltas)
    )
