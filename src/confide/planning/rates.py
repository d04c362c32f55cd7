"""Say what the planner knows of a config's learning rate, and what a suggestion sets beside it.

The rule is that of `progress.py`. It is of models that write text with weights of their own or with LoRA factors. The
head of a classifier is new and takes a far higher rate, and of biases or single modules alone nobody tried any.
"""

import math
from typing import TYPE_CHECKING, Any

from confide.config import registry
from confide.planning.candidates import Candidate, over_steps
from confide.planning.cost import ATTENTION, Size
from confide.planning.progress import (
    ATTENTION_SCALE,
    BETAS,
    COMMON_FASTER,
    COMMON_FROM,
    COMMON_TOKENS,
    COMMON_UP_TO,
    SCALED,
    SCALED_UP_TO,
    WIDTH,
    gradients_in_noise,
    lora_higher,
    own_rate,
    signal,
    twin_rate,
)
from confide.privacy.mechanisms.base import Mechanism

if TYPE_CHECKING:
    from confide.config.schema import Config

SCHEDULE = "constant"
"""The schedule of a suggestion that names a learning rate.

`confide study schedules` found none that is certainly better in 24 to 96 steps. Cosine was not tried.
"""


def is_known(config: "Config") -> bool:
    """Return True if the rule knows learning rates for what trains."""
    adapter = config.adapter
    is_lora = adapter.kind == "lora" and not adapter.modules_to_save
    writes_text = registry.task_facts(config.task).is_causal
    return writes_text and (is_lora or adapter.kind in ("full", "matrices"))


def schedule(config: "Config") -> str:
    """Return the schedule that a suggestion has: its own with a rate of its own, else that of the config."""
    return SCHEDULE if is_known(config) else config.train.schedule


def rate(each: Candidate, config: "Config", size: Size) -> float | None:
    """Return the peak learning rate that suits a setting, to two digits; None if the rule knows none.

    It is higher for LoRA factors, and if common tokens count less.
    """
    if not is_known(config):
        return None
    is_less = config.privacy.common_tokens or "privacy.common_tokens" in multiplied(each, config, size)
    return _of_what_trains(each.rate, bool(is_less), config, size)


def of_config(
    config: "Config", mechanism: Mechanism, size: Size, noise_per_gradient: float, cap: int
) -> float | None:
    """Return the peak learning rate that suits a config as it is, to two digits; None if the rule knows none.

    Args:
        noise_per_gradient: of the first step, as `CalibratedMechanism.noise_per_gradient` has it.
        cap: rows of a unit.
    """
    if not is_known(config):
        return None
    steps, schedule = mechanism.steps, mechanism.schedule
    noise = noise_per_gradient * mechanism.correlation.noise_in_steps(steps)
    ratio = gradients_in_noise(noise, signal(mechanism, cap), size)
    found = own_rate(steps, schedule, ratio, over_steps(mechanism, schedule)[1], size.width)
    return _of_what_trains(found, bool(config.privacy.common_tokens), config, size)


def _of_what_trains(found: float, has_common_tokens: bool, config: "Config", size: Size) -> float:
    return _to_write(found * higher(config, size) * (COMMON_FASTER if has_common_tokens else 1))


def _to_write(peak: float) -> float:
    return float(f"{peak:.2g}")


def higher(config: "Config", size: Size) -> float:
    """Return how much higher the learning rates of what trains are than those of whole weights."""
    adapter = config.adapter
    return lora_higher(size.width, adapter.rank, adapter.scale) if adapter.kind == "lora" else 1.0


def settings(each: Candidate, config: "Config", size: Size) -> dict[str, Any]:
    """Return the keys of the config that are set with a learning rate; none if the rule knows no rate."""
    if not is_known(config):
        return {}
    found: dict[str, Any] = {
        "train.learning_rate": rate(each, config, size),
        "train.schedule": schedule(config),
    }
    if config.train.twin_learning_rate is None:  # without noise a twin might break down at the rate above
        found["train.twin_learning_rate"] = _to_write(twin_rate(size.width) * higher(config, size))
    if not each.mechanism.correlation.is_independent and config.train.betas is None:
        found["train.betas"] = list(BETAS)
    return found | multiplied(each, config, size)


def multiplied(each: Candidate, config: "Config", size: Size) -> dict[str, Any]:
    """Return the keys by which gradients are multiplied before they are clipped; none for LoRA factors.

    A config's own stay, and its own rates for single tensors stay alone: nobody tried both. Where the output layer has
    weights of its own, nobody tried any.
    """
    own, noise = config.privacy, math.sqrt(each.ratio * each.share)
    is_own = own.scales or own.common_tokens or config.train.rate_factors
    if config.adapter.kind == "lora" or not size.is_tied or is_own or noise > SCALED_UP_TO:
        return {}
    found: dict[str, Any] = {"privacy.scales": scaled(size)}
    is_split = config.train.distributed == "fsdp"  # with which `common_tokens` does not go
    if noise <= COMMON_UP_TO and size.vocabulary >= COMMON_FROM and not is_split:
        found["privacy.common_tokens"] = COMMON_TOKENS
    return found


def scaled(size: Size) -> dict[str, float]:
    """Return `SCALED`, by the words that fit the model: a word that fits no tensor would be refused."""
    found = {word: scale for word, scale in SCALED.items() if word not in ATTENTION}
    return found | ({size.attention: ATTENTION_SCALE} if size.attention else {})


def untried(config: "Config", size: Size) -> list[str]:
    """Say in which respects nobody has tried the rule at such a model."""
    is_lora = config.adapter.kind == "lora"
    found = []
    if size.width > WIDTH:
        found.append(f"models wider than {WIDTH} (this one is {size.width:,} wide)")
    if is_lora and config.adapter.dora:
        found.append("DoRA")
    if not size.is_tied:
        found.append("output layers with weights of their own")
    if config.train.rate_factors:
        found.append("train.rate_factors")
    return found
