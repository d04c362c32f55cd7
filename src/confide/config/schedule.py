"""How noised gradients move the weights, for those who plan it: kinds of optimisers, and the learning rate by steps.

Optimisers follow the learning rate, and correlated noise is made for it.
"""

import math

ADAMS = ("tensor-adamw", "adamw")
"""Values of `train.optimizer` whose steps have one length, whatever the gradient's."""


def share_of_peak(step: int, steps: int, schedule: str = "constant", warmup: int = 0) -> float:
    """Compute the learning rate of `step`, counted from 0, over the peak.

    Args:
        step: the step.
        steps: all steps of the phase.
        schedule: constant, linear or cosine, as `train.schedule`.
        warmup: steps of linear warm-up before it.
    """
    if step < warmup:
        return (step + 1) / warmup
    share = (step - warmup) / max(1, steps - warmup)
    return {"constant": 1.0, "linear": 1 - share, "cosine": 0.5 * (1 + math.cos(math.pi * share))}[schedule]
