"""Estimate what training costs in operations, from the size of a model; and the facts by which settings suit it."""

from dataclasses import dataclass
from typing import Any, cast

from torch import nn

from confide.models import loading as models
from confide.models.quantised import bits, quantised
from confide.training.optimisation import has_part

ATTENTION = ("*attn", "*attention")
"""The words of `privacy.scales` for what models call their attention: attn, self_attn, self_attention and others."""


@dataclass(frozen=True)
class Size:
    """Properties of a model that decide its cost: weights in all, trainable weights, layers, width, vocabulary.

    Attributes:
        held_bytes: bytes that the weights take; None for float32.
        attention: the one of `ATTENTION` that fits a tensor that is trained; None if none does.
        is_tied: no output layer trains with weights apart from those of the token embeddings.
    """

    parameters: int
    trainable: int
    layers: int
    width: int
    vocabulary: int
    held_bytes: int | None = None
    attention: str | None = ATTENTION[0]
    is_tied: bool = True

    @property
    def weights_bytes(self) -> int:
        return 4 * self.parameters if self.held_bytes is None else self.held_bytes

    @classmethod
    def of(cls, model: nn.Module) -> "Size":
        whole = cast(Any, model)
        settings = whole.config.get_text_config()
        packed = sum(
            layer.weight.numel() for _, layer in quantised(model) if bits(layer) == 4
        )  # two in a byte
        trainable = models.trainable(model)
        words = (word for word in ATTENTION if any(has_part(name, word) for name in trainable))
        return cls(
            parameters=sum(p.numel() for p in model.parameters()) + packed,
            trainable=sum(p.numel() for p in trainable.values()),
            layers=settings.num_hidden_layers,
            width=settings.hidden_size,
            vocabulary=whole.get_input_embeddings().num_embeddings,
            held_bytes=sum(p.nbytes for p in model.parameters()),
            attention=next(words, None),
            is_tied=len(models.token_tables(model)) < 2,
        )

    def operations(self, tokens: float) -> float:
        """Count operations: forward 2, backward 4 per weight and token (Kaplan et al. 2020), without attention."""
        return 6.0 * self.parameters * tokens
