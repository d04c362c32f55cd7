"""What was found of a claim: an interval of a statistic, and whether it lies where the claim puts it.

A claim says that a statistic lies between two bounds. It is *reproduced* if the statistic's 95% interval lies between
them, *not reproduced* if all of the interval lies outside, and *undecided* otherwise. A statistic that is computed and
not measured has no interval: one value outside is enough to refute the claim. Claims of one family are judged together:
each interval is widened as Holm (1979) does, so that with 95% all verdicts of the family are right.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

MARGIN = math.log(1.01)
"""What counts as a difference of two losses in nats a token: 1% of the perplexity."""

ABOVE = 1e-9
"""The lower bound of a claim that something is more than nothing: no difference at all does not bear it out."""

CONFIDENCE = 0.95
RUN_KEYS = "run keys"
REPRODUCED, NOT_REPRODUCED, UNDECIDED = "reproduced", "not reproduced", "undecided at this scale"


@dataclass(frozen=True)
class Pooled:
    """The standard error of the mean of a finding's values, from all arms that were run with the same keys.

    Attributes:
        error: of the mean.
        freedom: degrees of freedom that the error was estimated with.
    """

    error: float
    freedom: int


@dataclass(frozen=True)
class Finding:
    """One claim and the values that bear on it.

    Attributes:
        claim: the paper's claim, as a sentence.
        place: where the paper makes it, as `Table 6`.
        statistic: what each value is.
        values: one for each run key, or for what `over` says; a single one if the statistic is computed.
        low, high: the claim holds if the statistic's mean lies between them.
        family: claims of one family are judged together.
        is_exact: the statistic is computed from a formula, so its interval is the value itself.
        unit: `nats` are shown as a change of the perplexity; everything else as it is.
        over: what there is one value for.
        of: how many statistics this is the greatest or the least of. Its interval is widened for all of them.
        pooled: the mean's standard error, if more than `values` tell of it.
        is_beyond: the paper does not make the claim; `place` says what it adds to.
        is_check: nobody would doubt the claim, or the construction of the study makes it true. If it does not hold,
            the study is at fault, or too small to say anything. It is shown, and not counted as a finding.
        is_late: the claim was written when its figures were known. Pages mark it.
    """

    claim: str
    place: str
    statistic: str
    values: tuple[float, ...]
    low: float = -math.inf
    high: float = math.inf
    family: str = ""
    is_exact: bool = False
    unit: str = "nats"
    over: str = RUN_KEYS
    of: int = 1
    pooled: Pooled | None = None
    is_beyond: bool = False
    is_check: bool = False
    is_late: bool = False

    def interval(self, confidence: float = CONFIDENCE) -> tuple[float, float]:
        """Return the interval of the mean by Student's t; without limits if there is only one value."""
        if self.is_exact:
            return min(self.values), max(self.values)
        if len(self.values) < 2:
            return -math.inf, math.inf
        return interval(self.values, confidence, self.pooled)

    def doubt(self) -> float:
        """Return the least alpha for which the interval of confidence 1 - alpha settles the claim, one way or other."""
        if self.is_exact:
            return 0.0
        if len(self.values) < 2:
            return 1.0
        middle, spread = float(np.mean(self.values)), self.pooled or _own(self.values)
        is_inside = self.low <= middle <= self.high
        gaps = [abs(bound - middle) for bound in (self.low, self.high) if math.isfinite(bound)]
        gap = min(gaps, default=math.inf)
        if spread.error == 0:
            return 0.0 if gap > 0 or is_inside else 1.0
        return float(2 * stats.t.sf(gap / spread.error, spread.freedom))


def exact(
    claim: str,
    place: str,
    statistic: str,
    value: float,
    low: float = -math.inf,
    high: float = math.inf,
    **more: Any,
) -> Finding:
    """Return a finding whose statistic is computed, and is one number.

    Args:
        more: other fields of the finding.
    """
    return Finding(claim, place, statistic, (value,), low, high, is_exact=True, **more)


@dataclass(frozen=True)
class Judged:
    """A finding with its verdict.

    Attributes:
        confidence: of the interval: 0.95 for a claim alone, more in a family.
    """

    finding: Finding
    verdict: str
    interval: tuple[float, float]
    confidence: float


def interval(
    values: Sequence[float], confidence: float = CONFIDENCE, pooled: Pooled | None = None
) -> tuple[float, float]:
    """Return the interval of the mean of two values or more, by Student's t."""
    middle, spread = float(np.mean(values)), pooled or _own(values)
    half = spread.error * float(stats.t.ppf((1 + confidence) / 2, spread.freedom))
    return middle - half, middle + half


def _own(values: Sequence[float]) -> Pooled:
    """Return the standard error that values have by themselves."""
    return Pooled(float(stats.sem(values)), len(values) - 1)


def pooled(arms: Sequence[Mapping[int, float]], weights: Sequence[float] = (1.0, -1.0)) -> Pooled:
    """Return the standard error of a contrast of arms' means, by a randomised block design.

    A run key is a block: what it does to all arms alike drops out of a contrast. What is left of a value without its
    arm's mean and its key's is taken to have one variance in all arms (Fisher 1935), so that all of them tell of it,
    and not the two alone that are compared. That asks for arms of one kind: the same mechanism, text and epsilon.

    Args:
        arms: the values of each arm by run key.
        weights: of the arms in the contrast; 1 and -1 for a difference of two.

    Raises:
        ValueError: an arm lacks a run key of another, or there are too few of either.
    """
    table = np.array([[arm[key] for key in _common(arms)] for arm in arms])
    freedom = (table.shape[0] - 1) * (table.shape[1] - 1)
    if freedom < 1:
        raise ValueError("an error is pooled over two arms and two run keys at least")
    left = table - table.mean(0) - table.mean(1, keepdims=True) + table.mean()
    deviation = math.sqrt(float((left**2).sum()) / freedom)
    return Pooled(deviation * math.sqrt(sum(w * w for w in weights) / table.shape[1]), freedom)


def judged(findings: Iterable[Finding]) -> list[Judged]:
    """Judge findings, those of one family together."""
    families: dict[str, list[Finding]] = {}
    listed = list(findings)
    for number, finding in enumerate(listed):
        families.setdefault(finding.family or f"alone {number}", []).append(finding)
    confidences = {id(each): c for family in families.values() for each, c in _confidences(family)}
    return [_judged(each, confidences[id(each)]) for each in listed]


def taught(what: str, statistic: str, gains: Sequence[float], unit: str = "nats") -> Finding:
    """Return a check of the study: that a training lowered the loss, without which no claim about it means anything.

    Args:
        what: the training, as the subject of a sentence.
        gains: the loss after it less that before, by run key.
    """
    return Finding(
        f"{what} teaches something.",
        "",
        statistic,
        tuple(gains),
        high=-MARGIN,
        family="learning",
        unit=unit,
        is_check=True,
    )


def has_taught(gains: Sequence[float]) -> bool:
    """Tell whether a training lowered the loss by what counts as a difference, in the mean over run keys."""
    return float(np.mean(gains)) <= -MARGIN


def _confidences(family: Sequence[Finding]) -> list[tuple[Finding, float]]:
    """Return the confidence that each claim of a family is judged with (Holm 1979): the clearest first.

    Once a claim is not settled, the others are judged with the confidence that did not suffice for it.
    """
    order = sorted((each for each in family if not each.is_exact), key=lambda each: each.doubt() * each.of)
    found = [(each, CONFIDENCE) for each in family if each.is_exact]
    left, is_over = len(order), False
    for each in order:
        alpha = (1 - CONFIDENCE) / left / each.of
        found.append((each, 1 - alpha))
        is_over = is_over or each.doubt() > alpha
        if not is_over:
            left -= 1
    return found


def _judged(finding: Finding, confidence: float) -> Judged:
    low, high = finding.interval(confidence)
    is_inside = finding.low <= low and high <= finding.high
    if finding.is_exact:  # a formula gives every value, and the claim is of all of them
        verdict = REPRODUCED if is_inside else NOT_REPRODUCED
    elif is_inside:
        verdict = REPRODUCED
    elif high < finding.low or low > finding.high:
        verdict = NOT_REPRODUCED
    else:
        verdict = UNDECIDED
    return Judged(finding, verdict, (low, high), confidence)


def paired(one: Mapping[int, float], other: Mapping[int, float]) -> tuple[float, ...]:
    """Return the differences one - other by run key.

    Raises:
        ValueError: one side lacks a run key of the other.
    """
    return tuple(one[key] - other[key] for key in _common((one, other)))


def unsigned(values: Sequence[float]) -> tuple[float, ...]:
    """Return values with the sign that makes their mean positive.

    Their interval lies above a bound if that of the values themselves lies beyond it on either side: a claim that there
    is a difference, whatever its sign, is judged with the error that it is meant to have.
    """
    sign = 1.0 if sum(values) >= 0 else -1.0
    return tuple(sign * value for value in values)


def clarity(values: Sequence[float]) -> float:
    """Return how many standard errors the mean of values lies above 0."""
    return (
        float(np.mean(values)) / max(_own(values).error, 1e-300)
        if len(values) > 1
        else float(np.mean(values))
    )


def sloped(along: Sequence[float]) -> NDArray[np.float64]:
    """Return the weights with which values at the places `along` make the slope of a straight line through them."""
    centred = np.asarray(along, dtype=float) - np.mean(along)
    weights: NDArray[np.float64] = centred / (centred**2).sum()
    return weights


def slopes(along: Sequence[float], values: Sequence[Mapping[int, float]]) -> tuple[float, ...]:
    """Return, for each run key, the slope of a straight line through the values at the places `along`.

    Raises:
        ValueError: a place lacks a run key of another.
    """
    weights = sloped(along)
    return tuple(
        float(sum(w * each[key] for w, each in zip(weights, values, strict=True))) for key in _common(values)
    )


def _common(arms: Sequence[Mapping[int, float]]) -> list[int]:
    """Return the run keys of arms, in order; none if they share none, as where one of them was not trained.

    Arms that share some share all, or a difference of their means would be of other runs.
    """
    shared = set.intersection(*map(set, arms))
    if shared and any(set(each) != shared for each in arms):
        raise ValueError(f"arms have different run keys: {[sorted(each) for each in arms]}")
    return sorted(shared)
