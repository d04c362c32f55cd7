"""Lower bounds on epsilon, and p-values of claims, from guessing games. The input is counts only, no models.

| game | bound | adjacency |
|---|---|---|
| one run, m units in or out by fair coins | `one_run`; with a whole curve `fdp.f_dp` | zero-out or add/remove |
| many runs, one unit in or out in each | `clopper_pearson` | the same |
| k equally likely texts for each unit | `k_ary`; with a whole curve `fdp.f_dp_p_value` with `choices` | replace-one |
| guesses of secrets with a ceiling r(p) on each | `ceiling_p_value` | that ceiling |
| the same, each drawn uniformly from many | `ceiling_epsilon` | zero-out, add/remove and replace-one |

Every bound holds with probability 1 - alpha over the game, for a plan (how many guesses, which way) that was fixed
before the scores were seen.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy import special, stats

from confide.auditing.fdp import Sides, check_alpha, check_counts, f_dp
from confide.privacy.accounting import PrivacyProfile
from confide.utils.errors import InputError

Array = np.ndarray


# one run -------------------------------------------------------------------------------------------------------
def one_run_p_value(coins: int, guesses: int, correct: int, epsilon: float, delta: float) -> float:
    """Compute a p-value of "the mechanism is (epsilon, delta)-DP", after v of r guesses about m fair coins were right.

    Formal guarantee: Steinke, Nasr and Jagielski 2023, "Privacy Auditing with One (1) Training Run", Theorem 5.2. For
    coins that are fair and independent, and at most r guesses, each chosen by the output in any way, with
    X ~ Binomial(r, e^epsilon / (1 + e^epsilon)):
        P[N >= v] <= P[X >= v] + 2 m delta max over i in 1..m of P[v - i <= X < v] / i.

    Args:
        coins: m, units in the game, guessed or not.
        guesses: r.
        correct: v.

    Raises:
        InputError: the counts do not fit each other, or epsilon or delta is out of range.
    """
    check_counts(coins, guesses, correct)
    if not epsilon >= 0:
        raise InputError(f"epsilon must be at least 0, not {epsilon}")
    _check_delta(delta)
    q = float(special.expit(epsilon))
    value = float(stats.binom.sf(correct - 1, guesses, q))
    if delta > 0:
        value += 2 * coins * delta * _largest_mean(guesses, correct, q)
    return min(1.0, value)


def one_run(coins: int, guesses: int, correct: int, delta: float, alpha: float = 0.05) -> float:
    """Compute a lower bound on epsilon at `delta`, after v of r guesses about m fair coins were right.

    The bound is 0 if the guesses show nothing.

    Formal guarantee: a mechanism that is (epsilon, delta)-DP is given a bound above epsilon with probability at most
    alpha. A mechanism that is (epsilon, delta)-DP is so for every larger epsilon too, so each epsilon whose
    `one_run_p_value` is at most alpha refutes all below it.

    Raises:
        InputError: as `one_run_p_value`, or alpha is not between 0 and 1.
    """
    check_alpha(alpha)
    return _last(lambda e: one_run_p_value(coins, guesses, correct, e, delta) <= alpha)


def _largest_mean(r: int, v: int, q: float) -> float:
    """Compute the maximum over i of P[v - i <= X < v] / i for X ~ Binomial(r, q).

    The masses rise to the mode and fall after it, so the running mean from v - 1 downwards is largest before the
    masses fall below it. Masses more than 12 standard deviations and 50 below the mode are less than 1e-30, while any
    mean that counts is at least about 1 / r.
    """
    if v == 0:
        return 0.0
    below = 12 * math.sqrt(r * q * (1 - q)) + 50
    last = max(0, min(v - 1, math.floor(r * q - below)))
    masses = stats.binom.pmf(np.arange(v - 1, last - 1, -1), r, q)
    return float(np.max(np.cumsum(masses) / np.arange(1, len(masses) + 1)))


def _last(refuted: Callable[[float], bool]) -> float:
    """Return the largest refuted epsilon >= 0, from below, within 1e-9; 0 if not even 0 is refuted."""
    if not refuted(0.0):
        return 0.0
    low, high = 0.0, 1.0
    while refuted(high):
        low, high = high, 2 * high
    while high - low > 1e-9 * max(1.0, high):
        middle = (low + high) / 2
        if refuted(middle):
            low = middle
        else:
            high = middle
    return low


# many runs -----------------------------------------------------------------------------------------------------
def clopper_pearson(tp: int, fn: int, fp: int, tn: int, delta: float, alpha: float = 0.05) -> float:
    """Compute a lower bound on epsilon from independent runs, each with the unit in or out and one answer about it.

    Formal guarantee: with probability at least 1 - alpha. Half of alpha goes to a lower bound of the true positive
    rate, half to an upper bound of the false positive rate (Clopper and Pearson 1934, one-sided each). Both directions
    of the definition, tpr <= e^epsilon fpr + delta and tnr <= e^epsilon fnr + delta, follow from this one pair, so
    taking the larger costs nothing more. The runs must be independent, and the threshold behind the answers fixed
    beforehand.

    Args:
        tp, fn: runs with the unit in that were answered "in", "out".
        fp, tn: runs without it that were answered "in", "out".

    Raises:
        InputError: a count is negative, there is no run with the unit or none without it, or delta or alpha is out of
            range.
    """
    _check_delta(delta)
    tpr, tnr = rates_from_below(tp, fn, fp, tn, alpha)
    return max(_log_ratio(tpr - delta, 1 - tnr), _log_ratio(tnr - delta, 1 - tpr))


def rates_from_below(tp: int, fn: int, fp: int, tn: int, alpha: float = 0.05) -> tuple[float, float]:
    """Compute lower bounds on the true positive and true negative rates, which both hold with probability 1 - alpha.

    Args and errors are as in `clopper_pearson`. Each bound takes half of alpha.
    """
    check_alpha(alpha)
    if min(tp, fn, fp, tn) < 0:
        raise InputError("tp, fn, fp and tn must be counts of at least 0")
    if tp + fn == 0 or fp + tn == 0:
        raise InputError("tp, fn, fp and tn must hold at least one run with the unit and one without")
    return rate_from_below(tp, tp + fn, alpha / 2), rate_from_below(tn, fp + tn, alpha / 2)


def rate_from_below(successes: int, trials: int, alpha: float) -> float:
    """Compute Clopper and Pearson's lower bound of a rate.

    It is the rate at which this many successes or more have probability alpha.
    """
    if successes == 0:
        return 0.0
    return float(special.betaincinv(successes, trials - successes + 1, alpha))


def _log_ratio(above: float, below: float) -> float:
    return math.log(above / below) if above > below else 0.0


# k texts -------------------------------------------------------------------------------------------------------
def k_ary(guesses: int, correct: int, k: int, alpha: float = 0.05) -> float:
    """Compute a lower bound on *replace-one* epsilon at delta 0.

    Each of r guesses is about a text drawn uniformly from k texts; v were right.

    Formal guarantee: with probability at least 1 - alpha. Under (epsilon, 0)-DP for replacing a unit's text, given the
    output and all other texts, each of a unit's k texts has probability at most p = e^epsilon / (e^epsilon + k - 1).
    So, unit after unit, a guess is right with probability at most p whatever came before, and the number of right
    guesses is stochastically below Binomial(r, p). One run with all units is as good as many, and the guesser may
    choose which units to guess. With delta > 0 this does not hold as a theorem; use `fdp.f_dp_p_value` with `choices`
    there. Compare the bound with replace-one epsilon, which is up to twice that of a zero-out claim.

    Raises:
        InputError: the counts do not fit each other, or k is below 2.
    """
    check_counts(guesses, guesses, correct)
    check_alpha(alpha)
    if k < 2:
        raise InputError(f"k must be at least 2 texts, not {k}")
    p = rate_from_below(correct, guesses, alpha)
    return _log_ratio(p * (k - 1), 1 - p)


def ceiling_p_value(guesses: int, correct: int, ceiling: float, independent: bool) -> float:
    """Compute the p-value of "each of r guesses is right with probability at most `ceiling`", after v were right.

    Formal guarantee: `independent` says what is known of the guesses.

    - True: each is right with probability at most `ceiling` given whether those before it were, as when each is made
      in a run of its own. Then v is stochastically below Binomial(r, ceiling), and this is its tail.
    - False: many guesses about one run. A ceiling r(p) holds for each alone, and a mechanism may keep it that tells
      everything with probability about r(p) and otherwise nothing; only the mean is bounded, so this is Markov's
      r ceiling / v. Where a curve is known, `fdp.f_dp_p_value` with `choices` can say far more.

    In both cases which secrets are guessed must be fixed before the output is seen: a ceiling is no bound for the one
    guess of many that looks surest.

    Raises:
        InputError: the counts do not fit each other, or the ceiling is no probability.
    """
    check_counts(guesses, guesses, correct)
    if not 0 <= ceiling <= 1:
        raise InputError(f"ceiling must be a probability, not {ceiling}")
    if correct == 0:
        return 1.0
    if independent:
        return float(stats.binom.sf(correct - 1, guesses, ceiling))
    return min(1.0, guesses * ceiling / correct)


def ceiling_epsilon(choices: Array, correct: int, delta: float, alpha: float = 0.05) -> float:
    """Compute a lower bound on epsilon at `delta`, after v secrets, each uniform among its `choices`, were guessed.

    Formal guarantee: with probability at least 1 - alpha, for one guess of each secret from one output. With the secret
    zeroed out, removed, or drawn anew, the output has a distribution Q that does not depend on which of the k values it
    has; so under (epsilon, delta)-DP a guess is right with probability at most e^epsilon / k + delta. Guesses may
    depend on each other: only the mean of v is bounded, and by Markov's inequality v is 1 / alpha times that with
    probability alpha at most. A single secret of a million shows up to ln(alpha 10^6) = 10.8.

    Args:
        choices: int64[r], how many values each guessed secret could have.

    Raises:
        InputError: the counts do not fit each other, a secret has no choice, or delta or alpha is out of range.
    """
    check_counts(len(choices), len(choices), correct)
    check_alpha(alpha)
    _check_delta(delta)
    if len(choices) and np.min(choices) < 1:
        raise InputError("a secret is one of at least one value")
    left = alpha * correct - delta * len(choices)
    return max(0.0, math.log(left / float(np.sum(1 / choices)))) if left > 0 else 0.0


# guesses -------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Plan:
    """The way in which a game is guessed, fixed before any score is seen.

    Attributes:
        guesses: r.
        sides: "both": the r/2 highest scores are guessed in and the r/2 lowest out (of an odd r one more in). "in":
            the r highest scores are guessed in.
    """

    guesses: int
    sides: Sides = "both"


def guess(scores: Array, plan: Plan) -> Array:
    """Guess from scores: int8[m], 1 for in, -1 for out, 0 for no guess.

    Args:
        scores: float64[m], higher where a unit is more likely in. Equal scores are taken in their order, so the order
            must not depend on the coins.

    Raises:
        InputError: a score is not a number, or the plan does not fit so many scores.
    """
    found = np.asarray(scores, dtype=np.float64)
    if found.ndim != 1 or np.isnan(found).any():
        raise InputError("scores must be one number for each unit, none of them NaN")
    check_counts(len(found), plan.guesses, 0)
    if plan.sides not in ("both", "in"):
        raise InputError(f"sides must be both or in, not {plan.sides}")
    order = np.argsort(found, kind="stable")
    out = plan.guesses // 2 if plan.sides == "both" else 0
    answers = np.zeros(len(found), dtype=np.int8)
    answers[order[:out]] = -1
    answers[order[len(found) - (plan.guesses - out) :]] = 1
    return answers


def count_correct(answers: Array, coins: Array) -> int:
    """Count the right guesses.

    Args:
        answers: int8[m], as `guess` returns them.
        coins: bool[m], True where a unit was in.

    Raises:
        InputError: not as many answers as coins.
    """
    sides = np.where(np.asarray(coins, dtype=bool), 1, -1)
    if sides.shape != np.shape(answers):
        raise InputError(f"coins must be one for each of the {np.size(answers)} answers, not {sides.size}")
    return int(np.sum(answers == sides))


# what a game could show ----------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Strongest:
    """The largest bounds that a game could have shown, had every guess been right.

    A game whose strongest bound is below the claim says nothing about the claim: it is *underpowered*. `f_dp` is None
    if no family of curves was given.
    """

    one_run: float
    f_dp: float | None = None


def strongest(
    coins: int,
    guesses: int,
    delta: float,
    alpha: float = 0.05,
    family: Callable[[float], PrivacyProfile] | None = None,
    start: float = 1.0,
    sides: Sides = "both",
) -> Strongest:
    """Compute the most that one run with m coins and r guesses could show: `one_run` and `fdp.f_dp` at v = r."""
    by_pair = one_run(coins, guesses, guesses, delta, alpha)
    if family is None:
        return Strongest(by_pair)
    return Strongest(by_pair, f_dp(coins, guesses, guesses, family, delta, alpha, start, sides))


def strongest_clopper_pearson(inside: int, outside: int, delta: float, alpha: float = 0.05) -> float:
    """Compute the most that these numbers of runs with the unit and without it could show."""
    return clopper_pearson(inside, 0, 0, outside, delta, alpha)


def _check_delta(delta: float) -> None:
    if not 0 <= delta < 1:
        raise InputError(f"delta must lie between 0 and 1, not {delta}")
