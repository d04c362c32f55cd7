"""Average the weights over the last steps: less noise in the released weights, at no cost in privacy."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from confide.config.train_section import Average
from confide.distributed.sharding import like, part, part_of, whole


@dataclass
class Averages:
    """Running mean of a model's trainable weights over the steps of a run.

    `tail` is the plain mean over the last `share` of the steps (Polyak & Juditsky 1992). `ema` is an exponential
    mean that looks back over `share` of the steps; until that many steps were taken, it is the plain mean.

    Formal guarantee: none is needed. A mean of iterates is a function of the iterates alone, and every iterate is
    covered.

    Args:
        parameters: the trainable parameters, by name; their values are read after each step.
        kind, share: as in `train.average`.
        steps: number of steps of the run, over all stages.
    """

    parameters: dict[str, nn.Parameter]
    average: Average
    steps: int

    def __post_init__(self) -> None:
        self.means: dict[str, torch.Tensor] = {}
        self.count = 0

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Add the weights as they are after `step`, counted from 0."""
        span = max(1, math.ceil(self.average.share * self.steps))
        if self.average.kind == "none" or (self.average.kind == "tail" and step < self.steps - span):
            return
        self.count += 1
        if not self.means:
            self.means = {name: part(p.detach()).clone() for name, p in self.parameters.items()}
            return
        weight = 1 / min(self.count, span)
        for name, mean in self.means.items():
            mean.lerp_(part(self.parameters[name].detach()), weight)

    @property
    def has_begun(self) -> bool:
        """False if a mean is asked for and none of its steps was taken yet."""
        return self.average.kind == "none" or bool(self.means)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Give the model the mean inside the context, and restore its own weights exactly afterwards."""
        own = {name: part(self.parameters[name].detach()).clone() for name in self.means}
        self._set(self.means)
        try:
            yield
        finally:
            self._set(own)

    @torch.no_grad()
    def _set(self, values: dict[str, torch.Tensor]) -> None:
        for name, value in values.items():
            part(self.parameters[name]).copy_(value)

    def state(self) -> dict[str, Any]:
        """Return the full (unsharded) state on the CPU. All ranks must call this together."""
        means = {name: whole(like(mean, self.parameters[name])).cpu() for name, mean in self.means.items()}
        return {"means": means, "count": self.count}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a full state, which every rank must hold."""
        self.count = state["count"]
        self.means = {
            name: part(part_of(mean, self.parameters[name])).to(self.parameters[name].device).clone()
            for name, mean in state["means"].items()
        }
