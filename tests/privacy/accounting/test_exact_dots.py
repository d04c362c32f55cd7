"""One step's distribution against the same in 40 digits: what rounding makes of it is below what a curve allows for."""

import math
from itertools import pairwise

import numpy as np
import pytest
from dp_accounting.pld import pld_pmf
from mpmath import erfc, exp, expm1, log, mp, mpf, sqrt

from confide.privacy.accounting.composing import self_composed
from confide.privacy.accounting.pairs import ADD, REMOVE, MixtureLoss

STEPS = 300
EPSILONS = (0.0, 0.5, 1.0, 3.0, 8.0)


def cdf(x):
    return erfc(-x / sqrt(mpf(2))) / 2


def divergence(values, masses, direction, epsilon, near):
    """Of one step in 40 digits; `near` is about where its two sides are equally likely."""
    sign = 1 if direction == ADD else -1

    def weighed(x, power=0):
        return sum(m * v**power * exp(sign * v * x - v * v / 2) for v, m in zip(values, masses, strict=True))

    x = mpf(near)
    for _ in range(2):
        x -= (log(weighed(x)) + sign * epsilon) / (sign * weighed(x, 1) / weighed(x))
    if direction == ADD:
        return cdf(x) - exp(epsilon) * sum(m * cdf(x - v) for v, m in zip(values, masses, strict=True))
    return sum(m * cdf(x + v) for v, m in zip(values, masses, strict=True)) - exp(epsilon) * cdf(x)


def exact(loss, direction, interval, first, last) -> np.ndarray:
    """The masses of connected dots, rounded once."""
    values, masses = ([mpf(float(x)) for x in of] for of in (loss.sensitivities, loss.sampling_probs))
    near = loss.inverse_privacy_losses(np.arange(first, last + 1) * interval)
    deltas = []
    for place, x in zip(range(first, last + 1), near, strict=True):
        epsilon = place * mpf(interval)
        least = max(mpf(0), -expm1(epsilon))
        reached = np.isfinite(x)
        deltas.append(max(least, divergence(values, masses, direction, epsilon, x)) if reached else least)
    rise = expm1(mpf(interval))
    slopes = [(after - before) / rise for before, after in pairwise(deltas)]
    growth = exp(mpf(interval))
    inner = [after - growth * before for before, after in pairwise(slopes)]
    found = [1 - deltas[0] + slopes[0], *inner, -growth * slopes[-1]]
    return np.array([max(0.0, float(mass)) for mass in found])


@pytest.mark.parametrize("direction", [REMOVE, ADD])
@pytest.mark.parametrize(
    ("values", "masses", "s"),
    [
        ([0.0, 1.0], [0.98, 0.02], 1.5),
        ([0.0, 1.0], [0.5, 0.5], 6.0),
        ([0.0, 1.0, 2.0, 5.0], [0.9, 0.07, 0.02, 0.01], 2.5),
        ([0.3, 1.0], [0.75, 0.25], 3.0),
    ],
)
def test_rounding_is_below_what_a_curve_allows_for(values, masses, s, direction):
    interval = 0.01
    with mp.workdps(40):
        loss = MixtureLoss(1.0, [value / s for value in values], masses, adjacency_type=direction)
        ours = loss.dots(interval)
        first, last = ours._lower_loss, ours._lower_loss + ours.size - 1
        theirs = pld_pmf.DensePLDPmf(
            interval, first, exact(loss, direction, interval, first, last), ours._infinity_mass, True
        )
    assert abs(math.fsum(ours._probs) + ours._infinity_mass - 1) < 1e-15
    found, right = (self_composed(one, STEPS).get_delta_for_epsilon(EPSILONS) for one in (ours, theirs))
    assert np.abs(np.array(found) - right).max() < STEPS * 2.0**-50  # what `Composed` adds
