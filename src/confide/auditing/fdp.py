"""Audit of f-differential privacy in one run: the curves that a guessing game refutes.

*The game.* Each of m units is in or out by its own fair coin, a mechanism runs once, and from its output r units are
guessed in or out; N guesses are right. The choice of units and the guesses may depend on the whole output.
Mahloujifar, Melis and Chaudhuri 2024, "Auditing f-Differential Privacy in One Run", bound the upper tail of N by the
mechanism's whole trade-off curve. A proof of the form used here follows, with a recursion of our own.

*One unit.* Write B(x) for the largest P(E) that the curve allows at Q(E) <= x: concave, nondecreasing. Let C_i be the
event that unit i is guessed, and rightly; W_i, wrongly. Fix all coins but i's, and t >= 1. Let E_b be the outputs in
which i is guessed b and of the other guesses at least t - 1 are right: with coin b that is C_i and N >= t; with the
other coin it is W_i and N >= t - 1. So P[C_i, N >= t] is the mean over b of P_b(E_b), and P[W_i, N >= t - 1] that of
P_(1-b)(E_b). With delta_b the hockey-stick divergence of coin b from the other, P_b(E_b) <= e^e P_(1-b)(E_b) +
delta_b(e) for every real e, hence
    P[C_i, N >= t] <= B(P[W_i, N >= t - 1]),   B(x) = inf over e of e^e x + (delta_0(e) + delta_1(e)) / 2.
Where nothing is ever guessed out, E_0 is empty, and delta_1 / 2 takes the place of the mean of both.

*All units.* B is concave, so the same holds for the means over other coins and over the m units (Jensen). These are
R_t = E[N; N >= t] / m and at most H_t = E[r - N; N >= t] / m:
    R_t <= B(H_(t-1)),  that is  H_(t-1) >= K(R_t),  K(R) = sup over e of e^-e (R - the delta in B), at least 0.
This holds for t = 1, ..., r at once.

*The recursion.* Let q_t = P[N >= t] and D_t = E[max(N - t, 0)] = q_(t+1) + ... + q_r. Then m R_t = t q_t + D_t and
m H_t = (r - t) q_t - D_t, so that
    q_(t-1) >= max(q_t, (q_t + D_t + m K((t q_t + D_t) / m)) / (r - t + 1)),   D_(t-1) = D_t + q_t.
The right sides are nondecreasing in q_t and D_t, as K is. So if q_v >= alpha, the recursion from q_v = alpha, D_v = 0
stays below the true q_t for every t < v (induction). If it passes 1 anywhere, q_v < alpha under that curve. This is the
linear program over all distributions of N with these constraints, solved; from a larger v or alpha it is larger.

*Several choices.* For units that each hold one of k equally likely texts, the same steps with all k - 1 other texts
give P[C_i, N >= t] <= B(P[W_i, N >= t - 1] / (k - 1)), so K is multiplied by k - 1. There the curve is that of
replacing a unit's text, and B the worse direction, as either text may be the likelier.

*How tight.* A mechanism that first draws how much it leaks, and then leaks so much about every unit, can have the same
curve as one that leaks about each unit independently, but its N is far from the mean more often. So where all units
are guessed (r = m) a curve allows many right guesses with probability alpha, whatever m is, and no test of the curve
alone can do better. Few, sure guesses refute a curve.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from confide.privacy.accounting import Direction, PrivacyProfile
from confide.utils.errors import InputError

Array = np.ndarray

Sides = Literal["both", "in"]
"""The guesses that are allowed: in and out, or only in."""

LEAST_P = 1e-12
"""The least p-value that is reported."""

_DOUBLINGS = 20  # doublings of the first noise that a search makes at most, in either direction

_LOWEST, _HIGHEST = -20.0, 700.0  # beyond, e^-e times a rounding error of delta would no longer be small


@dataclass(frozen=True, eq=False)
class _Wrong:
    """K of the proof above: the least mass of wrong guesses that must accompany a mass R of right ones.

    Attributes:
        slopes, deltas: float64[n], e^-e and the delta in B at its vertices, e increasing.
        changes: float64[n - 1], nondecreasing: the values of -R at which the best vertex changes.

    Any vertex gives a lower bound of K, so neither rounding nor a vertex left out can make a test reject too often.
    """

    slopes: Array
    deltas: Array
    changes: Array

    @classmethod
    def of(cls, curve: PrivacyProfile, sides: Sides, choices: int) -> _Wrong:
        used = (curve.removal,) if sides == "in" and choices == 2 else (curve.removal, curve.addition)
        e = np.unique(np.concatenate([direction.epsilons for direction in used]))
        e = e[(e >= _LOWEST) & (e <= _HIGHEST)]
        if len(e) == 0:
            e = np.zeros(1)
        found = np.array([direction.delta(e) for direction in used])
        d = found.max(axis=0) if choices > 2 else found.sum(axis=0) / 2
        # the line through two neighbouring vertices, at e^epsilon = 0
        lines = d[:-1] + (d[:-1] - d[1:]) / np.expm1(np.diff(e))
        return cls(np.exp(-e), d, np.maximum.accumulate(-lines))

    def least(self, right: Array) -> Array:
        """Compute K(R) for each R: float64, the shape of `right`."""
        best = np.searchsorted(self.changes, -right)
        wrong: Array = np.maximum(0.0, self.slopes[best] * (right - self.deltas[best]))
        return wrong


def check_counts(coins: int, guesses: int, correct: int) -> None:
    """Raise InputError unless 0 <= correct <= guesses <= coins, and there was a guess."""
    if guesses < 1:
        raise InputError(f"guesses must be at least 1, not {guesses}")
    if guesses > coins:
        raise InputError(f"guesses must be at most the {coins} coins of the game, not {guesses}")
    if not 0 <= correct <= guesses:
        raise InputError(f"correct must lie between 0 and the {guesses} guesses, not be {correct}")


def check_alpha(alpha: float) -> None:
    """Raise InputError unless alpha is a valid error probability of a test."""
    if not 0 < alpha < 1:
        raise InputError(f"alpha must lie between 0 and 1, not {alpha}")


def f_dp_p_value(
    curve: PrivacyProfile, coins: int, guesses: int, correct: int, sides: Sides = "both", choices: int = 2
) -> float:
    """Compute the p-value of "one unit's loss is within this curve", after v of r guesses about m units were right.

    Formal guarantee: if the curve dominates the mechanism, P[p-value <= a] <= a for every a, whatever the guesser does
    with the output, for coins that are fair and independent of each other and of all else, and r fixed beforehand (the
    proof at the top of this module). It is an upper bound of P[N >= v], to within 0.1%, never below `LEAST_P`.

    Args:
        curve: of the adjacency that the coins played: zero-out for in or out, replace-one for texts. With two texts
            its directions must be equal, as it is not said which text is which.
        coins: m, units in the game.
        guesses: r, or any number above the guesses that were made.
        correct: v.
        sides: "in" where by design only "in" was ever guessed, which counts for more.
        choices: k equally likely texts for each unit; 2 for in or out.

    Raises:
        InputError: the counts do not fit each other.
    """
    check_counts(coins, guesses, correct)
    wrong = _wrong(curve, sides, choices)
    low, high = math.log(LEAST_P), 0.0
    for _ in range(3):
        alphas = np.exp(np.linspace(low, high, 33))
        rejected = _refuted(wrong, coins, guesses, correct, alphas, choices)
        if not rejected.any():
            return 1.0
        first = int(np.argmax(rejected))
        if first == 0:
            break
        low, high = math.log(alphas[first - 1]), math.log(alphas[first])
    return float(alphas[first])


def f_dp_refutes(
    curve: PrivacyProfile,
    coins: int,
    guesses: int,
    correct: int,
    alpha: float = 0.05,
    sides: Sides = "both",
    choices: int = 2,
) -> bool:
    """Tell whether `f_dp_p_value` is at most alpha; much faster than computing it."""
    check_counts(coins, guesses, correct)
    check_alpha(alpha)
    wrong = _wrong(curve, sides, choices)
    return bool(_refuted(wrong, coins, guesses, correct, np.array([alpha]), choices)[0])


def f_dp_least_correct(
    curve: PrivacyProfile,
    coins: int,
    guesses: int,
    alpha: float = 0.05,
    sides: Sides = "both",
    choices: int = 2,
) -> int | None:
    """Return the fewest right guesses that refute a curve at alpha; None if not even r right guesses would."""
    check_counts(coins, guesses, guesses)
    check_alpha(alpha)
    wrong, level = _wrong(curve, sides, choices), np.array([alpha])
    if not _refuted(wrong, coins, guesses, guesses, level, choices)[0]:
        return None
    low, high = 0, guesses
    while high - low > 1:
        middle = (low + high) // 2
        if _refuted(wrong, coins, guesses, middle, level, choices)[0]:
            high = middle
        else:
            low = middle
    return high


def f_dp(
    coins: int,
    guesses: int,
    correct: int,
    family: Callable[[float], PrivacyProfile],
    delta: float,
    alpha: float = 0.05,
    start: float = 1.0,
    sides: Sides = "both",
    choices: int = 2,
) -> float:
    """Compute a lower bound on epsilon at `delta` among the curves of a family: that of the least refuted noise.

    Formal guarantee: with probability at least 1 - alpha, no curve of the family that dominates the mechanism has an
    epsilon below this. All noise from the boundary up is refuted, and the curves lie within each other, so the one
    test at the true noise decides, and the search needs no correction. This is *about the family*: a mechanism of
    another shape may well be (epsilon, delta)-differentially private below it. `bounds.one_run` needs no family.

    Args:
        family: a function from noise > 0 to a curve, less private at every epsilon as noise falls; with the same grid
            interval for every noise, and for an epsilon that this bound is compared with.
        start: noise to begin with, best the claimed one.
        others: as in `f_dp_p_value`.

    Returns:
        The epsilon of a curve that was computed and refuted, at a noise within 0.1% of the boundary (or, where all
        noise down to `start` / 2^20 is refuted, of that); 0 where none up to 2^20 `start` is.

    Raises:
        InputError: the counts do not fit each other, or delta or alpha is no probability.
    """
    check_counts(coins, guesses, correct)
    check_alpha(alpha)
    if not 0 < delta < 1:
        raise InputError(f"delta must lie between 0 and 1, not {delta}")
    if not (start > 0 and math.isfinite(start)):
        raise InputError(f"start must be a noise above 0, not {start}")

    def refuted(curve: PrivacyProfile) -> bool:
        return f_dp_refutes(curve, coins, guesses, correct, alpha, sides, choices)

    return least_epsilon(family, refuted, delta, start)


def least_epsilon(
    family: Callable[[float], PrivacyProfile],
    refuted: Callable[[PrivacyProfile], bool],
    delta: float,
    start: float = 1.0,
) -> float:
    """Return the epsilon at `delta` of the curve with the least noise that a test refutes; 0 if it refutes none.

    Args are as in `f_dp`. `refuted` must refute every curve above one that it refutes.
    """
    if not refuted(_perfect()):
        return 0.0
    found = _boundary(family, refuted, start, delta)
    return 0.0 if found is None else found.epsilon(delta)


def _boundary(
    family: Callable[[float], PrivacyProfile],
    refuted: Callable[[PrivacyProfile], bool],
    start: float,
    delta: float,
) -> PrivacyProfile | None:
    """Return the refuted curve next to the boundary, or None if epsilon is 0 before any curve is refuted."""
    low = high = start
    best = family(start)
    if refuted(best):
        while not low < high:
            low /= 2
            curve = family(low)
            if refuted(curve):
                high, best = low, curve
            if low < start * 2.0**-_DOUBLINGS:
                return best
    else:
        while not refuted(best):
            if best.epsilon(delta) == 0 or high > start * 2.0**_DOUBLINGS:
                return None
            low, high = high, 2 * high
            best = family(high)
    while high / low > 1.001:
        middle = math.sqrt(low * high)
        curve = family(middle)
        if refuted(curve):
            high, best = middle, curve
        else:
            low = middle
    return best


def _wrong(curve: PrivacyProfile, sides: Sides, choices: int) -> _Wrong:
    if choices < 2:
        raise InputError(f"choices must be at least 2, not {choices}")
    if sides not in ("both", "in"):
        raise InputError(f"sides must be both or in, not {sides}")
    return _Wrong.of(curve, sides, choices)


def _refuted(wrong: _Wrong, coins: int, guesses: int, correct: int, alphas: Array, choices: int) -> Array:
    """Tell for each alpha whether P[N >= correct] >= alpha is impossible: bool[n], by the recursion above."""
    m, r = float(coins), guesses
    q, beyond = alphas.copy(), np.zeros_like(alphas)
    for t in range(correct, 0, -1):
        needed = (choices - 1) * m * wrong.least((t * q + beyond) / m)
        needed = (q + beyond + needed) / (r - t + 1)
        beyond = beyond + q
        q = np.minimum(np.maximum(q, needed), 2.0)  # values beyond 1 make no difference
        if q[0] > 1:  # the least alpha is refuted, so all are
            break
    return q > 1


def _perfect() -> PrivacyProfile:
    """Return the curve of perfect privacy."""
    none = Direction(np.zeros(1), np.zeros(1))
    return PrivacyProfile(none, none, 0.0)
