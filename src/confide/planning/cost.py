"""Estimate what training costs in operations, from the size of a model; and the facts by which settings suit it."""

from dataclasses import dataclass
from typing import Any, cast

from torch import nn

from confide.models import loading as models
from confide.models.quantised import bits, quantised
from confide.training.optimisation import has_part
from confide.utils.errors import InputError

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
        layers, width = layers_and_width(whole.config)
        packed = sum(
            layer.weight.numel() for _, layer in quantised(model) if bits(layer) == 4
        )  # two in a byte
        trainable = models.trainable(model)
        words = (word for word in ATTENTION if any(has_part(name, word) for name in trainable))
        return cls(
            parameters=sum(p.numel() for p in model.parameters()) + packed,
            trainable=sum(p.numel() for p in trainable.values()),
            layers=layers,
            width=width,
            vocabulary=models.vocabulary_of(model),
            held_bytes=sum(p.nbytes for p in model.parameters()),
            attention=next(words, None),
            is_tied=len(models.token_tables(model)) < 2,
        )

    def operations(self, tokens: float) -> float:
        """Count operations: forward 2, backward 4 per weight and token (Kaplan et al. 2020), without attention."""
        return 6.0 * self.parameters * tokens


def layers_and_width(config: Any) -> tuple[int, int]:
    """Return the number of layers, and the width, of the text model that a config of transformers describes.

    Raises:
        InputError: it does not name them, as configs of byte models with several stages, or it has several text models.
    """
    try:
        settings = config.get_text_config()
        return settings.num_hidden_layers, settings.hidden_size
    except (AttributeError, ValueError):
        raise InputError(
            f"model: nothing can be planned for {config.model_type} models, whose config does not say how many layers "
            "there are and how wide they are (num_hidden_layers, hidden_size); choose another model"
        ) from None
