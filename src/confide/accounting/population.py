"""Many units at once, each with rows drawn at their own rates: one noise that is certified for every one of them.

The order that everything here rests on: where the number of rows X that a unit has drawn in a step is
stochastically no larger than Y, N(X, s^2) against N(0, s^2) needs no more noise than N(Y, s^2), in every
hockey-stick divergence, in blow-up and in KL (see `MixtureOfGaussians`). Three variables Y are used, from cheap
and loose to dear and exact:
- the binomial of the unit's load: with Lambda = -sum log(1 - rho_i) over n rows, X <= Bin(n, 1 - e^(-Lambda/n))
  (Pledger & Proschan 1971), which grows with Lambda and with n;
- the envelope of several units, P(Y >= k) = max over them of P(X >= k): their least upper bound in that order;
- the unit's own Poisson-binomial, which also covers each unit whose rates, sorted, are no larger one by one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from dp_accounting.pld import privacy_loss_distribution as pld
from scipy.special import kl_div, logit, ndtri

from confide.accounting.calibration import least_noise_for_kl, least_noise_for_reconstruction, round_up
from confide.accounting.curves import Curve, Direction
from confide.accounting.processes import FINE, REMOVE, TAIL, Grid, MixtureLoss, MixtureOfGaussians
from confide.errors import InputError

Array = np.ndarray
Accountant = Literal["blow-up", "kl"]

FEW = 64
"""Up to so many different vectors of rates, `achieved` computes each one exactly."""
STAIRS = 1e-3
"""The interval for processes that cover many units: pessimistic as any other, by less than 1e-4 of the noise."""
ROUNDING = 1e-10
"""Relative room above computed loads and tails: float64 sums of nonnegative terms, up to a million of them."""


@dataclass(frozen=True, eq=False)
class Population:
    """Units whose rows are each drawn independently with their own probability, in each of `steps` steps.

    offsets: int64[N+1] and rows: int64[nnz]: unit j has rows[offsets[j]:offsets[j+1]], each of them once;
    rho: float64[M] in [0, 1], a probability for every row.

    Raises:
        InputError: a probability outside [0, 1], or a number of steps that is none.
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
        """Offsets int64[N+1] and rates of the rows that are drawn at all, in decreasing order in each unit."""
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
        """int64[N]: rows of each unit that are drawn at all."""
        return np.diff(self._sorted[0])

    @cached_property
    def loads(self) -> Array:
        """float64[N]: -sum log(1 - rho_i) of each unit, the expected hits if rows arrived as a Poisson stream."""
        with np.errstate(divide="ignore"):
            return self._sums(-np.log1p(-self._sorted[1]))

    @cached_property
    def means(self) -> Array:
        """float64[N]: rows of each unit that are drawn in a step, in expectation."""
        return self._sums(self._sorted[1])

    def _sums(self, values: Array) -> Array:
        owner = np.repeat(np.arange(self.units), self.counts)
        return np.bincount(owner, weights=values, minlength=self.units)

    @cached_property
    def _places(self) -> Array:
        """int32[nnz]: place of each of the sorted rates within its unit."""
        offsets, rates = self._sorted
        return (np.arange(len(rates)) - np.repeat(offsets[:-1], self.counts)).astype(np.int32)

    def vector(self, unit: int) -> Array:
        """float64[n]: the unit's rates above 0, in decreasing order."""
        offsets, rates = self._sorted
        return rates[offsets[unit] : offsets[unit + 1]]

    def process(self, unit: int) -> MixtureOfGaussians | None:
        """What one unit meets, exactly; None for a unit of which no row is ever drawn."""
        rates = self.vector(unit)
        return MixtureOfGaussians.poisson_binomial(rates.tolist(), self.steps) if len(rates) else None

    def dominating(self, load: float, rows: int | None = None) -> MixtureOfGaussians:
        """What dominates each unit of at most this load and at most so many rows (default: of any number)."""
        n = int(self.counts.max()) if rows is None else rows
        p = min(1.0, -math.expm1(-load / n) * (1 + ROUNDING))
        return MixtureOfGaussians.binomial(n, p, self.steps)

    def below(self, unit: int) -> Array:
        """bool[N]: the units whose rates, in decreasing order, are no larger than this one's, one by one."""
        offsets, rates = self._sorted
        roof = np.zeros(int(self.counts.max(initial=0)))
        roof[: self.counts[unit]] = self.vector(unit)
        above = np.concatenate([[0], np.cumsum(rates > roof[self._places])])
        return above[offsets[1:]] == above[offsets[:-1]]

    def envelope(self, units: Array) -> MixtureOfGaussians:
        """What dominates each of `units`, and is dominated by whatever else does: the largest of their tails.

        What the tails leave beyond the atoms that are kept moves up to the largest number of rows.
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
        """P(X = k), float64[size, u], and the mass beyond, float64[u], of units sorted by decreasing count."""
        offsets, rates = self._sorted
        counts, first = self.counts[units], offsets[units]
        masses, beyond = np.zeros((size, len(units))), np.zeros(len(units))
        masses[0] = 1.0
        # how many of the units have t rows or more
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
        """What dominates every unit: one unit's own where that does, else the envelope of all.

        The envelope is never above the binomial of the largest load, and it stands where a load is infinite.
        """
        top = int(np.lexsort((self.means, self.counts))[-1]) if self.units else 0
        own = self.process(top) if self.units else None
        if own is None:
            raise InputError("no row of any unit is ever drawn: there is nothing to protect")
        return own if bool(self.below(top).all()) else self.envelope(np.arange(self.units))


@dataclass(frozen=True, eq=False)
class Targets:
    """Pairs to be met, several for a unit if need be: unit int64[K], prior and posterior float64[K].

    Pair k says: who guesses at unit[k] with probability prior[k] before the run does so with at most posterior[k]
    after it.

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


def least_noise_for_secrets(population: Population, targets: Targets, accountant: Accountant) -> float:
    """The least noise multiplier that meets every pair of `targets`; five significant digits, rounded up.

    `blow-up` bounds the posterior itself. `kl` asks for T KL(N(X, s^2) || N(0, s^2)) <= KL(Bern(r) || Bern(p))
    (002, Lemma 3.2), which needs several times more noise, and is there for comparison.

    Formal guarantee: each pair was found to be met by a process that dominates its unit, at this noise or at a
    smaller one: by the binomial of a load and count no smaller than the unit's, by an envelope over the unit, or
    by the exact process of a unit whose sorted rates are no smaller. A process is not tied to one prior: its whole
    curve bounds r(p) for each p, by tangents that are upper bounds everywhere (`_Reconstruction`). The order of
    the search and the noise it starts from decide nothing but how long it takes. Noise is only ever raised, and
    what is met stays met, since r(p) and KL fall as noise rises. What raises it is a unit whose exact process does
    not meet its pair, so the result is the least for that unit, within 0.1%; to settle many units that are all
    about equally demanding, it also rises by 0.05% after every 24 pairs that were settled one by one.

    Raises:
        InputError: no target has a row that is ever drawn, or no noise meets the targets.
    """
    cover = _Cover(population, targets, _gauge(targets, accountant), 0.0)
    if not cover.open.any():
        raise InputError("no secret stands in a row that is ever drawn: there is nothing to protect")
    cover.noise = cover.start()
    cover.meet_all()
    return cover.noise


def achieved(population: Population, targets: Targets, noise_multiplier: float) -> Array:
    """float64[K]: an upper bound on r(prior) of each pair at this noise; the prior itself for a unit without rows.

    Formal guarantee: each number is r(prior) of a process that dominates the pair's unit (see
    `least_noise_for_secrets`), so it is never below the exact one. With at most 64 different vectors of rates it
    is the exact one's. With more, pairs of similar loads are bounded together, by the binomial of their largest
    load. Where that exceeds a posterior, it comes from a process closer to the unit's own, up to 256 processes and
    until 16 pairs are known to exceed theirs.
    """
    if not 0 <= noise_multiplier < math.inf:
        raise InputError(f"privacy.noise_multiplier must be a finite number >= 0, not {noise_multiplier}")
    cover = _Cover(population, targets, _Reconstruction(targets), float(noise_multiplier))
    cover.bounds[cover.open] = 1.0
    if noise_multiplier > 0 and cover.open.any():
        cover.bound_all()
    return np.maximum(cover.bounds, targets.prior)


class _Reconstruction:
    """r(p), from the removal direction alone. `strength` is roughly what mean sqrt(T) / s may be, to begin with.

    B(p) = inf over epsilon of e^epsilon p + delta(epsilon) lies below each of these lines. The lines kept are those
    that attain it at up to 64 priors, and a pair takes the lower one of its two neighbours. For the first pair, and
    for all up to 64 different priors, this is B itself; else it is above, by 0.5% where priors span nine decades.
    """

    def __init__(self, targets: Targets) -> None:
        self.prior, self.limits = targets.prior, targets.posterior
        self.strength = ndtri(targets.posterior) - ndtri(targets.prior)

    def bounds(self, process: MixtureOfGaussians, noise: float, pairs: Array, interval: float) -> Array:
        """float64[len(pairs)]: upper bounds on r(prior) of the process."""
        prior = self.prior[pairs]
        knots = np.unique(prior)
        if len(knots) > FEW:
            knots = np.unique(np.append(np.geomspace(knots[0], knots[-1], FEW), prior[0]))
        slopes, deltas = _tangents(_Removal(process).curve(noise, interval).removal, knots)
        under = np.maximum(np.searchsorted(knots, prior, side="right") - 1, 0)
        above = np.minimum(np.searchsorted(knots, prior), len(knots) - 1)
        least = np.minimum(slopes[under] * prior + deltas[under], slopes[above] * prior + deltas[above])
        return np.clip(least, prior, 1.0)

    def scale(self, values: Array) -> Array:
        """Such that it is nearly linear in the log of the load."""
        return logit(np.clip(values, 1e-300, 1 - 1e-15))

    def least(self, process: MixtureOfGaussians, pairs: Array) -> float:
        targets = list(zip(self.prior[pairs].tolist(), self.limits[pairs].tolist(), strict=True))
        return least_noise_for_reconstruction(_Removal(process), targets)


class _Divergence:
    """T KL(P || Q) against KL(Bern(r) || Bern(p))."""

    def __init__(self, targets: Targets) -> None:
        p, r = targets.prior, targets.posterior
        self.limits = kl_div(r, p) + kl_div(1 - r, 1 - p)
        self.strength = np.sqrt(2 * self.limits)

    def bounds(self, process: MixtureOfGaussians, noise: float, pairs: Array, interval: float) -> Array:
        return np.full(len(pairs), process.kl(noise))

    def scale(self, values: Array) -> Array:
        return np.log(np.clip(values, 1e-300, 1e300))

    def least(self, process: MixtureOfGaussians, pairs: Array) -> float:
        return least_noise_for_kl(process, float(self.limits[pairs].min()))


_Gauge = _Reconstruction | _Divergence


def _gauge(targets: Targets, accountant: Accountant) -> _Gauge:
    if accountant not in ("blow-up", "kl"):
        raise InputError(f"privacy.accountant must be blow-up or kl, not {accountant}")
    return _Reconstruction(targets) if accountant == "blow-up" else _Divergence(targets)


class _Cover:
    """Pairs of `targets` and what is certified of them so far, at `noise` or less."""

    def __init__(self, population: Population, targets: Targets, gauge: _Gauge, noise: float) -> None:
        self.population, self.targets, self.gauge, self.noise = population, targets, gauge, noise
        if len(targets) and not (targets.unit.min() >= 0 and targets.unit.max() < population.units):
            raise ValueError("a target names a unit that is not there")
        self.loads, self.counts = population.loads[targets.unit], population.counts[targets.unit]
        self.by_load = np.lexsort((gauge.limits, -self.counts, -self.loads))  # strictest first
        # a unit of which nothing is drawn loses nothing
        self.bounds = np.where(self.counts > 0, math.inf, np.minimum(targets.prior, gauge.limits))
        self.hopeless = np.zeros(len(targets), bool)
        self.together = 1

    @property
    def open(self) -> Array:
        """bool[K]: pairs not yet known to be met, nor known to fail."""
        return (self.bounds > self.gauge.limits) & ~self.hopeless

    def start(self) -> float:
        """A noise that no smaller one may meet: the least for some units that look worst. No part of any proof."""
        targets, done, noise = self.targets, list[int](), 0.0
        margins = self.population.means[targets.unit] / self.gauge.strength
        while len(done) < 4:
            unit = int(targets.unit[np.argmax(margins)])
            noise = max(noise, self._least(unit))
            done.append(unit)
            margins = self._margins(noise)
            margins[np.isin(targets.unit, done)] = -math.inf
            if margins.max() <= 0:
                break
        return noise

    def _margins(self, noise: float) -> Array:
        """float64[K]: how far each pair seems to be above its limit, by coarse curves interpolated over the load."""
        pairs = np.flatnonzero(np.isfinite(self.loads) & (self.counts > 0))
        margins = np.full(len(self.targets), -math.inf)
        if not len(pairs):
            return margins
        grid = self._grid(pairs, 24)
        cell = np.clip(np.searchsorted(grid, self.loads[pairs]), 1, len(grid) - 1)
        ends = np.zeros((2, len(pairs)))
        for g, load in enumerate(grid):
            process = self.population.dominating(load)
            for end, of in enumerate((cell - 1, cell)):
                here = of == g
                if here.any():
                    ends[end, here] = self.gauge.scale(self.gauge.bounds(process, noise, pairs[here], 1e-2))
        share = np.log(self.loads[pairs] / grid[cell - 1]) / np.log(grid[cell] / grid[cell - 1])
        between = ends[0] + share * (ends[1] - ends[0])
        margins[pairs] = between - self.gauge.scale(self.gauge.limits[pairs])
        return margins

    def _grid(self, pairs: Array, points: int) -> Array:
        """float64[points]: loads from just below the least to just above the largest."""
        loads = self.loads[pairs]
        return np.geomspace(loads.min() * (1 - 1e-9), loads.max() * (1 + 1e-9), points)

    def meet_all(self) -> None:
        """Certify every pair, and raise the noise where one is not met."""
        steps = 0
        while self.open.any():
            pair = self._queue()[0]
            if not self._try(pair):
                self.noise = max(round_up(self.noise * 1.0001), self._least(self.targets.unit[pair]))
                continue
            steps += 1
            if steps % 24 == 0:
                self.noise = round_up(self.noise * 1.0005)

    def bound_all(self) -> None:
        """Lower the bounds at a fixed noise: exactly for few units, else until each pair is met or known to fail."""
        few = self._distinct()
        if few is not None:
            for unit, pairs in few:
                self._apply(self._own(unit), pairs, FINE)
            return
        pairs = np.flatnonzero(np.isfinite(self.loads) & (self.counts > 0))
        grid = np.zeros(0)
        if len(pairs):  # evenly in the log of the load and in the number of pairs
            shares = np.quantile(self.loads[pairs], np.linspace(0, 1, FEW), method="higher")
            grid = np.unique(np.concatenate([self._grid(pairs, FEW), shares]))
        cell = np.searchsorted(grid, self.loads[pairs])
        for g in np.unique(cell):
            members = pairs[cell == g]
            load, rows = float(self.loads[members].max()), int(self.counts[members].max())
            self._apply(self.population.dominating(load, rows), members, STAIRS)
        for _ in range(256):
            if self.open.any() and self.hopeless.sum() < 16:
                pair = self._queue()[0]
                self.hopeless[pair] = not self._try(pair)

    def _distinct(self) -> list[tuple[int, Array]] | None:
        """A unit of each different vector of rates and the pairs it stands for; None if there are more than FEW."""
        some = np.flatnonzero(self.counts > 0)
        if len(np.unique(np.stack([self.loads[some], self.counts[some]]), axis=1).T) > FEW:
            return None
        groups: dict[bytes, list[int]] = {}
        for pair in some:
            groups.setdefault(self.population.vector(self.targets.unit[pair]).tobytes(), []).append(int(pair))
            if len(groups) > FEW:
                return None
        return [(int(self.targets.unit[pairs[0]]), np.array(pairs)) for pairs in groups.values()]

    def _queue(self) -> Array:
        """The open pairs, by decreasing load."""
        return self.by_load[self.open[self.by_load]]

    def _try(self, pair: int) -> bool:
        """Bound this pair and all that the same processes dominate, from loose to exact; whether it is met now."""
        queue = self._queue()
        load = float(self.loads[pair])
        if math.isfinite(load):
            # `pair` leads the queue, so each of the others has at most its load
            self._apply(self.population.dominating(load, int(self.counts[queue].max())), queue, STAIRS)
            if not self.open[pair]:
                return True
        if self.together > 1:
            queue = self._queue()[: self.together]
            self._apply(self.population.envelope(np.unique(self.targets.unit[queue])), queue, STAIRS)
            met = not self.open[queue].any()
            self.together = min(4 * self.together, 65536) if met else self.together // 4
            if met:
                return True
        queue, unit = self._queue(), self.targets.unit[pair]
        below = queue[self.population.below(unit)[self.targets.unit[queue]]]
        for interval in (STAIRS, FINE):
            if self.open[pair]:
                self._apply(self._own(unit), below, interval)
        self.together = max(4, self.together)
        return not bool(self.open[pair])

    def _apply(self, process: MixtureOfGaussians, pairs: Array, interval: float) -> None:
        """Take what `process` certifies of pairs whose units it dominates."""
        certified = self.gauge.bounds(process, self.noise, pairs, interval)
        self.bounds[pairs] = np.minimum(self.bounds[pairs], certified)

    def _own(self, unit: int) -> MixtureOfGaussians:
        process = self.population.process(unit)
        assert process is not None  # pairs of such units are met from the beginning
        return process

    def _least(self, unit: int) -> float:
        """The least noise for all pairs of one unit, by its exact process."""
        return self.gauge.least(self._own(unit), np.flatnonzero(self.targets.unit == unit))


@dataclass(frozen=True)
class _Removal:
    """A process of which only the removal direction is computed: half of the time, and all that r(p) needs."""

    process: MixtureOfGaussians

    def curve(self, noise_multiplier: float, interval: float = FINE) -> Curve:
        own, s = self.process, noise_multiplier
        if s == 0 or len(own.values) == 1:
            return own.curve(s, interval)
        # scaled so that s = 1: dp_accounting's tolerances are absolute
        removal = MixtureLoss(1.0, [v / s for v in own.values], own.probabilities, adjacency_type=REMOVE)
        grid = Grid(interval, own.mean / s, own.steps, len(own.values))
        return grid.curve(lambda h: pld.PrivacyLossDistribution(removal.dots(h)), removal)

    def describe(self) -> str:
        return self.process.describe()


def _tangents(direction: Direction, priors: Array) -> tuple[Array, Array]:
    """Slope e^epsilon and delta of the line that is lowest at each of `priors`.

    Slopes end at e^700: at any prior above 1e-300 such a line is above 1 and is cut to 1 where it is used.
    """
    slopes = np.exp(np.minimum(direction.epsilons, 700.0))
    lowest = [int(np.argmin(slopes * p + direction.deltas)) for p in priors]
    return slopes[lowest], direction.deltas[lowest]
