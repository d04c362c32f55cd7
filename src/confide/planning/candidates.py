"""One setting of a suggestion, and its kin: the same with balls in bins, and with noise correlated over steps.

`suggest.py` ranks them.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from confide.data.shape import Shape
from confide.planning.cost import Size
from confide.planning.progress import SQUARES, WALK, gradients_in_noise, log_progress, own_rate, signal
from confide.privacy.accounting import nearly_least_noise
from confide.privacy.correlated_noise import Buffered, compared_rates
from confide.privacy.mechanisms.base import Mechanism
from confide.privacy.mechanisms.values import PrivacyParameters
from confide.utils.errors import InputError

_SMALLER, _LARGER = 1.05, 0.99
"""A batch is dealt into bins if that of a whole number of steps an epoch is 5% smaller at most, or 1% larger."""

_BANDS = (2, 4, 8, 16, 32, 64)
"""Steps over which noise may be correlated; these are tried, and the most that go."""

_BANDS_IN_BINS = (8,)
"""The same where units are dealt into bins."""

_COPIES = 4e9
"""Bytes that earlier noise may take in a suggestion: each band keeps a float32 copy of what trains."""

_BUFFERS = (1, 2, 3, 4)
"""Buffers that are tried where bands of an epoch would take more."""


@dataclass(frozen=True)
class Candidate:
    """A setting at a target.

    Attributes:
        noise: standard deviation of a step's noise on the mean clipped gradient, in clip norms; root mean square over
            the steps.
        signal: the part of a gradient's length that is left in the mean, relative to single rows: L(1) / L(k).
        ratio: variance of the noise over that of what a step follows.
        share: the part of the variance of steps' noise that stays in the weights; 1 if noise is independent.
        rate: peak learning rate at which it is ranked, of whole weights.
        walk: what the random walk takes from `progress`.
        progress: the rule's value of the setting: `log_progress` of its steps, and the logarithm of the rate.
        reach: the most rows of the data that it computes, each counted once.
    """

    mechanism: Mechanism
    parameters: PrivacyParameters
    cap: int
    noise_multiplier: float
    noise: float
    signal: float
    ratio: float
    share: float
    rate: float
    walk: float
    progress: float
    reach: float

    @property
    def in_weights(self) -> float:
        """The part of a step's noise that stays in the weights: it compares settings of as many steps and rows."""
        return self.noise * math.sqrt(self.share)


@dataclass(frozen=True)
class Target:
    """The target that every setting must meet, and what it is ranked by.

    Attributes:
        delta: one for all, or those with fewer rows in use would claim less.
        lengths: k -> L(k), the norm of the mean gradient of k rows of a unit.
        schedule: of the learning rate.
    """

    epsilon: float
    delta: float
    shape: Shape
    size: Size
    lengths: Callable[[int], float]
    schedule: str

    def candidate(self, mechanism: Mechanism, near: float) -> Candidate:
        """Account for a setting, and value it.

        Args:
            near: a guess at its noise multiplier.

        Raises:
            InputError: the setting is not possible.
        """
        parameters = mechanism.parameters(self.shape)
        noise_multiplier = nearly_least_noise(parameters.process, self.epsilon, self.delta, near)
        cap, steps = mechanism.cap(self.shape), mechanism.steps
        left = signal(mechanism, cap, self.lengths)
        longer, share = over_steps(mechanism, self.schedule)
        noise = longer * noise_multiplier / parameters.divisor
        ratio = gradients_in_noise(noise, left, self.size)
        rate = own_rate(steps, self.schedule, ratio, share, self.size.width)
        squared = SQUARES[self.schedule] * share * rate**2
        return Candidate(
            mechanism,
            parameters,
            cap,
            noise_multiplier,
            noise,
            left,
            ratio,
            share,
            rate,
            WALK * steps * squared,
            math.log(rate) + log_progress(steps, ratio, squared),
            min(float(parameters.rows), mechanism.rows_computed(parameters)),
        )

    def dealt(self, each: Candidate) -> Candidate:
        """Return the same setting with balls in bins if it then needs less noise, else as it is.

        An epoch of bins has a whole number of steps, so the batch is a little smaller, or larger by a percent at most.
        """
        other = self._in_bins(each)
        if other is None:
            return each
        try:
            found = self.candidate(other, each.noise_multiplier)
        except InputError:
            return each
        return found if found.noise < each.noise else each

    def _in_bins(self, each: Candidate) -> Mechanism | None:
        """Return the mechanism with balls in bins and a batch near its own; None if there is none so near."""
        mechanism, rate = each.mechanism, each.parameters.sampling.rate
        bins = math.ceil(_LARGER / rate)
        if not mechanism.deals or bins < 2 or bins * rate > _SMALLER:
            return None
        other = replace(mechanism, sampling="bins", batch=rounded(mechanism.batch / (bins * rate)))
        # rounded, the batch might be one of fewer steps an epoch
        return other if other.parameters(self.shape).sampling.rate <= rate / _LARGER else None

    def correlated(self, each: Candidate, warmup: int) -> Iterator[Candidate]:
        """Yield the same setting with noise that is correlated over steps; see `correlated_noise`.

        In groups that have their turns, and in bins that everybody keeps. Bins take a second to account for, so that
        only 8 bands and as many as an epoch has steps are tried there, and buffers where these would take too much
        memory. Others were best in two of the seven settings of `benchmarks/kept_bins.py`.
        """
        mechanism, rate = each.mechanism, each.parameters.sampling.rate
        if not mechanism.correlates:
            return
        epoch = int(1 / rate * (1 + 1e-9))
        copies = int(_COPIES / (4 * self.size.trainable))
        whole = min(mechanism.steps, epoch)
        most = min(whole, copies)
        groups = sorted({*(few for few in _BANDS if few < most), most} - {0, 1})
        grouped = replace(mechanism, sampling="poisson", warmup=warmup)
        yield from self._tried((replace(grouped, bands=bands) for bands in groups), each)
        if (in_bins := self._in_bins(each)) is not None:
            in_bins = replace(in_bins, warmup=warmup)
            few = sorted({*(few for few in _BANDS_IN_BINS if few < most), most} - {0, 1})
            yield from self._tried((replace(in_bins, bands=bands) for bands in few), each)
            buffers = (d for d in _BUFFERS if most < whole and Buffered(d).copies <= copies)
            yield from self._tried((replace(in_bins, buffers=d) for d in buffers), each)

    def _tried(self, several: Iterable[Mechanism], like: Candidate) -> Iterator[Candidate]:
        near = like.noise_multiplier
        for mechanism in several:
            try:
                found = self.candidate(mechanism, near)
            except InputError:
                return
            near = found.noise_multiplier
            yield found


def over_steps(mechanism: Mechanism, schedule: str) -> tuple[float, float]:
    """Return a step's noise in noise multipliers, and the share of its variance that stays in the weights."""
    steps, correlation = mechanism.steps, mechanism.correlation
    if correlation.is_independent:
        return 1.0, 1.0
    rates = compared_rates(steps, schedule, mechanism.warmup)
    return correlation.sensitivity * correlation.noise_in_steps(steps), correlation.walk_share(rates)


def rounded(batch: float) -> float:
    """Round down to three digits or a whole number, for people to write down; it costs under 1% of the budget."""
    step = 10.0 ** min(0, math.floor(math.log10(batch)) - 2)
    return round(math.floor(batch / step * (1 + 1e-12)) * step, 12)
