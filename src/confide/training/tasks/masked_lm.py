"""Masked language modelling, as BERT does it."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import numpy as np
import torch
from torch import nn

from confide.config.task_facts import MASKED_LM, TaskFacts
from confide.models.fast.cross_entropy import IGNORE
from confide.models.fast.logits import logits_at
from confide.randomness.streams import Stream
from confide.training.tasks.base import Batch, Task

MASKED_SHARE = 0.15  # as in BERT (Devlin et al. 2019): 80% mask token, 10% random, 10% unchanged
# Logits are made of a quarter of a row's tokens at least, rounded up to a multiple of 8.
_PART, _TOGETHER = 4, 8


@dataclass(frozen=True)
class MaskedLM(Task):
    """Hides some tokens of a row, and predicts them from the rest of the row."""

    facts: ClassVar[TaskFacts] = MASKED_LM

    def with_targets(
        self,
        batch: dict[str, torch.Tensor],
        rows: list[np.ndarray],
        labels: np.ndarray | None,
        hide: Sequence[Stream] | None,
    ) -> dict[str, torch.Tensor]:
        if hide is None or len(hide) != len(rows):
            raise ValueError(f"{self.facts.name} needs a stream for each row to choose the hidden tokens")
        hidden, targets = self._hide(batch["input_ids"], batch["real"], rows, hide)
        return batch | {"input_ids": hidden, "labels": targets, "places": _counted(targets)}

    def _hide(
        self, ids: torch.Tensor, real: torch.Tensor, rows: list[np.ndarray], hide: Sequence[Stream]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        lots = torch.zeros((3, *ids.shape), dtype=torch.float64)
        for i, (row, stream) in enumerate(zip(rows, hide, strict=True)):
            lots[:, i, : len(row)] = torch.from_numpy(stream.uniform(3 * len(row)).reshape(3, len(row)))
        open_ = real & ~torch.isin(ids, torch.tensor(self.special))
        chosen = open_ & (lots[0] < MASKED_SHARE)
        labels = ids.masked_fill(~chosen, IGNORE)
        hidden = ids.masked_fill(chosen & (lots[1] < 0.8), self.mask or 0)
        random = (lots[2] * self.vocabulary).long()
        return torch.where(chosen & (lots[1] >= 0.9), random, hidden), labels

    def targets(self, batch: Batch) -> torch.Tensor:
        return batch["labels"].gather(1, batch["places"])

    def predicted(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        return logits_at(model, batch["places"], partial(self.logits, model, batch))


def _counted(labels: torch.Tensor) -> torch.Tensor:
    """Return the places that count of each row, and where it has fewer than others some that do not: int64[B, n].

    n is a quarter of a row's tokens, unless a row of the batch has more that count: few shapes, so that memory seldom
    has to be asked for anew.
    """
    counts = labels != IGNORE
    most = max(int(counts.sum(1).max()), labels.shape[1] // _PART)
    width = -(-most // _TOGETHER) * _TOGETHER
    return (~counts).to(torch.uint8).argsort(dim=1, stable=True)[:, :width]
