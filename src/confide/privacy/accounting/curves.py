"""The privacy loss of one unit: the curve delta(epsilon) of a mechanism, and every statement that follows from it.

A curve is kept as its two directions. *Removal* is P = the output with the unit against Q = the output with the
unit zeroed out; *addition* is Q against P. Each direction is a list of vertices (epsilon_i, delta_i) with
delta_i at least the hockey-stick divergence H(epsilon_i) = sup_E P(E) - e^epsilon_i Q(E). As a function of
e^epsilon, H is convex, nonincreasing and equals 1 at e^epsilon = 0, so the straight line between two vertices
(in e^epsilon, not in epsilon) is an upper bound again, and infima over all real epsilon of
e^epsilon p + delta(epsilon) are attained at vertices. The code here never sums e^loss over a distribution.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version

import numpy as np
from dp_accounting.pld import pld_pmf
from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution
from numpy.typing import ArrayLike
from scipy.signal import lfilter

from confide.privacy.accounting.composing import self_composed, sides
from confide.utils.errors import InputError

Array = np.ndarray

ORDERS = np.geomspace(5e-3, 1e4, 160)
"""Orders lambda at which log E[e^(lambda loss)] is kept for the far tail."""

_HIGHEST = 300.0
"""The largest exponent of a product of two bounds."""

REPORTED_DELTAS = tuple(10.0**-k for k in range(1, 13))


@dataclass(frozen=True, eq=False)
class Direction:
    """Upper bounds on one direction's hockey-stick divergence.

    Attributes:
        epsilons: float64[n], strictly increasing, any real numbers.
        deltas: float64[n] in [0, 1], nonincreasing.
    """

    epsilons: Array
    deltas: Array

    def delta(self, epsilon: ArrayLike) -> Array:
        """Compute delta at each epsilon (any real numbers, any shape), by lines in e^epsilon between vertices."""
        e = np.asarray(epsilon, dtype=np.float64)
        knots, d = self.epsilons, self.deltas
        right = np.searchsorted(knots, e, side="right")
        below, inside = right == 0, (right > 0) & (right < len(knots))
        hi = np.clip(right, 1, len(knots) - 1) if len(knots) > 1 else np.zeros_like(right)
        lo = np.maximum(hi - 1, 0)
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            weight = np.exp(e - knots[hi]) * np.expm1(knots[lo] - e) / np.expm1(knots[lo] - knots[hi])
            between = d[lo] + weight * (d[hi] - d[lo])
            before = 1.0 - np.exp(e - knots[0]) * (1.0 - d[0])
        found: Array = np.where(below, before, np.where(inside, between, d[-1]))
        return found

    def epsilon(self, delta: float) -> float:
        """Return the smallest epsilon >= 0 at which the bound is at most delta; inf if there is none."""
        if float(self.delta(0.0)) <= delta:
            return 0.0
        first = int(np.searchsorted(-self.deltas, -delta, side="left"))
        if first == len(self.deltas):
            return math.inf
        if first == 0:  # between e^epsilon = 0, where delta is 1, and the first vertex
            return float(self.epsilons[0] + math.log((1.0 - delta) / (1.0 - self.deltas[0])))
        above, under = self.deltas[first - 1], self.deltas[first]
        weight = (above - delta) / (above - under)
        start, gap = self.epsilons[first - 1], self.epsilons[first] - self.epsilons[first - 1]
        with np.errstate(divide="ignore"):
            return float(start + np.logaddexp(np.log1p(-weight), np.log(weight) + gap))

    def blow_up(self, p: ArrayLike) -> Array:
        """Compute B(p) = inf over real epsilon of e^epsilon p + delta(epsilon): the largest P(E) given Q(E) <= p."""
        probabilities = np.atleast_1d(np.asarray(p, dtype=np.float64))
        if not np.all((probabilities >= 0) & (probabilities <= 1)):
            raise InputError("a prior or false positive rate must lie in [0, 1]")
        result = np.empty_like(probabilities)
        for i, value in enumerate(probabilities):
            log_p = math.log(value) if value > 0 else -math.inf
            with np.errstate(over="ignore"):
                least = np.min(np.exp(self.epsilons + log_p) + self.deltas)
            result[i] = min(1.0, max(value, float(least)))
        return result.reshape(np.shape(p))


@dataclass(frozen=True, eq=False)
class Composed:
    """A composed privacy loss distribution, and corrections for what its Fourier transform cannot compute.

    `rounding` is added to every delta. A transform raised to the T-th power carries an error of about T units
    in the last place, coherent over the width of the distribution: dp_accounting's tail masses come out up to
    1e-12 below zero after 10,000 steps, and against long double sums deltas were up to 1.2 T * 2^-52 too small.
    T * 2^-50 covers the largest error that was seen with a factor of three to spare.
    `log_moments` holds log E[e^(lambda loss)] at ORDERS for removal and addition, finite losses only, summed
    over the steps: a Chernoff bound for the far tail, free of that error.
    """

    pld: PrivacyLossDistribution
    log_moments: tuple[Array, Array]
    rounding: float

    @classmethod
    def of(cls, one_step: PrivacyLossDistribution, steps: int) -> Composed:
        """Compose one step with itself `steps` times."""
        single = sides(one_step)
        moments = [steps * _log_moments(side) for side in single]
        if steps == 1:
            return cls(PrivacyLossDistribution(*single), (moments[0], moments[-1]), 0.0)
        composed = PrivacyLossDistribution(*(self_composed(side, steps) for side in single))
        return cls(composed, (moments[0], moments[-1]), steps * 2.0**-50)

    def then(self, other: Composed) -> Composed:
        """Compose this with another, at the coarser of the two intervals."""
        interval = max(_interval_of(self.pld), _interval_of(other.pld))
        left, right = _coarsened(self.pld, interval), _coarsened(other.pld, interval)
        moments = (
            self.log_moments[0] + other.log_moments[0],
            self.log_moments[1] + other.log_moments[1],
        )
        return Composed(left.compose(right), moments, self.rounding + other.rounding + 2.0**-51)

    def curve(self) -> PrivacyProfile:
        removal = _direction(self.pld._pmf_remove.to_dense_pmf(), self.log_moments[0], self.rounding)
        addition = removal
        if not self.pld._symmetric:
            addition = _direction(self.pld._pmf_add.to_dense_pmf(), self.log_moments[1], self.rounding)
        return PrivacyProfile(removal, addition, _interval_of(self.pld), self)


@dataclass(frozen=True, eq=False)
class PrivacyProfile:
    """Upper bounds on the privacy loss of one unit.

    Formal guarantee: if the two directions dominate a mechanism's hockey-stick divergences for its adjacency,
    the mechanism is (epsilon(delta), delta)-DP for every delta; a test of "with the unit" against "zeroed out"
    has a true positive rate of at most `true_positive_rate(fpr)`; and an attacker whose best blind guess succeeds
    with probability p succeeds with probability at most `reconstruction(p)` after seeing the output.

    Attributes:
        removal, addition: the two directions.
        interval: the width of the grid of privacy losses that was used (0 if there was no grid).
        composed: the distribution behind the curve, if there is one; needed to compose tightly.
    """

    removal: Direction
    addition: Direction
    interval: float
    composed: Composed | None = None

    @classmethod
    def unprotected(cls) -> PrivacyProfile:
        """Return the curve of no noise: epsilon is inf at every delta below 1."""
        one = Direction(np.array([0.0]), np.array([1.0]))
        return cls(one, one, 0.0)

    @property
    def accountant(self) -> str:
        """Name and version of the software that computed the numbers, and the grid."""
        how = "privacy loss distribution" if self.composed is not None else "black-box bounds on it"
        return f"dp_accounting {version('dp-accounting')}, {how}, interval {self.interval:g}, pessimistic"

    def epsilon(self, delta: float) -> float:
        """Return the smallest epsilon >= 0 such that (epsilon, delta) holds in both directions; may be inf."""
        if delta == 0:  # pure privacy, which Gaussian noise never gives
            return 0.0 if self.delta(0.0) == 0 else math.inf
        if not 0 < delta < 1:
            raise InputError(f"privacy.delta must lie between 0 and 1, not {delta}")
        return max(self.removal.epsilon(delta), self.addition.epsilon(delta))

    def delta(self, epsilon: float) -> float:
        """Return the larger delta of the two directions at this epsilon, which may be any real number."""
        return float(max(self.removal.delta(epsilon), self.addition.delta(epsilon)))

    def advantage(self) -> float:
        """Return the largest true positive rate minus false positive rate of any test: delta(0)."""
        return self.delta(0.0)

    def true_positive_rate(self, fpr: ArrayLike) -> Array:
        """Return the largest true positive rate of any test at this false positive rate, for either null."""
        rate: Array = np.maximum(self.removal.blow_up(fpr), self.addition.blow_up(fpr))
        return rate

    def reconstruction(self, p: ArrayLike) -> Array:
        """Compute r(p): success of the best attack when the best blind guess succeeds with probability p.

        With candidates I_1..I_k for the unit, Q the output with the unit zeroed out (the same for all of them)
        and E_i the disjoint regions where an attack answers i: sum_i prior(i) P_i(E_i) <= sum_i prior(i) B(Q(E_i))
        <= B(sum_i prior(i) Q(E_i)) <= B(p), as B is concave and nondecreasing. So only the removal direction matters.
        """
        return self.removal.blow_up(p)

    def points(self) -> list[tuple[float, float]]:
        """Return (epsilon, delta) for delta = 1e-1 .. 1e-12 where epsilon is finite, by increasing epsilon."""
        pairs = [(self.epsilon(delta), delta) for delta in REPORTED_DELTAS]
        return [pair for pair in pairs if math.isfinite(pair[0])]


def compose(curves: Sequence[PrivacyProfile]) -> PrivacyProfile:
    """Compute the curve of several phases run one after the other on independent randomness.

    Formal guarantee: where every phase has a privacy loss distribution these are composed (losses add up), the
    finer ones rounded up to the coarsest grid first. If some phase is known by its (epsilon, delta) alone, as after
    `GroupOf`, basic composition holds: epsilons and deltas add up, with delta shared equally among the phases,
    which gives one valid pair for every total delta (Dwork et al. 2006, Theorem 1).
    """
    if not curves:
        raise ValueError("nothing to compose")
    # delta(0) = 0 means that both worlds are the same: such a phase costs nothing.
    curves = [curve for curve in curves if curve.delta(0.0) > 0] or list(curves[:1])
    if len(curves) == 1:
        return curves[0]
    known = [curve.composed for curve in curves if curve.composed is not None]
    if len(known) == len(curves):
        total = known[0]
        for composed in known[1:]:
            total = total.then(composed)
        return total.curve()
    interval = max(curve.interval for curve in curves)
    removal = _add_up([curve.removal for curve in curves])
    return PrivacyProfile(removal, _add_up([curve.addition for curve in curves]), interval)


def group(curve: PrivacyProfile, k: int) -> PrivacyProfile:
    """Compute the curve of k units at once from that of one: (k epsilon, delta (e^(k epsilon) - 1) / (e^epsilon - 1)).

    Formal guarantee: Vadhan 2017, Lemma 2.2, in each direction: P_0, ..., P_k with H(P_i, P_(i+1)) <= delta at epsilon
    give P_0(E) <= e^(k epsilon) P_k(E) + delta (1 + e^epsilon + ... + e^((k-1) epsilon)). All k are removed, or all
    are added. If one text leaves and another comes, links of both directions alternate, and no direction follows from
    itself (`exchanged`). Only epsilon >= 0 is used, so `reconstruction` and `true_positive_rate` are upper bounds,
    looser than a curve over all reals would give.
    """
    if k == 1:
        return curve
    return PrivacyProfile(_group(curve.removal, k), _group(curve.addition, k), curve.interval)


def between(curve: PrivacyProfile, points: int = 400) -> PrivacyProfile:
    """Compute the curve of two texts of a unit, from the one that compares each of them with the unit zeroed out.

    Formal guarantee: with P_0(E) <= e^a Q(E) + removal(a) of the one text and Q(E) <= e^b P_1(E) + addition(b) of the
    other, P_0(E) <= e^(a + b) P_1(E) + removal(a) + e^a addition(b), for all real a and b, and the same with the texts
    exchanged. At each sum the best of `points` values of a is taken, so any number of them gives upper bounds.
    """
    both = np.union1d(curve.removal.epsilons, curve.addition.epsilons)
    both = both[np.abs(both) <= _HIGHEST]
    chosen = both[np.unique(np.linspace(0, len(both) - 1, points).astype(int))] if len(both) else np.zeros(1)
    sums = np.union1d(2 * chosen, [0.0])
    leaving = curve.removal.delta(chosen)
    arriving = np.exp(chosen) * curve.addition.delta(sums[:, None] - chosen)
    deltas = np.minimum((leaving + arriving).min(axis=1), 1.0)
    found = Direction(sums, np.minimum.accumulate(deltas))
    return PrivacyProfile(found, found, curve.interval)


def exchanged(curve: PrivacyProfile) -> PrivacyProfile:
    """Compute `between` with vertices at an equal share of both steps as well: never more than a group of two.

    Formal guarantee: that of `between`. At 2a it is at most removal(a) + e^a addition(a), which is at most
    (1 + e^a) delta(a). Each direction by itself bounds one text against the other, whichever comes first.
    """
    best = between(curve).removal
    halves = np.union1d(curve.removal.epsilons, curve.addition.epsilons)
    halves = np.union1d(halves[np.abs(halves) <= _HIGHEST], best.epsilons / 2)
    even = curve.removal.delta(halves) + np.exp(halves) * curve.addition.delta(halves)
    deltas = np.minimum(np.minimum(even, best.delta(2 * halves)), 1.0)
    found = Direction(2 * halves, np.minimum.accumulate(deltas))
    return PrivacyProfile(found, found, curve.interval)


def _group(direction: Direction, k: int) -> Direction:
    positive = direction.epsilons[direction.epsilons > 0]
    epsilons = np.concatenate([[0.0], positive])
    deltas = direction.delta(epsilons)
    with np.errstate(divide="ignore", over="ignore"):
        # log((e^(ke) - 1) / (e^e - 1)) = (k - 1) e + log((1 - e^(-ke)) / (1 - e^(-e))), which is log k at e = 0
        log_terms = (k - 1) * positive + np.log(np.expm1(-k * positive) / np.expm1(-positive))
        grown = np.exp(np.log(deltas) + np.concatenate([[math.log(k)], log_terms]))
    return Direction(k * epsilons, np.minimum.accumulate(np.minimum(grown, 1.0)))


def _add_up(directions: Sequence[Direction]) -> Direction:
    """Compose by the basic theorem, with equal shares of 300 total deltas from 1 down to 1e-16."""
    totals = np.geomspace(1.0, 1e-16, 300)
    pairs = [(sum(d.epsilon(t / len(directions)) for d in directions), t) for t in totals]
    finite = {epsilon: delta for epsilon, delta in pairs if math.isfinite(epsilon)}  # the least delta wins
    if not finite:
        return Direction(np.array([0.0]), np.array([1.0]))
    return Direction(np.array(list(finite)), np.array(list(finite.values())))


def _direction(pmf: pld_pmf.DensePLDPmf, log_moments: Array, rounding: float) -> Direction:
    """Compute vertices on the grid of losses l_i, from the mass p_i of each.

    delta_i = mass at infinity + sum over j > i of (1 - e^(l_i - l_j)) p_j. With V_i = p_i + e^-h V_(i+1) this is
    delta_i = delta_(i+1) + (1 - e^-h) V_(i+1): only positive terms, no exponential of a loss.
    """
    h, infinity = pmf._discretization, pmf._infinity_mass
    losses = (np.arange(pmf.size) + pmf._lower_loss) * h
    discounted = lfilter([1.0], [1.0, -math.exp(-h)], pmf._probs[::-1])
    growth = -math.expm1(-h) * np.cumsum(discounted)[:-1]
    deltas = infinity + np.concatenate([[0.0], growth])[::-1]
    deltas = np.maximum(deltas, infinity) + rounding
    if rounding > 0:
        far = deltas < 1e4 * rounding
        deltas[far] = np.minimum(deltas[far], infinity + _chernoff(losses[far], log_moments))
    return Direction(losses, np.minimum.accumulate(np.minimum(deltas, 1.0)))


def _chernoff(epsilons: Array, log_moments: Array) -> Array:
    """Compute Chernoff's bound on delta at each epsilon.

    It is the minimum over lambda of E[e^(lambda loss)] e^(-lambda epsilon) lambda^lambda / (1 + lambda)^(1 + lambda).
    The factor is the maximum over losses of (1 - e^(epsilon - loss)) e^(-lambda (loss - epsilon)).
    """
    log_factor = ORDERS * np.log(ORDERS) - (1 + ORDERS) * np.log1p(ORDERS)
    least = np.zeros_like(epsilons)
    for order, log_moment in zip(ORDERS, log_moments + log_factor, strict=True):
        least = np.minimum(least, log_moment - order * epsilons)
    bound: Array = np.exp(least)
    return bound


def _log_moments(pmf: pld_pmf.DensePLDPmf, thinning: int = 8) -> Array:
    """Compute upper bounds on log E[e^(lambda loss)] at ORDERS.

    They use every eighth grid point. Each mass is shared between its two neighbours so that the mean stays, which
    raises the expectation of a convex function (by a factor of about 1 + (8 lambda h)^2 / 8).
    """
    blocks = -(-pmf.size // thinning)
    masses = np.zeros(blocks * thinning)
    masses[: pmf.size] = np.maximum(pmf._probs, 0.0)
    share = np.arange(thinning) / thinning
    thinned = np.zeros(blocks + 1)
    thinned[:-1] += masses.reshape(blocks, thinning) @ (1 - share)
    thinned[1:] += masses.reshape(blocks, thinning) @ share
    kept = thinned > 0
    losses = ((np.arange(blocks + 1) * thinning + pmf._lower_loss) * pmf._discretization)[kept]
    log_masses = np.log(thinned[kept])
    result = np.empty_like(ORDERS)
    for i, order in enumerate(ORDERS):
        exponents = order * losses + log_masses
        top = exponents.max()
        result[i] = top + math.log(np.exp(exponents - top).sum())
    return result


def _interval_of(pld: PrivacyLossDistribution) -> float:
    return float(pld._pmf_remove._discretization)


def _coarsened(pld: PrivacyLossDistribution, interval: float) -> PrivacyLossDistribution:
    """Return the same distribution with every loss rounded up to a multiple of a coarser interval."""
    if _interval_of(pld) == interval:
        return PrivacyLossDistribution(
            pld._pmf_remove.to_dense_pmf(), None if pld._symmetric else pld._pmf_add.to_dense_pmf()
        )
    removal = _rounded_up(pld._pmf_remove.to_dense_pmf(), interval)
    return PrivacyLossDistribution(
        removal, None if pld._symmetric else _rounded_up(pld._pmf_add.to_dense_pmf(), interval)
    )


def _rounded_up(pmf: pld_pmf.DensePLDPmf, interval: float) -> pld_pmf.DensePLDPmf:
    position = (np.arange(pmf.size) + pmf._lower_loss) * (pmf._discretization / interval)
    index = np.ceil(np.round(position, 6)).astype(np.int64)  # a quotient such as 2.0000000004 stands for 2
    masses = np.bincount(index - index[0], weights=pmf._probs)
    return pld_pmf.DensePLDPmf(interval, int(index[0]), masses, pmf._infinity_mass, True)
