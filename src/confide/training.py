"""The step, and the loop around it. The same step serves the command line and library users.

One step of private training (000 Algorithm 2, 003 Algorithms 1 and 2): draw, clip each unit's gradient,
sum, add noise, divide, move.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from confide import models
from confide.clipping import ClippedSum
from confide.mechanisms.base import Combine, Sampler
from confide.noise import FastStream, Normal, RunKey, add_noise
from confide.packing import Pack, pack
from confide.sampling import Draw
from confide.tasks import Batch, Task


@dataclass(frozen=True)
class Optimisation:
    """How noised gradients move the weights. Names as in the `train` section of the config."""

    steps: int
    learning_rate: float = 1e-3
    schedule: str = "constant"
    warmup: int = 0
    optimizer: str = "adamw"
    weight_decay: float = 0.0
    momentum: float = 0.0
    betas: tuple[float, float] = (0.9, 0.999)

    def build(self, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        rate, decay = self.learning_rate, self.weight_decay
        if self.optimizer == "adamw":
            return torch.optim.AdamW(parameters, lr=rate, betas=self.betas, weight_decay=decay)
        if self.optimizer == "adafactor":
            return torch.optim.Adafactor(parameters, lr=rate, weight_decay=decay)
        return torch.optim.SGD(parameters, lr=rate, momentum=self.momentum, weight_decay=decay)

    def rate(self, step: int) -> float:
        """The learning rate of `step`, counted from 0."""
        if step < self.warmup:
            return self.learning_rate * (step + 1) / self.warmup
        share = (step - self.warmup) / max(1, self.steps - self.warmup)
        decay = {"constant": 1.0, "linear": 1 - share, "cosine": 0.5 * (1 + math.cos(math.pi * share))}
        return self.learning_rate * decay[self.schedule]


@dataclass(frozen=True)
class Report:
    """What one step did. Private: made from private rows, for the metrics file only."""

    step: int
    rows: int
    units: int
    tokens: int
    loss: float | None
    clipped: float | None
    learning_rate: float


class Step:
    """One private step after another on a model.

    Formal guarantee: with the `Combine` and `Sampler` of one mechanism, step t computes
    (sum over drawn units of clip(g_u, C) + N(0, s^2 C^2 I)) * scale; `accounting` composes exactly that. An
    empty draw is a noise-only step, and the scale never depends on what was drawn.

    Args:
        model: what trains; parameters that require grad move.
        task: collates rows and computes each row's own loss.
        sampler: draws the logical batches.
        combine: clip norm, noise and scale.
        optimisation: optimiser and schedule.
        key: the run key; noise is a function of (key, phase, step, parameter, index).
        noise: `secure` or `fast`.
        micro_tokens: tokens of a physical micro-batch.
    """

    def __init__(
        self,
        model: nn.Module,
        task: Task,
        sampler: Sampler,
        combine: Combine,
        optimisation: Optimisation,
        key: RunKey,
        phase: str = "main",
        noise: str = "secure",
        micro_tokens: int = 8192,
    ):
        self.model, self.task, self.sampler, self.combine = model, task, sampler, combine
        self.optimisation, self.key, self.phase = optimisation, key, phase
        self.fast = noise == "fast"
        self.micro_tokens = micro_tokens
        self.parameters = models.trainable(model)
        self.optimizer = optimisation.build(list(self.parameters.values()))
        self._losses: list[torch.Tensor] = []
        self.clipped = ClippedSum(model, self._loss, combine.clip_norm)

    def __call__(self, step: int, before_update: Callable[[], None] | None = None) -> Report:
        """Take `step`, counted from 0. `before_update` runs when the noised gradient is ready and unused."""
        self.model.train()
        draw = self.sampler.draw(step)
        norms = [self._add(draw, part, step) for part in pack(draw, self.micro_tokens)]
        total = self.clipped.take()
        for name, vector in total.items():
            if self.combine.noise_scale > 0:
                add_noise(vector, self._source(step, name), self.combine.noise_scale)
            self.parameters[name].grad = vector.mul_(self.combine.scale)
        if before_update is not None:
            before_update()
        rate = self.optimisation.rate(step)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return self._report(step, draw, norms, rate)

    def _add(self, draw: Draw, part: Pack, step: int) -> torch.Tensor:
        if not part.parts:
            weight = torch.from_numpy(draw.weight[part.rows])
            return self.clipped.add(self._batch(draw, part.rows, step), torch.from_numpy(part.units), weight)
        batches = (
            (self._batch(draw, rows, step), torch.from_numpy(draw.weight[rows])) for rows in part.parts
        )
        return torch.tensor([self.clipped.add_large(batches)])

    def _batch(self, draw: Draw, rows: np.ndarray, step: int) -> Batch:
        hide = None
        if self.task.kind == "masked-lm":  # by place in the draw, so that micro-batches change nothing
            hide = [self.key.stream(self.phase, "hide", step, str(i)) for i in rows]
        labels = None if draw.labels is None else draw.labels[rows]
        return self.task.collate([draw.rows[i] for i in rows], labels, hide)

    def _loss(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        losses = self.task.row_loss(model, batch)
        self._losses.append(losses.detach())
        return losses

    def _source(self, step: int, name: str) -> Normal:
        stream = self.key.stream(self.phase, "noise", step, name)
        return FastStream(stream) if self.fast else stream

    def _report(self, step: int, draw: Draw, norms: list[torch.Tensor], rate: float) -> Report:
        losses, self._losses = self._losses, []
        clip = self.combine.clip_norm
        return Report(
            step=step,
            rows=len(draw.rows),
            units=draw.groups,
            tokens=sum(len(row) for row in draw.rows),
            loss=float(torch.cat(losses).mean()) if losses else None,
            clipped=float((torch.cat(norms) > clip).float().mean()) if norms and clip is not None else None,
            learning_rate=rate,
        )

    def state(self) -> dict[str, object]:
        """Everything that the next step depends on beside the arguments of the constructor."""
        weights = {name: p.detach().clone() for name, p in self.parameters.items()}
        return {"weights": weights, "optimizer": self.optimizer.state_dict()}

    def restore(self, state: dict[str, object]) -> None:
        weights = state["weights"]
        assert isinstance(weights, dict)
        with torch.no_grad():
            for name, parameter in self.parameters.items():
                parameter.copy_(weights[name])
        self.optimizer.load_state_dict(state["optimizer"])  # type: ignore[arg-type]
