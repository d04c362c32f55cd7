"""Balls in bins: in every epoch each unit takes part in one step, which it draws afresh and uniformly."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise

import numpy as np
from dp_accounting.pld import pld_pmf
from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution
from scipy.special import ndtr, ndtri

from confide.privacy.accounting.curves import Composed, PrivacyProfile
from confide.privacy.accounting.pairs import FINE, MixtureOfGaussians, check_steps, checked, grid_below
from confide.utils.errors import InputError

LOST = 1e-22
"""The mass, of either world, that a sum may send to infinite loss at each end whenever it is cut."""

REACH = -float(ndtri(LOST))
"""Standard deviations of a normal variable beyond which its mass is at most `LOST`."""

FARTHEST = 300.0
"""The largest loss of a step for which the sum is made. An epoch with larger ones protects hardly anybody."""

ROUNDING = 1e-11
"""Rounding of a mass, relative. Each is a sum of positive terms, and all are raised by so much."""

_MOST_LACKING = 1e-9
"""What rounding may take from all mass of an epoch, at most; it was 1e-11 at the longest epochs."""

MOST_BINS = 100_000
"""The longest epoch that is accounted for: the sum of a longer one takes minutes."""


@dataclass(frozen=True)
class BallsInBins:
    """Epochs of `bins` steps; in each epoch a unit takes part in one step, drawn uniformly and independently of all.

    The run ends after `steps` steps, perhaps within an epoch. Source: Chua et al. 2025, "Balls-and-Bins Sampling for
    DP-SGD" (arXiv 2412.16802), whose pair this is. They compute delta by Monte Carlo; here it is bounded, without
    chance, by a sum on a grid.

    Formal guarantee, zero-out and add-or-remove: fix the other units' bins. A step that the unit takes part in moves
    the sum by a vector g of norm at most 1, which may depend on all earlier releases; its direction is e. Given y from
    N(1, s^2) if the unit takes part and from N(0, s^2) if not, |g| y e plus independent noise of variance
    s^2 (1 - |g|^2) along e and s^2 across it has the law of that step, without the others. So an epoch of which r steps
    are released is a function, step by step, of one draw from
        P = (1 - r/b) N(0, s^2 I) + 1/b (N(u_1, s^2 I) + ... + N(u_r, s^2 I))  or from  Q = N(0, s^2 I),
    in r dimensions with unit vectors u_i: this pair dominates, in both directions. Epochs draw afresh, so they compose
    (Zhu, Dong and Wang 2022).

    P/Q is S = 1 - r/b + Y_1 + ... + Y_r with b Y_i = e^((y_i - 1/2) / s^2), independent and, under Q, lognormal with
    mean 1. The divergences at e^epsilon = g are E_Q (S - g)+ and E_Q (1 - g S)+, expectations of convex functions of S.
    A mean-preserving spread of S raises them all, and one of some Y_i is one of the sum. So every value is spread to
    the two points of a geometric grid next to it, its mean kept, before and after each addition (`Spread`). The
    result has mean 1 under Q and is P'/Q' of a pair that dominates (P, Q), whose losses are multiples of the interval.

    Attributes:
        bins: b, the steps of an epoch.
        steps: of the run.
    """

    bins: int
    steps: int

    def __post_init__(self) -> None:
        check_steps(self.steps)
        if self.bins < 1 or self.bins != int(self.bins):
            raise InputError(
                f"privacy.sampling: an epoch has a whole number of steps above 0, not {self.bins}"
            )
        if self.bins > MOST_BINS:
            raise InputError(
                f"privacy.sampling: an epoch of bins has at most {MOST_BINS:,} steps, and here it would have "
                f"{self.bins:,}: use poisson, or a larger batch"
            )

    @property
    def mean(self) -> float:
        """The probability that a unit takes part in a step."""
        return 1 / self.bins

    def curve(self, noise_multiplier: float, interval: float = FINE) -> PrivacyProfile:
        """Compute the curve; the finer the interval asked for, the finer the grid of an epoch (`grid_of`)."""
        s = checked(noise_multiplier)
        if s == 0:
            return PrivacyProfile.unprotected()
        if self.bins == 1 or 1 / (2 * s**2) + REACH / s > FARTHEST:
            # To know its steps makes an attacker no weaker, and then an epoch is one Gaussian release.
            return MixtureOfGaussians.bernoulli(1.0, -(-self.steps // self.bins)).curve(s, interval)
        return _curve(self, s, grid_of(self.bins, s, interval))

    def describe(self) -> str:
        return (
            f"In each {self.bins} steps a unit takes part in one, which it draws uniformly and afresh (balls in bins), "
            f"for {self.steps} steps{unfinished(self.steps, self.bins)}; what one unit does is compared with the same "
            "unit zeroed out, under Gaussian noise."
        )


def unfinished(steps: int, bins: int) -> str:
    """Say what a last epoch of fewer steps means, if there is one."""
    rest = steps % bins
    return f", of which the last {rest} are the beginning of an epoch that is not finished" if rest else ""


def grid_of(bins: int, s: float, asked: float) -> float:
    """Return the interval of losses, from 1e-7 to 0.1: a share of the deviation of an epoch's likelihood ratio.

    Spreads add about interval^2 / 2 to its variance, which is (e^(1/s^2) - 1) / bins: at 1/16 of the deviation 0.2%.
    """
    share = 16 if asked <= 1e-3 else 6
    deviation = math.sqrt(math.expm1(min(1 / s**2, 50.0)) / bins)
    return max(1e-7, grid_below(min(deviation / share, 0.1)))


@lru_cache(maxsize=4)
def _curve(process: BallsInBins, s: float, h: float) -> PrivacyProfile:
    epochs, rest = divmod(process.steps, process.bins)
    parts = []
    if epochs:
        parts.append(Composed.of(epoch(process.bins, process.bins, s, h), epochs))
    if rest:
        parts.append(Composed.of(epoch(process.bins, rest, s, h), 1))
    return (parts[0] if len(parts) == 1 else parts[0].then(parts[1])).curve()


def epoch(bins: int, released: int, s: float, interval: float) -> PrivacyLossDistribution:
    """Build the pessimistic privacy losses of an epoch of which the first `released` steps are seen."""
    total = _sum(released, bins, s, interval).plus(1 - released / bins)
    masses, points = total.masses, total.points()
    likely = masses * points
    # What rounding took from either world may have had any loss: it goes to infinite loss.
    lost, zero = (
        _with_lacking(beyond, 1 - math.fsum(kept) - beyond)
        for kept, beyond in ((likely, total.lost), (masses, total.zero))
    )
    last = total.first + len(masses) - 1
    return PrivacyLossDistribution(
        pld_pmf.DensePLDPmf(interval, total.first, likely * (1 + ROUNDING), lost, True),
        pld_pmf.DensePLDPmf(interval, -last, masses[::-1] * (1 + ROUNDING), zero, True),
    )


def _with_lacking(beyond: float, lacking: float) -> float:
    """Add to the mass of infinite loss twice what is lacking of all mass, where it is more than all are raised by."""
    if abs(lacking) > _MOST_LACKING:
        raise AssertionError(f"masses of an epoch's losses add up to 1 less {lacking:g}")
    return beyond + (2 * lacking if lacking > ROUNDING else 0.0)


@dataclass(frozen=True, eq=False)
class Spread:
    """A nonnegative variable on a geometric grid.

    Attributes:
        interval: h.
        first: the grid's first point is e^(h first).
        masses: float64[n], of e^(h first), e^(h (first + 1)), ...
        zero: mass at 0.
        lost: what an infinite value of no mass adds to the mean.
    """

    interval: float
    first: int
    masses: np.ndarray
    zero: float
    lost: float

    def points(self) -> np.ndarray:
        """Return the values: float64[n]."""
        found: np.ndarray = np.exp(self.interval * (self.first + np.arange(len(self.masses))))
        return found

    def cut(self) -> Spread:
        """Return a spread without far ends.

        Above, all mass moves to 0, and its mean becomes `lost`. Below, mass moves to 0 and to the first point that
        stays.
        """
        masses, points = self.masses, self.points()
        means = masses * points
        above = np.cumsum(means[::-1])[::-1]
        end = max(1, int(np.searchsorted(-above, -LOST)))
        start = min(int(np.searchsorted(np.cumsum(masses), LOST)), end - 1)
        kept = masses[start:end].copy()
        up = float(means[:start].sum()) / float(points[start])
        kept[0] += up
        return replace(
            self,
            first=self.first + start,
            masses=kept,
            zero=self.zero + max(0.0, float(masses[:start].sum()) - up) + float(masses[end:].sum()),
            lost=self.lost + (float(above[end]) if end < len(above) else 0.0),
        )

    def on(self, interval: float) -> Spread:
        """Return the same on a grid of which this one's interval is a multiple."""
        times = round(self.interval / interval)
        masses = np.zeros(times * (len(self.masses) - 1) + 1)
        masses[::times] = self.masses
        return replace(self, interval=interval, first=self.first * times, masses=masses)

    def plus(self, constant: float) -> Spread:
        """Add a constant >= 0."""
        if constant == 0:
            return self
        h = self.interval
        values = np.append(self.points(), 0.0) + constant
        masses = np.append(self.masses, self.zero)
        places = np.floor(np.log(values) / h).astype(np.int64)
        below = np.exp(h * places)
        up = np.clip((values / below - 1) / math.expm1(h), 0.0, 1.0)
        first = int(places.min())
        found = np.bincount(places - first, masses * (1 - up), int(places.max()) - first + 2)
        found += np.bincount(places - first + 1, masses * up, len(found))
        return Spread(h, first, found, 0.0, self.lost)

    def add(self, other: Spread) -> Spread:
        """Return a spread of the sum of this and an independent variable on the same grid.

        All terms are positive, so that small masses keep their digits.
        """
        h, alike = self.interval, self is other
        lasts = [one.first + len(one.masses) - 1 for one in (self, other)]
        first = math.floor(np.logaddexp(h * self.first, h * other.first) / h)
        last = math.floor(np.logaddexp(h * lasts[0], h * lasts[1]) / h)
        found = Spread(
            h, first - 1, np.zeros(last - first + 4), self.zero * other.zero, self.lost + other.lost
        )
        _pair(found, self, other, 2.0 if alike else 1.0, 1.0)
        if not alike:
            _pair(found, other, self, 1.0, 0.0)
        return found.with_small(self, other.zero).with_small(other, self.zero).cut()

    def with_small(self, other: Spread, share: float) -> Spread:
        """Add a share of another's masses. What lies below the grid moves to 0 and to the first point."""
        start = other.first - self.first
        below, masses = max(0, -start), self.masses.copy()
        own = share * other.masses
        if below < len(own):
            masses[start + below :][: len(own) - below] += own[below:]
        up = float((own * other.points())[:below].sum()) / math.exp(self.interval * self.first)
        masses[0] += up
        return replace(self, masses=masses, zero=self.zero + max(0.0, float(own[:below].sum()) - up))


def _pair(found: Spread, large: Spread, small: Spread, times: float, equal: float) -> None:
    """Add the masses of sums of a value and a smaller one, `times`, and of two equal values, `equal` times.

    The larger of e^(h i) and e^(h (i - d)) is multiplied by 1 + e^(-h d), which lies between the same two powers of
    e^h for all i.
    """
    h = large.interval
    step = math.expm1(h)
    farthest = large.first + len(large.masses) - 1 - small.first
    # From here on the smaller value is less than one step of the larger.
    near = min(math.ceil(-math.log(step) / h), farthest) + 1
    nearest = min(near, max(0, large.first - small.first - len(small.masses) + 1))
    apart = np.arange(nearest, near)
    grown = np.log1p(np.exp(-h * apart)) / h
    steps = np.floor(grown).astype(np.int64)
    up = np.clip(np.expm1(h * (grown - steps)) / step, 0.0, 1.0)
    weight = np.where(apart == 0, equal, times)
    starts = np.flatnonzero(np.diff(steps, prepend=-1))
    total, offset = found.masses, large.first - found.first
    for start, end in pairwise((*starts, len(apart))):
        place, these = small.first + nearest + int(start) - large.first, slice(start, end)
        low, high = max(0, place), min(len(large.masses), place + len(small.masses) + int(end - start) - 1)
        if low >= high:
            continue
        at = offset + low + int(steps[start])
        for share, more in ((1 - up[these], 0), (up[these], 1)):
            smaller = np.convolve(small.masses, share * weight[these])[low - place : high - place]
            total[at + more : at + more + high - low] += large.masses[low:high] * smaller
    # All values that are smaller by `near` points or more, at once.
    count = np.arange(len(large.masses)) + large.first - max(near, 0) - small.first + 1
    reached = np.flatnonzero(count > 0)
    if len(reached):
        last = np.minimum(count[reached], len(small.masses)) - 1
        masses, means = np.cumsum(small.masses)[last], np.cumsum(small.masses * small.points())[last]
        risen = means / (large.points()[reached] * step)
        own = times * large.masses[reached]
        total[reached + offset] += own * np.maximum(masses - risen, 0.0)
        total[reached + offset + 1] += own * risen


def _sum(count: int, bins: int, s: float, interval: float) -> Spread:
    """Return a spread of Y_1 + ... + Y_count, by sums of 1, 2, 4, ... of them.

    Parts of a sum need a coarser grid than the sum: what they add to its variance is divided by their number.
    """
    last = count.bit_length() - 1
    power = found = None
    for level in range(last + 1):
        h = interval * 2 ** ((last - level) // 3)
        if power is None:
            power = _one(bins, s, h)
        else:
            power = power.on(h)
            power = power.add(power)
        if count >> level & 1:
            found = power if found is None else found.on(h).add(power)
    assert found is not None
    return found


def _one(bins: int, s: float, h: float) -> Spread:
    """Return a spread of e^(x/s - 1/(2 s^2)) / bins for a standard normal x, exact at the grid's points."""
    middle = -math.log(bins)
    first = math.floor((middle - 1 / (2 * s**2) - REACH / s) / h)
    last = math.ceil((middle + 1 / (2 * s**2) + REACH / s) / h)
    logs = h * np.arange(first, last + 1) - middle
    masses, zero, beyond = _between(s * logs + 1 / (2 * s))
    means, below, lost = _between(s * logs - 1 / (2 * s))
    means, below, lost = means / bins, below / bins, lost / bins
    points = np.exp(h * np.arange(first, last + 1))
    up = np.clip((means - masses * points[:-1]) / np.diff(points), 0.0, masses)
    found = np.zeros(len(points))
    found[:-1] = masses - up
    found[1:] += up
    found[0] += below / points[0]
    return Spread(h, first, found, max(0.0, zero - below / points[0]) + beyond, lost)


def _between(places: np.ndarray) -> tuple[np.ndarray, float, float]:
    """Return a standard normal variable's mass between neighbours, below the first place, and above the last."""
    lower, upper = ndtr(places), ndtr(-places)
    masses = np.where(places[:-1] > 0, upper[:-1] - upper[1:], lower[1:] - lower[:-1])
    return masses, float(lower[0]), float(upper[-1])
