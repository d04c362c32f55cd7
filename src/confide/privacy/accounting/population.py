"""Many units at once, each with rows drawn at their own rates: one noise that is certified for every one of them.

Everything here rests on one order: if the number of rows X that a unit has drawn in a step is
stochastically no larger than Y, N(X, s^2) against N(0, s^2) needs no more noise than N(Y, s^2), in every
hockey-stick divergence, in blow-up and in KL (see `MixtureOfGaussians`). Three variables Y are used, from cheap
and loose to costly and exact:
- the binomial of the unit's load: with Lambda = -sum log(1 - rho_i) over n rows, X <= Bin(n, 1 - e^(-Lambda/n))
  (Pledger & Proschan 1971), which grows with Lambda and with n;
- the envelope of several units, P(Y >= k) = max over them of P(X >= k): their least upper bound in that order;
- the unit's own Poisson-binomial, which also covers each unit whose rates, sorted, are no larger one by one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from confide.privacy.accounting.pairs import TAIL, MixtureOfGaussians
from confide.utils.errors import InputError

Array = np.ndarray
ROUNDING = 1e-10
"""Relative margin above computed loads and tails, for float64 sums of up to a million nonnegative terms."""


@dataclass(frozen=True, eq=False)
class Population:
    """Units whose rows are each drawn independently with their own probability, in each of `steps` steps.

    Attributes:
        offsets: int64[N+1].
        rows: int64[nnz]; unit j has rows[offsets[j]:offsets[j+1]], each of them once.
        rho: float64[M] in [0, 1], a probability for every row.
        steps: number of steps.

    Raises:
        InputError: a probability is outside [0, 1], or the number of steps is not a valid one.
    """

    offsets: Array
    rows: Array
    rho: Array
    steps: int

    def __post_init__(self) -> None:
        if self.offsets[0] != 0 or self.offsets[-1] != len(self.rows) or np.any(np.diff(self.offsets) < 0):
            raise ValueError("offsets must rise from 0 to the number of incidences")
        if len(self.rows) and not (self.rows.min() >= 0 and self.rows.max() < len(self.rho)):
            raise ValueError("a unit names a row that is not there")
        if not np.all((self.rho >= 0) & (self.rho <= 1)):
            raise InputError("every row's sampling probability must lie in [0, 1]: a smaller batch would do")
        if self.steps < 1:
            raise InputError(f"train.steps must be a positive whole number, not {self.steps}")

    @property
    def units(self) -> int:
        return len(self.offsets) - 1

    @cached_property
    def _sorted(self) -> tuple[Array, Array]:
        """Offsets int64[N+1] and rates of the rows with a rate above 0, in decreasing order in each unit."""
        by_rate = np.argsort(-self.rho, kind="stable")
        rank = np.empty_like(by_rate)
        rank[by_rate] = np.arange(len(by_rate))
        drawn = self.rho[self.rows] > 0
        owner = np.repeat(np.arange(self.units), np.diff(self.offsets))[drawn]
        # one integer a pair: much faster to sort than pairs
        keys = np.sort(owner * len(self.rho) + rank[self.rows[drawn]])
        rates = self.rho[by_rate[keys % max(1, len(self.rho))]]
        offsets = np.concatenate([[0], np.cumsum(np.bincount(owner, minlength=self.units))])
        return offsets, rates

    @cached_property
    def counts(self) -> Array:
        """Rows of each unit with a rate above 0, int64[N]."""
        return np.diff(self._sorted[0])

    @cached_property
    def loads(self) -> Array:
        """-sum log(1 - rho_i) of each unit, float64[N]: the expected hits if rows arrived as a Poisson stream."""
        with np.errstate(divide="ignore"):
            return self._sums(-np.log1p(-self._sorted[1]))

    @cached_property
    def means(self) -> Array:
        """Expected number of rows of each unit that are drawn in a step, float64[N]."""
        return self._sums(self._sorted[1])

    @cached_property
    def evenness(self) -> Array:
        """Evenness of each unit's rates, float64[N].

        It is the probability that two rows of a unit are drawn in the same step, divided by the same probability of a
        unit with many equal rows.
        """
        with np.errstate(invalid="ignore", divide="ignore"):
            met = 1 - self._sums(self._sorted[1] ** 2) / self.means**2
        evenness: Array = np.clip(np.nan_to_num(met), 0, 1)
        return evenness

    def _sums(self, values: Array) -> Array:
        owner = np.repeat(np.arange(self.units), self.counts)
        return np.bincount(owner, weights=values, minlength=self.units)

    @cached_property
    def _places(self) -> Array:
        """Place of each of the sorted rates within its unit, int32[nnz]."""
        offsets, rates = self._sorted
        places: Array = (np.arange(len(rates)) - np.repeat(offsets[:-1], self.counts)).astype(np.int32)
        return places

    def vector(self, unit: int) -> Array:
        """Return the unit's rates above 0, in decreasing order, float64[n]."""
        offsets, rates = self._sorted
        return rates[offsets[unit] : offsets[unit + 1]]

    def process(self, unit: int) -> MixtureOfGaussians | None:
        """Return the exact process of one unit; None for a unit of which no row is ever drawn."""
        rates = self.vector(unit)
        return MixtureOfGaussians.poisson_binomial(rates.tolist(), self.steps) if len(rates) else None

    def dominating(self, load: float, rows: int | None = None) -> MixtureOfGaussians:
        """Return a process that dominates each unit of at most this load and `rows` (default: any number of them)."""
        n = int(self.counts.max()) if rows is None else rows
        p = min(1.0, -math.expm1(-load / n) * (1 + ROUNDING))
        return MixtureOfGaussians.binomial(n, p, self.steps)

    def below(self, unit: int) -> Array:
        """Mark the units whose rates, in decreasing order, are no larger than this one's, one by one: bool[N]."""
        offsets, rates = self._sorted
        roof = np.zeros(int(self.counts.max(initial=0)))
        roof[: self.counts[unit]] = self.vector(unit)
        above = np.concatenate([[0], np.cumsum(rates > roof[self._places])])
        below: Array = above[offsets[1:]] == above[offsets[:-1]]
        return below

    def envelope(self, units: Array) -> MixtureOfGaussians:
        """Return the least process that dominates each of `units`: the largest of their tails.

        Every other process that dominates them all dominates this one. The mass of the tails beyond the atoms that are
        kept moves up to the largest number of rows.
        """
        units = units[np.argsort(-self.counts[units], kind="stable")]
        if not len(units) or self.counts[units[0]] == 0:
            raise InputError("no row of these units is ever drawn")
        most = int(self.counts[units[0]])
        spread = 16 * np.sqrt(self.means[units]) + 80
        size = min(most + 1, math.ceil(float((self.means[units] + spread).max())))
        tails, beyond = np.zeros(size), 0.0
        for part in np.array_split(units, 1 + size * len(units) // 4_000_000):
            masses, far = self._masses(part, size)
            beyond = max(beyond, float(far.max()))
            from_above = np.cumsum(masses[::-1], axis=0)[::-1] + far
            np.maximum(tails, from_above.max(axis=1), out=tails)
        tails = np.minimum(1.0, tails * (1 + ROUNDING))
        tails[0] = 1.0
        kept = max(1, int(np.searchsorted(-tails, -TAIL)))
        weights = np.append(-np.diff(tails[:kept]), tails[kept - 1])
        values = np.arange(float(kept))
        rest = float(tails[kept]) if kept < size else beyond
        if rest > 0:
            weights[-1] -= rest
            weights, values = np.append(weights, rest), np.append(values, float(most))
        some = weights > 0
        words = f"has k rows or more drawn no more often than the worst of {len(units)} units, for every k"
        values, weights = values[some], weights[some]
        return MixtureOfGaussians(tuple(values.tolist()), tuple(weights.tolist()), self.steps, words)

    def _masses(self, units: Array, size: int) -> tuple[Array, Array]:
        """Compute P(X = k), float64[size, u], and the mass beyond, float64[u], of units sorted by decreasing count."""
        offsets, rates = self._sorted
        counts, first = self.counts[units], offsets[units]
        masses, beyond = np.zeros((size, len(units))), np.zeros(len(units))
        masses[0] = 1.0
        # number of units that have t rows or more
        alive = np.searchsorted(-counts, -np.arange(1, counts[0] + 1), side="right")
        for t, a in enumerate(alive):
            rate = rates[first[:a] + t]
            if t + 1 >= size:
                beyond[:a] += masses[-1, :a] * rate
            top = min(size, t + 2)
            drawn = masses[: top - 1, :a] * rate
            masses[:top, :a] *= 1 - rate
            masses[1:top, :a] += drawn
        return masses, beyond

    def worst(self) -> MixtureOfGaussians:
        """Return a process that dominates every unit: one unit's own if that does, else the envelope of all.

        The envelope is never above the binomial of the largest load, and it stays finite if a load is infinite.
        """
        top = int(np.lexsort((self.means, self.counts))[-1]) if self.units else 0
        own = self.process(top) if self.units else None
        if own is None:
            raise InputError("no row of any unit is ever drawn: there is nothing to protect")
        return own if bool(self.below(top).all()) else self.envelope(np.arange(self.units))


@dataclass(frozen=True, eq=False)
class Targets:
    """Pairs to be met, several for a unit if need be.

    Pair k says: whoever guesses at unit[k] with probability prior[k] before the run does so with at most posterior[k]
    after it.

    Attributes:
        unit: int64[K].
        prior: float64[K].
        posterior: float64[K].

    Raises:
        InputError: not 0 < prior < posterior < 1 everywhere.
    """

    unit: Array
    prior: Array
    posterior: Array

    def __post_init__(self) -> None:
        if not len(self.unit) == len(self.prior) == len(self.posterior):
            raise ValueError("as many units as priors and posteriors are needed")
        fine = (self.prior > 0) & (self.prior < self.posterior) & (self.posterior < 1)
        if not np.all(fine):
            k = int(np.argmin(fine))
            pair = f"{self.prior[k]:g} and {self.posterior[k]:g}"
            raise InputError(f"a secret needs 0 < prior < allowed posterior < 1, not {pair}")

    def __len__(self) -> int:
        return len(self.unit)
