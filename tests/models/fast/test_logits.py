import pytest
import torch
from torch import nn
from torch.nn import functional

from confide.clipping import ClippedSum
from confide.models.fast.logits import aligned
from confide.models.fast.switch import off
from tests import small
from tests.clipping import brute_force


@pytest.fixture(autouse=True)
def same_numbers():
    torch.manual_seed(0)


class Model(nn.Module):
    def __init__(self, head):
        super().__init__()
        self.head = head

    def get_output_embeddings(self):
        return self.head

    def forward(self, given):
        return self.head(given)


def linear(width, **kwargs):
    return nn.Linear(8, width, **{"bias": False} | kwargs)


@pytest.mark.parametrize("width", [1, 15, 17, 61])
def test_logits_and_gradients_are_the_layers_own_in_rows_of_whole_lines(width):
    model, given = Model(linear(width)), torch.randn(3, 5, 8, requires_grad=True)
    weights = torch.randn(3, 5, width)
    right = model(given)
    expected = torch.autograd.grad((right * weights).sum(), [given, model.head.weight])
    with aligned(model):
        logits = model(given)
    found = torch.autograd.grad((logits * weights).sum(), [given, model.head.weight])
    assert torch.allclose(logits, right, atol=1e-6)
    assert logits.stride(1) % 16 == 0
    for own, other in zip(found, expected, strict=True):
        assert torch.allclose(own, other, atol=1e-5)


def test_only_what_is_asked_for_gets_a_gradient():
    model, given = Model(linear(17).requires_grad_(False)), torch.randn(2, 8, requires_grad=True)
    with aligned(model):
        logits = model(given)
    logits.sum().backward()
    assert torch.allclose(given.grad, model.head.weight.sum(0).expand(2, 8), atol=1e-6)
    assert model.head.weight.grad is None


def test_the_model_is_as_it_was_whatever_happens():
    model = Model(linear(17))
    with pytest.raises(AttributeError), aligned(model):
        model(None)
    assert "forward" not in vars(model.head)


class Doubled(nn.Linear):
    def forward(self, given):
        return 2 * functional.linear(given, self.weight)


@pytest.mark.parametrize(
    "head",
    [linear(32), linear(17, bias=True), linear(17, dtype=torch.float64), Doubled(8, 17, bias=False), None],
    ids=["whole lines", "bias", "float64", "another class", "none"],
)
def test_other_layers_compute_as_they_do(head):
    model = Model(head)
    with aligned(model):
        if head is not None:
            given = torch.randn(3, 8, dtype=head.weight.dtype)
            assert torch.equal(model(given), type(head).forward(head, given))


def test_a_head_that_somebody_else_has_changed_is_left_alone():
    model = Model(linear(17))
    model.head.forward = lambda given: given[..., :1]
    with aligned(model):
        assert model(torch.ones(2, 8)).tolist() == [[1.0], [1.0]]
    assert "forward" in vars(model.head)


def test_autocast_goes_on_as_before():
    model, given = Model(linear(17)), torch.randn(3, 8)
    with torch.autocast("cpu", torch.bfloat16), aligned(model):
        assert model(given).dtype == torch.bfloat16


def test_clipped_sums_through_the_tied_head_are_those_of_brute_force():
    task, model = small.task(), small.gpt2()
    assert small.VOCABULARY % 16
    rows = [torch.randint(2, small.VOCABULARY, (n,)).numpy() for n in (7, 4, 9, 5, 8)]
    with aligned(model):
        assert "forward" in vars(model.lm_head), "the test tries nothing"
    batch, unit, weight = task.collate(rows), torch.tensor([0, 1, 0, 2, 1]), torch.linspace(0.5, 1.5, 5)
    total = ClippedSum(model, task.row_loss, 0.5)
    found = total.add(batch, unit, weight)
    with off():
        expected, norms = brute_force.clipped_sum(model, task.row_loss, batch, unit, weight, 0.5, found)
    assert (found >= norms * (1 - 1e-5)).all()
    assert (found <= norms * (1 + brute_force.ABOVE)).all()
    brute_force.compare(total.take(), expected)
    assert (norms > 0.5).any(), "the test clips nothing"


def test_a_model_may_write_into_its_logits():
    class Silent(Model):
        def forward(self, given):
            logits = self.head(given)
            logits[..., 3] = -100.0
            return logits

    model, given = Silent(linear(17).requires_grad_(False)), torch.randn(2, 4, 8, requires_grad=True)
    right = torch.autograd.grad(model(given).exp().sum(), given)[0]
    with aligned(model):
        found = torch.autograd.grad(model(given).exp().sum(), given)[0]
    assert torch.allclose(found, right, atol=1e-6)


def test_logits_without_gradients_are_as_they_were():
    model, given = Model(linear(17)), torch.randn(3, 5, 8)
    with torch.no_grad(), aligned(model):
        assert model(given).is_contiguous()
