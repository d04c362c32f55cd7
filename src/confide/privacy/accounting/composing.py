"""One step's privacy losses on a grid, and those of T equal steps: the computations of `dp_accounting`, but faster.

A search for the least noise composes dozens of distributions. `DensePLDPmf.self_compose` spends most of that on the
bounds beyond which mass may be cut off, one `logsumexp` for each of 40 orders, and on a transform of complex numbers.
Its connect-the-dots goes through a dictionary of all grid points.
"""

import math

import numpy as np
from dp_accounting.pld import pld_pmf
from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution
from scipy import fft

_RISE = 1e-10  # rise that rounding may cause in divergences that should fall

TRUNCATED = 1e-15
"""The most mass that is cut off, and counted as lost: `dp_accounting`'s default."""
_ORDERS = 20


def connected(interval: float, first: int, above: np.ndarray) -> pld_pmf.DensePLDPmf:
    """Build the pessimistic connect-the-dots distribution of a step's privacy losses.

    Source: Doroshenko et al. 2022, Algorithm 1. On the grid the distribution has the step's divergence. Between two
    grid points it is linear in e^epsilon, which lies above the step's, a convex function of e^epsilon. Where rounding
    makes the divergences less than convex, it lies above on the grid as well. Two equal worlds have a divergence of
    max(0, 1 - e^epsilon) and all mass at 0. The rest, which lies above that, adds D_i - e^h D_(i-1) to loss i, with
    D_i = (above_(i+1) - above_i) / (e^h - 1). By itself this rest is small where epsilon is far from 0. In a
    difference of whole divergences, rounding would leave 1e-16 / h there, a mass that would be added anew in every
    step.

    Args:
        interval: h, of the grid.
        first: the first loss is `first` intervals, each other one more than the one before.
        above: float64[n], the step's hockey-stick divergence at epsilon = each loss, less max(0, 1 - e^epsilon).

    Raises:
        ValueError: a divergence is no number, or rises with epsilon, from 0 on, by more than 1e-10.
    """
    if np.isnan(above).any():
        raise ValueError("a divergence is no number")
    losses = interval * np.arange(first, first + len(above))
    above = np.clip(above, 0.0, np.exp(np.minimum(losses, 0.0)))
    falls = np.diff(above)
    if np.any(falls[losses[:-1] >= 0] > _RISE):
        raise ValueError("a divergence rises with epsilon")
    slopes = falls / math.expm1(interval)
    lost = float(above[-1] - math.expm1(min(losses[-1], 0.0)))
    masses = np.zeros(len(above))
    masses[0] = -above[0]
    masses[:-1] += slopes
    masses[1:] -= slopes
    masses[1:] -= falls
    masses[min(max(-first, 0), len(masses) - 1)] += math.exp(min(losses[-1], 0.0))
    return pld_pmf.DensePLDPmf(interval, first, np.maximum(masses, 0.0), lost, True)


def mirrored(interval: float, deltas: np.ndarray) -> pld_pmf.DensePLDPmf:
    """Build the same distribution for a pair whose divergence is the same in either order.

    Args:
        interval: h, of the grid.
        deltas: float64[n], at epsilon = 0, h, 2 h, ...; above 1 - e^-epsilon lies e^-epsilon times as much.
    """
    below = deltas * np.exp(-interval * np.arange(len(deltas)))
    return connected(interval, 1 - len(deltas), np.concatenate([below[:0:-1], deltas]))


def sides(distribution: PrivacyLossDistribution) -> list[pld_pmf.DensePLDPmf]:
    """Return removal and addition; a single one for both if they are alike."""
    both = (
        [distribution._pmf_remove]
        if distribution._symmetric
        else [distribution._pmf_remove, distribution._pmf_add]
    )
    return [side.to_dense_pmf() for side in both]


def bounds(masses: np.ndarray, steps: int) -> tuple[int, int]:
    """Return the first and last place of the sum of `steps` independent places, up to `TRUNCATED` of the mass.

    This is Chernoff's bound at the orders of `dp_accounting.pld.common.compute_self_convolve_bounds`, +-1/n .. +-20/n
    for n places: no exponential leaves e^+-20, so no logarithms are needed, and each is the one before times e^(i /
    n).

    Args:
        masses: float64[n] of the places 0 to n - 1.
        steps: number of places that are added up.
    """
    n = len(masses)
    low, high = 0.0, float((n - 1) * steps)
    if not masses.any():  # all mass is at infinite loss
        return 0, int(high)
    rise, room = np.exp(np.arange(n) / n), math.log(2 / TRUNCATED)
    rising, falling = masses.copy(), masses.copy()
    for order in range(1, _ORDERS + 1):
        rising *= rise
        falling /= rise
        high = min(high, math.ceil((steps * math.log(rising.sum()) + room) * n / order))
        low = max(low, math.floor(-(steps * math.log(falling.sum()) + room) * n / order))
    return int(low), int(high)


def self_composed(one_step: pld_pmf.DensePLDPmf, steps: int) -> pld_pmf.DensePLDPmf:
    """Compose `steps` independent steps with these privacy losses.

    Losses add up; their distribution is a Fourier transform to the power of T.

    Formal guarantee: pessimistic if `one_step` is, up to the rounding of the transform (`curves.Composed`): mass that
    is cut off counts as lost, and wherever it wraps around to, it only adds.
    """
    masses, lost = one_step._probs, one_step._infinity_mass
    low, high = bounds(masses, steps)
    size = high - low + 1
    length = fft.next_fast_len(max(size, len(masses)), real=True)
    total = fft.irfft(fft.rfft(masses, length) ** steps, length)
    return pld_pmf.DensePLDPmf(
        one_step._discretization,
        one_step._lower_loss * steps + low,
        np.roll(total, -low)[:size],
        1.0 if lost >= 1 else TRUNCATED - math.expm1(steps * math.log1p(-lost)),
        one_step._pessimistic_estimate,
    )
