"""Rates at which scores tell members from non-members, with intervals, and the bounds that a guarantee sets.

A score is any number that is higher for rows that an attack finds likelier members. Nothing here picks the best of
several thresholds or attacks on the rows that it reports on: that finds something in pure chance.

Rows of one unit resemble each other. Where `units` are given, rows of a unit count together; without them an interval
over rows of users is too narrow, and an attack that only knows users apart seems to know members.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from scipy import special, stats

from confide.privacy.accounting import PrivacyProfile

CONFIDENCE = 0.95
FPRS = (0.01, 0.001)
"""The false positive rates at which the true positive rate is reported."""

_DIVIDING = 2022  # seed of the halves; public, since it is no secret who falls into which half


@dataclass(frozen=True)
class Estimate:
    """A number and its two-sided interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class LowRate:
    """True positive rate at a low false positive rate.

    Attributes:
        fpr: the false positive rate.
        value: at the least threshold that no more than this share of the non-members pass.
        low, high: an interval for the rate at the threshold that this share of all non-members in the world pass.
        needed: non-members (or units of equal size) from which on `low` can be above zero at all.
    """

    fpr: float
    value: float
    low: float
    high: float
    needed: int


@dataclass(frozen=True)
class Rates:
    """The success of an attack: estimates over the examined rows (or users), under one trained model.

    Attributes:
        members, non_members: how many scores there were.
        units: units of the members and of the non-members, where rows of a unit were counted together; else None.
        confidence: of every interval, each by itself.
        auroc: see `auroc`; p_value: of "AUROC is at most 1/2".
        true_positive_rate: one for each requested false positive rate; see `true_positive_rate`.
        threshold, advantage, balanced_accuracy: see `advantage`; balanced accuracy is (1 + advantage) / 2.
    """

    members: int
    non_members: int
    units: tuple[int, int] | None
    confidence: float
    auroc: Estimate
    p_value: float
    true_positive_rate: tuple[LowRate, ...]
    threshold: float
    advantage: Estimate
    balanced_accuracy: Estimate

    def to_json(self) -> dict[str, Any]:
        found = asdict(self)
        found["threshold"] = self.threshold if math.isfinite(self.threshold) else None
        return found


def rates(
    members: np.ndarray,
    non_members: np.ndarray,
    units: tuple[np.ndarray, np.ndarray] | None = None,
    fprs: Sequence[float] = FPRS,
    confidence: float = CONFIDENCE,
) -> Rates:
    """Compute all rates of one attack.

    Args:
        members, non_members: scores, float64[m] and float64[n], higher where membership is more likely.
        units: the unit of each member and of each non-member, int64[m] and int64[n]. The two are counted separately,
            even if a number stands in both.
        confidence: of each interval; ask for more if you look at several.

    Raises:
        ValueError: a score is not a number, or there are fewer than two members or non-members (or units of them).
    """
    sample = _Sample.of(members, non_members, units)
    area, p_value = _auroc(sample, confidence)
    threshold, gain = _advantage(sample, confidence)
    return Rates(
        members=len(sample.members.scores),
        non_members=len(sample.others.scores),
        units=None if units is None else (sample.members.units, sample.others.units),
        confidence=confidence,
        auroc=area,
        p_value=p_value,
        true_positive_rate=tuple(_low_rate(sample, fpr, confidence) for fpr in fprs),
        threshold=threshold,
        advantage=gain,
        balanced_accuracy=Estimate(*((1 + end) / 2 for end in (gain.value, gain.low, gain.high))),
    )


def auroc(
    members: np.ndarray,
    non_members: np.ndarray,
    units: tuple[np.ndarray, np.ndarray] | None = None,
    confidence: float = CONFIDENCE,
) -> tuple[Estimate, float]:
    """Compute the probability that a member scores above a non-member, ties counting half, and the p-value of "<= 1/2".

    The variance is DeLong's (DeLong et al. 1988), summed over units where there are any (Obuchowski 1997, for units of
    which all rows are members or none). The interval is Student's on the logit scale, with Satterthwaite's degrees of
    freedom; the p-value is that of Brunner and Munzel (2000), which has the same variance and holds even if scores of
    members and non-members spread differently. Both are approximate below some ten units on a side.

    Where the variance is zero, as when all members score above all non-members, the interval is exact instead: k
    disjoint pairs of a member and a non-member gave the same outcome, and no p-value is ever below 2^-k.

    Raises:
        ValueError: as `rates`.
    """
    return _auroc(_Sample.of(members, non_members, units), confidence)


def true_positive_rate(
    members: np.ndarray,
    non_members: np.ndarray,
    fpr: float,
    units: tuple[np.ndarray, np.ndarray] | None = None,
    confidence: float = CONFIDENCE,
) -> LowRate:
    """Compute the true positive rate at a false positive rate, with an interval for an estimated threshold.

    *Formal guarantee*, for independent scores of any distribution and at any number of them: the interval covers the
    largest true positive rate of a threshold with this false positive rate with at least the stated probability. An
    order statistic of the non-members lies above the sought threshold, and another below it, each but for a quarter of
    the error (the number of non-members on one side of a quantile is binomial). The members are independent of
    both, so that Clopper and Pearson's (1934) bounds of the shares of members that pass them hold. A union bound
    covers the four. With few non-members the lower end is 0: nothing can be said at so low a rate.

    With `units` it is an estimate: a binomial of as many draws as there would be if rows of a unit were all alike,
    (sum of rows)^2 / sum of squared rows (Kish 1965), which is the worst case of units of equal size.

    Raises:
        ValueError: as `rates`.
    """
    return _low_rate(_Sample.of(members, non_members, units), fpr, confidence)


def advantage(
    members: np.ndarray,
    non_members: np.ndarray,
    units: tuple[np.ndarray, np.ndarray] | None = None,
    confidence: float = CONFIDENCE,
) -> tuple[float, Estimate]:
    """Compute (threshold, true positive rate minus false positive rate of "score > threshold").

    The threshold is the best one on one half of members and non-members (of units, if given), and the advantage is
    measured on the other half: the best of all thresholds on the same rows would be far above zero by chance alone.
    The interval joins Clopper and Pearson's of both rates as independent ones (Zou and Donner 2008): approximate, on
    the wide side. It is about this threshold; the best one's is not below it.

    Raises:
        ValueError: as `rates`.
    """
    return _advantage(_Sample.of(members, non_members, units), confidence)


# samples -------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, eq=False)
class _Side:
    """Scores, float64[n], and the unit of each as 0..units - 1, int64[n]; None if each is a unit of its own."""

    scores: np.ndarray
    unit: np.ndarray | None
    units: int

    @classmethod
    def of(cls, scores: np.ndarray, unit: np.ndarray | None, what: str) -> "_Side":
        scores = np.asarray(scores, dtype=np.float64)
        if scores.ndim != 1 or (unit is not None and len(unit) != len(scores)):
            raise ValueError(f"one score, and one unit, is needed for each of the {what}")
        if np.isnan(scores).any():
            raise ValueError(f"a score of the {what} is not a number")
        number = None if unit is None else np.unique(unit, return_inverse=True)[1]
        units = len(scores) if number is None else int(number.max(initial=-1)) + 1
        if units < 2:
            raise ValueError(f"{units} of the {what}, and an interval takes two at least")
        return cls(scores, number, units)

    @property
    def effective(self) -> float:
        """The number of independent scores that these are worth at worst."""
        if self.unit is None:
            return float(len(self.scores))
        rows = np.bincount(self.unit).astype(np.float64)
        return float(rows.sum() ** 2 / (rows**2).sum())

    def spread(self, values: np.ndarray) -> float:
        """Compute the variance of the mean of `values`, one for each score, units being independent."""
        deviations = values - values.mean()
        if self.unit is not None:
            deviations = np.bincount(self.unit, deviations)
        return float((deviations**2).sum() / len(values) ** 2 * self.units / (self.units - 1))

    def halves(self) -> tuple[np.ndarray, np.ndarray]:
        """Split the scores into two halves, all scores of a unit in the same one."""
        first = np.random.default_rng(_DIVIDING).permutation(self.units) < (self.units + 1) // 2
        chosen = first if self.unit is None else first[self.unit]
        return np.flatnonzero(chosen), np.flatnonzero(~chosen)

    def among(self, places: np.ndarray) -> "_Side":
        if self.unit is None:
            return _Side(self.scores[places], None, len(places))
        number = np.unique(self.unit[places], return_inverse=True)[1]
        return _Side(self.scores[places], number, int(number.max()) + 1)

    def share_above(self, threshold: float, inclusive: bool = False) -> float:
        above = self.scores >= threshold if inclusive else self.scores > threshold
        return float(above.mean())


@dataclass(frozen=True, eq=False)
class _Sample:
    members: _Side
    others: _Side

    @classmethod
    def of(
        cls, members: np.ndarray, others: np.ndarray, units: tuple[np.ndarray, np.ndarray] | None
    ) -> "_Sample":
        of_members, of_others = units if units is not None else (None, None)
        return cls(_Side.of(members, of_members, "members"), _Side.of(others, of_others, "non-members"))


# area under the curve ------------------------------------------------------------------------------------------
def _auroc(sample: _Sample, confidence: float) -> tuple[Estimate, float]:
    members, others = sample.members, sample.others
    above, passed = _placements(members.scores, others.scores)
    value = float(above.mean())
    pairs = min(members.units, others.units)
    parts = members.spread(above), others.spread(passed)
    variance = sum(parts)
    if variance <= 1e-30:  # apart from rounding, all pairs gave the same outcome
        doubt = 1 - (1 - confidence) ** (1 / pairs)  # pairs with another outcome are at least this rare
        low, high = value * (1 - doubt), value * (1 - doubt) + doubt
        return Estimate(value, low, high), 0.5**pairs if value > 0.5 else 1.0
    freedom = variance**2 / (parts[0] ** 2 / (members.units - 1) + parts[1] ** 2 / (others.units - 1))
    error = math.sqrt(variance)
    reach = float(special.stdtrit(freedom, (1 + confidence) / 2)) * error / (value * (1 - value))
    middle = float(special.logit(value))
    interval = Estimate(value, float(special.expit(middle - reach)), float(special.expit(middle + reach)))
    chance = float(special.stdtr(freedom, (0.5 - value) / error))
    return interval, max(chance, 0.5**pairs)


def _placements(members: np.ndarray, others: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Compute the share of the others below each member, and of the members above each other: ties count half."""
    return _share_below(members, others), 1 - _share_below(others, members)


def _share_below(scores: np.ndarray, others: np.ndarray) -> np.ndarray:
    ordered = np.sort(others)
    strictly, at_most = (np.searchsorted(ordered, scores, side) for side in ("left", "right"))
    return (strictly + at_most) / (2 * len(others))


# rates at thresholds -------------------------------------------------------------------------------------------
def _low_rate(sample: _Sample, fpr: float, confidence: float) -> LowRate:
    if not 0 < fpr < 1:
        raise ValueError(f"a false positive rate lies between 0 and 1, unlike {fpr}")
    miss = (1 - confidence) / 4
    members, others = sample.members, sample.others
    ordered = np.sort(others.scores)
    allowed = math.floor(fpr * len(ordered) + 1e-9)
    strict, loose = _bracket(ordered, math.floor(others.effective), fpr, miss)
    low = _clopper_pearson(members.share_above(strict), members.effective, miss)[0]
    high = _clopper_pearson(members.share_above(loose, inclusive=True), members.effective, miss)[1]
    value = members.share_above(float(ordered[len(ordered) - 1 - allowed]))
    return LowRate(fpr, value, low, high, math.ceil(math.log(miss) / math.log1p(-fpr)))


def _bracket(ordered: np.ndarray, draws: int, fpr: float, miss: float) -> tuple[float, float]:
    """Return a threshold above that of this false positive rate, and one below it, each wrong with probability `miss`.

    The r-th least of n scores lies below the threshold if r or more of them do, and each does so with a probability of
    at most 1 - fpr; the s-th least lies above it if fewer than s are at or below it, and each is so with a probability
    of at least 1 - fpr.
    """
    n = len(ordered)
    lower, upper = _order_statistics(draws, fpr, miss)
    strict = math.inf if upper > draws else float(ordered[math.ceil(upper * n / draws) - 1])
    loose = -math.inf if lower < 1 else float(ordered[math.floor(lower * n / draws) - 1])
    return strict, loose


@lru_cache(maxsize=64)
def _order_statistics(draws: int, fpr: float, miss: float) -> tuple[int, int]:
    """Return (the largest s with P(X < s) <= miss, the least r with P(X >= r) <= miss), X binomial with 1 - fpr."""
    return int(stats.binom.ppf(miss, draws, 1 - fpr)), int(stats.binom.isf(miss, draws, 1 - fpr)) + 1


def _clopper_pearson(share: float, draws: float, miss: float) -> tuple[float, float]:
    """Bound a probability from a share of `draws` draws, whole or not; each bound is wrong with probability `miss`."""
    hits = share * draws
    low = 0.0 if hits <= 0 else float(special.betaincinv(hits, draws - hits + 1, miss))
    high = 1.0 if hits >= draws else float(special.betaincinv(hits + 1, draws - hits, 1 - miss))
    return low, high


def _advantage(sample: _Sample, confidence: float) -> tuple[float, Estimate]:
    (first, second), (third, fourth) = sample.members.halves(), sample.others.halves()
    threshold = _best_threshold(sample.members.scores[first], sample.others.scores[third])
    members, others = sample.members.among(second), sample.others.among(fourth)
    hits, alarms = members.share_above(threshold), others.share_above(threshold)
    miss = (1 - confidence) / 2
    least, most = _clopper_pearson(hits, members.effective, miss)
    fewest, highest = _clopper_pearson(alarms, others.effective, miss)
    value = hits - alarms
    low = value - math.hypot(hits - least, highest - alarms)
    return threshold, Estimate(value, low, value + math.hypot(most - hits, alarms - fewest))


def _best_threshold(members: np.ndarray, others: np.ndarray) -> float:
    """Return the score with the largest share of members above it less that of the others; inf if none is positive."""
    places = np.unique(np.concatenate([members, others]))
    hits = 1 - np.searchsorted(np.sort(members), places, side="right") / len(members)
    alarms = 1 - np.searchsorted(np.sort(others), places, side="right") / len(others)
    best = int(np.argmax(hits - alarms))
    return float(places[best]) if hits[best] > alarms[best] else math.inf


# what a guarantee permits --------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Ceiling:
    """The most that any attack on one unit can expect under a guarantee.

    Attributes:
        auroc, advantage, balanced_accuracy: upper bounds.
        true_positive_rate: (false positive rate, upper bound) for each requested rate.
    """

    auroc: float
    advantage: float
    balanced_accuracy: float
    true_positive_rate: tuple[tuple[float, float], ...]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def ceiling(curve: PrivacyProfile, fprs: Sequence[float] = FPRS) -> Ceiling:
    """Compute the bounds that the guarantee of a run sets on attacks.

    *Formal guarantee*: where every unit takes part by an independent coin of its own, as with `data.eval` as a share,
    an attack has expected rates within these bounds at any threshold that does not depend on the model. Each unit's
    rates are within the bound, whatever is computed from its rows, or from one of them; and the bound is concave in
    the false positive rate, so that averages over units are within it too. If members replace non-members instead,
    pass the curve of the replacing process. Rates measured on one model scatter about the expected ones.

    The bound of the AUROC is the area under that of the true positive rate, by lines that lie above it.
    """
    gain = curve.advantage()
    bounds = curve.true_positive_rate(np.array(fprs, dtype=np.float64))
    pairs = tuple((float(fpr), float(bound)) for fpr, bound in zip(fprs, bounds, strict=True))
    return Ceiling(_area(curve), gain, (1 + gain) / 2, pairs)


_GRID = np.concatenate([[0.0], np.geomspace(1e-9, 1e-2, 91), np.linspace(1e-2, 1.0, 100)[1:]])


def _area(curve: PrivacyProfile) -> float:
    """Bound from above the area under the bound of the removal direction, whose null is a non-member.

    The bound is concave and nondecreasing, so between two points it is at most its value at the second, and at most
    the line through the first and the one before it.
    """
    heights = curve.removal.blow_up(_GRID)
    widths, rises = np.diff(_GRID), np.diff(heights)
    onward = np.concatenate([[math.inf], rises[:-1] / widths[:-1]])  # slopes of the lines so far
    mean = np.minimum(heights[1:], heights[:-1] + onward * widths / 2)
    return min(1.0, float((widths * mean).sum()))
