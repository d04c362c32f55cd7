"""One switch turns off all that computes the same faster."""

import pytest
import torch
from torch import nn

from confide.clipping import ClippedSum
from confide.models.fast import cross_entropy, logits
from confide.models.fast.activations import original_layers
from tests import small
from tests.clipping import brute_force
from tests.quick import everywhere, needs_onednn, quick  # noqa: F401  # a fixture


def counted(monkeypatch, function):
    """How often an autograd function is used."""
    seen, taken = [], function.forward

    def forward(ctx, *given):
        seen.append(function)
        return taken(ctx, *given)

    monkeypatch.setattr(function, "forward", staticmethod(forward))
    return seen


@needs_onednn
def test_a_step_is_the_same_without_all_of_it(everywhere, monkeypatch):  # noqa: F811
    task, model = small.task(), quick(small.gpt2())
    model.lm_head.__class__ = nn.Linear  # by aligned logits, which leave alone what oneDNN takes
    torch.manual_seed(1)
    batch = task.collate([torch.randint(2, small.VOCABULARY, (n,)).numpy() for n in (7, 4, 9, 5, 8)])
    unit, weight = torch.tensor([0, 1, 0, 2, 1]), torch.linspace(0.5, 1.5, 5)
    heads, losses = counted(monkeypatch, logits._Product), counted(monkeypatch, cross_entropy._OfSoftmax)
    kernels = [module for module in model.modules() if "replaced" in vars(module)]

    def step():
        total = ClippedSum(model, task.row_loss, 0.5)
        norms = total.add(batch, unit, weight)
        return norms, total.take()

    fast_norms, fast = step()
    assert all((everywhere, heads, losses, kernels)), "the test tries nothing"
    for seen in (everywhere, heads, losses):
        seen.clear()
    with original_layers(model):
        assert not [module for module in model.modules() if module in kernels]
        norms, own = step()
    assert not any((everywhere, heads, losses))
    assert torch.allclose(fast_norms, norms, rtol=brute_force.ABOVE)
    brute_force.compare(fast, own)
    assert (norms > 0.5).any(), "the test clips nothing"


@pytest.mark.parametrize("within", [False, True])
def test_it_is_on_again_whatever_happens(within, monkeypatch):
    model, targets = small.gpt2(), torch.arange(3)
    losses = counted(monkeypatch, cross_entropy._OfSoftmax)

    def fail():
        with original_layers(model):
            if within:
                with original_layers(model):
                    pass
            cross_entropy.cross_entropy(torch.ones(3, 4, requires_grad=True), targets)
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert not losses
    cross_entropy.cross_entropy(torch.ones(3, 4, requires_grad=True), targets)
    assert losses
