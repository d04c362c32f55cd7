"""Estimate the memory at the peak of a training step, by part.

    weights      the bytes of every parameter and buffer, in the type that it is held in
    what trains  4 bytes of each trained value: for the clipped sum, its noised mean, and each state of the optimiser
    activations  c + r (a T + b T^2), for r rows of T tokens in a micro-batch
    logits       4 V bytes a token, or 6 if the model computes in 16 bits: its logits, and their copy in float32. Where
                 the loss is computed in chunks, 8 V or 10 V a token of one chunk, with its probabilities
    gaps         4 (V + 11 d L) bytes a token, on a CPU alone, of a model with width d and L layers: what the process
                 holds besides, since it keeps freed memory (`utils/allocator.py`). This was fitted to peaks of
                 processes that train LoRA of four small models, with gradient checkpointing and without

`kept` finds a, b and c: what autograd keeps in passes over made-up rows of three short lengths, apart from the weights.
The probabilities of every token, which become its gradient, are part of that.

That is for LoRA. What trains the model's own weights has other peaks, when clipped sums are formed; for that,
`activations` is fitted to peaks of processes that train GPT-2 on a CPU. Other families may need up to twice as much.
"""

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from confide.config import registry
from confide.planning.cost import Size
from confide.training.memory_fit import MOST, optimizer_copies
from confide.training.tasks import Task

if TYPE_CHECKING:
    from confide.config.schema import Config

_LENGTHS = (8, 16, 24)  # tokens of made-up rows
_GAPS = 11  # float32 values per token and layer, in units of the width


@dataclass(frozen=True)
class Kept:
    """Bytes that autograd keeps: of a pass, of each token, and of each token for each other token of its row."""

    once: float
    token: float
    pair: float

    def of(self, rows: float, tokens: int) -> float:
        """Return the bytes of rows of so many tokens each."""
        return self.once + rows * (self.token * tokens + self.pair * tokens**2)


@dataclass(frozen=True)
class Memory:
    """Bytes at the peak of a step."""

    weights: int
    trained: int
    activations: int
    logits: int
    gaps: int = 0

    @property
    def whole(self) -> int:
        return sum(asdict(self).values())


def memory(
    config: "Config", size: Size, kept: Kept | None = None, chunk: int = 0, on_cpu: bool = False
) -> Memory:
    """Estimate the bytes at the peak of a step; without `kept`, by a fit to GPT-2.

    Args:
        chunk: tokens whose logits are made at a time; 0 for all at once. `kept` must be of such passes.
        on_cpu: count the gaps of the process's memory as well. Without `kept`, the fit has them.
    """
    train = config.train
    tokens = MOST["cpu"] if train.micro_tokens == "auto" else train.micro_tokens
    predicts = not registry.task_facts(config.task).has_classes
    trained, gaps = 4 * size.trainable * (2 + optimizer_copies(config)), 0
    if kept is not None:
        each = min(config.data.max_length, tokens)
        activations = kept.of(tokens / each, each)
        each_token = (6 if config.base.precision != "float32" else 4) + (4 if chunk else 0)
        logits = each_token * size.vocabulary * min(tokens, chunk or tokens)
        if on_cpu:
            gaps = 4 * (predicts * size.vocabulary + _GAPS * size.width * size.layers) * tokens
    else:
        # Float32 values per token and layer, in units of the width: what autograd keeps (Korthikanti et al. 2022
        # count 34 bytes at half precision), and what the clipping keeps besides, which checkpoints do not drop.
        # With LoRA a process is larger by unused parts of its allocations.
        values = 34 if config.adapter.kind == "lora" else 14 if train.gradient_checkpointing else 20
        activations = 4.0 * values * size.width * size.layers * tokens
        logits = 2 * 4 * size.vocabulary * tokens  # logits, and the softmax that becomes their gradient
    return Memory(size.weights_bytes, trained, int(activations), logits * predicts, gaps)


def kept(model: nn.Module, task: Task, longest: int) -> Kept:
    """Measure what autograd keeps of a row, by passes over rows of three lengths; the model stays as it is.

    Args:
        longest: tokens of the longest row.
    """
    lengths = _LENGTHS if longest >= _LENGTHS[-1] else tuple(max(2 + n, longest * n // 3) for n in (1, 2, 3))
    was_training = model.training
    model.train()  # gradient checkpointing works in train mode alone
    try:
        found = [_saved(model, task, length) for length in lengths]
    finally:
        model.train(was_training)
    once, token, pair = np.linalg.solve([[1, 2 * n, 2 * n**2] for n in lengths], found)
    return Kept(max(once, 0.0), max(token, 0.0), max(pair, 0.0))


def _saved(model: nn.Module, task: Task, tokens: int) -> int:
    """Count the bytes that a forward pass over two rows keeps for the backward pass, besides the model's own."""
    own = {t.untyped_storage().data_ptr() for t in (*model.parameters(), *model.buffers())}
    held: dict[int, torch.Tensor] = {}  # keeps them alive, so that no two have one place in memory

    def hold(values: torch.Tensor) -> torch.Tensor:
        place = values.untyped_storage().data_ptr()
        if place not in own:
            held.setdefault(place, values)
        return values

    def give(values: torch.Tensor) -> torch.Tensor:
        return values

    some = np.arange(tokens) % task.vocabulary
    with torch.autograd.graph.saved_tensors_hooks(hold, give):
        task.row_loss(model, task.collate([some, some[::-1].copy()], **_extra(task, 2)))
    return sum(values.untyped_storage().nbytes() for values in held.values())


def _extra(task: Task, rows: int) -> dict[str, Any]:
    from confide.randomness.streams import RunKey

    if task.facts.has_classes:
        return {"labels": np.zeros(rows, np.int64)}
    key = RunKey.from_text("made up")
    hide = [key.stream("memory", "hide", row) for row in range(rows)]
    return {"hide": hide} if task.facts.hides_tokens else {}
