"""Estimate how far a run gets: the rule of thumb by which settings are ranked, and its constants.

It is a rule for Adam, whose steps have one length whatever the gradient's. Let the variance of a step's noise be
`ratio` times that of the gradient. Then a step goes 1 / sqrt(1 + ratio) of its way along the gradient. The rest is a
random walk. Progress falls with the sum of the squared learning rates. *An estimate*: the constants
are of the bundled model with all weights. Searches chose nearly its rates for two smaller models (docs/planner.md).
"""

import math
from collections.abc import Callable

from confide.config.train_section import EMBEDDINGS
from confide.planning.cost import ATTENTION, Size
from confide.privacy.mechanisms.base import Mechanism

SHORTER = 0.43
"""Share of the squared norm of one row's gradient that is its own and not its user's.

L(k)^2 is (1 - SHORTER) + SHORTER / k, in units of L(1)^2. Measured on the senders of 20 Newsgroups at the bundled
model (docs/rows-and-users.md).
"""

DIMENSIONS = 0.11
"""Share of the trainable weights in which noise is felt, over the squared length of the mean clipped gradient."""

WALK = 2100.0
"""Drop of the logarithm of progress for each unit of the sum of squared learning rates.

Like `DIMENSIONS`, it was fitted to runs of 16 to 64 steps at one budget and three epsilons on 20 Newsgroups, at
the rate of 4e-3. `confide study suggestion` holds against new runs what they predict: at two rates, and at half
and twice the budget.
"""

FITTED = range(16, 65)
"""Numbers of steps of the runs that the constants are fitted to."""

STEADY = 2e-3
"""The rate that training without noise bears, at a model of width `WIDTH`.

It is the one that `confide study user-level` chose for customers without privacy, at a constant rate after four steps
of warm-up. At twice that rate their training broke down.
"""

WIDTH = 256
"""Width of the bundled model.

Without noise all weights of a row move in step, and an output of a layer moves by the rate times the width. So a wider
model bears a lower rate in proportion (Yang et al. 2021, "Tensor Programs V").
"""

HIGHEST = 8e-3
"""The highest rate that was tried in the studies and did well, in 18 and 32 steps with much noise."""

BETAS = (0.6, 0.999)
"""The betas of a suggestion with correlated noise, of which a longer mean takes back more.

In `confide study bands` a first beta of 0.6 was at most 0.001 nats worse than 0.3, the default of short runs, on posts
and articles at the best rate, wherever noise was correlated over the most bands. On customers 0.6 was chosen.
"""

ATTENTION_SCALE = 0.5
SCALED = {EMBEDDINGS: 2.0, ATTENTION[0]: ATTENTION_SCALE}
"""Factors on gradients before clipping (`privacy.scales`) that a suggestion sets."""

COMMON_TOKENS = 0.25
"""The power by which rows of common tokens count less (`privacy.common_tokens`) in a suggestion that sets `SCALED`."""

COMMON_FASTER = 1.3
"""How much higher the learning rate is with it, since rows of common tokens move less.

In `confide study scales` the chosen rate was 1 to 2 times as high as with `SCALED` alone; on the bundled model, whose
customers alone gained by it, twice. This lies in between.
"""

COMMON_FROM = 8192
"""The fewest tokens of a vocabulary at which a suggestion sets it.

In `confide study scales` the bundled model, which has as many, gained by it. One with 512 tokens did not.
"""

COMMON_UP_TO = 3.0
"""The most noise in the weights, as a multiple of the gradient's length, at which a suggestion sets it.

In `confide study scales` the bundled model had 18% less perplexity with it at 2.1 times, and 7% more at 14. Between
the two nobody looked.
"""

SCALED_UP_TO = 10.0
"""The most noise in the weights, as a multiple of the gradient's length, at which a suggestion sets them.

In `confide study scales` they had 13% to 20% less perplexity at 1.4 to 2.8 times, 8% to 11% at 3.3 and 4.3, 3% at 8 and
13, and 2% more at 14, which is undecided.
"""

SQUARES = {"constant": 1.0, "linear": 1 / 3, "cosine": 3 / 8}
"""Mean square of a schedule's learning rates, in units of the peak's square, of a long run without warm-up.

A run of 4 linear steps has 0.47. Its rate comes out up to a fifth too high.
"""


def log_progress(steps: int, ratio: float, squared_rate: float, walk: float = WALK) -> float:
    """Compute what T steps at some rate are worth: the log of a number of them without noise and random walk.

    The walk counts the whole of each step, and not the part of it that is noise: the runs that its constant is fitted
    to had much noise. Where there is little, `own_rate` bounds the rate.

    Args:
        squared_rate: mean square of the learning rates.
    """
    return math.log(steps) - math.log1p(ratio) / 2 - walk * steps * squared_rate


def best_rate(steps: int, schedule: str) -> float:
    """Compute the peak learning rate with which so many noised steps go farthest.

    In T steps the weights go T times the rate, times exp(-walk T s rate^2), where s is the mean square of the schedule.
    That is most at 1 / sqrt(2 walk T s). `confide study optimisers` tries it on a model that the constant was not
    fitted to.
    """
    return 1 / math.sqrt(2 * WALK * steps * SQUARES[schedule])


def own_rate(steps: int, schedule: str, ratio: float, share: float = 1.0, width: int = WIDTH) -> float:
    """Compute the peak learning rate of a setting: `best_rate`, or less where there is little noise.

    The part of a step that goes along the gradient is then no longer than a step without noise may be (`steady_rate`).
    No rate is above `HIGHEST`. Of noise that is correlated over steps only a share stays in the weights, so that their
    walk is as long at a higher rate: the best rate and `HIGHEST` are then higher by one over the root of the share.
    `confide study bands` tries that.

    Args:
        share: `Correlation.walk_share` of the noise; 1 if it is independent.
        width: of the model.
    """
    longer = 1 / math.sqrt(share)
    return min(
        best_rate(steps, schedule) * longer, steady_rate(width) * math.sqrt(1 + ratio), HIGHEST * longer
    )


def steady_rate(width: int) -> float:
    """Return how long the part of a step along the gradient may be: `STEADY`, in inverse proportion to the width."""
    return STEADY * WIDTH / width


def twin_rate(width: int) -> float:
    """Return a rate for the non-private twin of a run: `steady_rate`, and no more than `STEADY`.

    Nobody has shown that a narrow model gains by more.
    """
    return min(STEADY, steady_rate(width))


def lora_higher(width: int, rank: int, scale: float) -> float:
    """Compute how much higher the rates of LoRA factors are than those of whole weights.

    At `best_rate` the noise in a whole weight has a variance of v = 1 / (2 walk) at the end, whatever the steps, and it
    moves an output by sqrt(v) |x|. LoRA's output is scale B A x. At a rate h times as high, noise gives each element of
    B a variance of h^2 v, and adds as much to A, whose elements begin with 1 / (3 width). So it moves an output by
    scale h sqrt(rank v (1 / (3 width) + h^2 v)) |x|. The h is returned with which both are alike. *An estimate*: that
    the factors learn is left out.

    Args:
        width: of the layers' inputs.
        rank: of the factors.
        scale: of their product.
    """
    p, q = scale**2 * rank / (3 * width), scale**2 * rank / (2 * WALK)
    return math.sqrt((math.sqrt(p**2 + 4 * q) - p) / (2 * q))  # p h^2 + q h^4 = 1


def lengths_of_thumb(k: int) -> float:
    """Estimate L(k), the norm of the mean gradient of k rows of a unit, in units of L(1)."""
    return math.sqrt(1 - SHORTER + SHORTER / k)


def signal(mechanism: Mechanism, cap: int, lengths: Callable[[int], float] = lengths_of_thumb) -> float:
    """Return the part of a gradient's length that is left in the mean, relative to single rows: L(1) / L(k).

    Args:
        cap: rows of a unit.
        lengths: k -> L(k).
    """
    return lengths(1) / lengths(cap if mechanism.draws == "units" else 1)


def gradients_in_noise(noise: float, left: float, size: Size) -> float:
    """Compute the ratio of the variance of a step's noise to that of what it follows.

    Args:
        noise: on the mean clipped gradient, in clip norms.
        left: the `signal`.
    """
    return DIMENSIONS * size.trainable * (noise / left) ** 2
