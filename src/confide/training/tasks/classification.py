"""Classification of rows."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import nn

from confide.config.task_facts import CLASSIFICATION, TaskFacts
from confide.randomness.streams import Stream
from confide.training.tasks.base import Batch, Task


@dataclass(frozen=True)
class Classification(Task):
    """Predicts each row's class, and none of its tokens."""

    facts: ClassVar[TaskFacts] = CLASSIFICATION

    @classmethod
    def padding(cls, model: nn.Module, tokenizer: Any) -> int:
        # The model finds the end of a row by this id. With another id, the result would depend on the batch.
        return getattr(getattr(model, "config", None), "pad_token_id", None) or super().padding(
            model, tokenizer
        )

    def with_targets(
        self,
        batch: dict[str, torch.Tensor],
        rows: list[np.ndarray],
        labels: np.ndarray | None,
        hide: Sequence[Stream] | None,
    ) -> dict[str, torch.Tensor]:
        if labels is None:
            raise ValueError(f"{self.facts.name} needs labels")
        return batch | {"labels": torch.as_tensor(labels, dtype=torch.long)}

    def targets(self, batch: Batch) -> torch.Tensor:
        return batch["labels"][:, None]

    def figures(self, loss: float, accuracy: float, predicted: int) -> dict[str, float | int]:
        return {"loss": loss, "accuracy": accuracy}
