"""Calibration: find the least noise, or the most steps, that meets a target."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache

import numpy as np

from confide.privacy.accounting.curves import PrivacyProfile
from confide.privacy.accounting.pairs import FINE, DominatingPair, MixtureOfGaussians, sketch
from confide.privacy.accounting.renyi import renyi
from confide.utils.errors import InputError
from confide.utils.rounding import at_most

LEAST, MOST = 1e-3, 1e7
"""The range of noise multipliers that is searched."""

MOST_STEPS = 10_000_000
"""The most steps that are searched."""

ROUGH = 3e-2
"""The interval at which settings are compared before anything is claimed of them."""

Excess = Callable[[PrivacyProfile], float]
"""log(the curve's value / the target): at most 0 if the target is met."""


def least_noise(process: DominatingPair, epsilon: float, delta: float) -> float:
    """Compute the least noise multiplier with which `process` is (epsilon, delta)-DP, within 0.1%.

    Formal guarantee: process.curve(result).epsilon(delta) <= epsilon was computed, at the interval of claims.

    Raises:
        InputError: the target is not a valid one, or no noise up to 1e7 meets it.
    """
    if not (epsilon > 0 and math.isfinite(epsilon)):
        raise InputError(f"privacy.epsilon must be a finite number above 0, not {epsilon}")
    if not 0 < delta < 1:
        raise InputError(f"privacy.delta must lie between 0 and 1, not {delta}")
    return _least(
        process,
        lambda curve: _log_ratio(curve.epsilon(delta), epsilon),
        f"no noise meets privacy.epsilon {epsilon} at privacy.delta {delta}: raise one of them",
    )


def nearly_least_noise(process: DominatingPair, epsilon: float, delta: float, guess: float = 1.0) -> float:
    """Compute `least_noise` within about 1% and much faster: to compare many settings, never for a claim.

    Args:
        process: the process to account.
        epsilon: of the target.
        delta: of the target.
        guess: a noise multiplier that is expected to be near.
    """
    slope, before = -1.5, None  # slope of log epsilon over log noise
    # The result lies between these two; under group privacy epsilon may jump there from inf.
    misses, meets = 0.0, math.inf
    for _ in range(50):
        off = max(-3.0, min(3.0, _log_ratio(sketch(process)(guess, ROUGH).epsilon(delta), epsilon)))
        misses, meets = (max(misses, guess), meets) if off > 0 else (misses, min(meets, guess))
        if meets < 1.02 * misses:
            return meets
        place = math.log(guess)
        if before is not None and before[0] != place:
            slope = min(-0.3, (off - before[1]) / (place - before[0]))
        before = (place, off)
        step = max(-1.0, min(1.0, -off / slope))
        guess *= math.exp(step)
        if abs(step) < 0.02:
            return guess
        if 0 < misses < meets < math.inf and not misses < guess < meets:
            guess = math.sqrt(misses * meets)
        if not LEAST <= guess <= MOST:
            break
    raise InputError(f"no noise meets privacy.epsilon {epsilon} at privacy.delta {delta}")


def most_steps(
    process: Callable[[int], DominatingPair],
    noise_multiplier: float,
    epsilon: float,
    delta: float,
    least: int = 1,
    most: int = MOST_STEPS,
) -> int:
    """Compute the most steps that are (epsilon, delta)-DP at this noise; `most` if so many or more are.

    Formal guarantee: process(result).curve(noise_multiplier).epsilon(delta) <= epsilon was computed, at the interval of
    claims, and one step more was found to be above, unless the result is `most`.

    Args:
        process: the process of so many steps; epsilon does not fall with their number.
        noise_multiplier: of each step.
        epsilon: of the target.
        delta: of the target.
        least: the fewest steps there may be.
        most: the most that are tried; a process may not allow more.

    Raises:
        InputError: not even `least` steps meet the target.
    """

    @cache
    def meets(steps: int, interval: float = FINE) -> bool:
        of = process(steps).curve if interval == FINE else sketch(process(steps))
        return of(noise_multiplier, interval).epsilon(delta) <= epsilon

    if not meets(least):
        reached = process(least).curve(noise_multiplier).epsilon(delta)
        raise InputError(
            f"privacy.epsilon: at this noise {'one step has' if least == 1 else f'{least} steps have'} epsilon "
            f"{at_most(reached)} already, so no run stays within {at_most(epsilon, 6)}"
        )
    found = _most(lambda steps: meets(steps, 1e-2), least, least, 1.0, 5e-3, most)
    found = _most(lambda steps: meets(steps, 1e-3), found, least, 5e-3, 5e-4, most)
    return _most(meets, found, least, 5e-4, 0.0, most)


def least_noise_for_reconstruction(process: DominatingPair, targets: Sequence[tuple[float, float]]) -> float:
    """Compute the least noise multiplier with which reconstruction(p) <= r for every (p, r) in `targets`."""
    for p, r in targets:
        if not 0 < p < r < 1:
            raise InputError(f"a secret needs 0 < prior < allowed posterior < 1, not {p} and {r}")

    def excess(curve: PrivacyProfile) -> float:
        bounds = curve.reconstruction([p for p, _ in targets])
        # on the scale of odds, so that a bound of 1 does not flatten the search
        return max(_log_odds(b) - _log_odds(r) for b, (_, r) in zip(bounds, targets, strict=True))

    return _least(process, excess, "no noise meets the secrets' allowed posteriors: raise them")


def least_noise_for_kl(process: MixtureOfGaussians, kl: float) -> float:
    """Compute the least noise multiplier whose KL divergence over the run is at most `kl` nats.

    Source: Ganesh et al. 2025 ("Hush!"), Lemma 3.2.
    """
    if not (kl > 0 and math.isfinite(kl)):
        raise InputError(f"a target KL divergence must be a finite number above 0, not {kl}")

    def excess(s: float) -> float:
        return _log_ratio(process.kl(s), kl)

    return _narrowed(excess, "no noise meets the target KL divergence")


def least_noise_for_renyi(process: MixtureOfGaussians, allowed: np.ndarray) -> float:
    """Compute the least noise multiplier at which some order's divergence over the run is at most what is allowed.

    Args:
        process: the process to account.
        allowed: float64[K, orders], as `renyi.allowed` gives it. Each of the K pairs must be met, by any order.
    """

    def excess(s: float) -> float:
        return _log_ratio(float((renyi(process, s) / allowed).min(axis=1).max()), 1.0)

    return _narrowed(excess, "no noise meets the secrets' allowed posteriors: raise them")


def _narrowed(excess: Callable[[float], float], failure: str) -> float:
    good, bad = _bracket(excess, 1.0, failure)
    if good > LEAST:
        good, bad = _narrow(excess, good, bad, 1e-5)
    return _certified(excess, good, bad)


def _least(process: DominatingPair, excess: Excess, failure: str) -> float:
    """Search on coarse grids, certify on the fine one."""

    @cache
    def at(interval: float) -> Callable[[float], float]:
        of = process.curve if interval == FINE else sketch(process)
        return cache(lambda s: excess(of(s, interval)))  # cached, since each stage evaluates its ends again

    good, bad = _bracket(at(1e-2), 1.0, failure)
    if good == LEAST:
        return _certified(at(FINE), good, bad)
    good, bad = _narrow(at(1e-2), good, bad, 2e-3)
    good, bad = _around(at(1e-3), good)
    good, bad = _narrow(at(1e-3), good, bad, 2e-4)
    return _certified(at(FINE), good, bad)


def _bracket(excess: Callable[[float], float], start: float, failure: str) -> tuple[float, float]:
    """Return (noise that meets the target, noise that does not), at most a factor of four apart.

    The result is (LEAST, 0) if every noise meets the target.
    """
    s, factor = start, 4.0
    if excess(s) <= 0:
        while s > LEAST:
            lower = max(LEAST, s / factor)
            if excess(lower) > 0:
                return s, lower
            s = lower
        return LEAST, 0.0
    while s < MOST:
        if excess(s * factor) <= 0:
            return s * factor, s
        s *= factor
    raise InputError(failure)


def _around(excess: Callable[[float], float], guess: float) -> tuple[float, float]:
    """Bracket the result around a good guess, by steps of 0.2%, 0.4%, 0.8%, ..."""
    step = 0.002
    if excess(guess) <= 0:
        good, bad = guess, guess / (1 + step)
        while excess(bad) <= 0:
            step *= 2
            good, bad = bad, bad / (1 + step)
        return good, bad
    good, bad = guess * (1 + step), guess
    while excess(good) > 0:
        step *= 2
        good, bad = good * (1 + step), good
    return good, bad


def _narrow(
    excess: Callable[[float], float], good: float, bad: float, tolerance: float
) -> tuple[float, float]:
    """Shrink to good / bad <= 1 + tolerance: false position in logs, Illinois variant, kept off the ends.

    It halves the bracket if one end has moved three times in a row.
    """
    at_good, at_bad = excess(good), excess(bad)
    moves = 0  # moves in a row of the good end or, if negative, of the bad one
    while good / bad > 1 + tolerance:
        width = math.log(good / bad)
        share = 0.5
        if abs(moves) < 3 and math.isfinite(at_bad) and math.isfinite(at_good) and at_bad > at_good:
            share = at_bad / (at_bad - at_good)
        margin = min(0.25, 0.4 * tolerance / width)
        middle = bad * math.exp(width * min(1 - margin, max(margin, share)))
        value = excess(middle)
        if value <= 0:
            good, at_good, at_bad = middle, value, at_bad / 2 if moves > 0 else at_bad
            moves = max(moves, 0) + 1
        else:
            bad, at_bad, at_good = middle, value, at_good / 2 if moves < 0 else at_good
            moves = min(moves, 0) - 1
    return good, bad


def _most(
    meets: Callable[[int], bool], guess: int, least: int, reach: float, tolerance: float, most: int
) -> int:
    """Return steps that meet a target, where about that many more, by the tolerance, or at least one more, do not.

    It looks around a guess in steps that double, the first a share `reach` of it, and then halves. `least` steps are
    known to meet the target at the interval of claims; on a coarser grid they may not, and are returned all the same.
    """
    step = max(1, round(reach * guess))
    if meets(guess):
        good, bad = guess, min(guess + step, most + 1)
        while bad <= most and meets(bad):
            step *= 2
            good, bad = bad, min(bad + step, most + 1)
    else:
        good, bad = max(least, guess - step), guess
        while good > least and not meets(good):
            step *= 2
            good, bad = max(least, good - step), good
    while bad - good > max(1, tolerance * good):
        middle = (good + bad) // 2
        good, bad = (middle, bad) if meets(middle) else (good, middle)
    return good


def _certified(excess: Callable[[float], float], good: float, bad: float) -> float:
    """Round up to five significant digits and raise until the target is met there, by more and more."""
    s, step = round_up(good), 2e-4
    while excess(s) > 0:
        s = round_up(s * (1 + step))
        step *= 1.5
    return s


def round_up(s: float, digits: int = 5) -> float:
    """Return the next number with so many significant digits, never below s."""
    rounded = float(f"{s:.{digits - 1}e}")
    if rounded >= s:
        return rounded
    return float(f"{s + 10.0 ** (math.floor(math.log10(s)) - digits + 1):.{digits - 1}e}")


def _log_ratio(value: float, target: float) -> float:
    if value == 0:
        return -math.inf
    return math.log(value / target)


def _log_odds(p: float) -> float:
    if p >= 1:
        return math.inf
    return math.log(p / (1 - p))
