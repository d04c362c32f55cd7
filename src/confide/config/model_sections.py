"""The sections of the config that say how the base model is held and what of it is trained."""

import math
from collections.abc import Iterator
from typing import Literal

from pydantic import Field

from confide.config.fields import Count, Positive, Section


class Adapter(Section):
    """The part of the model that is trained."""

    kind: Literal["full", "matrices", "lora", "bias", "modules"] = Field(
        "full",
        description="what is trained. full: every weight; matrices: weights of linear layers and of token embeddings, "
        "no biases, norms or other embeddings; lora: low-rank adapters; bias: biases; modules: the named modules",
    )
    rank: Count = Field(32, description="rank of the LoRA factors")
    alpha: Positive | None = Field(None, description="LoRA scale is alpha / rank; default: 2 * rank")
    targets: str | list[str] = Field(
        "all-linear", description="LoRA: module names to adapt, or `all-linear`; modules: the names to train"
    )
    rslora: bool = Field(False, description="LoRA scale is alpha / sqrt(rank) (Kalajdzievski 2023)")
    dora: bool = Field(
        False,
        description="LoRA with a trained length of each output, apart from its direction (Liu et al. 2024)",
    )
    modules_to_save: list[str] = Field(
        default_factory=list,
        description="LoRA: modules that train whole beside the factors, and are saved with them, as `lm_head`",
    )

    @property
    def lora_alpha(self) -> float:
        """The alpha of LoRA: stated, or twice the rank."""
        return self.alpha or 2 * self.rank

    @property
    def scale(self) -> float:
        """What the product of the LoRA factors is multiplied by."""
        return self.lora_alpha / (math.sqrt(self.rank) if self.rslora else self.rank)


class Base(Section):
    """The frozen weights of the base model under an adapter."""

    precision: Literal["float32", "bf16", "fp16"] = Field(
        "float32",
        description="type in which frozen weights are held, and in which the base computes; what trains stays float32. "
        "adapter.kind: lora only",
    )
    quantise: Literal["none", "int8", "nf4"] = Field(
        "none",
        description="hold the frozen linear layers in 8 or 4 bits, by base.quantiser; train.distributed: fsdp splits "
        "these. adapter.kind: lora only",
    )
    quantiser: Literal["bitsandbytes", "torchao"] = Field(
        "bitsandbytes",
        description="what holds them so: bitsandbytes (`pip install 'confide[quantise]'`), or torchao "
        "(`pip install 'confide[torchao]'`), int8 only",
    )


def idle(adapter: Adapter) -> list[str]:
    """Return the keys that are stated and mean nothing for this kind of adapter.

    They are no faults: a config for LoRA may be trained with `adapter.kind=full` for once.
    """
    keys = {"lora": (), "modules": ("rank", "alpha")}.get(adapter.kind, ("rank", "alpha", "targets"))
    return [f"adapter.{key}" for key in keys if getattr(adapter, key) != getattr(Adapter(), key)]


def model_faults(adapter: Adapter, base: Base, is_split: bool) -> Iterator[tuple[str, str]]:
    """Yield (key, reason) for what the two sections cannot mean together.

    Args:
        is_split: True if the ranks share one model among them.
    """
    if adapter.kind != "lora":
        if base.precision != "float32":
            yield (
                "base.precision",
                f"adapter.kind: {adapter.kind} trains weights of the model itself, and what trains is float32, as are "
                "the sums and their noise: leave it out (train.precision: bf16 computes in bf16), or set adapter.kind: "
                "lora",
            )
        if base.quantise != "none":
            yield (
                "base.quantise",
                f"adapter.kind: {adapter.kind} trains weights of the model itself, which cannot be done in so few "
                "bits: set adapter.kind: lora",
            )
        for key in ("rslora", "dora", "modules_to_save"):
            if getattr(adapter, key):
                yield f"adapter.{key}", f"is an option of kind: lora, not of {adapter.kind}"
    if base.quantiser == "torchao" and base.quantise != "int8":
        yield (
            "base.quantiser",
            "torchao has nothing to hold while base.quantise is none: set base.quantise: int8, or leave it out"
            if base.quantise == "none"
            else "torchao's nf4 is a prototype that transformers cannot load: use base.quantiser: bitsandbytes, or "
            "base.quantise: int8",
        )
    if is_split and adapter.dora:
        yield "adapter.dora", "needs a layer's weights in one piece: use train.distributed: ddp, or rslora"
