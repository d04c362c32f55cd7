"""A run repeated a random number of times with the best result released, and the privacy cost of that selection."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.optimize import brentq

from confide.privacy.accounting.curves import Array, Direction, PrivacyProfile
from confide.privacy.accounting.pairs import FINE, DominatingPair, sketch
from confide.utils.errors import InputError
from confide.utils.rounding import at_most

_FAR = 40.0
"""Losses beyond which 1 - e^-loss is 1 in float64."""

_HIGHEST = 700.0
"""Losses whose exponential float64 still holds."""

_PLACES, _VERTICES, _HINGES = 2000, 2000, 200
"""How finely `repeated` is computed; any numbers give upper bounds."""


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

    def estimate(self, noise_multiplier: float, interval: float) -> PrivacyProfile:
        """Estimate the curve for a search, as `pairs.sketch` says."""
        return repeated(sketch(self.process)(noise_multiplier, interval), self.trials)

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
    probability Q(y) E[w(Q(E))] over y's lot, where w(u) = f'(1 - u) = mean (g / (g + (1-g) u))^(1 + shape) falls in u.
    With u = Q(E), Q'(E) is at most t(u) = inf over a of e^a u + delta'(a). So, whatever the scores are,
        H_e(best, best') <= E over y ~ Q of m(e^e Q'(y) / Q(y)),  m(x) = max over u of w(u) - w(t(u)) x, or 0.
    m is convex, falls and ends at 0: it is a sum of c_j (x_j - x)+, and each of these gives c_j x_j delta(e - log x_j).
    This refines Koskela, Redberg and Wang 2024 ("Privacy Profiles for Private Selection"): that bound takes the largest
    w(u) and the largest w(u) / w(t(u)), each at its own u. No bound for all scores can be much smaller. If those
    outputs score best that are likelier in the other world, and next those that are by far likelier in the one, the
    best gives away nearly as much (tests/privacy/accounting/test_repetition.py).

    At e = 0 two more bounds hold, and the smaller counts: the trials taken one by one give 1 - f(1 - delta(0)), and the
    line from -e to e > 0 gives (e^e - 1 + H_e + H'_e) / (e^e + 1), since below 0 each direction follows from the other:
    H_-e = 1 - e^-e (1 - H'_e).
    """
    removal = _selected(curve.removal, curve.addition, trials)
    addition = _selected(curve.addition, curve.removal, trials)
    at_zero = max(0.0, min(_together(removal, addition), 1 - trials.generating(1 - curve.delta(0.0))))
    removal, addition = _from_zero(removal, at_zero), _from_zero(addition, at_zero)
    return PrivacyProfile(_both_signs(removal, addition), _both_signs(addition, removal), curve.interval)


def _selected(own: Direction, other: Direction, trials: Trials) -> Direction:
    """Compute vertices above 0 of H_e(best, best').

    Args:
        own: bounds one trial in the same direction.
        other: bounds one trial in the other direction.
        trials: distribution of the number of trials.
    """
    log_x, shares = _hinges(other, trials)
    epsilons = _some(own.epsilons, _VERTICES) + log_x[-1]
    epsilons = epsilons[epsilons > 0]
    if not len(epsilons):
        epsilons = np.array([1.0])
    deltas = np.zeros_like(epsilons)
    for shift, share in zip(log_x, shares, strict=True):
        deltas += share * own.delta(epsilons - shift)
    deltas = np.minimum.accumulate(np.minimum(deltas, 1.0))
    useful = deltas < 1
    useful[-1] = True
    return Direction(epsilons[useful], deltas[useful])


def _hinges(other: Direction, trials: Trials) -> tuple[Array, Array]:
    """Write m of `repeated`, or slightly more, as a sum of shares_j (1 - x / x_j)+.

    Between two places u the larger weight w counts in the one world and the smaller one in the other.

    Returns:
        log x_j, rising, and shares_j.
    """
    g, rest = trials.stop, 1 - trials.stop
    places = np.union1d(
        np.geomspace(1e-14, 1.0, _PLACES), g / rest * np.expm1(np.linspace(0, -math.log(g), _PLACES))
    )
    places = np.append(0.0, np.minimum(places, 1.0))
    beaten = np.maximum(np.minimum(_reached(other, places), 1.0), places)
    one = trials.mean * (g / (g + rest * places[:-1])) ** (1 + trials.shape)
    two = trials.mean * (g / (g + rest * beaten[1:])) ** (1 + trials.shape)
    # Rounding between places must not cost more than the largest ratio w(u) / w(t(u)) at each of them.
    all_a = np.append(other.epsilons[other.epsilons >= 0], 0.0)
    log_ratio = np.maximum(all_a, np.log1p(rest / g * other.delta(all_a))).min()
    two = np.maximum(two, one * np.exp(-(1 + trials.shape) * log_ratio))
    slopes, heights = _majorant(two, one)
    steps, x = np.diff(slopes), np.diff(heights) / np.diff(slopes)
    log_x, weights = np.log(x)[::-1], (steps * x)[::-1]
    return _gathered(np.maximum(log_x, 0.0), weights)


def _reached(other: Direction, places: Array) -> Array:
    """Return inf over a of e^a u + delta'(a) for places u, or slightly more: any a gives a bound.

    The vertices of delta' are convex in e^a, so the best a falls as u rises: from each vertex to the next at one place.
    """
    a = _some(other.epsilons, _VERTICES)
    a = np.union1d(a[a < _HIGHEST], [0.0])
    slopes, heights = np.exp(a), other.delta(a)
    turns = np.minimum.accumulate((heights[:-1] - heights[1:]) / np.diff(slopes))
    best = len(turns) - np.searchsorted(turns[::-1], places, side="right")
    bound: Array = slopes[best] * places + heights[best]
    return bound


def _majorant(across: Array, up: Array) -> tuple[Array, Array]:
    """Return the corners of the least concave line above the origin and some points, up to the highest point."""
    order = np.lexsort((up, across))
    corners = [(0.0, 0.0)]
    for point in zip(across[order].tolist(), up[order].tolist(), strict=True):
        while len(corners) > 1 and _turns_left(corners[-2], corners[-1], point):
            corners.pop()
        if point[1] > corners[-1][1]:
            if point[0] == corners[-1][0]:
                corners.pop()
            corners.append(point)
    found = np.array(corners)
    return found[:, 0], found[:, 1]


def _turns_left(first: tuple[float, float], middle: tuple[float, float], last: tuple[float, float]) -> bool:
    ahead = (middle[0] - first[0]) * (last[1] - first[1])
    return ahead >= (last[0] - first[0]) * (middle[1] - first[1])


def _gathered(log_x: Array, weights: Array) -> tuple[Array, Array]:
    """Move the hinges to a few places, each in part to the place below and in part to that above.

    (x_j - x)+ is convex in x_j, so the sum gets smaller nowhere.
    """
    if len(log_x) <= _HINGES or log_x[-1] - log_x[0] < 1e-9:
        return log_x, weights
    at = np.linspace(log_x[0], log_x[-1], _HINGES)
    low = np.clip(np.searchsorted(at, log_x, side="right") - 1, 0, _HINGES - 2)
    x, below, above = np.exp(log_x), np.exp(at[low]), np.exp(at[low + 1])
    upper = np.clip((x - below) / (above - below), 0.0, 1.0)
    steps = weights / x
    found = np.bincount(low, steps * (1 - upper) * below, _HINGES)
    return at, found + np.bincount(low + 1, steps * upper * above, _HINGES)


def _some(values: Array, most: int) -> Array:
    """Return `most` of some sorted values, first and last included."""
    if len(values) <= most:
        return values
    found: Array = values[np.unique(np.linspace(0, len(values) - 1, most).astype(int))]
    return found


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
    below = 1 - np.exp(-epsilons) * (1 - deltas)
    return Direction(np.append(-epsilons, own.epsilons), np.minimum.accumulate(np.append(below, own.deltas)))
