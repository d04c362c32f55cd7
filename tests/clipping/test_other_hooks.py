"""Hooks that are not ours may change what a layer gives: its gradient is that of what it gave itself. Pitfall 40."""

import pytest
import torch
from torch import Tensor, nn

from confide.clipping import ClippedSum
from confide.errors import InputError


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.layer, self.last = nn.Embedding(7, 6), nn.Linear(6, 5), nn.LayerNorm(5)

    def forward(self, ids: Tensor) -> Tensor:
        return self.last(torch.tanh(self.layer(self.table(ids))))


def loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    return model(batch["ids"]).square().mul(torch.linspace(1, 2, 5)).flatten(1).sum(1)


def batch() -> dict[str, Tensor]:
    return {"ids": torch.tensor([[0, 1, 2], [3, 3, 4], [5, 6, 0]])}


@pytest.mark.parametrize("which", ["table", "layer", "last"])
@pytest.mark.parametrize("clip", [0.3, None])
def test_a_hook_that_multiplies(which: str, clip: float | None) -> None:
    torch.manual_seed(0)
    model = Net()
    getattr(model, which).register_forward_hook(lambda module, given, output: output * torch.tensor([3.0]))
    clipped = ClippedSum(model, loss, clip)
    clipped.add(batch(), torch.arange(3), torch.ones(3))
    found = clipped.take()
    expected = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    for row in range(3):
        own = torch.autograd.grad(
            loss(model, {"ids": batch()["ids"][row : row + 1]}).sum(), model.parameters()
        )
        norm = float(torch.cat([g.flatten() for g in own]).norm())
        for name, gradient in zip(expected, own, strict=True):
            expected[name] += gradient * (min(1.0, clip / norm) if clip else 1.0)
    for name, values in expected.items():
        torch.testing.assert_close(found[name], values, rtol=1e-4, atol=1e-6)


def test_a_hook_on_all_modules_is_refused() -> None:
    """It runs before any hook of a module's own, whatever we do."""
    model = Net()
    handle = nn.modules.module.register_module_forward_hook(lambda module, given, output: None)
    try:
        with pytest.raises(InputError, match=r"a forward hook on all modules .* remove it"):
            ClippedSum(model, loss, 1.0).add(batch(), torch.arange(3), torch.ones(3))
    finally:
        handle.remove()
    ClippedSum(model, loss, 1.0).add(batch(), torch.arange(3), torch.ones(3))
