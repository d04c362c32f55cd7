"""Pitfall 27: rows that influence each other, or of which nobody can tell whose part is whose, are refused."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from confide.clipping import ClippedSum, UnsupportedModule, UnsupportedParameter
from confide.utils.errors import InputError
from tests.clipping.brute_force import LOSSES, ROWS, Batch, causal_loss, check, rows, shaken, tiny
from tests.clipping.nets import EACH, IDS, ONES, RAGGED, TestNet, ids_loss

torch.set_num_threads(1)


def test_batch_norm_in_train_mode_is_refused() -> None:
    class Norm(nn.BatchNorm1d):
        def forward(self, values: Tensor) -> Tensor:
            return super().forward(values.mT).mT

    net = TestNet(Norm(6, affine=False))
    with pytest.raises(UnsupportedModule, match="layer"):
        ClippedSum(net, ids_loss, 1.0)
    summed = ClippedSum(net.eval(), ids_loss, 1.0)
    summed.add(IDS, EACH, ONES)
    net.train()
    with pytest.raises(UnsupportedModule, match="layer"):
        summed.add(IDS, EACH, ONES)


@pytest.mark.parametrize("family", ["mixtral", "qwen3-moe", "gpt-oss"])
def test_experts_themselves_have_no_rule(family: str) -> None:
    with pytest.raises(UnsupportedParameter, match=r"model\.layers\.0\.\S+ is trainable, but its layer"):
        ClippedSum(tiny(family), causal_loss, 1.0)


def test_an_expert_with_room_for_so_many_tokens_is_refused() -> None:
    net = TestNet(nn.Linear(6, 6))
    net.layer.expert_capacity = 64
    with pytest.raises(
        UnsupportedModule, match=r"module layer \(Linear\) gives an expert only so many tokens"
    ):
        ClippedSum(net, ids_loss, 1.0)


def test_a_units_gradient_does_not_depend_on_other_rows() -> None:
    """With a loss that divides by the tokens of the whole batch (num_items_in_batch) it does."""

    def mixing(model: nn.Module, batch: Batch) -> Tensor:
        own = (batch["labels"][:, 1:] != -100).sum(1)
        return causal_loss(model, batch) * own / own.sum()

    model, batch, other = tiny("llama"), rows("llama"), rows("llama", seed=12)
    mixed = {name: torch.cat([v[:4], other[name][4:]]) for name, v in batch.items()}
    for loss, equal in ((causal_loss, True), (mixing, False)):
        first, second = (ClippedSum(model, loss, 1.0).add(b, EACH, ONES)[:4] for b in (batch, mixed))
        assert torch.allclose(first, second, rtol=1e-5) is equal


@pytest.mark.parametrize("family", ["gpt2", "bert", "biogpt"])
def test_positions_shared_by_all_rows_have_a_gradient_for_each(family: str) -> None:
    head = "masked" if family == "bert" else "causal"
    batch = {name: v for name, v in rows(family, head).items() if name != "position_ids"}
    check(tiny(family, head), LOSSES[head], batch, RAGGED, clip_norm=1.0, tolerance=2e-5)


class Laid(nn.Module):
    """Rows of tokens through a linear layer that sees them laid out in some way."""

    def __init__(self, how: str, tokens: int) -> None:
        super().__init__()
        self.how, self.table, self.place = how, nn.Embedding(20, 6), nn.Embedding(tokens, 6)
        self.layer = nn.Linear(6, 6)

    def forward(self, ids: Tensor) -> Tensor:
        values = self.table(ids)
        count, tokens, _ = values.shape
        if self.how == "row by row":
            return self.layer(values.flatten(0, 1)).view(count, tokens, 6)
        if self.how == "tokens first, in one":
            return self.layer(values.transpose(0, 1).flatten(0, 1)).view(tokens, count, 6).transpose(0, 1)
        if self.how == "tokens first":
            return self.layer(values.transpose(0, 1)).transpose(0, 1)
        assert self.how == "positions of all rows"
        return self.layer(values + self.place(torch.arange(tokens)))


def laid_loss(model: nn.Module, batch: Batch) -> Tensor:
    return model(batch["ids"]).square().sum((1, 2)) / 10


def laid(how: str, tokens: int) -> tuple[nn.Module, Batch]:
    model = shaken(Laid(how, tokens))
    if how != "positions of all rows":
        model.place.requires_grad_(False)
    return model, {"ids": torch.randint(20, (ROWS, tokens), generator=torch.Generator().manual_seed(1))}


@pytest.mark.parametrize("tokens", [5, ROWS, 2 * ROWS])
def test_rows_that_lie_one_after_another_are_told_apart(tokens: int) -> None:
    model, batch = laid("row by row", tokens)
    for units in (EACH, RAGGED):
        check(model, laid_loss, batch, units, clip_norm=1.0)


@pytest.mark.parametrize(
    ("how", "tokens"),
    [
        ("tokens first, in one", 5),
        ("tokens first, in one", ROWS),
        ("tokens first", ROWS),
        ("positions of all rows", ROWS),  # as many as rows: one for each, it seems
        ("positions of all rows", 2 * ROWS),
    ],
)
def test_rows_that_lie_otherwise_are_not_taken_for_it(how: str, tokens: int) -> None:
    model, batch = laid(how, tokens)
    summed = ClippedSum(model, laid_loss, 1.0)
    with pytest.raises(
        InputError, match=r"do not lie one after another|first axis is not the batch's 9 rows"
    ):
        summed.add(batch, EACH, ONES)
    one = torch.zeros(ROWS, dtype=torch.int64)  # clipped together, it does not matter
    assert summed.add(batch, one, ONES).shape == (1,)


class Unpadded(nn.Module):
    """Leaves padding out, so that all rows' tokens stand in one axis, of each row as many as it has."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.layer = nn.Embedding(20, 6), nn.Linear(6, 6)

    def forward(self, ids: Tensor, real: Tensor) -> Tensor:
        values = self.table(ids)
        return torch.zeros_like(values).masked_scatter(real[..., None], self.layer(values[real]))


@pytest.mark.parametrize("real", [[6] * ROWS, [4] * ROWS, [2, 6] * 4 + [4]])
def test_tokens_without_padding_are_no_rows(real: list[int]) -> None:
    """Where rows are equally long they lie one after another, which the next ones, of as many tokens, need not."""

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        return model(batch["ids"], batch["real"]).square().sum((1, 2))

    def batch(lengths: list[int]) -> Batch:
        ids = torch.randint(20, (ROWS, 6), generator=torch.Generator().manual_seed(1))
        return {"ids": ids, "real": torch.arange(6) < torch.tensor(lengths)[:, None]}

    summed = ClippedSum(shaken(Unpadded()), loss, 1.0)
    summed.add(batch([6] * ROWS), EACH, ONES)
    if sum(real) == 6 * ROWS:
        check(shaken(Unpadded()), loss, batch(real), EACH, clip_norm=1.0)
    else:
        with pytest.raises(InputError, match="first axis is not the batch's 9 rows"):
            summed.add(batch(real), EACH, ONES)


def test_lots_are_drawn_as_if_nobody_had_looked() -> None:
    model, batch = laid("row by row", 5)

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        values = nn.functional.dropout(model.table(batch["ids"]), 0.5)
        return model.layer(values.flatten(0, 1)).view(ROWS, 30).square().sum(1)

    def norms(summed: ClippedSum) -> Tensor:
        torch.manual_seed(3)
        return summed.add(batch, EACH, ONES)

    summed = ClippedSum(model, loss, 1.0)
    first, second = norms(summed), norms(summed)
    assert torch.equal(first, second)
    assert not torch.equal(first, summed.add(batch, EACH, ONES))


def test_one_pass_more_looks_how_rows_lie_and_leaves_nothing_behind() -> None:
    passes = []
    model, batch = laid("row by row", 5)
    with torch.no_grad():
        model.layer.weight.zero_()
        model.layer.bias.fill_(1.0)
    before = {name: p.clone() for name, p in model.named_parameters()}

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        passes.append(1)
        return laid_loss(model, batch)

    summed = ClippedSum(model, loss, 1.0)
    for expected in (3, 4, 5):  # one that met the doubt, one to look, one each time
        summed.add(batch, EACH, ONES)
        assert len(passes) == expected
    assert all(torch.equal(p, before[name]) for name, p in model.named_parameters())


def test_a_loss_by_token_or_by_batch_is_refused() -> None:
    for loss in (lambda m, b: ids_loss(m, b).sum(), lambda m, b: m(b["ids"]).sum(-1)):
        with pytest.raises(InputError, match="one value for each of the 9 rows"):
            ClippedSum(TestNet(nn.Linear(6, 6)), loss, 1.0).add(IDS, EACH, ONES)
