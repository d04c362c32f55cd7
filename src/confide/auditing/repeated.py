"""Many runs of one claim, one canary in each: the classical audit, which needs no theorem about many coins in one run.

The threshold between "in" and "out" is chosen on half of the runs, and guesses are counted on the others. Runs are
independent, so true and false positive rates have exact intervals (Clopper and Pearson 1934), and the claim's own
curve says which pairs of rates are impossible.
"""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from confide.auditing.attack import CanaryScores
from confide.auditing.bounds import clopper_pearson, rates_from_below, strongest_clopper_pearson
from confide.auditing.game import ALPHA, Claim, Verdict, shown_in_words
from confide.privacy.accounting import PrivacyProfile
from confide.utils.errors import InputError


@dataclass(frozen=True)
class Repeated:
    """The outcome of the audit by many runs.

    Attributes:
        runs: how many runs' guesses are counted; chosen_from: how many the threshold was chosen from.
        tp, fn, fp, tn: runs with the canary in, or with the first of its texts, that were answered so or not, and runs
            without.
        refutes, could_refute: whether these counts refute the claim's curve, and whether all guesses being right would.
        bound: a lower bound on epsilon at the claim's delta, of one text against another where the game is of values;
            strongest: the same, had every guess been right.
        confidence: of each statement.
        own_bound, own_strongest: as in `game.Played`.
    """

    runs: int
    chosen_from: int
    tp: int
    fn: int
    fp: int
    tn: int
    refutes: bool
    could_refute: bool
    bound: float
    strongest: float
    confidence: float
    own_bound: float | None = None
    own_strongest: float | None = None

    def verdict(self, claim: Claim) -> Verdict:
        if claim.curve is None:
            return "nothing claimed"
        if self.refutes:
            return "violation"
        return "consistent" if self.could_refute else "underpowered"

    def in_words(self, claim: Claim) -> str:
        return (
            f"with a threshold from {self.chosen_from} runs, {self.tp} of {self.tp + self.fn} runs with the canary and "
            f"{self.fp} of {self.fp + self.tn} without it were taken to have it; "
            f"{shown_in_words(self, claim, claim.of_two_texts)}"
        )


def repeated(told: Iterable[CanaryScores]) -> dict[str, Any]:
    """Judge a claim by many runs that make it.

    Formal guarantee: if the claim holds, the verdict is "violation" with probability at most 5%, for runs with keys of
    their own, all of them passed whatever their outcome, and as many as were planned before any was looked at. They
    share the claim; if data or other settings differ, the rates are means.

    Args:
        told: the scores of each run, in any order; the first canary that is one unit of the claim is the run's one
            coin.

    Returns:
        `verdict`, `claim`, `game`, and `repeated`, the fields of `Repeated` with its `words`.

    Raises:
        InputError: the runs make different claims or share their coins, or are too few.
    """
    runs = sorted(told, key=lambda each: each.manifest.commitment)  # an order that nobody can choose
    for each in runs[1:]:
        _check_alike(runs[0], each)
    if len({each.manifest.seed for each in runs}) < len(runs):
        raise InputError(
            "two of these runs have the same run key, or one folder was given twice: each run needs a key of its own"
        )
    claim = runs[0].claim
    scores = np.array([each.scores[0] for each in runs])
    coins = np.array([each.coins[0] for each in runs])
    found = count(claim, scores, coins)
    return {
        "verdict": found.verdict(claim),
        "claim": claim.to_json(),
        "game": claim.game.name,
        "repeated": asdict(found) | {"words": found.in_words(claim)},
    }


def _check_alike(first: CanaryScores, other: CanaryScores) -> None:
    ours, theirs = (_claimed(each.claim) for each in (first, other))
    for name, value in ours.items():
        if theirs[name] != value:
            raise InputError(
                f"these runs do not make one claim, their {name} differs: give runs of one config that took as many "
                "steps, each with a run folder of its own"
            )


def _claimed(claim: Claim) -> dict[str, Any]:
    curve = None if claim.curve is None else claim.curve.points()
    return claim.to_json() | {"game": claim.game.name, "curve": curve}


def count(claim: Claim, scores: np.ndarray, coins: np.ndarray) -> Repeated:
    """Choose a threshold on the first half of the runs and count the answers about the others.

    Args:
        claim: the claim to test.
        scores: float64[n].
        coins: bool[n].

    Raises:
        InputError: the second half has no run of one kind.
    """
    half = len(scores) // 2
    where = threshold(scores[:half], coins[:half])
    said, coins = scores[half:] > where, coins[half:]
    tp, fp = int(np.sum(said & coins)), int(np.sum(said & ~coins))
    inside = int(np.sum(coins))
    outside = len(coins) - inside
    if min(inside, outside) == 0:
        raise InputError(
            f"{len(scores)} runs: of those whose guesses count none has the canary, or all have it; train more"
        )
    fn, tn = inside - tp, outside - fp
    return Repeated(
        runs=len(coins),
        chosen_from=half,
        tp=tp,
        fn=fn,
        fp=fp,
        tn=tn,
        refutes=refutes(claim.played, tp, fn, fp, tn),
        could_refute=refutes(claim.played, inside, 0, 0, outside),
        bound=clopper_pearson(tp, fn, fp, tn, claim.delta, ALPHA),
        strongest=strongest_clopper_pearson(inside, outside, claim.delta, ALPHA),
        confidence=1 - ALPHA,
        own_bound=claim.least_played(lambda curve: refutes(curve, tp, fn, fp, tn)),
        own_strongest=claim.least_played(lambda curve: refutes(curve, inside, 0, 0, outside)),
    )


def threshold(scores: np.ndarray, coins: np.ndarray) -> float:
    """Choose the threshold that answers the most coins rightly: the middle of the widest of the best gaps."""
    values = np.unique(scores)
    if len(values) < 2:
        return float(values[0]) if len(values) else 0.0
    between = (values[1:] + values[:-1]) / 2
    right = [int(np.sum((scores > where) == coins)) for where in between]
    best = np.flatnonzero(np.array(right) == max(right))
    return float(between[best[np.argmax(np.diff(values)[best])]])


def refutes(curve: PrivacyProfile | None, tp: int, fn: int, fp: int, tn: int) -> bool:
    """Tell whether every test under this curve has such rates with a probability of at most 5%.

    The curve takes the worse direction for both: a single direction would refute no less.
    """
    if curve is None:
        return False
    tpr, tnr = rates_from_below(tp, fn, fp, tn, ALPHA)
    return bool(
        tpr > float(curve.true_positive_rate(1 - tnr)) or tnr > float(curve.true_positive_rate(1 - tpr))
    )
