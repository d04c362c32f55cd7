"""What a model keeps of the rows that it is given is found, and a table that only grows is not taken for it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from confide.clipping import ClippedSum
from confide.utils.errors import InputError
from tests.clipping.nets import EACH, IDS, ONES, TestNet, ids_loss

torch.set_num_threads(1)


class Keeping(nn.Linear):
    """A linear layer behind which something happens to a buffer."""

    def __init__(self, change: Callable[[nn.Module, Tensor], None], is_saved: bool = True) -> None:
        super().__init__(6, 6)
        self.register_buffer("kept", torch.arange(4.0), persistent=is_saved)
        self.register_buffer("empty", None, persistent=is_saved)
        self.register_forward_pre_hook(lambda module, args: change(module, args[0].detach()))


def average(module: nn.Module, values: Tensor) -> None:
    module.kept.mul_(0.9).add_(values.mean(), alpha=0.1)


def average_anew(module: nn.Module, values: Tensor) -> None:
    module.kept = 0.9 * module.kept + 0.1 * values.mean()


def by_the_longest(module: nn.Module, values: Tensor) -> None:
    module.kept = torch.arange(4.0) / values.shape[1]


def write_then_replace(module: nn.Module, values: Tensor) -> None:
    old = module.kept
    old.add_(values.mean())
    module.kept = old.clone()


def fill(module: nn.Module, values: Tensor) -> None:
    module.empty = values.mean()


def shrink(module: nn.Module, values: Tensor) -> None:
    module.kept = module.kept[:2]


def grow(module: nn.Module, values: Tensor) -> None:
    module.kept = torch.arange(4.0 + values.shape[1])


def say_again(module: nn.Module, values: Tensor) -> None:
    module.kept = module.kept.clone()


def nothing(module: nn.Module, values: Tensor) -> None:
    pass


@pytest.mark.parametrize("is_saved", [True, False])
@pytest.mark.parametrize("change", [average, average_anew, by_the_longest, write_then_replace, shrink])
def test_a_buffer_that_changes_is_named(change: Callable[[nn.Module, Tensor], None], is_saved: bool) -> None:
    summed = ClippedSum(TestNet(Keeping(change, is_saved)), ids_loss, 1.0)
    with pytest.raises(InputError, match=r"buffer layer\.kept changes as the model runs"):
        summed.add(IDS, EACH, ONES)
    assert not any(values.any() for values in summed.take().values())


def test_one_that_is_made_of_rows_and_saved_is_named() -> None:
    with pytest.raises(InputError, match=r"buffer layer\.empty changes"):
        ClippedSum(TestNet(Keeping(fill)), ids_loss, 1.0).add(IDS, EACH, ONES)


@pytest.mark.parametrize(
    ("change", "is_saved"), [(nothing, True), (say_again, True), (grow, True), (fill, False)]
)
def test_a_table_that_holds_what_it_held_is_none(
    change: Callable[[nn.Module, Tensor], None], is_saved: bool
) -> None:
    summed = ClippedSum(TestNet(Keeping(change, is_saved)), ids_loss, 1.0)
    summed.add(IDS, EACH, ONES)
    assert any(values.any() for values in summed.take().values())


def test_without_a_clip_norm_nothing_is_claimed() -> None:
    ClippedSum(TestNet(Keeping(average)), ids_loss, None).add(IDS, EACH, ONES)
