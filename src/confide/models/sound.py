"""Refuse weights that are not finite, or too large for a model to compute with."""

from collections.abc import Mapping

import torch

from confide.utils.errors import Diverged, InputError

LARGEST = 1e15  # limit of a weight: not far above, a gradient's square overflows float32


def refuse_unsound(
    weights: Mapping[str, torch.Tensor], why: str, error: type[InputError] = InputError
) -> None:
    """Raise `error`, beginning with `why`, if a weight is infinite or not a number."""
    for name, values in weights.items():
        if not bool(torch.isfinite(values).all()):
            raise error(f"{why} {name} holds values that are infinite or not a number")


def refuse_diverged(weights: Mapping[str, torch.Tensor]) -> None:
    """Raise Diverged if a trained weight is not finite, or too large for any use."""
    why = "train.learning_rate: the training diverged, lower it;"
    refuse_unsound(weights, why, Diverged)
    for name, values in weights.items():
        if values.numel() and float(values.detach().abs().max()) > LARGEST:
            raise Diverged(f"{why} {name} holds values above {LARGEST:g}")
