"""Renyi divergences between a run and the same run without a unit, and the posterior that they allow.

Source: Ganesh et al. 2025 ("Hush!"), Lemma 3.2, here with the unit's rows zeroed out as the one world that is compared
with. It holds for every f-divergence D with a strictly convex f. Let P_i be the outputs if a secret is candidate i, of
a prior that gives no candidate more than p, and Q the outputs with the secret's rows zeroed out, whichever candidate
it is. An attack guesses candidate i on disjoint events E_i. It is right with probability a = sum prior(i) P_i(E_i); if
the output came from Q it would be right with b = sum prior(i) Q(E_i) <= p. By data processing and joint convexity

    D(Bern(a), Bern(b)) <= sum prior(i) D(P_i, Q) <= max D(P_i, Q).

The left side does not rise as b rises to a, by convexity, and rises strictly as a rises above p. So if all
D(P_i, Q) <= D(Bern(r), Bern(p)), then a <= r. The Renyi divergence of order alpha is an increasing function of such a
divergence, f(y) = y^alpha - 1, and adds up over steps. A pair that dominates another in every hockey-stick divergence
also has the larger f-divergences, which are mixtures of hockey-stick divergences (Sason & Verdu 2016).

The hockey-stick divergence itself gives a <= e^epsilon p + delta(epsilon), though its f is not strictly convex. The
best epsilon then makes it the blow-up function, which is the accountant `blow-up`.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.special import logsumexp

from confide.privacy.accounting.pairs import MixtureOfGaussians, checked

ORDERS = (*range(2, 17), 20, 24, 32, 48, 64)
"""Whole orders alone: the integrand is then a sum of Gaussians of variance 1, and sums on a grid integrate it."""

STEP, BEYOND = 0.25, 12.0
REACH = 10_000.0  # orders are left out where the grid would go further; a bound by fewer of them is a bound
SLACK = 1 + 1e-9


def renyi(process: MixtureOfGaussians, noise_multiplier: float) -> np.ndarray:
    """Compute the Renyi divergences of the whole run from its zeroed-out world in nats, float64[len(ORDERS)].

    Formal guarantee: for a whole order, (P/Q)^order Q is a sum of Gaussian densities of variance 1 with positive
    weights, at means between 0 and order times the largest value. The sum on a grid of step 1/4 differs from the
    integral of each by less than 1 in 10^130 (Poisson summation), and what lies more than 12 beyond the means is
    less than 1 in 10^32 of it. So only the rounding of float64 is left, for which 1 in 10^9 is added. An order that
    was left out is infinite.
    """
    s = checked(noise_multiplier)
    found = np.full(len(ORDERS), np.inf)
    if s == 0:
        return found
    weights = np.asarray(process.probabilities)
    values, weights = np.asarray(process.values)[weights > 0] / s, weights[weights > 0]
    top = float(values.max())
    some = [n for n, order in enumerate(ORDERS) if n == 0 or order * top <= REACH]
    x = np.arange(-BEYOND, ORDERS[some[-1]] * top + BEYOND + STEP, STEP)
    ratio = np.concatenate(
        [
            logsumexp(part[:, None] * values - values**2 / 2, axis=1, b=weights)
            for part in np.array_split(x, 1 + len(x) * len(values) // 2_000_000)
        ]
    )
    for n in some:
        order = ORDERS[n]
        end = np.searchsorted(x, order * top + BEYOND + STEP)
        found[n] = process.steps * SLACK * _one_step(order, x[:end], ratio[:end])
    return found


def _one_step(order: int, x: np.ndarray, ratio: np.ndarray) -> float:
    """Return the divergence from log(P/Q) on the grid x."""
    log_q = -(x**2) / 2 - math.log(2 * math.pi) / 2
    whole = float(logsumexp(order * ratio + log_q)) + math.log(STEP)
    if whole > 1:
        return whole / (order - 1)
    # y^order - 1 - order (y - 1), never negative; by powers of log y where y is near 1
    near = np.abs(order * ratio) < 0.01
    small, far = np.where(near, ratio, 0.0), np.where(near, 0.0, ratio)
    series = sum((order**k - order) * small**k / math.factorial(k) for k in range(2, 6))
    direct = np.exp(order * far + log_q) - np.exp(log_q) - order * (np.exp(far + log_q) - np.exp(log_q))
    excess = STEP * float(np.where(near, np.exp(log_q) * series, direct).sum())
    return math.log1p(max(excess, 0.0)) / (order - 1)


def allowed(prior: np.ndarray, posterior: np.ndarray) -> np.ndarray:
    """Compute what each order may come to for K pairs of prior and posterior, float64[K, len(ORDERS)], rounded down."""
    p, r = np.asarray(prior, np.float64)[:, None], np.asarray(posterior, np.float64)[:, None]
    orders = np.asarray(ORDERS, np.float64)
    up, down = orders * np.log(r / p), orders * np.log1p((p - r) / (1 - p))
    with np.errstate(over="ignore"):
        excess = p * np.expm1(up) + (1 - p) * np.expm1(down)
    # of large powers only the larger part, which is less than all
    nats = np.where(up < 500, np.log1p(excess), np.log(p) + up)
    result: np.ndarray = nats / (orders - 1) / SLACK
    return result
