"""Nets for trying a layer or a layout of rows, and a batch for them."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tests.clipping.brute_force import ROWS, UNITS, Batch

ONES = torch.ones(ROWS)
EACH = torch.arange(ROWS)
RAGGED = torch.tensor(UNITS["ragged"])
IDS = {"ids": torch.randint(20, (ROWS, 5), generator=torch.Generator().manual_seed(1))}


def ids_loss(model: nn.Module, batch: Batch) -> Tensor:
    return model(batch["ids"]).flatten(1).logsumexp(1)


class TestNet(nn.Module):
    """An embedding, a layer to try, a head."""

    __test__ = False

    def __init__(self, layer: nn.Module, width: int = 6) -> None:
        super().__init__()
        self.table, self.layer, self.head = nn.Embedding(20, width), layer, nn.Linear(width, 4)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.layer(self.table(ids)))
