import pytest
import torch
from torch.nn import functional

from confide.models.fast.cross_entropy import IGNORE, cross_entropy


@pytest.fixture(autouse=True)
def same_numbers():
    torch.manual_seed(0)


def both(logits, targets, weights):
    found = []
    for loss in (cross_entropy, lambda z, t: functional.cross_entropy(z, t, reduction="none")):
        own = logits.clone().requires_grad_()
        losses = loss(own, targets)
        (losses * weights).sum().backward()
        found.append((losses.detach(), own.grad))
    return found


@pytest.mark.parametrize("spread", [1e-3, 1.0, 30.0, 300.0])
def test_losses_and_gradients_are_torchs(spread):
    generator = torch.Generator().manual_seed(0)
    logits = spread * torch.randn(64, 501, generator=generator)
    targets = torch.randint(501, (64,), generator=generator)
    targets[::5] = IGNORE
    (own, own_grad), (right, right_grad) = both(logits, targets, torch.rand(64, generator=generator))
    assert torch.allclose(own, right, rtol=2e-6, atol=2e-6)
    assert torch.allclose(own_grad, right_grad, rtol=1e-4, atol=1e-6)
    assert not own[::5].any()
    assert not own_grad[::5].any()


def test_logits_whose_rows_lie_apart(monkeypatch):
    monkeypatch.setattr("confide.models.fast.cross_entropy._PIECE", 100)  # three rows at a time
    wide = torch.randn(16, 48)
    targets = torch.arange(16)
    found = []
    for logits in (wide[:, :33], wide[:, :33].contiguous()):
        own = logits.detach().requires_grad_()
        losses = cross_entropy(own, targets)
        losses.sum().backward()
        found.append((losses.detach(), own.grad))
    assert torch.equal(found[0][0], found[1][0])
    assert torch.equal(found[0][1], found[1][1])


def test_a_target_that_no_float_gives_a_probability_has_its_loss():
    logits = torch.tensor([[0.0, 500.0, 0.0], [0.0, 80.0, 1.0], [0.0, 0.0, 60.0]])
    (own, own_grad), (right, right_grad) = both(logits, torch.tensor([0, 2, 1]), torch.ones(3))
    assert own.tolist() == right.tolist() == [500.0, 79.0, 60.0]
    assert torch.allclose(own_grad, right_grad)


@pytest.mark.parametrize("target", [-1, 7])
def test_a_target_that_is_no_class_is_an_error(target):
    logits = torch.randn(2, 7, requires_grad=True)
    with pytest.raises((IndexError, RuntimeError)):
        cross_entropy(logits, torch.tensor([0, target]))


def test_what_is_not_a_number_stays_none():
    logits = torch.tensor([[0.0, float("nan"), 0.0]], requires_grad=True)
    losses = cross_entropy(logits, torch.tensor([0]))
    losses.sum().backward()
    assert losses.isnan().all()
    assert logits.grad.isnan().all()


def test_a_second_backward_pass_is_refused():
    """The first one turns into the gradient what the second would need."""
    logits = torch.randn(4, 7, requires_grad=True)
    losses = cross_entropy(logits, torch.arange(4)).sum()
    losses.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="inplace"):
        losses.backward()


def test_half_precision_is_computed_in_float32():
    logits = torch.randn(16, 33, dtype=torch.bfloat16, requires_grad=True)
    losses = cross_entropy(logits, torch.arange(16))
    losses.sum().backward()
    exact = logits.detach().double().requires_grad_()
    right = functional.cross_entropy(exact, torch.arange(16), reduction="none")
    right.sum().backward()
    assert losses.dtype == torch.float32
    assert torch.allclose(losses.double(), right, rtol=1e-6)
    assert torch.allclose(logits.grad.double(), exact.grad, atol=2**-9)
