"""The grid that noised sums of gradients are rounded to, so that their last digits tell nothing.

A float64 near zero has digits far below those of a sum: floats lie closest there. So a noised value near zero could
show digits that no other sum would have led to (Mironov 2012, "On significance of the least significant bits for
differential privacy"). On a grid it shows none. To round what has been noised is postprocessing, and costs no privacy.
"""

import math

BITS = 24  # of the noise's scale that are kept, as many as a float32 has


def shift_of(scale: float) -> float:
    """Return what to add to a float64 and to subtract again, so that it is rounded to the grid of noise of a scale.

    The grid is of 2^-24 of the scale, or up to twice as fine. Each of its steps holds about 2^28 float64 values of the
    noise, wherever the sum lies. Values beyond 2^26 times the scale fall on another grid, far finer than their own
    float32. With a scale of 0 there is no grid.
    """
    return 1.5 * 2.0 ** (52 - BITS - 1 + math.frexp(scale)[1]) if scale > 0 else 0.0
