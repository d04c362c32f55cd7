"""Language modelling from left to right, as GPT does it."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from confide.config.task_facts import TaskFacts
from confide.training.tasks.base import IGNORE, Batch, Task


@dataclass(frozen=True)
class CausalLM(Task):
    """Each token but a row's first is predicted from those before it."""

    facts: ClassVar[TaskFacts] = TaskFacts(
        name="causal-lm",
        model_class="AutoModelForCausalLM",
        adapter_type="CAUSAL_LM",
        cuts_documents=True,
        is_causal=True,
    )

    def targets(self, batch: Batch) -> torch.Tensor:
        following = torch.full_like(batch["input_ids"], IGNORE)  # the targets move, not the far larger logits
        ahead = batch["input_ids"][:, 1:]
        nothing = ~batch["real"][:, 1:]
        if "row" in batch:
            nothing = nothing | (batch["row"][:, 1:] != batch["row"][:, :-1])
        if self.mask is not None:  # a mask stands for text that is not there: there is nothing to learn of it
            nothing = nothing | (ahead == self.mask)
        following[:, :-1] = ahead.masked_fill(nothing, IGNORE)
        return following
