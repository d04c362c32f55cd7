"""The grid that noised sums of gradients are rounded to, so that their last digits tell nothing.

A float64 near zero has digits far below those of a sum: floats lie closest there. So a noised value near zero could
show digits that no other sum would have led to (Mironov 2012, "On significance of the least significant bits for
differential privacy"). On a grid it shows none. To round what has been noised is postprocessing, and costs no privacy.

The grid is coarse, since two values that Box-Muller makes of one radius lie on a circle together, and there are only so
many circles. Far out they are sparse. Where they are sparser than the grid, two noised values would show which of two
sums leads to a circle. With this grid and radii of 74 bits, that happens to fewer than 1 of 2^64 pairs. With
`noise: fast` other generators make the values, and nothing of the kind is claimed.
"""

import math

BITS = 12  # of the scale of the noise that are kept; what is rounded off adds five billionths to its variance at most


def step_of(scale: float) -> float:
    """Return the step of the grid for noise of a scale: 2^-12 of the scale, or down to half of that."""
    return 2.0 ** (math.frexp(scale)[1] - 1 - BITS)


def shift_of(scale: float) -> float:
    """Return what to add to a float64 and to subtract again, so that it is rounded to the grid of noise of a scale.

    Values beyond 2^38 times the scale fall on another grid, far finer than their own float32. With a scale of 0 there
    is no grid.
    """
    return 1.5 * 2.0**52 * step_of(scale) if scale > 0 else 0.0
