"""What a step tells of itself, for the file of private figures."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from confide.distributed.ranks import Ranks
from confide.privacy.sampling import Draw


@dataclass(frozen=True)
class Report:
    """Report of one step. Private: made from private rows, for the metrics file only.

    Attributes:
        loss: mean over the rows whose loss is finite.
        clipped: share of the units that were clipped.
        left_out: number of units whose gradient was not finite; each counted as zero.
    """

    step: int
    rows: int
    units: int
    tokens: int
    loss: float | None
    clipped: float | None
    learning_rate: float
    left_out: int = 0


def reported(
    step: int,
    draw: Draw,
    losses: Sequence[torch.Tensor],
    norms: Sequence[torch.Tensor],
    clip_norm: float | None,
    rate: float,
    ranks: Ranks,
) -> Report:
    """Add up over all ranks what a step came to. All ranks must call this together.

    Args:
        losses: of this rank's rows.
        norms: of the gradients of this rank's units; infinite where a gradient was not finite.
        clip_norm: None if nothing was clipped.
        rate: learning rate of the step.
    """
    loss = torch.cat(list(losses)).double() if losses else torch.zeros(0)
    loss = loss[loss.isfinite()]
    norm = torch.cat([values.cpu() for values in norms]) if norms else torch.zeros(0)
    over, out = (norm > (clip_norm or math.inf)).sum(), norm.isinf().sum()
    seen = torch.tensor(
        [float(loss.sum()), len(loss), float(over), len(norm), float(out)],
        dtype=torch.float64,
        device=ranks.device,
    )
    ranks.add_up([seen])
    total, rows, clipped, units, left_out = seen.tolist()
    return Report(
        step=step,
        rows=len(draw.rows),
        units=draw.groups,
        tokens=sum(len(row) for row in draw.rows),
        loss=total / rows if rows else None,
        clipped=clipped / units if units and clip_norm is not None else None,
        learning_rate=rate,
        left_out=int(left_out),
    )
