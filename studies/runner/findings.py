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

import numpy as np
from scipy import stats

MARGIN = math.log(1.01)
"""What counts as a difference of two losses in nats a token: 1% of the perplexity."""

ABOVE = 1e-9
"""The lower bound of a claim that something is more than nothing: no difference at all does not bear it out."""

CONFIDENCE = 0.95
REPRODUCED, NOT_REPRODUCED, UNDECIDED = "reproduced", "not reproduced", "undecided at this scale"


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
    over: str = "run keys"

    def interval(self, confidence: float = CONFIDENCE) -> tuple[float, float]:
        """Return the interval of the mean by Student's t; without limits if there is only one value."""
        if self.is_exact:
            return min(self.values), max(self.values)
        if len(self.values) < 2:
            return -math.inf, math.inf
        return interval(self.values, confidence)

    def doubt(self) -> float:
        """Return the least alpha for which the interval of confidence 1 - alpha settles the claim, one way or other."""
        if self.is_exact:
            return 0.0
        if len(self.values) < 2:
            return 1.0
        middle, error = float(np.mean(self.values)), float(stats.sem(self.values))
        is_inside = self.low <= middle <= self.high
        gaps = [abs(bound - middle) for bound in (self.low, self.high) if math.isfinite(bound)]
        gap = min(gaps, default=math.inf)
        if error == 0:
            return 0.0 if gap > 0 or is_inside else 1.0
        return float(2 * stats.t.sf(gap / error, len(self.values) - 1))


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


def interval(values: Sequence[float], confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Return the interval of the mean of two values or more, by Student's t."""
    middle, error = float(np.mean(values)), float(stats.sem(values))
    half = error * float(stats.t.ppf((1 + confidence) / 2, len(values) - 1))
    return middle - half, middle + half


def judged(findings: Iterable[Finding]) -> list[Judged]:
    """Judge findings, those of one family together."""
    families: dict[str, list[Finding]] = {}
    listed = list(findings)
    for number, finding in enumerate(listed):
        families.setdefault(finding.family or f"alone {number}", []).append(finding)
    confidences = {id(each): c for family in families.values() for each, c in _confidences(family)}
    return [_judged(each, confidences[id(each)]) for each in listed]


def _confidences(family: Sequence[Finding]) -> list[tuple[Finding, float]]:
    """Return the confidence that each claim of a family is judged with (Holm 1979): the clearest first.

    Once a claim is not settled, the others are judged with the confidence that did not suffice for it.
    """
    order = sorted((each for each in family if not each.is_exact), key=Finding.doubt)
    found = [(each, CONFIDENCE) for each in family if each.is_exact]
    left, is_over = len(order), False
    for each in order:
        alpha = (1 - CONFIDENCE) / left
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
    """Return the differences one - other of the run keys that both have."""
    return tuple(one[key] - other[key] for key in sorted(one.keys() & other.keys()))


def slopes(along: Sequence[float], values: Sequence[Mapping[int, float]]) -> tuple[float, ...]:
    """Return, for each run key, the slope of a straight line through the values at the places `along`."""
    keys = set.intersection(*(set(each) for each in values))
    return tuple(float(np.polyfit(along, [each[key] for each in values], 1)[0]) for key in sorted(keys))
