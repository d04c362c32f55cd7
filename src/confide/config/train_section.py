"""The section of the config that says how weights move."""

from typing import Annotated, Literal

from pydantic import Field

from confide.config.fields import Count, Positive, Section, Share

EMBEDDINGS = "embeddings"
"""The word of `rate_factors` and `privacy.scales` that stands for the token embeddings, whatever a model calls them."""


class Average(Section):
    """The weights that are evaluated and released."""

    kind: Literal["none", "ema", "tail"] = Field(
        "none",
        description="release the mean of the weights over the last steps: an exponential or a plain one",
    )
    share: Annotated[float, Field(gt=0, le=1)] = Field(
        0.25, description="how far back the mean looks, as a share of all steps"
    )


class Train(Section):
    """The optimisation."""

    steps: Count = Field(500, description="number of noised steps")
    batch: Positive = Field(
        256, description="expected rows a step (row sampling) or units a step (unit sampling)"
    )
    max_batch: Count | None = Field(
        None, description="`sampling: truncated`: the most rows or units a step may hold"
    )
    sampling_rate: Annotated[float, Field(gt=0, le=1)] | None = Field(
        None, description="literal sampling probability in place of batch; an add-or-remove claim needs it"
    )
    divisor: Positive | None = Field(
        None, description="literal divisor of the noised sum; default: the expected batch, a public constant"
    )
    learning_rate: Positive = Field(1e-3, description="peak learning rate")
    twin_learning_rate: Positive | None = Field(
        None,
        description="of `train --twin`: training without noise may break down at a rate that suits noise; default: "
        "train.learning_rate",
    )
    loss_on: Literal["all", "assistant", "completion"] | None = Field(
        None,
        description="what is learnt: every token; what the assistant says, with the mark that ends its turn; or the "
        "completion, of messages the last turn. The rest is read and not predicted. Default: assistant for "
        "`data.messages`, completion for `data.completion`, else all",
    )
    rate_factors: dict[str, Positive] = Field(
        default_factory=dict,
        description="factors on the learning rate of some tensors, as `{embeddings: 2, lora_B: 4}`. `embeddings` "
        "stands for the token embeddings, and the output layer where it shares their weights; another word for all "
        "tensors that have it as a part of their name, between points; * stands for any characters. Where several fit, "
        "they are multiplied. Weight decay grows with the rate",
    )
    schedule: Literal["constant", "linear", "cosine"] = Field(
        "constant", description="decay after the warm-up"
    )
    warmup: Annotated[int, Field(ge=0)] = Field(0, description="steps of linear warm-up, of each phase")
    optimizer: Literal["tensor-adamw", "adamw", "adafactor", "sgd"] = Field(
        "tensor-adamw",
        description="what moves the weights; tensor-adamw is AdamW with one second moment for each tensor where there "
        "is noise, and plain AdamW where there is none",
    )
    weight_decay: Annotated[float, Field(ge=0, allow_inf_nan=False)] = Field(
        0.0, description="decoupled weight decay; of sgd: added to the gradient, and so part of the momentum"
    )
    momentum: Annotated[float, Field(ge=0, lt=1)] = Field(0.0, description="of sgd")
    betas: tuple[Share, Share] | None = Field(
        None,
        description="of both adamws; default: 0.999 for squares, and for the mean 0.3 in runs of up to 100 steps, more "
        "in longer ones, 0.9 from 700 steps on",
        strict=False,
    )
    precision: Literal["float32", "bf16"] = Field(
        "float32",
        description="bf16: autocast in forward and backward; weights, norms and sums stay float32. What GPUs are made "
        "for; on a CPU it may be the slower one",
    )
    micro_tokens: Count | Literal["auto"] = Field(
        "auto", description="tokens (with padding) of one physical micro-batch; auto: what fits in memory"
    )
    distributed: Literal["ddp", "fsdp"] = Field(
        "ddp", description="under torchrun each process holds the whole model (ddp) or a part of it (fsdp)"
    )
    gradient_checkpointing: bool = Field(False, description="less memory for a third more compute")
    average: Average = Field(default_factory=Average, description="which weights are evaluated and released")
    checkpoint_every: Count = Field(25, description="steps between checkpoints")
    eval_on_start: bool = Field(True, description="evaluate the base model before the first step")
    eval_every: Annotated[int, Field(ge=0)] = Field(
        0, description="steps between evaluations; 0: at the end only"
    )
    patience: Annotated[int, Field(ge=0)] = Field(
        0,
        description="end the run after so many evaluations in a row without a lower held-out loss (needs eval_every "
        "and data.eval, of units that do not train); the guarantee counts all `steps`; 0: take all steps",
    )
    seed: int = Field(
        0, description="initial weights of a model from scratch and of adapters; never draws or noise"
    )
