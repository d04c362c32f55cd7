"""Find how the base of a model can be held so that a step of LoRA fits into memory; no weights are loaded."""

import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from confide.config import registry
from confide.config.loading import check
from confide.config.model_sections import Base
from confide.models import files as model_files
from confide.models import loading as models
from confide.models.base import DTYPES
from confide.models.names import location
from confide.planning.cost import Size, layers_and_width
from confide.planning.memory import Memory, memory
from confide.training.memory_fit import SHARE
from confide.utils import memory as machine
from confide.utils.errors import InputError

_FLOAT32, _BF16 = Base(), Base(precision="bf16")
_NF4, _NF4_BF16 = Base(quantise="nf4"), Base(precision="bf16", quantise="nf4")
# A CPU computes quickly in float32 alone; a GPU computes more quickly in bf16.
_ORDER = {"cpu": (_FLOAT32, _BF16, _NF4, _NF4_BF16), "cuda": (_BF16, _NF4_BF16)}
_NF4_BYTES = 0.52  # of a weight: 4 bits, and scales that are quantised themselves (Dettmers et al. 2023)
_ROWS = 4  # of a micro-batch; fewer would be slow


@dataclass(frozen=True)
class Way:
    """A way to hold the base, and the memory at the peak of a step: an estimate."""

    base: Base
    memory: Memory

    @property
    def bytes(self) -> int:
        return self.memory.whole


@dataclass(frozen=True)
class Fits:
    """What fits into the memory that is free now.

    Attributes:
        ways: from the most exact to the smallest.
        free: bytes that training may take; None if the system does not tell.
        has_chat_template: the model's tokenizer has one.
        tokenizer_fault: why the model has no tokenizer of its own, if it has none.
    """

    ways: tuple[Way, ...]
    free: int | None
    has_chat_template: bool
    tokenizer_fault: str | None = None

    @property
    def chosen(self) -> Way:
        """The first way that fits; the smallest if none does."""
        return next((way for way in self.ways if self.free is None or way.bytes <= self.free), self.ways[-1])

    @property
    def fits(self) -> bool:
        """False if even the chosen way needs more than there is."""
        return self.free is None or self.chosen.bytes <= self.free


def what_fits(model: str, max_length: int, rank: int) -> Fits:
    """Estimate the memory of a LoRA step in each way to hold the base.

    Args:
        model: as in a config.
        max_length: tokens of a row.
        rank: of LoRA.

    Raises:
        InputError: there is no such model.
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    config = check(
        {
            "model": model,
            "data": {"train": "-", "max_length": max_length},
            "privacy": {"mechanism": "dp-sgd", "noise_multiplier": 1.0},  # of no matter here
            "adapter": {"kind": "lora", "rank": rank},
            "train": {"micro_tokens": _ROWS * max_length},
        },
        "model",
    )
    has_chat_template, fault = False, None
    try:
        has_chat_template = models.load_tokenizer(config).chat_template is not None
    except InputError as error:
        fault = str(error)
    shell = _shell(model, config.task)
    output = shell.get_output_embeddings()
    inner = [layer.weight for layer in shell.modules() if _is_linear(layer) and layer is not output]
    quantisable = sum(weight.numel() for weight in inner)
    everything = sum(p.numel() for p in shell.parameters())
    trainable = rank * sum(sum(weight.shape) for weight in inner)
    layers, width = layers_and_width(shell.config)
    ways = []
    for base in _ORDER[device.type]:
        each = DTYPES[base.precision].itemsize
        coarse = quantisable if base.quantise == "nf4" else 0
        held = each * (everything - coarse) + _NF4_BYTES * coarse
        size = Size(
            everything,
            trainable,
            layers,
            width,
            models.vocabulary_of(shell),
            int(held) + 4 * trainable,
        )
        ways.append(Way(base, memory(config.model_copy(update={"base": base}), size)))
    free = machine.free(device)
    room = None if free is None else int(free * SHARE[device.type])
    return Fits(tuple(ways), room, has_chat_template, fault)


def _is_linear(layer: Any) -> bool:
    return isinstance(layer, nn.Linear) or type(layer).__name__ == "Conv1D"


def _shell(name: str, task: str) -> Any:
    """Build a model without weights."""
    import transformers

    place = model_files.place("model", name, location(name), False)
    settings = model_files.settings_of("model", name, place, False)
    auto = getattr(transformers, registry.task_facts(task).model_class)
    with torch.device("meta"), model_files.said_plainly("model", name):
        return auto.from_config(copy.deepcopy(settings))
