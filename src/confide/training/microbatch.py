"""Turn drawn rows into the input of a model: one micro-batch of a draw."""

from collections.abc import Callable

import torch

from confide.privacy.sampling import Draw
from confide.randomness.streams import Stream
from confide.training.packing import Pack
from confide.training.tasks import Batch, Task


def micro_batch(
    task: Task, draw: Draw, part: Pack, hide: Callable[[str], Stream]
) -> tuple[Batch, torch.Tensor]:
    """Return the batch, and the weight of each of its lines in its unit's gradient: float32[lines].

    If rows share lines, the weights of the rows are inside the batch (`tasks.each_line`), and each line weighs 1.

    Args:
        hide: by a row's place in the draw, the stream that hides its tokens, if the task hides any. So the split
            into micro-batches changes nothing.
    """
    rows = part.rows
    if len(rows) > len(part.lines):
        lines = [[draw.rows[i] for i in line] for line in part.lines]
        return task.collate_lines(lines, [draw.weight[line] for line in part.lines]), torch.ones(len(lines))
    streams = [hide(str(i)) for i in rows] if task.facts.hides_tokens else None
    labels = None if draw.labels is None else draw.labels[rows]
    batch = task.collate([draw.rows[i] for i in rows], labels, streams)
    return batch, torch.from_numpy(draw.weight[rows])
