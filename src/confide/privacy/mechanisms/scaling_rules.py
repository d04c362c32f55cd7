"""What `privacy.scales` and `privacy.common_tokens` ask of a config, and what claims say of them."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from confide.config import yaml_text
from confide.config.train_section import EMBEDDINGS

if TYPE_CHECKING:
    from confide.config.schema import Config
    from confide.privacy.mechanisms.base import Mechanism


def scaling_errors(mechanism: "type[Mechanism]", config: "Config") -> Iterator[tuple[str, str]]:
    """Yield (key, sentence) for each setting that multiplies gradients and cannot be met."""
    asked = {"scales": config.privacy.scales, "common_tokens": config.privacy.common_tokens}
    for key in (key for key, value in asked.items() if value):
        if not mechanism.clips:
            what = "no tensor can count more" if key == "scales" else "no token can count less"
            yield f"privacy.{key}", f"mechanism {mechanism.name} clips nothing, so {what}: remove it"
        elif key == "common_tokens" and config.train.distributed == "fsdp":
            yield (
                "privacy.common_tokens",
                "with distributed: fsdp, embeddings are split over the processes, and their rows have no factors of "
                "their own: remove it, or take distributed: ddp",
            )


def scaling_facts(scales: tuple[tuple[str, float], ...], common_tokens: float) -> Iterator[str]:
    """Yield a sentence for each way in which gradients are multiplied before they are clipped."""
    if scales:
        yield _multiplied(scales)
    if common_tokens:
        yield (
            "in steps that clip, the gradient of each token's embedding, and of its row in an output layer of its own "
            "if that has as many rows, is multiplied before that, in every row of text alike, by "
            f"(V p)^-{common_tokens!r} if that is below 1: V is the number of these rows, and p the probability with "
            "which the model expected this token before it saw the data, in text that it wrote itself"
        )


def _multiplied(scales: tuple[tuple[str, float], ...]) -> str:
    """Say which gradients are multiplied before they are clipped."""
    names = (
        "the token embeddings" if w == EMBEDDINGS else f"tensors named {yaml_text.name(w)}" for w, _ in scales
    )
    each = ", ".join(f"of {name} by {factor!r}" for name, (_, factor) in zip(names, scales, strict=True))
    several = "; where several fit, by their product" if len(scales) > 1 else ""
    return f"in steps that clip, gradients are multiplied before that, in every row alike: {each}{several}"
