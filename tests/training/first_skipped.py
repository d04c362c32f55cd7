"""A task as an outside contributor writes it: one file. Its line is put into the registry by the test."""

from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from confide.config.task_facts import TaskFacts
from confide.training.tasks import IGNORE, Batch
from confide.training.tasks.causal_lm import CausalLM


@dataclass(frozen=True)
class FirstSkipped(CausalLM):
    """Causal language modelling in which nothing is learnt of the first token that a row predicts."""

    facts: ClassVar[TaskFacts] = replace(CausalLM.facts, name="first-skipped")

    def targets(self, batch: Batch) -> torch.Tensor:
        begins = torch.zeros_like(batch["input_ids"], dtype=torch.bool)
        begins[:, 0] = True
        if "row" in batch:  # a line holds several rows
            begins[:, 1:] = batch["row"][:, 1:] != batch["row"][:, :-1]
        return super().targets(batch).masked_fill(begins, IGNORE)


@dataclass(frozen=True)
class WholeDocuments(CausalLM):
    """Causal language modelling in which each document is one row."""

    facts: ClassVar[TaskFacts] = replace(CausalLM.facts, name="whole-documents", cuts_documents=False)
