"""The mean of the weights over the last steps: less noise in what is released, at no cost in privacy."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from confide.config.schema import Average
from confide.distributed.sharding import like, part, part_of, whole


@dataclass
class Averages:
    """A running mean of a model's trainable weights over the steps of a run.

    `tail`: the plain mean over the last `share` of the steps (Polyak & Juditsky 1992). `ema`: an exponential one
    that looks back over `share` of the steps, plain as long as it is shorter than that.

    Formal guarantee: none is needed. A mean of iterates is a function of them alone, and every iterate is covered.

    Args:
        parameters: the trainable ones, by name; their values are read after each step.
        kind, share: as in `train.average`.
        steps: of the run, of all stages.
    """

    parameters: dict[str, nn.Parameter]
    average: Average
    steps: int

    def __post_init__(self) -> None:
        self.means: dict[str, torch.Tensor] = {}
        self.count = 0

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Take in the weights as they are after `step`, counted from 0."""
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
        """False where a mean is asked for and none of its steps was taken yet."""
        return self.average.kind == "none" or bool(self.means)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """The model has the mean for as long as this lasts, and its own weights afterwards, to the bit."""
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
        """Whole, on the CPU; all ranks ask together."""
        means = {name: whole(like(mean, self.parameters[name])).cpu() for name, mean in self.means.items()}
        return {"means": means, "count": self.count}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a state, which every rank has whole."""
        self.count = state["count"]
        self.means = {
            name: part(part_of(mean, self.parameters[name])).to(self.parameters[name].device).clone()
            for name, mean in state["means"].items()
        }
