"""Language modelling from left to right, as GPT does it."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from confide.config.task_facts import CAUSAL_LM, TaskFacts
from confide.models.fast.cross_entropy import IGNORE
from confide.training.tasks.base import Batch, Task


@dataclass(frozen=True)
class CausalLM(Task):
    """Predicts each token from the tokens before it, except a row's first and those marked as not predicted."""

    facts: ClassVar[TaskFacts] = CAUSAL_LM

    def targets(self, batch: Batch) -> torch.Tensor:
        following = torch.full_like(
            batch["input_ids"], IGNORE
        )  # the targets are shifted, not the far larger logits
        ahead = batch["input_ids"][:, 1:]
        nothing = ~batch["real"][:, 1:]
        if "unpredicted" in batch:
            nothing = nothing | batch["unpredicted"][:, 1:]
        if "row" in batch:
            nothing = nothing | (batch["row"][:, 1:] != batch["row"][:, :-1])
        if self.mask is not None:  # a mask stands for missing text, so there is nothing to learn from it
            nothing = nothing | (ahead == self.mask)
        following[:, :-1] = ahead.masked_fill(nothing, IGNORE)
        return following
