"""Measure how many tokens a physical micro-batch may hold, instead of guessing."""

from collections.abc import Mapping
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import nn

from confide.clipping import ClippedSum
from confide.config import registry
from confide.config.schedule import ADAMS
from confide.distributed.ranks import Ranks
from confide.distributed.sharding import is_sharded
from confide.privacy.correlated_noise import correlation_of
from confide.randomness.streams import RunKey
from confide.training.line_packing import WIDEST
from confide.training.tasks import Task
from confide.utils import memory
from confide.utils.errors import InputError

if TYPE_CHECKING:
    from confide.config.schema import Config

MOST = {"cpu": 8192, "cuda": 65536}  # larger ones are no faster
LOGITS = 1 << 31  # logits that a pass may hold: some GPU kernels cannot index more
SHARE = {
    "cpu": 0.7,
    "cuda": 0.85,
}  # share of the free memory: on a CPU, other programs need the last bytes too
PROBES = (2, 8)  # rows of the two measured passes


def optimizer_copies(config: "Config", is_twin: bool = False) -> int:
    """Return how many float32 copies of the trainable weights training keeps at most, beside the weights themselves.

    These are the optimiser's states, the past noise that correlated noise needs, and the mean of the weights.

    Args:
        is_twin: True if the run has no noise, whatever its config says.
    """
    train, privacy = config.train, config.privacy
    is_plain = (
        is_twin or privacy.noise_multiplier == 0 or registry.mechanism(privacy.mechanism).has_plain_steps
    )
    if train.optimizer in ADAMS:  # a step without noise is plain AdamW's, whatever is named
        states = 1 if train.optimizer == "tensor-adamw" and not is_plain else 2
    else:
        states = 1 if train.momentum else 0
    past = 0 if is_twin else correlation_of(privacy.bands, privacy.buffers).copies
    return states + past + (train.average.kind != "none")


def fit(
    model: nn.Module,
    task: Task,
    width: int,
    ranks: Ranks,
    reserved_bytes: int,
    scales: Mapping[str, float | torch.Tensor] = MappingProxyType({}),
) -> int:
    """Measure how many tokens of a micro-batch fit in memory: a power of two, the same on every rank.

    Two passes over made-up rows show what a row takes. The free memory then says how many rows fit.

    Args:
        width: tokens of the longest row.
        reserved_bytes: bytes that training will take as well, such as an optimiser's state.
        scales: factors on the gradients of parameters, as `ClippedSum` has them: what is multiplied is a copy.
    """
    kind = ranks.device.type
    most = min(MOST[kind], 1 << (LOGITS // task.vocabulary).bit_length() - 1)
    clipped = ClippedSum(model, task.packed_loss, 1.0, ranks, scales)
    peaks: list[int | None] = []
    was_training = model.training
    model.train()  # as in training: gradient checkpointing works in train mode alone
    try:
        for rows in (PROBES[0], *PROBES):  # the first pass allocates what is allocated only once
            batch = _made_up(task, rows, width)
            peaks.append(memory.peak(ranks.device, partial(_pass, clipped, batch)))
    except (RuntimeError, MemoryError) as error:
        if not memory.ran_out(error):
            raise
        if is_sharded(model):  # the other ranks are in the middle of the pass
            raise InputError(
                f"train.micro_tokens: memory does not suffice for {PROBES[1]} rows of {width} tokens on this rank: set "
                "fewer tokens, or train.gradient_checkpointing: true"
            ) from error
        return ranks.least(width)
    finally:
        clipped.forget()
        model.train(was_training)
    _, low, high = peaks
    room = memory.free(ranks.device)
    found = most
    if low is not None and high is not None and room is not None and high > low:
        each = (high - low) / (PROBES[1] - PROBES[0]) / width
        if kind == "cpu":  # memory that the process has touched stays its own and is used again
            room = room // ranks.local_size + high - low
        found = int((room * SHARE[kind] - reserved_bytes) / each)
    return ranks.least(max(width, min(most, 1 << max(found, 1).bit_length() - 1)))


def _pass(clipped: ClippedSum, batch: dict[str, torch.Tensor]) -> None:
    lines = len(batch["input_ids"])
    clipped.add(batch, torch.arange(lines), torch.ones(lines))
    clipped.forget()


def _made_up(task: Task, rows: int, width: int) -> dict[str, torch.Tensor]:
    key = RunKey.from_text("made up")
    tokens = [key.stream("fit", "row", i).below(np.full(width, task.vocabulary)) for i in range(rows)]
    if task.packs_rows:  # lines may be as wide as allowed: attention takes memory by their width
        lines = [tokens[first : first + WIDEST] for first in range(0, rows, WIDEST)]
        return dict(task.collate_lines(lines, [np.ones(len(line)) for line in lines]))
    hide = [key.stream("fit", "hide", i) for i in range(rows)] if task.facts.hides_tokens else None
    return dict(task.collate(tokens, np.zeros(rows, np.int64), hide))
