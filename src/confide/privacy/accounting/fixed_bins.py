"""Fixed bins: each unit takes part in one step of every epoch, always in the same one, under correlated noise."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import numpy as np
from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution
from scipy.special import log_ndtr, ndtr

from confide.privacy.accounting.bins import unfinished
from confide.privacy.accounting.composing import connected
from confide.privacy.accounting.curves import Composed, PrivacyProfile
from confide.privacy.accounting.pairs import FINE, MixtureOfGaussians, check_steps, checked
from confide.utils.errors import InputError

CHANCE = 1e-12
"""The probability that the draws of the accountant let some delta come out too small. It is added to every delta."""

TRIES = 32
"""The most noises that a search may check with the draws of a claim. Each has its share of `CHANCE`."""

SEED = 20261129
"""Of the accountant's draws. It was fixed before any run, so that the draws know nothing of a run's settings."""

DRAWS = 1 << 21
"""How many draws a claim rests on. A search makes fewer."""

MOST_BINS = 512
"""The longest epoch that is accounted for: a longer one takes minutes."""

MOST_STEPS = 100_000
"""The longest run: for each bin there is a number for each step."""

FARTHEST = 300.0
"""The largest loss that is looked at. If a loss can be larger, the unit's bin counts as known."""

_POINTS = 6_000  # of the grid of losses, about
_BLOCK = 1 << 19  # numbers that are drawn at once
_PIECE = 1 << 16  # numbers that are worked on at once, few enough to stay in a core's cache

_SHIFTS = (0.0, 2.0, 4.0)
"""How far draws are moved towards large losses, in standard deviations, by equal steps. A third of them has each."""


class Matrix(Protocol):
    """What is asked of C, by which noise is correlated: `correlated_noise.Correlation` answers."""

    @property
    def goes_on(self) -> bool: ...

    @property
    def sensitivity(self) -> float: ...

    def column(self, steps: int) -> list[float]: ...


@dataclass(frozen=True)
class FixedBins:
    """Epochs of `bins` steps; a unit draws one of them uniformly, once, and takes part in that step of every epoch.

    The noise of all steps is C^-1 Z, as in `correlated_noise`: C is lower-triangular and Toeplitz, none of its elements
    is negative, and Z has a standard deviation of s |c|, with c the first column of C and s the noise multiplier.
    Source: the pair is that of Choquette-Choo et al. 2024, "Near Exact Privacy Amplification for Matrix Mechanisms"
    (arXiv 2410.06266), who estimate delta by Monte Carlo. Here delta is bounded from such draws.

    Formal guarantee, zero-out and add-or-remove: fix the other units' bins, and measure lengths in units of s |c|. Let
    a^j be the sum of the columns of C at which bin j takes part. Then
        P = 1/b (N(a^1, I) + ... + N(a^b, I))  against  Q = N(0, I),  in as many dimensions as there are steps,
    dominates the run in both directions. Proof. Given bin j, step t of the run has the mean m^j_t, the sum over the
    steps i <= t of bin j of C_ti g_i, where g_i is a vector of norm at most 1 that may depend on all earlier releases.
    P/Q of the run is the mean of b weights, w^j. Each of them starts at 1, and step t multiplies it by
    exp(<z_t, m^j_t> - |m^j_t|^2 / 2), with z_t normal under Q. Both divergences are E_Q f(mean of the w^j) with a
    convex f. As no element of C is negative, <m^j_t, m^k_t> is at most a^j_t a^k_t, what it is if all g_i are the same
    unit vector. Let W_t(w) be the expectation of f, given the weights w after step t, if from there on all g_i are that
    one. Then W_t(w) = E f(mean of w^j M^j) with positive M^j whose law does not depend on w, so that all its second
    derivatives, E M^j M^k f'' / b^2, are at least 0. For such a function, E W_t(w exp(X - Var X / 2)), with X normal
    of mean 0, does not fall if any covariance rises (Kahane 1986, "Sur le chaos multiplicatif"). So whatever the
    releases before were, the mean of W_t after step t of the run is at most W_(t-1), and E f at most W_0.

    P/Q is S = mean of exp(X^j - G_jj / 2), where X is normal with covariance G_jk = <a^j, a^k>. `_bounds` draws X, from
    other distributions as well, and bounds E_Q (S - g)+ and E_Q (1 - g S)+ on a grid of g = e^epsilon, all at once with
    probability 1 - `CHANCE` / `TRIES`, by the empirical Bernstein bound (Maurer and Pontil 2009, Theorem 4). A search
    for the least noise starts from draws of its own (`estimate`), and then looks at a few noises, one larger than the
    other. So the run is as private as the curve of the noise at which it ends says: `CHANCE` is part of every delta.
    Both divergences are convex in g, so that they lie below the convex hull of the bounds, too.

    Attributes:
        bins: b, the steps of an epoch.
        steps: of the run.
        column: the first elements of c; those that follow, of so many steps, are 0.
        norm: |c| where c goes on after these steps; else that of `column`.
    """

    bins: int
    steps: int
    column: tuple[float, ...]
    norm: float | None = None

    @classmethod
    def of(cls, bins: int, steps: int, correlation: Matrix) -> FixedBins:
        """Return the process of a matrix. The limits come first: a column may have a number for each step.

        Raises:
            InputError: an epoch or the run has more steps than are accounted for.
        """
        _check_limits(bins, steps, correlation.goes_on)
        norm = correlation.sensitivity if correlation.goes_on else None
        return cls(bins, steps, tuple(correlation.column(steps)), norm)

    def __post_init__(self) -> None:
        check_steps(self.steps)
        if not self.column or min(self.column) < 0 or self.column[0] <= 0:
            raise ValueError("a column has no negative elements, and the first is positive")
        _check_limits(self.bins, self.steps, self.norm is not None)

    @property
    def mean(self) -> float:
        """The probability that a unit takes part in a step."""
        return 1 / self.bins

    def curve(self, noise_multiplier: float, interval: float = FINE) -> PrivacyProfile:
        """Compute the curve. Its grid is its own, whatever interval is asked for."""
        return self._of(noise_multiplier, interval, DRAWS)

    def estimate(self, noise_multiplier: float, interval: float) -> PrivacyProfile:
        """Estimate the curve from fewer draws, for a search. It is no bound."""
        return self._of(noise_multiplier, interval, DRAWS >> (3 if interval <= 1e-3 else 6))

    def _of(self, noise_multiplier: float, interval: float, draws: int) -> PrivacyProfile:
        s = checked(noise_multiplier)
        if s == 0:
            return PrivacyProfile.unprotected()
        longest = math.sqrt(float(self.gram(s).diagonal().max()))
        if self.bins == 1 or longest**2 / 2 + 10 * longest > FARTHEST:
            # To know its bin makes an attacker no weaker, and then the run is one Gaussian release.
            return MixtureOfGaussians((longest * s,), (1.0,), 1).curve(s, interval)
        return _curve(self, s, draws)

    def gram(self, s: float) -> np.ndarray:
        """Compute G at a noise multiplier: float64[bins, bins]."""
        column = np.array(self.column)
        moved = np.zeros((self.bins, self.steps))  # a^j, in units of the noise's
        for step in range(self.steps):
            reached = moved[step % self.bins, step : step + len(column)]
            reached += column[: len(reached)]
        square = self.norm**2 if self.norm is not None else math.fsum(c * c for c in self.column)
        gram: np.ndarray = moved @ moved.T / (s**2 * square)
        return gram

    def describe(self) -> str:
        return (
            f"In each {self.bins} steps a unit takes part in one, always the same, which it draws uniformly and once "
            f"(fixed bins), for {self.steps} steps{unfinished(self.steps, self.bins)}; "
            "the noise of a step is taken back in part by later ones; what one "
            "unit does is compared with the same unit zeroed out, under Gaussian noise. Where the bin counts as "
            f"unknown, divergences are bounded from {DRAWS:,} random draws, and delta includes {CHANCE:g}, the chance "
            "that a bound is too small."
        )


def _check_limits(bins: int, steps: int, goes_on: bool) -> None:
    key, other = ("buffers", "no buffers") if goes_on else ("bands", "sampling: poisson")
    if steps > MOST_STEPS:
        raise InputError(
            f"privacy.{key}: with sampling: bins a run has at most {MOST_STEPS:,} steps where noise is correlated, and "
            f"here it would have {steps:,}: use {other}"
        )
    if not 1 <= bins <= MOST_BINS:
        raise InputError(
            f"privacy.{key}: with sampling: bins, an epoch has at most {MOST_BINS} steps where noise is correlated, "
            f"and here it would have {bins:,}: use a larger batch, or {other}"
        )


@lru_cache(maxsize=8)
def _curve(process: FixedBins, s: float, draws: int) -> PrivacyProfile:
    gram = process.gram(s)
    longest = float(gram.diagonal().max())
    farthest = longest / 2 + 10 * math.sqrt(longest)
    h = max(1e-4, farthest / _POINTS)
    epsilons = h * np.arange(math.ceil(farthest / h) + 1)
    removal, addition = _bounds(gram, epsilons, draws)
    known = np.minimum(_gaussian(math.sqrt(longest), epsilons), 1.0)
    removal[0] = addition[0] = min(removal[0], addition[0])  # both are the total variation
    removal, addition = (
        np.minimum(_hull(np.minimum(one, known), epsilons) + CHANCE, 1.0) for one in (removal, addition)
    )
    sides = [_of(h, epsilons, *pair) for pair in ((removal, addition), (addition, removal))]
    return Composed.of(PrivacyLossDistribution(*sides), 1).curve()


def _of(h: float, epsilons: np.ndarray, own: np.ndarray, other: np.ndarray):  # type: ignore[no-untyped-def]
    """Build a direction from its divergences at epsilons from 0 on, and from those of the other direction."""
    below = np.exp(-epsilons[1:]) * other[1:]
    return connected(h, 1 - len(epsilons), np.concatenate([below[::-1], own]))


def _gaussian(distance: float, epsilons: np.ndarray) -> np.ndarray:
    """Compute the divergence of N(distance, 1) and N(0, 1)."""
    left, right = distance / 2 - epsilons / distance, -distance / 2 - epsilons / distance
    found: np.ndarray = np.maximum(ndtr(left) - np.exp(epsilons + log_ndtr(right)), 0.0) * (1 + 1e-9) + 1e-18
    return found


def _bounds(gram: np.ndarray, epsilons: np.ndarray, draws: int) -> tuple[np.ndarray, np.ndarray]:
    """Bound E_Q (S - e^epsilon)+ and E_Q (1 - e^epsilon S)+ at each epsilon >= 0 of a grid.

    Draws come from a mixture whose density over Q's is D. A value is (S - g)+ / D, and (1 - g S)+ / D: its mean is the
    divergence. With fewer draws than `DRAWS` what is returned estimates the bound from so many.

    Removal: a third of the draws each has X = G_j t + Z, Z with covariance G, for the t of `_SHIFTS` and a bin j. Then
    D = 1/3 (S_t + ...) with S_t = mean of exp(t X^j - t^2 G_jj / 2). With Y^j = X^j - G_jj / 2 and t >= 1, S_t is at
    least exp(-t (t - 1) G_max / 2) times the mean of exp(t Y^j), which is at least S^t. Hence (S - g)+ / S_t is at most
    exp((t - 1) (t G_max / 2 - epsilon)), times the largest (1 - 1/x) x^(1-t) there is.

    Addition: the draws are moved by -t a, with a the mean of the a^j and <a, .> of mean X. As log S is at least
    mean X - mean G_jj / 2 (Jensen), (1 - g S)+ / S_t is at most exp(-t (epsilon - mean G_jj / 2) + t^2 |a|^2 / 2).
    """
    bins, h = len(gram), float(epsilons[1])
    lifted = gram + 1e-10 * gram.diagonal().max() * np.eye(bins)  # no covariance is less, so no divergence is
    diagonal, largest = lifted.diagonal(), float(lifted.diagonal().max())
    factor = np.linalg.cholesky(lifted)
    stream = np.random.default_rng(SEED if draws >= DRAWS else SEED + 1)
    towards, square = lifted.mean(axis=1), float(lifted.mean())
    farther = 1 + np.array(_SHIFTS) / math.sqrt(largest)
    backwards = np.array(_SHIFTS) / math.sqrt(square)
    kinds = len(_SHIFTS)
    # What a draw is moved by has few values, so that one exponential of the draw serves them all: with X = x + m, each
    # S_t is the sum of exp(t x^j) exp(t m^j - t^2 G_jj / 2) / b. No exponent reaches 700, since losses end at FARTHEST.
    moves = (farther[:, None, None] * lifted).reshape(-1, bins)
    tilts = [np.exp(t * moves - t**2 * diagonal / 2) / bins for t in farther]
    away = np.exp(-backwards[:, None] * towards - diagonal / 2) / bins
    claimed = max(draws, DRAWS)
    removal, addition = (_Sums(len(epsilons), h, claimed) for _ in range(2))
    for x, which, bin_of in _drawn(stream, factor, draws):
        powers, step = np.exp(x), np.exp(x * (farther[1] - farther[0]))
        losses = -np.log(np.einsum("nj,nj->n", powers, away[which]))
        means = x.mean(axis=1) - backwards[which] * square
        likely = [-t * means - t**2 * square / 2 for t in backwards]
        addition.add(losses, math.log(kinds) - np.logaddexp.reduce(likely))

        likely = []
        for tilt in tilts:
            likely.append(np.log(np.einsum("nj,nj->n", powers, tilt[which * bins + bin_of])))
            powers *= step
        removal.add(likely[0], likely[0] + math.log(kinds) - np.logaddexp.reduce(likely))
    nats = math.log(2 * 2 * len(epsilons) * TRIES / CHANCE)
    reach = [kinds * _most(t) * np.exp((t - 1) * (t * largest / 2 - epsilons)) for t in farther]
    shifted = epsilons - diagonal.mean() / 2
    back = [kinds * np.exp(np.minimum(t**2 * square / 2 - t * shifted, 600.0)) for t in backwards]
    return (
        removal.bound(epsilons, np.min(reach, axis=0), nats),
        addition.bound(epsilons, np.min(back, axis=0), nats),
    )


def _drawn(
    stream: np.random.Generator, factor: np.ndarray, draws: int
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Yield normals of covariance G, float64[n, bins], and of each the number of its shift and of a bin.

    They are drawn in blocks, whose size decides what is drawn, and come in pieces, whose size decides nothing.
    """
    bins = len(factor)
    width = max(1, _PIECE // bins)
    while draws:
        count = min(draws, max(1, _BLOCK // bins))
        draws -= count
        x = (factor @ stream.standard_normal((bins, count))).T
        which, bin_of = (stream.integers(most, size=count) for most in (len(_SHIFTS), bins))
        for start in range(0, count, width):
            piece = slice(start, start + width)
            yield np.ascontiguousarray(x[piece]), which[piece], bin_of[piece]


def _most(t: float) -> float:
    """Return the largest (1 - 1/x) x^(1-t) over x >= 1."""
    return 1.0 if t == 1 else float(((t - 1) / t) ** (t - 1) / t)


class _Sums:
    """What draws add up to at every epsilon of a grid, by the interval that their loss lies in.

    A value is weight times (1 - e^(epsilon - loss))+.

    Args:
        points: of the grid.
        h: its interval.
        claimed: the number of draws that the bound is for. With fewer it is an estimate of that bound.
    """

    def __init__(self, points: int, h: float, claimed: int):
        self._h, self._claimed, self._count = h, claimed, 0
        self._sums = np.zeros((5, points))

    def add(self, losses: np.ndarray, log_weights: np.ndarray) -> None:
        self._count += len(losses)
        kept = losses >= 0
        losses, log_weights = losses[kept], log_weights[kept]
        points = self._sums.shape[1]
        places = np.minimum((losses / self._h).astype(np.int64), points - 1)
        weights, shrunk = np.exp(log_weights), np.exp(-losses)
        for sums, values in zip(
            self._sums,
            (
                weights,
                weights * shrunk,
                weights**2,
                weights**2 * shrunk,
                weights**2 * shrunk**2,
            ),
            strict=True,
        ):
            sums += np.bincount(places, values, points)

    def bound(self, epsilons: np.ndarray, largest: np.ndarray, nats: float) -> np.ndarray:
        """Bound the mean of the values at each epsilon, where none is above `largest`."""
        n = self._claimed
        whole, part, squares, mixed, parts = self._sums[:, ::-1].cumsum(axis=1)[:, ::-1] / self._count
        g = np.exp(epsilons)
        rounding = 1e-12
        means = np.maximum(whole - g * part, 0.0) + rounding * whole
        variances = np.maximum(squares - 2 * g * mixed + g**2 * parts, 0.0) + rounding * squares
        found: np.ndarray = (
            means + np.sqrt(2 * variances * nats / (n - 1)) + 7 * largest * nats / (3 * (n - 1))
        )
        return found


def _hull(bounds: np.ndarray, epsilons: np.ndarray) -> np.ndarray:
    """Return the largest function that is convex in e^epsilon, does not rise and is nowhere above the bounds."""
    heights, places = np.minimum.accumulate(bounds), np.exp(epsilons)
    kept: list[int] = []
    for i in range(len(heights)):
        while len(kept) > 1:
            one, two = kept[-2], kept[-1]
            before = (heights[two] - heights[one]) / (places[two] - places[one])
            if before < (heights[i] - heights[two]) / (places[i] - places[two]):
                break
            kept.pop()
        kept.append(i)
    found: np.ndarray = np.interp(places, places[kept], heights[kept]) * (1 + 1e-12)
    return found
