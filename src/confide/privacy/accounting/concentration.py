"""The concentration filter: its noise, its claim, its proof.

Source: Chua et al. 2024 ("Mind the Privacy Unit!"), Algorithm 3, after Asi and Liu 2024.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from dp_accounting.pld import pld_pmf
from dp_accounting.pld import privacy_loss_distribution as pld
from dp_accounting.pld.privacy_loss_mechanism import ConnectDotsBounds
from scipy import stats
from scipy.special import log_ndtr, ndtr

from confide.privacy.accounting.calibration import least_noise, round_up
from confide.privacy.accounting.composing import mirrored
from confide.privacy.accounting.curves import Direction, PrivacyProfile
from confide.privacy.accounting.pairs import FINE, DominatingPair, Grid, MixtureOfGaussians, checked

NEAR = 4 / 5
"""The share of all pairs of users that must be near for a step to be taken, up to noise."""
THRESHOLD_SCALE, TEST_SCALE = 8.0, 16.0
"""Scales of the Laplace noises on the threshold and on each step's count, in units of 1 / epsilon."""

_RARE = 1e-24  # mass of flips that goes to infinite loss
_BEYOND = 11.0  # standard deviations beyond which a Gaussian's tail goes there: mass 2e-28


@dataclass(frozen=True)
class Filtered:
    """T steps of the filter on N users: a test whether gradients are near, and the noised mean of those kept.

    A step counts the ordered pairs within tau, n_t (each user with itself included), and is taken if n_t / N +
    Lap(16 / epsilon) >= 4N/5 + Lap(8 / epsilon), the second drawn once; else the run ends. User i is kept with
    probability clip((f_i - N/2) / (N/6), 0, 1), f_i being the users within 2 tau. The noise multiplier s' is
    the standard deviation of the noise on their mean in units of tau / N: sqrt(8 ln(e^epsilon T / delta)) s,
    where s answers (epsilon/2, delta/2) for T means of which a user moves each by 1 (Chua et al. 2024,
    Algorithm 3). Lengths below are in units of tau.

    Formal guarantee: (epsilon, delta)-DP under replace-one, N public, wherever `proved` is at most epsilon;
    elsewhere the same pair is what the paper claims, and an estimate. The proof, for D and D' that differ in
    user j:

    *Tests.* One replacement moves n_t / N by at most 2 (N-1) / N < 2. Let the threshold's noise be lower by 2
    under D', and at the step that ends the run the count's noise by 4: what passes or fails under D does so
    under D'. So any pattern of tests costs at most 2 epsilon / 8 + 4 epsilon / 16 = epsilon / 2, whatever else
    is released in between.

    *By chance.* Call pairs beyond 1 far. Except for an event of probability delta/2 (a bound on T
    differences of Laplace noises), every step taken under D has at most h N^2 far pairs, h = 1/5 + (16 /
    (epsilon N)) ln(4 T / (3 delta)). Whether it does is a function of the output so far and of which rows, chunks
    and hidden tokens are drawn; these do not depend on text, are the same in both worlds, and the attacker may be
    assumed to know them. So both worlds may be stopped where it does not.

    *Where users lie.* Then D' has at most g N^2, g = h + 2/N. Let c be a user of D' with the fewest far ones
    and K those within 1 of c: |K| >= k N, k = 1 - g. Let k N - 1 >= 2N/3 and 2 (1/2 - 1/N)^2 > g. Users of K
    are within 2 of each other, so they are kept in both worlds. Whoever may be kept in either world has at
    least N/2 - 1 users of D' within 2. Two such, u and v, are within 5 of each other: else all pairs between
    their neighbours, who are then not the same, are far, 2 (N/2 - 1)^2 > g N^2 of them. One such, u, is within
    3 of c, since its neighbours meet K; and at most g N^2 / (N-2) users V of D' lie beyond 3 from u, since each
    is far from all neighbours of u.

    *Who flips.* Draw for each user one uniform number that decides in both worlds. f_i moves by 1 at most, so
    user i != j is kept in one world alone with probability at most 6/N, each independently, and only if f_i <
    2N/3 + 1 in D': such a user has more than N/3 - 1 far ones. Nor is it in K, so with F of them everyone has
    at least F far ones: F (4N/3 - 1 - F) <= g N^2.

    *How far the mean moves.* Replace j first: all sets that occur hold K, so this moves the mean by at most 5 /
    (kN). Then a user u that flips, added to or taken from a set A that holds K, a = |A|: it moves the mean by
    at most sum over A of |u - i| / a^2. Of A at least N/2 - 1 - (N - a) are within 2 of u, those beyond 3 are
    within 5, and in K within 3 + 1: so the sum is at most 3a + N/2 + 1 - kN + |V|, and the move at most (2k +
    1/2 + 1/N + g N / (N-2)) / (k^2 N), as it is largest at a = kN.

    So a release, told how many users flip, is two Gaussians at most (first + flips * each) / N apart: `Moves`.
    Steps compose adaptively; with delta/2 left for them, and by the pattern of tests, (epsilon/2 + that
    epsilon, delta) holds.

    Attributes:
        users: N.
        steps: T.
    """

    users: int
    steps: int
    epsilon: float
    delta: float

    @cached_property
    def noise_multiplier(self) -> float:
        """The noise multiplier s', rounded up."""
        s = _multiplier(self.steps, self.epsilon / 2, self.delta / 2)
        return round_up(math.sqrt(8 * (self.epsilon + math.log(self.steps / self.delta))) * s)

    def curve(self, noise_multiplier: float, interval: float = FINE) -> PrivacyProfile:
        """Return exactly what (epsilon, delta) in both directions implies; no protection at less noise."""
        if checked(noise_multiplier) < self.noise_multiplier:
            return PrivacyProfile.unprotected()
        epsilons = np.array([-self.epsilon, self.epsilon])
        both = Direction(epsilons, np.array([1 - (1 - self.delta) * math.exp(-self.epsilon), self.delta]))
        return PrivacyProfile(both, both, 0.0)

    def proved(self, noise_multiplier: float) -> float:
        """Compute the epsilon that the proof above reaches at delta; inf if there are too few users for it."""
        moves = Moves.of(self.users, self._far())
        if moves is None:
            return math.inf
        return self.epsilon / 2 + _epsilon(Released(moves, self.steps), noise_multiplier, self.delta / 2)

    def _far(self) -> float:
        """Compute h: the share of ordered pairs that may be far in a taken step, except with probability delta/2."""
        by_chance = TEST_SCALE / self.epsilon * math.log(4 * self.steps / (3 * self.delta))
        return 1 - NEAR + by_chance / self.users

    def describe(self) -> str:
        return (
            f"On each of {self.steps} steps every one of {self.users} users takes part. A test whether their "
            "gradients are concentrated, with Laplace noise, ends the run where they are not (epsilon / 2); else "
            "the mean of those that are kept is released under Gaussian noise (epsilon / 2). What one user does is "
            "compared with what any other text in its place would do. Of the curve one point is claimed, and what "
            "follows from it."
        )


@dataclass(frozen=True)
class Moves:
    """The distance by which replacing one user moves the mean of the kept users, in units of tau / N.

    The distance is `first`, and `each` for every flip. At most `users` others flip, each with probability `chance` and
    independently.
    """

    first: float
    each: float
    users: int
    chance: float

    @classmethod
    def of(cls, users: int, far: float) -> Moves | None:
        """Bound the moves for N users with at most far * N^2 ordered pairs beyond tau, as `Filtered` proves it.

        The result is None if the proof does not cover these numbers.
        """
        if users <= 6:
            return None
        n = float(users)
        g = far + 2 / n
        k = 1 - g
        if k * n - 1 < 2 * n / 3 or 2 * (0.5 - 1 / n) ** 2 <= g:
            return None
        each = (2 * k + 0.5 + 1 / n + g * n / (n - 2)) / k**2
        most = 4 * n / 3 - 1
        flips = math.floor((most - math.sqrt(most**2 - 4 * g * n**2)) / 2 + 1e-9)
        return cls(5 / k, each, flips, 6 / n)

    def flips(self) -> tuple[np.ndarray, np.ndarray, float]:
        """Return numbers of flips, the probability of each, and the probability of more flips."""
        counts = np.arange(self.users + 1)
        beyond = stats.binom.sf(counts, self.users, self.chance)
        last = int(np.searchsorted(-beyond, -_RARE))
        kept = counts[: last + 1]
        return kept, stats.binom.pmf(kept, self.users, self.chance), float(beyond[last])


@dataclass(frozen=True)
class Released:
    """T means of kept users under Gaussian noise; with each, the attacker learns how many users flipped.

    Formal guarantee: given the flips F and who else is kept, a step is a Gaussian in either world, the two at
    most d(F) = first + F each apart. F has one distribution in both, so a step's hockey-stick divergence is at
    most E[H(N(d(F), s^2), N(0, s^2))], in both directions: telling F to the attacker only helps the attacker. H grows
    with the distance, so F may be replaced by the stochastically larger binomial number of flips; steps compose
    (Zhu, Dong and Wang 2022).
    """

    moves: Moves
    steps: int

    def curve(self, noise_multiplier: float, interval: float = FINE) -> PrivacyProfile:
        s = checked(noise_multiplier)
        if s == 0:
            return PrivacyProfile.unprotected()
        loss = _Loss.of(self.moves, s)
        grid = Grid(interval, float(loss.weights @ loss.distances), self.steps, len(loss.weights))
        return grid.curve(lambda h: pld.PrivacyLossDistribution(loss.dots(h), None), loss)

    def describe(self) -> str:
        return f"{self.steps} means of kept users, under Gaussian noise."


@dataclass(frozen=True, eq=False)
class _Loss:
    """Privacy loss of one step of `Released`: N(d^2/2, d^2) with probability `weights` each, else infinite."""

    distances: np.ndarray
    weights: np.ndarray
    beyond: float

    @classmethod
    def of(cls, moves: Moves, s: float) -> _Loss:
        counts, weights, beyond = moves.flips()
        return cls((moves.first + moves.each * counts) / s, weights, beyond)

    def delta(self, epsilon: np.ndarray) -> np.ndarray:
        """Compute H(epsilon) of one step, at epsilons of any sign."""
        total = np.full(epsilon.shape, self.beyond)
        for d, weight in zip(self.distances, self.weights, strict=True):
            out = np.exp(epsilon + log_ndtr(-epsilon / d - d / 2))
            total += weight * (ndtr(d / 2 - epsilon / d) - out)
        delta: np.ndarray = np.clip(total, 0.0, 1.0)
        return delta

    def connect_dots_bounds(self) -> ConnectDotsBounds:
        d = float(self.distances.max())
        most = d * d / 2 + _BEYOND * d
        return ConnectDotsBounds(epsilon_upper=most, epsilon_lower=-most)

    def dots(self, interval: float) -> pld_pmf.DensePLDPmf:
        """Build the pessimistic connect-the-dots distribution on multiples of `interval`."""
        high = math.ceil(float(self.connect_dots_bounds().epsilon_upper or 0) / interval)
        return mirrored(interval, self.delta(np.arange(high + 1) * interval))


@lru_cache(maxsize=64)  # a claim is stated many times
def _multiplier(steps: int, epsilon: float, delta: float) -> float:
    return least_noise(MixtureOfGaussians.bernoulli(1.0, steps), epsilon, delta)


@lru_cache(maxsize=64)
def _epsilon(process: DominatingPair, noise_multiplier: float, delta: float) -> float:
    return process.curve(noise_multiplier).epsilon(delta)
