"""One noise for many units, certified for every one of them, by descending their loads in steps, as on stairs.

See `confide.privacy.accounting.population` for the order that everything here rests on.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from dp_accounting.pld import privacy_loss_distribution as pld
from scipy.special import kl_div, logit, ndtri

from confide.privacy.accounting.calibration import (
    least_noise_for_kl,
    least_noise_for_reconstruction,
    least_noise_for_renyi,
    round_up,
)
from confide.privacy.accounting.curves import Direction, PrivacyProfile
from confide.privacy.accounting.pairs import FINE, REMOVE, Grid, MixtureLoss, MixtureOfGaussians
from confide.privacy.accounting.population import Array, Population, Targets
from confide.privacy.accounting.renyi import allowed, renyi
from confide.utils.errors import InputError

Accountant = Literal["blow-up", "kl", "renyi"]

FEW = 64
"""Up to this many different vectors of rates, `achieved` computes each one exactly."""
STAIRS = 1e-3
"""The interval for processes that cover many units. It is pessimistic like any other, by less than 1e-4 of the noise.
"""


def least_noise_for_secrets(population: Population, targets: Targets, accountant: Accountant) -> float:
    """Compute the least noise multiplier that meets every pair of `targets`; five significant digits, rounded up.

    `blow-up` bounds the posterior itself. `kl` asks for T KL(N(X, s^2) || N(0, s^2)) <= KL(Bern(r) || Bern(p))
    (Ganesh et al. 2025, "Hush!", Lemma 3.2). It needs several times more noise, and is there for comparison. `renyi`
    is the same lemma with Renyi divergences: each pair must be met at one of the whole orders (`accounting.renyi`).

    Formal guarantee: each pair was found to be met by a process that dominates its unit, at this noise or at a
    smaller one: by the binomial of a load and count no smaller than the unit's, by an envelope over the unit, or
    by the exact process of a unit whose sorted rates are no smaller. A process is not tied to one prior: its whole
    curve bounds r(p) for each p, by tangents that are upper bounds everywhere (`_Reconstruction`). The order of
    the search and the noise it starts from affect nothing but how long it takes. Noise is only ever raised, and
    a pair that is met stays met, since r(p) and all divergences fall as noise rises. Noise is raised for a unit whose
    exact process does not meet its pair, so the result is the least for that unit, within 0.1%. To settle many units
    that are all about equally demanding, it also rises by 0.05% after every 64 stairs.

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
    """Compute upper bounds on r(prior) of each pair at this noise, float64[K].

    A unit without rows has the prior itself.

    Formal guarantee: each number is r(prior) of a process that dominates the pair's unit (see
    `least_noise_for_secrets`), so it is never below the exact one. With at most 64 different vectors of rates it is
    that of the exact process. With more, pairs of similar loads are bounded together, by the binomial of their largest
    load. If that exceeds a posterior, the number comes from a process closer to the unit's own, up to 256 processes
    and until 16 pairs are known to exceed theirs.
    """
    if not 0 <= noise_multiplier < math.inf:
        raise InputError(f"privacy.noise_multiplier must be a finite number >= 0, not {noise_multiplier}")
    cover = _Cover(population, targets, _Reconstruction(targets), float(noise_multiplier))
    cover.bounds[cover.open] = 1.0
    if noise_multiplier > 0 and cover.open.any():
        cover.bound_all()
    bounds: Array = np.maximum(cover.bounds, targets.prior)
    return bounds


class _Reconstruction:
    """The gauge r(p), from the removal direction alone. `strength` is a first guess of mean sqrt(T) / s.

    B(p) = inf over epsilon of e^epsilon p + delta(epsilon) lies below each of these lines. The lines kept are those
    that attain it at up to 64 priors, and a pair takes the lower one of its two neighbours. For the first pair, and
    for all up to 64 different priors, this is B itself; else it is above, by 0.5% where priors span nine decades.
    """

    def __init__(self, targets: Targets) -> None:
        self.prior, self.limits = targets.prior, targets.posterior
        self.strength = ndtri(targets.posterior) - ndtri(targets.prior)

    def bounds(self, process: MixtureOfGaussians, noise: float, pairs: Array, interval: float) -> Array:
        """Compute upper bounds on r(prior) of the process, float64[len(pairs)]."""
        prior = self.prior[pairs]
        knots = np.unique(prior)
        if len(knots) > FEW:
            knots = np.unique(np.append(np.geomspace(knots[0], knots[-1], FEW), prior[0]))
        slopes, deltas = _tangents(_Removal(process).curve(noise, interval).removal, knots)
        under = np.maximum(np.searchsorted(knots, prior, side="right") - 1, 0)
        above = np.minimum(np.searchsorted(knots, prior), len(knots) - 1)
        least = np.minimum(slopes[under] * prior + deltas[under], slopes[above] * prior + deltas[above])
        bounds: Array = np.clip(least, prior, 1.0)
        return bounds

    def scale(self, values: Array) -> Array:
        """Transform values so that they are nearly linear in the log of the load."""
        scaled: Array = logit(np.clip(values, 1e-300, 1 - 1e-15))
        return scaled

    def least(self, process: MixtureOfGaussians, pairs: Array) -> float:
        targets = list(zip(self.prior[pairs].tolist(), self.limits[pairs].tolist(), strict=True))
        return least_noise_for_reconstruction(_Removal(process), targets)


class _Divergence:
    """The gauge T KL(P || Q) against KL(Bern(r) || Bern(p))."""

    def __init__(self, targets: Targets) -> None:
        p, r = targets.prior, targets.posterior
        self.limits = kl_div(r, p) + kl_div(1 - r, 1 - p)
        self.strength = np.sqrt(2 * self.limits)

    def bounds(self, process: MixtureOfGaussians, noise: float, pairs: Array, interval: float) -> Array:
        return np.full(len(pairs), process.kl(noise))

    def scale(self, values: Array) -> Array:
        scaled: Array = np.log(np.clip(values, 1e-300, 1e300))
        return scaled

    def least(self, process: MixtureOfGaussians, pairs: Array) -> float:
        return least_noise_for_kl(process, float(self.limits[pairs].min()))


class _Renyi:
    """The gauge of Renyi divergences: the least share, over the orders, of what an order may come to."""

    def __init__(self, targets: Targets) -> None:
        self.allowed = allowed(targets.prior, targets.posterior)
        self.limits = np.ones(len(targets))
        self.strength = ndtri(targets.posterior) - ndtri(targets.prior)

    def bounds(self, process: MixtureOfGaussians, noise: float, pairs: Array, interval: float) -> Array:
        shares: Array = (renyi(process, noise) / self.allowed[pairs]).min(axis=1)
        return shares

    def scale(self, values: Array) -> Array:
        scaled: Array = np.log(np.clip(values, 1e-300, 1e300))
        return scaled

    def least(self, process: MixtureOfGaussians, pairs: Array) -> float:
        return least_noise_for_renyi(process, self.allowed[pairs])


_Gauge = _Reconstruction | _Divergence | _Renyi
_GAUGES: dict[Accountant, type[_Gauge]] = {"blow-up": _Reconstruction, "kl": _Divergence, "renyi": _Renyi}


def _gauge(targets: Targets, accountant: Accountant) -> _Gauge:
    if accountant not in _GAUGES:
        raise InputError(f"privacy.accountant must be one of {', '.join(_GAUGES)}, not {accountant}")
    return _GAUGES[accountant](targets)


class _Cover:
    """Pairs of `targets` and the bounds certified for them so far, at `noise` or less."""

    def __init__(self, population: Population, targets: Targets, gauge: _Gauge, noise: float) -> None:
        self.population, self.targets, self.gauge, self.noise = population, targets, gauge, noise
        if len(targets) and not (targets.unit.min() >= 0 and targets.unit.max() < population.units):
            raise ValueError("a target names a unit that is not there")
        self.loads, self.counts = population.loads[targets.unit], population.counts[targets.unit]
        self.by_load = np.lexsort((gauge.limits, -self.counts, -self.loads))  # strictest first
        # a unit without drawn rows loses nothing
        self.bounds = np.where(self.counts > 0, math.inf, np.minimum(targets.prior, gauge.limits))
        self.hopeless = np.zeros(len(targets), bool)
        self.together, self.rest, self.resting = 1, 0, 0

    @property
    def open(self) -> Array:
        """The pairs not yet known to be met, nor known to fail: bool[K]."""
        return (self.bounds > self.gauge.limits) & ~self.hopeless

    def start(self) -> float:
        """Guess a noise below which none is enough: the least for some units that look worst. No proof uses it."""
        targets, done, noise = self.targets, list[int](), 0.0
        margins = self.population.means[targets.unit] / self.gauge.strength
        while len(done) < 8:
            unit = int(targets.unit[np.argmax(margins)])
            least = self._least(unit)
            if least <= noise:
                break
            noise = least
            done.append(unit)
            margins = self._margins(noise)
            margins[np.isin(targets.unit, done)] = -math.inf
            if margins.max() <= 0:
                break
        return noise

    def _margins(self, noise: float) -> Array:
        """Estimate how far each pair is above its limit, float64[K], by coarse curves interpolated over the load."""
        pairs = np.flatnonzero(np.isfinite(self.loads) & (self.counts > 0))
        margins = np.full(len(self.targets), -math.inf)
        if not len(pairs):
            return margins
        grid = self._grid(pairs, 24)
        cell = np.clip(np.searchsorted(grid, self.loads[pairs]), 1, len(grid) - 1)
        ends = np.zeros((2, 2, len(pairs)))
        for g, load in enumerate(grid):
            for kind, rows in enumerate(
                (1, None)
            ):  # the load in one row, or spread over as many rows as any unit has
                process = self.population.dominating(load, rows)
                for end, of in enumerate((cell - 1, cell)):
                    here = of == g
                    if here.any():
                        bounds = self.gauge.bounds(process, noise, pairs[here], 1e-2)
                        ends[kind, end, here] = self.gauge.scale(bounds)
        share = np.log(self.loads[pairs] / grid[cell - 1]) / np.log(grid[cell] / grid[cell - 1])
        one, many = ends[:, 0] + share * (ends[:, 1] - ends[:, 0])
        margins[pairs] = one + self.population.evenness[self.targets.unit[pairs]] * (many - one)
        margins[pairs] -= self.gauge.scale(self.gauge.limits[pairs])
        return margins

    def _grid(self, pairs: Array, points: int) -> Array:
        """Return loads from just below the least to just above the largest, float64[points]."""
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
            if steps % FEW == 0:
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
        """Return a unit of each different vector of rates with its pairs; None if there are more than FEW."""
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
        """Return the open pairs, by decreasing load."""
        queue: Array = self.by_load[self.open[self.by_load]]
        return queue

    def _try(self, pair: int) -> bool:
        """Bound this pair and all that the same processes dominate, from loose to exact; tell whether it is met now."""
        queue = self._queue()
        load = float(self.loads[pair])
        self.resting -= 1
        if math.isfinite(load) and self.resting < 0:
            # `pair` leads the queue, so each of the others has at most its load
            self._apply(self.population.dominating(load, int(self.counts[queue].max())), queue, STAIRS)
            settled = len(queue) - int(self.open[queue].sum())
            self.rest = (
                0 if settled >= FEW else min(2 * self.rest + 1, FEW)
            )  # it is loose if rates differ much
            self.resting = self.rest
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
        """Apply the bounds of `process` to pairs whose units it dominates."""
        certified = self.gauge.bounds(process, self.noise, pairs, interval)
        self.bounds[pairs] = np.minimum(self.bounds[pairs], certified)

    def _own(self, unit: int) -> MixtureOfGaussians:
        process = self.population.process(unit)
        assert process is not None  # pairs of units without drawn rows are met from the beginning
        return process

    def _least(self, unit: int) -> float:
        """Compute the least noise for all pairs of one unit, by its exact process."""
        return self.gauge.least(self._own(unit), np.flatnonzero(self.targets.unit == unit))


@dataclass(frozen=True)
class _Removal:
    """A process of which only the removal direction is computed: half of the time, and enough for r(p)."""

    process: MixtureOfGaussians

    def curve(self, noise_multiplier: float, interval: float = FINE) -> PrivacyProfile:
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
    """Compute slope e^epsilon and delta of the line that is lowest at each of `priors`.

    Slopes end at e^700: at any prior above 1e-300 such a line is above 1 and is cut to 1 where it is used.
    """
    slopes = np.exp(np.minimum(direction.epsilons, 700.0))
    lowest = [int(np.argmin(slopes * p + direction.deltas)) for p in priors]
    return slopes[lowest], direction.deltas[lowest]
