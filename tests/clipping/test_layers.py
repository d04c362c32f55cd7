"""Pitfall 13: a layer that no rule covers is named, whatever it calls itself."""

from __future__ import annotations

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from confide.clipping import ClippedSum, UnsupportedModule, UnsupportedParameter
from tests.clipping.brute_force import Batch, causal_loss, check, shaken, tiny
from tests.clipping.nets import EACH, IDS, ONES, RAGGED, TestNet, ids_loss

torch.set_num_threads(1)


class Scaled(nn.Linear):
    def forward(self, values: Tensor) -> Tensor:
        return 2 * super().forward(values)


class Bare(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(6))

    def forward(self, values: Tensor) -> Tensor:
        return values * self.gain


class StrangeRMSNorm(nn.RMSNorm):
    def forward(self, values: Tensor) -> Tensor:
        return super().forward(values) * self.weight


class Rounding(nn.Linear):
    """Multiplies by what 8 bits hold of its input."""

    def forward(self, values: Tensor) -> Tensor:
        step = values.abs().amax() / 127
        return super().forward((values / step).round() * step)


class Dropping(nn.Linear):
    def forward(self, values: Tensor) -> Tensor:
        return super().forward(nn.functional.dropout(values, 0.3, self.training))


class Adapted(nn.Linear):
    """Is linear as long as its second weight is what it was made with."""

    def __init__(self, width: int) -> None:
        super().__init__(width, width)
        self.more = nn.Parameter(torch.zeros(width, width), requires_grad=False)

    def forward(self, values: Tensor) -> Tensor:
        return super().forward(values + values @ self.more)


class SquaredNorm(nn.LayerNorm):
    def forward(self, values: Tensor) -> Tensor:
        return nn.functional.layer_norm(values, (6,), self.weight * self.weight, self.bias, self.eps)


class OtherEpsilonNorm(nn.LayerNorm):
    def forward(self, values: Tensor) -> Tensor:
        return nn.functional.layer_norm(values, (6,), self.weight, self.bias, 1e-3)


@pytest.mark.parametrize(
    ("layer", "parameter"),
    [
        (Scaled(6, 6), "layer.weight"),
        (Rounding(6, 6), "layer.weight"),
        (Dropping(6, 6).eval(), "layer.weight"),
        (Adapted(6), "layer.weight"),
        (SquaredNorm(6), "layer.weight"),
        (OtherEpsilonNorm(6), "layer.weight"),
        (Bare(), "layer.gain"),
        (StrangeRMSNorm(6), "layer.weight"),
        (nn.MultiheadAttention(6, 2), "layer.in_proj_weight"),
        (nn.Bilinear(6, 6, 6), "layer.weight"),
        (nn.GroupNorm(2, 6), "layer.weight"),
        (nn.utils.parametrizations.weight_norm(nn.Linear(6, 6)), "layer.parametrizations.weight.original0"),
        (nn.Embedding(3, 6, scale_grad_by_freq=True), "layer.weight"),
        (nn.Embedding(3, 6, max_norm=1.0), "layer.weight"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_parameter_without_a_rule_is_named(layer: nn.Module, parameter: str) -> None:
    with pytest.raises(UnsupportedParameter, match=parameter.replace(".", r"\.")) as caught:
        ClippedSum(TestNet(layer), ids_loss, 1.0)
    if len(parameter.split(".")) == 2:
        assert type(layer).__name__ in str(caught.value)


class Shifted(nn.Embedding):
    def forward(self, ids: Tensor, by: int = 0) -> Tensor:
        return super().forward((ids + by) % self.num_embeddings)


class Lengthened(nn.Embedding):
    def forward(self, ids: Tensor) -> Tensor:
        return 3 * super().forward(ids)


class Summed(nn.Embedding):
    def forward(self, ids: Tensor) -> Tensor:
        return super().forward(ids) + super().forward(ids // 2)


class Fixed(nn.Embedding):
    @torch.no_grad()
    def forward(self, ids: Tensor) -> Tensor:
        return super().forward(ids)


class Tables(nn.Module):
    def __init__(self, table: nn.Embedding) -> None:
        super().__init__()
        self.table, self.layer = table, nn.Linear(6, 6)


def moved_loss(model: nn.Module, batch: Batch) -> Tensor:
    return model.layer(model.table(batch["ids"], by=1)).square().sum((1, 2))


def test_an_embedding_that_computes_what_it_looks_up_is_asked_what_that_is() -> None:
    model = shaken(Tables(Shifted(20, 6)))
    check(model, moved_loss, IDS, EACH, clip_norm=1.0)


@pytest.mark.parametrize("kind", [Lengthened, Summed, Fixed])
def test_an_embedding_that_does_more_than_look_up_is_named(kind: type[nn.Embedding]) -> None:
    model = shaken(Tables(kind(20, 6)))
    with pytest.raises(
        UnsupportedModule, match=rf"module table \({kind.__name__}\) does more than look rows"
    ):
        ClippedSum(model, lambda model, batch: model.layer(model.table(batch["ids"])).sum((1, 2)), 1.0).add(
            IDS, EACH, ONES
        )


@pytest.mark.parametrize(
    ("settings", "name"),
    [({"use_dora": True}, "lora_magnitude_vector"), ({"target_modules": ["wte"]}, "lora_embedding")],
)
def test_lora_variants_without_a_rule_are_named(settings: dict[str, object], name: str) -> None:
    config = LoraConfig(r=3, **{"target_modules": ["c_attn"], "fan_in_fan_out": True, **settings})
    with pytest.raises(UnsupportedParameter, match=name):
        ClippedSum(get_peft_model(tiny("gpt2"), config), causal_loss, 1.0)


def test_conv1d_is_recognised_by_what_it_is() -> None:
    net = shaken(TestNet(Conv1D(6, 6)))
    check(net, ids_loss, IDS, RAGGED, clip_norm=0.05)
