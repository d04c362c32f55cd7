"""Estimate a run on devices that are not here: its time, its memory, and how busy each device is.

Some steps are drawn from the data's real shape, and dealt to the ranks by the code that training uses. No model and no
device is needed. Everything is an estimate. It follows from who owns which row and from the lengths of rows, which a
zero-out claim lists as public.
"""

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from confide.clipping.sums import fits_whole
from confide.data.unit_graph import UnitGraph
from confide.planning.cost import Size
from confide.planning.memory import Memory
from confide.privacy import mechanisms
from confide.privacy.sampling import Draw
from confide.randomness.streams import RunKey
from confide.training.utilisation import Deal, apart, slowest_rank, spread, together, utilisation
from confide.utils.errors import InputError

if TYPE_CHECKING:
    from confide.config.schema import Config

REACHED = 0.2
"""Share of a device's peak in bf16 that steps reach, at 6 operations a weight and token: what full fine-tuning of a
Llama of 1 B (0.21) and LoRA of GPT-2 large (0.20) reached on an H200 (docs/benchmarks.md, 2026-11-26)."""

_STEPS = 4  # that are drawn
_DEVICES = re.compile(r"(?:(\d+)\s*[x*]\s*)?([a-z][a-z0-9-]*)", re.IGNORECASE)


@dataclass(frozen=True)
class Device:
    """A GPU, by its maker's data sheet: operations a second in bf16 without sparsity, and bytes of memory."""

    name: str
    operations: float
    memory: int


DEVICES = {
    device.name.lower(): device
    for device in (
        Device("A100", 312e12, 80 << 30),
        Device("A10G", 70e12, 24 << 30),
        Device("B200", 2250e12, 180 << 30),
        Device("H100", 989e12, 80 << 30),
        Device("H200", 989e12, 141 << 30),
        Device("L4", 121e12, 24 << 30),
        Device("L40S", 362e12, 48 << 30),
        Device("MI300X", 1307e12, 192 << 30),
    )
}


@dataclass(frozen=True)
class OnDevices:
    """A run on several devices: an estimate.

    Attributes:
        devices: how many, and of which kind.
        way: `one`, `ddp` or `fsdp`.
        micro_tokens: tokens of a micro-batch, as many as memory allows.
        seconds_per_step, hours: of a step, and of the run.
        utilisation: share of the devices' time that is needed, over the drawn steps: mean and least.
        memory: bytes at the peak of a step, on each device, beside what there is.
        fits: whether that suffices.
    """

    devices: str
    way: str
    micro_tokens: int
    seconds_per_step: float
    hours: float
    utilisation: tuple[float, float]
    memory: tuple[int, int]
    fits: bool

    def to_json(self) -> dict[str, Any]:
        return dict(vars(self))


def parsed(text: str) -> tuple[int, Device]:
    """Return number and kind of devices, from "8xH200".

    Raises:
        InputError: no such device is known.
    """
    found = _DEVICES.fullmatch(text.strip())
    device = DEVICES.get(found[2].lower()) if found else None
    count = int(found[1] or 1) if found else 0
    if device is None or not 1 <= count <= 4096:
        known = ", ".join(each.name for each in DEVICES.values())
        raise InputError(f"--devices: give a number and a kind, as in 8xH200; the kinds are {known}")
    return count, device


def on_devices(
    config: "Config",
    graph: UnitGraph,
    size: Size,
    memory: Memory,
    count: int,
    device: Device,
    is_chunked: bool = False,
) -> OnDevices:
    """Estimate a run on `count` devices.

    Args:
        graph: the prepared rows.
        memory: of a step on such a device.
        is_chunked: the loss is computed in chunks, so that logits take as much for any micro-batch.

    Raises:
        InputError: the mechanism's draws are not known before it is trained.
    """
    is_split = splits(config, count)
    parts = count if is_split else 1
    fixed = (memory.weights + memory.trained) // parts + (memory.logits if is_chunked else 0)
    each = (memory.activations + (0 if is_chunked else memory.logits)) / _tokens(config)
    longest = config.data.max_length
    room = 0.85 * device.memory - fixed
    fitting = int(max(room, 0) / each) if each else 1 << 16
    micro_tokens = max(longest, min(1 << 16, 1 << max(fitting, 1).bit_length() - 1))
    deal = apart
    if is_split:
        deal = together if fits_whole(size.trainable, size.weights_bytes) else spread
    busy, slowest = _simulated(config, graph, micro_tokens, count, deal)
    seconds = size.operations(slowest) / (REACHED * device.operations)
    needed = int(fixed + each * micro_tokens)
    return OnDevices(
        f"{count} x {device.name}",
        "fsdp" if is_split else "ddp" if count > 1 else "one",
        micro_tokens,
        seconds,
        seconds * config.train.steps / 3600,
        (float(np.mean(busy)), min(busy)),
        (needed, device.memory),
        needed <= device.memory,
    )


def splits(config: "Config", count: int) -> bool:
    """Tell whether so many devices share one model among them."""
    return count > 1 and config.train.distributed == "fsdp"


def _tokens(config: "Config") -> int:
    """Return the tokens of a micro-batch that `memory` was estimated for."""
    from confide.training.memory_fit import MOST

    return MOST["cpu"] if config.train.micro_tokens == "auto" else config.train.micro_tokens


def _simulated(
    config: "Config", graph: UnitGraph, micro_tokens: int, ranks: int, deal: Deal
) -> tuple[list[float], float]:
    """Return the utilisation of some drawn steps, and the mean cost of the slowest rank, in tokens."""
    mechanism, key = mechanisms.build(config), RunKey.from_text("a plan")

    def unknown() -> Any:
        raise InputError(
            "--devices: what this mechanism draws hangs on perplexities, which are not computed here"
        )

    sampler = mechanism.sampler(graph, key, "main", unknown)
    busy, slowest = [], []
    for step in range(_STEPS):
        draw = sampler.draw(step)
        if not isinstance(draw, Draw) or not draw.groups:
            continue
        busy.append(utilisation(draw, micro_tokens, ranks, deal))
        slowest.append(slowest_rank(draw, micro_tokens, ranks, deal))
    if not busy:
        raise InputError("--devices: the steps that were tried drew nobody, so nothing can be said of them")
    return busy, float(np.mean(slowest))
