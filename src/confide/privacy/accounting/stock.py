"""A second opinion before a claim: the epsilon of a pair by unmodified `dp_accounting`.

Curves of confide come from `dp_accounting` too, but with confide's own inverse and composition (`pairs`, `composing`).
The code here uses neither, so that a fault in them is noticed before a claim is written.
"""

import math
from dataclasses import dataclass

from dp_accounting.pld import privacy_loss_distribution as pld

from confide.privacy.accounting.pairs import DominatingPair, MixtureOfGaussians, grid_below
from confide.privacy.accounting.phases import After
from confide.utils.errors import CheckFailed
from confide.utils.rounding import at_most

TOLERANCE = 0.01
"""The largest difference of two epsilons of one pair, relative to the larger one. Connect-the-dots adds up to
(interval / typical loss)^2 / 12 to the variance of a step, 0.5% at a quarter of the typical loss.
"""

SLACK = 1e-3
"""The same as an absolute difference, for epsilons near zero."""

MOST_ATOMS = 40
"""The largest number of a mixture's atoms for the stock inverse, which bisects point by point; more take minutes."""

MOST_POINTS = 1_000_000
"""The largest number of grid points of one step, bounded by the reach of its losses, for the stock inverse."""


@dataclass(frozen=True)
class SecondOpinion:
    """The epsilon of a pair by `dp_accounting` alone, and the interval of its grid."""

    epsilon: float
    interval: float

    def agrees(self, epsilon: float) -> bool:
        """Tell whether an epsilon differs by no more than the two grids may."""
        return abs(epsilon - self.epsilon) <= SLACK + TOLERANCE * max(epsilon, self.epsilon)


def second_opinion(pair: DominatingPair, noise_multiplier: float, delta: float) -> SecondOpinion | None:
    """Compute epsilon at `delta` by `dp_accounting`; None for a pair for which it has no mechanism.

    It knows mixtures of Gaussians (of Poisson sampling, of one row or many). A phase and the process after it are
    composed.
    """
    typical = _typical(pair, noise_multiplier)
    if typical is None:
        return None
    interval = _interval(typical)
    found = _distribution(pair, noise_multiplier, interval)
    if found is None:
        return None
    return SecondOpinion(float(found.get_epsilon_for_delta(delta)), interval)


def _typical(pair: DominatingPair, s: float) -> float | None:
    """Return the typical loss of a step, of the phase with the smaller one if there are two; None: not known."""
    if isinstance(pair, After):
        both = [_typical(pair.phase, pair.phase_noise)]
        both += [] if pair.process is None else [_typical(pair.process, s)]
        known = [each for each in both if each is not None]
        return min(known) if len(known) == len(both) else None
    return pair.mean / s if isinstance(pair, MixtureOfGaussians) else None


def _distribution(pair: DominatingPair, s: float, interval: float) -> pld.PrivacyLossDistribution | None:
    """Build the distribution of all steps; None if there is no mechanism for them, or their grid would be too large."""
    if isinstance(pair, After):
        first = _distribution(pair.phase, pair.phase_noise, interval)
        if first is None or pair.process is None:
            return first
        then = _distribution(pair.process, s, interval)
        return None if then is None else first.compose(then)
    if not isinstance(pair, MixtureOfGaussians):
        return None
    if len(pair.values) > MOST_ATOMS or 2 * _width(max(pair.values), s) / interval > MOST_POINTS:
        return None
    if len(pair.values) == 1:
        one = pld.from_gaussian_mechanism(s / pair.values[0], value_discretization_interval=interval)
    elif pair.values == (0.0, 1.0):
        one = pld.from_gaussian_mechanism(
            s, sampling_prob=pair.probabilities[1], value_discretization_interval=interval
        )
    else:
        one = pld.from_mixture_gaussian_mechanism(
            1.0, [v / s for v in pair.values], pair.probabilities, value_discretization_interval=interval
        )
    return one.self_compose(pair.steps)


def recheck(pair: DominatingPair, noise_multiplier: float, delta: float, epsilon: float) -> bool:
    """Check that `dp_accounting` alone finds the epsilon that is about to be claimed.

    Returns:
        False if it knows no such pair, so that nothing was compared.

    Raises:
        CheckFailed: the two differ by more than their grids may.
    """
    if not (noise_multiplier > 0 and math.isfinite(epsilon)):
        return False
    found = second_opinion(pair, noise_multiplier, delta)
    if found is None:
        return False
    if not found.agrees(epsilon):
        raise CheckFailed(
            f"the claim is epsilon {at_most(epsilon, 6)}, and dp_accounting by itself finds "
            f"{at_most(found.epsilon, 6)} for the same steps and noise: nothing is released. "
            "Please report it (SECURITY.md)"
        )
    return True


def _interval(typical: float) -> float:
    return min(1e-3, max(1e-6, grid_below(typical / 4)))


def _width(furthest: float, s: float) -> float:
    """Estimate how far losses of a step reach: of N(v, s^2) against N(0, s^2) up to twelve standard deviations out."""
    apart = furthest / s
    return apart * (12 + apart / 2)
