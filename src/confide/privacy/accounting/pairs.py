"""Pairs of distributions for one unit in a run, and the curve that follows from a pair and the noise.

All noise multipliers s are relative to the clip norm. Every number comes from `dp_accounting`'s privacy loss
distributions with pessimistic rounding (connect-the-dots); the code here chooses their grid.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any, Protocol

import numpy as np
from dp_accounting.pld import pld_pmf
from dp_accounting.pld import privacy_loss_distribution as pld
from dp_accounting.pld import privacy_loss_mechanism as losses
from scipy import special, stats

from confide.privacy.accounting import composing
from confide.privacy.accounting.curves import Composed, PrivacyProfile, group
from confide.utils.errors import InputError
from confide.utils.rounding import at_least, at_most

FINE = 1e-4
"""The interval at which claims are made, unless a process calls for another (`Grid`)."""

REMOVE, ADD = losses.AdjacencyType.REMOVE, losses.AdjacencyType.ADD


class DominatingPair(Protocol):
    """The facts of a mechanism that the accountant needs."""

    def curve(self, noise_multiplier: float, interval: float = FINE) -> PrivacyProfile: ...

    def describe(self) -> str: ...


def sketch(process: DominatingPair) -> Callable[[float, float], PrivacyProfile]:
    """Return what gives a process's curve to a search: noise multiplier, interval -> curve.

    It is `estimate` where a process has one, which is faster and no bound; else `curve`.
    """
    found: Callable[[float, float], PrivacyProfile] = getattr(process, "estimate", process.curve)
    return found


@dataclass(frozen=True)
class MixtureOfGaussians:
    """T-fold composition of P = N(X, s^2) against Q = N(0, s^2), X in `values` with `probabilities`.

    Formal guarantee: a mechanism in which zeroing out one unit moves the sum of a step by a vector of norm at
    most C X, X drawn afresh every step and independently of everything else, plus N(0, s^2 C^2 I), is dominated
    by this pair in both directions (Choquette-Choo et al. 2023, Corollary 4.7, with adaptive composition over
    steps). Replacing X by a stochastically larger variable only worsens it, as the likelihood ratio is monotone.

    Attributes:
        values: distinct nonnegative sensitivities in units of C.
        probabilities: of the values, the same length, sum 1.
        steps: T.
        words: how X arises, for `describe`.
    """

    values: tuple[float, ...]
    probabilities: tuple[float, ...]
    steps: int
    words: str = field(default="moves the sum by a random multiple of the clip norm", compare=False)

    def __post_init__(self) -> None:
        check_steps(self.steps)
        if len(self.values) != len(self.probabilities) or not self.values:
            raise ValueError("values and probabilities must have the same positive length")
        if min(self.values) < 0 or max(self.values) <= 0 or min(self.probabilities) < 0:
            raise ValueError("values and probabilities must be nonnegative, and some value positive")
        if not math.isclose(math.fsum(self.probabilities), 1.0, rel_tol=1e-9):
            raise ValueError("probabilities must sum to 1")

    @classmethod
    def bernoulli(cls, q: float, steps: int) -> MixtureOfGaussians:
        """Build the pair of a unit that takes part in each step with probability q, with at most one clip norm."""
        check_rate(q)
        check_steps(steps)
        words = "takes part" if q == 1 else f"takes part with probability {at_most(q, 6)}"
        if q == 1:
            return cls((1.0,), (1.0,), steps, words)
        return cls((0.0, 1.0), (1.0 - q, q), steps, words)

    @classmethod
    def binomial(cls, rows: int, p: float, steps: int) -> MixtureOfGaussians:
        """Build the pair of a unit whose `rows` rows are each drawn with probability p, independently.

        Each row is clipped on its own.
        """
        check_rate(p)
        check_rows(rows)
        if rows == 1:
            return cls.bernoulli(p, steps)
        words = f"has each of its {rows} rows drawn independently with probability {at_most(p, 6)}"
        if p == 1:
            return cls((float(rows),), (1.0,), steps, words)
        counts = np.arange(rows + 1)
        return cls._of_counts(counts, stats.binom.pmf(counts, rows, p), rows, steps, words)

    @classmethod
    def poisson_binomial(cls, rho: Sequence[float], steps: int) -> MixtureOfGaussians:
        """Build the pair of a unit whose row i is drawn with probability rho[i], independently.

        Each row is clipped on its own.
        """
        for rate in rho:
            check_rate(rate)
        check_rows(len(rho))
        if len(set(rho)) == 1:
            return cls.binomial(len(rho), rho[0], steps)
        words = (
            f"has each of its {len(rho)} rows drawn independently, with probabilities from {at_least(min(rho), 6)} "
            f"to {at_most(max(rho), 6)}"
        )
        masses, beyond = _poisson_binomial(np.asarray(rho, dtype=np.float64))
        counts = np.arange(len(masses))
        if beyond > 0:
            counts, masses = np.append(counts, len(rho)), np.append(masses, beyond)
        return cls._of_counts(counts, masses, len(rho), steps, words)

    @classmethod
    def _of_counts(
        cls, counts: np.ndarray, masses: np.ndarray, most: int, steps: int, words: str
    ) -> MixtureOfGaussians:
        """Reduce the number of atoms, stochastically upwards.

        The far tail moves up to `most`, the low one to the next atom.
        """
        from_above = np.cumsum(masses[::-1])[::-1]
        from_below = np.cumsum(masses)
        top = int(np.searchsorted(-from_above, -TAIL))  # first count whose tail has mass at most TAIL
        first = int(np.searchsorted(from_below, LOW_TAIL, side="right"))
        kept, weights = counts[first:top].astype(np.float64), masses[first:top].copy()
        weights[0] += masses[:first].sum()
        if top < len(masses):
            kept, weights = np.append(kept, float(most)), np.append(weights, from_above[top])
        weights /= math.fsum(weights)  # mass that a sum falls short of 1 would be missing from every step
        return cls(tuple(kept.tolist()), tuple(weights.tolist()), steps, words)

    @property
    def mean(self) -> float:
        return math.fsum(v * w for v, w in zip(self.values, self.probabilities, strict=True))

    def curve(self, noise_multiplier: float, interval: float = FINE) -> PrivacyProfile:
        """Compute the curve at this noise; `PrivacyProfile.interval` says on which grid (see `Grid`)."""
        s = checked(noise_multiplier)
        if s == 0:
            return PrivacyProfile.unprotected()
        return _mixed(self, s, interval)

    def kl(self, noise_multiplier: float) -> float:
        """Compute KL(P || Q) of the whole run in nats: T times a one-dimensional integral.

        Source: Ganesh et al. 2025 ("Hush!"), Lemma 3.2. Atoms of less than 1e-18 in total enter by convexity,
        KL((1-m) A + m B || Q) <= (1-m) KL(A) + m KL(B).
        """
        s = checked(noise_multiplier)
        if s == 0:
            return math.inf
        values, weights = np.asarray(self.values) / s, np.asarray(self.probabilities)
        order = np.argsort(-weights)
        light = weights < 1e-20
        rare = math.fsum(weights[light] * values[light] ** 2 / 2)
        values, weights = values[order][~light[order]], weights[order][~light[order]]
        points = np.linspace(-12.0, values.max() + 12.0, int(60 * (values.max() + 24)) + 1)
        total = 0.0
        for x in np.array_split(points, 1 + len(points) * len(values) // 2_000_000):
            shifted = x[:, None] * values - values**2 / 2
            ratio = np.logaddexp.reduce(shifted + np.log(weights), axis=1)
            q = stats.norm.pdf(x)
            # p log(p/q) - p + q, never negative; by powers of the ratio where it is near 1, else by p itself
            near = np.abs(ratio) < 1
            small = np.where(near, ratio, 0.0)
            p = (stats.norm.pdf(x[:, None] - values) * weights).sum(axis=1)
            total += float(
                np.where(near, q * (np.exp(small) * small - np.expm1(small)), p * ratio - p + q).sum()
            )
        return float(self.steps * (total * (points[1] - points[0]) + rare))

    def describe(self) -> str:
        return (
            f"On each of {self.steps} steps a unit {self.words}; what one unit does is compared with the same "
            "unit zeroed out, under Gaussian noise."
        )


@lru_cache(maxsize=2)  # a run computes the same one before its first step and after its last; some take 50 MB
def _mixed(process: MixtureOfGaussians, s: float, interval: float) -> PrivacyProfile:
    grid = Grid(interval, process.mean / s, process.steps, len(process.values))
    if len(process.values) == 1:
        # T releases of N(v, s^2) are one of N(v sqrt(T), s^2): nothing to compose, nothing to sample.
        spread = s / (process.values[0] * math.sqrt(process.steps))
        return Grid(interval, 1 / spread, 1, 1).curve(
            lambda h: pld.from_gaussian_mechanism(spread, value_discretization_interval=h),
            losses.GaussianPrivacyLoss(spread),
        )
    # Scale so that s = 1: dp_accounting's tolerances are absolute.
    values = [v / s for v in process.values]
    removal = MixtureLoss(1.0, values, process.probabilities, adjacency_type=REMOVE)
    addition = MixtureLoss(1.0, values, process.probabilities, adjacency_type=ADD)
    return grid.curve(
        lambda h: pld.PrivacyLossDistribution(removal.dots(h), addition.dots(h)), removal, addition
    )


@dataclass(frozen=True)
class GroupOf:
    """Any k units of `process` at once, by the black-box group privacy lemma (Chua et al. 2024, Algorithm 1).

    Formal guarantee: see `confide.privacy.accounting.curves.group`. There is no privacy loss distribution behind it,
    so it composes with other phases by basic composition alone. The process is evaluated at an interval of 1e-3 or
    more. That takes about 1% more noise than the finest grid would, so that this baseline is never reported below the
    reference values for it, which were computed at that interval.
    """

    process: DominatingPair
    k: int

    def __post_init__(self) -> None:
        check_rows(self.k)

    def curve(self, noise_multiplier: float, interval: float = FINE) -> PrivacyProfile:
        if self.k > 1:
            interval = max(interval, 1e-3)
        return group(self.process.curve(noise_multiplier, interval), self.k)

    def describe(self) -> str:
        if self.k == 1:
            return self.process.describe()
        return f"{self.process.describe()} Group privacy extends it to any {self.k} of these at once."


@dataclass(frozen=True)
class Grid:
    """The choice of the grid of privacy losses for a curve: a rule of public numbers alone, always pessimistic.

    Connect-the-dots inflates a step's variance by about (interval / typical loss)^2 / 12. So the interval asked
    for is refined to an eighth of a step's typical loss E[X] / s (no finer than 1e-7, where float64 is too coarse)
    if that loss spans fewer than 8 intervals at 1e-4, or fewer than 2 where a coarser grid was asked for, as in
    a search. It is then coarsened, in steps 1-2-5, until one step has at most
    60,000 (1e-4 / asked)^(3/4) grid points, and fewer with many atoms, and the composition a million.
    If that takes an interval above 100, losses run to millions: the curve then says that nothing is protected.
    """

    asked: float
    typical: float
    steps: int
    atoms: int

    def curve(self, one_step: Any, *mechanisms: losses.MonotonePrivacyLoss) -> PrivacyProfile:
        """Compute the curve of steps on this grid; `mechanisms` give the range of their losses.

        Args:
            one_step: one_step(interval) builds one step's distribution.
        """
        bounds = [m.connect_dots_bounds() for m in mechanisms]
        width = max(float(b.epsilon_upper or 0) - float(b.epsilon_lower or 0) for b in bounds)
        most = 60_000 * (FINE / self.asked) ** 0.75 / max(1.0, self.atoms / 30)
        interval = self.asked
        if self.typical < (8 if self.asked <= FINE else 2) * interval:
            interval = max(1e-7, grid_below(self.typical / 8))
        interval = max(interval, _grid_above(width / most) if width > 0 else 0.0)
        while interval <= 100:
            distribution = one_step(interval)
            points = max(_composed_size(side, self.steps) for side in composing.sides(distribution))
            if points <= 1_000_000:
                return Composed.of(distribution, self.steps).curve()
            interval = _grid_above(interval * points / 1_000_000)
        return PrivacyProfile.unprotected()


class MixtureLoss(losses.MixtureGaussianPrivacyLoss):  # type: ignore[misc, unused-ignore]  # it has no types
    """`dp_accounting`'s mixture of Gaussians with a faster inverse of the privacy loss.

    The inverse of `dp_accounting` bisects point by point in Python, which takes minutes for a fine grid. Here a table
    brackets each loss and Newton's method runs on all of them at once, to 1e-10 rather than 1e-6. Where epsilon is
    below 0, divergences are those of the complement of a set (`composing.connected` says why). Arrays have the few
    atoms on their first axis: sums over a short last axis take several times as long. Everything else is inherited.
    """

    @cached_property
    def tail(self) -> losses.TailPrivacyLossDistribution:
        """The losses at which the distribution is cut off; cached, as it takes a bisection and a curve asks thrice."""
        return super().privacy_loss_tail()

    def privacy_loss_tail(self) -> losses.TailPrivacyLossDistribution:
        return self.tail

    def dots(self, interval: float) -> pld_pmf.DensePLDPmf:
        """Build the pessimistic connect-the-dots distribution on multiples of `interval`."""
        bounds = self.connect_dots_bounds()
        low = math.floor(float(bounds.epsilon_lower or 0) / interval)
        high = math.ceil(float(bounds.epsilon_upper or 0) / interval)
        return composing.connected(interval, low, self.above(np.arange(low, high + 1) * interval))

    def above(self, epsilons: np.ndarray) -> np.ndarray:
        """Compute the hockey-stick divergence, less max(0, 1 - e^epsilon)."""
        # Losses end where the unit moves nothing. Its mass is not 1 less the others': these may add up to a bit less.
        still = float(self.sampling_probs[self.sensitivities == 0].sum())
        end = math.log(still) if still else -math.inf
        reached = epsilons < -end if self.adjacency_type == ADD else epsilons > end
        own = epsilons[reached]
        # P(A) - e^epsilon Q(A), or the same of the complement of A, whichever is small
        side = np.where(own < 0, -1.0, 1.0)
        x, masses = self.inverse_privacy_losses(own), self.sampling_probs[:, None]
        apart, scale = self.sensitivities[:, None], self._standard_deviation
        if self.adjacency_type == ADD:
            upper = special.ndtr(side * x / scale)
            lower = np.logaddexp.reduce(special.log_ndtr(side * (x - apart) / scale) + np.log(masses), axis=0)
        else:
            upper = (masses * special.ndtr(side * (x + apart) / scale)).sum(axis=0)
            lower = special.log_ndtr(side * x / scale)
        above = np.zeros(len(epsilons))
        above[reached] = side * (upper - np.exp(own + lower))
        return above

    def inverse_privacy_losses(self, privacy_losses: np.ndarray, precision: float = 1e-10) -> np.ndarray:
        """Compute x with loss(x) = each of `privacy_losses`; +-inf beyond the range of the loss.

        A cutoff that is off by dx lowers delta by a term of order dx^2 only.
        """
        if len(privacy_losses) == 0:
            return privacy_losses
        tail = self.privacy_loss_tail()
        pad = self._standard_deviation
        # for ADD the loss compares with the mixture, whose far atom lies beyond the end of the other distribution
        beyond = self._max_sens if self.adjacency_type == ADD else 0.0
        table = np.linspace(tail.lower_x_truncation - pad, tail.upper_x_truncation + beyond + pad, 8192)
        values = self._losses_and_slopes(table)[0]
        cell = np.clip(np.searchsorted(-values, -privacy_losses), 1, len(table) - 1)
        low, high = table[cell - 1], table[cell]
        drop = values[cell - 1] - values[cell]
        with np.errstate(divide="ignore", invalid="ignore"):
            share = np.where(drop > 0, (values[cell - 1] - privacy_losses) / drop, 0.5)
        x = low + np.clip(share, 0.0, 1.0) * (high - low)
        for _ in range(60):
            loss, slope = self._losses_and_slopes(x)
            excess = loss - privacy_losses
            low, high = np.where(excess > 0, x, low), np.where(excess > 0, high, x)
            with np.errstate(divide="ignore", invalid="ignore"):
                newton = x - excess / slope
            inside = (newton >= low) & (newton <= high)
            moved = np.where(inside, newton, (low + high) / 2)
            done = np.max(np.abs(moved - x)) < precision
            x = moved
            if done:
                break
        x = np.where(privacy_losses > values[0], -np.inf, x)
        return np.where(privacy_losses <= values[-1], np.inf, x)

    def _losses_and_slopes(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Compute the loss and its derivative at each x, in pieces of at most two million terms."""
        sign = 1.0 if self.adjacency_type == ADD else -1.0
        loss, slope = np.empty_like(x), np.empty_like(x)
        piece = max(1, 2_000_000 // len(self.sensitivities))
        for start in range(0, len(x), piece):
            part = slice(start, start + piece)
            parameters = np.multiply.outer(sign * self.sensitivities / self._variance, x[part])
            parameters += np.asarray(self._precompute_privacy_loss_constants)[:, None]
            top = parameters.max(axis=0)
            parameters -= top
            np.exp(parameters, out=parameters)
            total = parameters.sum(axis=0)
            loss[part] = -sign * (top + np.log(total))
            slope[part] = -(self.sensitivities @ parameters) / total / self._variance
        return loss, slope


TAIL = 1e-24
"""Mass that may move up to all of a unit's rows. It is below the mass that dp_accounting sends to infinity (e^-50 / 2),
so that it costs no grid points and at most T * 1e-24 of delta.
"""
LOW_TAIL = 1e-18
"""Mass that may move up from the smallest counts."""


def delta_default(rows: int, units: int) -> float:
    """Return min(M^-1.1, 1/N) for M rows in use and N units (Charles et al. 2024, section 4)."""
    check_rows(rows)
    check_rows(units)
    return min(float(rows**-1.1), 1 / units)


def _poisson_binomial(rho: np.ndarray) -> tuple[np.ndarray, float]:
    """Compute masses of 0, 1, ... by convolution of nonnegative terms, and the mass beyond the last: < TAIL / 1000."""
    mean, variance = float(rho.sum()), float((rho * (1 - rho)).sum())
    size = min(len(rho) + 1, math.ceil(mean + 16 * math.sqrt(variance) + 80))
    masses, beyond = np.zeros(size), 0.0
    masses[0] = 1.0
    for rate in rho:
        if size <= len(rho):
            beyond += masses[-1] * rate
        drawn = masses[:-1] * rate
        masses *= 1 - rate
        masses[1:] += drawn
    return masses, beyond


def _composed_size(one_step: pld_pmf.DensePLDPmf, steps: int) -> int:
    """Return the number of grid points of the composition of `steps` of these."""
    if steps == 1:
        return len(one_step._probs)
    low, high = composing.bounds(one_step._probs, steps)
    return high - low + 1


def _grid_above(x: float) -> float:
    """Return the least of 1, 2, 5 times a power of ten that is >= x."""
    power = math.floor(math.log10(x))
    return next(g for g in _decade(power) if g >= x * (1 - 1e-12))


def grid_below(x: float) -> float:
    """Return the largest of 1, 2, 5 times a power of ten that is <= x."""
    power = math.floor(math.log10(x))
    return next(g for g in reversed(_decade(power)) if g <= x * (1 + 1e-12))


def _decade(power: int) -> list[float]:
    return [float(f"{m}e{k}") for k in (power - 1, power, power + 1) for m in (1, 2, 5)]


def check_rate(q: float) -> None:
    """Refuse a sampling probability that is none."""
    if not 0 < q <= 1:
        raise InputError(
            f"a sampling probability must lie in (0, 1], not {q}: check train.batch against the rows or units in use"
        )


def check_steps(steps: int) -> None:
    """Refuse a number of steps below 1."""
    if steps < 1 or steps != int(steps):
        raise InputError(f"train.steps must be a positive whole number, not {steps}")


def check_rows(rows: int) -> None:
    """Refuse a number of rows below 1."""
    if rows < 1 or rows != int(rows):
        raise InputError(
            f"privacy.rows_per_unit, like any count of rows or units, must be 1 or more, not {rows}"
        )


def checked(noise_multiplier: float) -> float:
    """Return a noise multiplier as a float, if it is finite and not negative."""
    if not 0 <= noise_multiplier < math.inf:
        raise InputError(f"privacy.noise_multiplier must be a finite number >= 0, not {noise_multiplier}")
    return float(noise_multiplier)
