"""Estimate what training costs in operations and memory, from the size of a model."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from torch import nn

from confide.config import registry
from confide.models import loading as models
from confide.training.memory_fit import MOST, optimizer_copies

if TYPE_CHECKING:
    from confide.config.schema import Config


@dataclass(frozen=True)
class Size:
    """Properties of a model that decide its cost: weights in all, trainable weights, layers, width, vocabulary."""

    parameters: int
    trainable: int
    layers: int
    width: int
    vocabulary: int

    @classmethod
    def of(cls, model: nn.Module) -> "Size":
        whole = cast(Any, model)
        settings = whole.config.get_text_config()
        return cls(
            parameters=sum(p.numel() for p in model.parameters()),
            trainable=sum(p.numel() for p in models.trainable(model).values()),
            layers=settings.num_hidden_layers,
            width=settings.hidden_size,
            vocabulary=whole.get_input_embeddings().num_embeddings,
        )

    def operations(self, tokens: float) -> float:
        """Count operations: forward 2, backward 4 per weight and token (Kaplan et al. 2020), without attention."""
        return 6.0 * self.parameters * tokens


def memory(config: "Config", size: Size) -> int:
    """Estimate the bytes at the peak of a step: weights, clipped sum, optimiser state, activations.

    The estimate is fitted to peaks of processes that train GPT-2 on a CPU. Other families may need up to twice as
    much.
    """
    train = config.train
    weights = 4 * size.parameters + 4 * size.trainable * (2 + optimizer_copies(config))
    # Float32 values per token and layer, in units of the width: what autograd keeps (Korthikanti et al. 2022
    # count 34 bytes at half precision), and what the clipping keeps besides, which checkpoints do not drop.
    # With LoRA a process is larger by unused parts of its allocations.
    kept = 34 if config.adapter.kind == "lora" else 14 if train.gradient_checkpointing else 20
    token = 4 * kept * size.width * size.layers
    if not registry.task_facts(config.task).has_classes:
        token += 2 * 4 * size.vocabulary  # logits, and the softmax that becomes their gradient
    tokens = MOST["cpu"] if train.micro_tokens == "auto" else train.micro_tokens
    return int(weights + token * tokens)
