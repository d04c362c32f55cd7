"""What a config costs, before a single gradient: noise, guarantee, compute, memory, beside its neighbours."""

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from confide import mechanisms
from confide.errors import InputError
from confide.mechanisms.base import Mechanism
from confide.mechanisms.statement import Setting, settle
from confide.units import Shape

if TYPE_CHECKING:
    from confide.config import Config

USER_LEVEL = ("uls", "els", "group")


def plan(config: "Config", shape: Shape, parameters: int, trainable: int) -> dict[str, Any]:
    """The config's own setting and its neighbours at the same target.

    Args:
        shape: rows per unit; nothing else of the data is looked at.
        parameters, trainable: sizes of the model.

    Returns:
        `chosen` and `neighbours`, each with noise_multiplier, epsilon, delta, noise_per_gradient (standard
        deviation on the mean clipped gradient, in units of the clip norm), rows_per_step, tokens and
        compute; and `memory_bytes`, an estimate.
    """
    mechanism, privacy = mechanisms.build(config), config.privacy
    chosen = settle(mechanism, shape, privacy.epsilon, privacy.noise_multiplier, privacy.delta)
    private = mechanism.notion != "none"
    epsilon = chosen.curve().epsilon(chosen.delta) if private else None
    tokens = shape.tokens / max(shape.rows, 1)
    first = _row("this config", chosen, epsilon, tokens, parameters)
    rows = []
    if private and epsilon is not None and epsilon < float("inf"):
        for change, other in neighbours(mechanism, shape, config):
            try:
                setting = settle(other, shape, epsilon, None, chosen.delta)
            except InputError as error:
                rows.append({"change": change, "impossible": str(error)})
                continue
            rows.append(_row(change, setting, epsilon, tokens, parameters, first))
    return {"chosen": first, "neighbours": rows, "memory_bytes": memory(config, parameters, trainable)}


def neighbours(mechanism: Mechanism, shape: Shape, config: "Config") -> Iterator[tuple[str, Mechanism]]:
    """Other mechanisms at equal compute; rows per unit, batch and steps halved and doubled."""
    if mechanism.name in USER_LEVEL:
        rows_per_step = mechanism.terms(shape).rows_per_step
        for name in USER_LEVEL:
            if name == mechanism.name:
                continue
            other = mechanisms.find(name).from_config(config)
            rule = getattr(mechanism, "selection", None)
            if rule == "random-chunk":
                other = replace(other, selection=None)  # type: ignore[call-arg]
            # At equal compute: as many rows a step, drawn one by one or k at a time.
            share = other.terms(shape).rows_per_step / other.batch if other.draws == "units" else 1.0
            yield (
                f"{name}, as many rows a step",
                replace(other, batch=rows_per_step / share, sampling_rate=None),
            )
    k = getattr(mechanism, "rows_per_unit", None)
    if isinstance(k, int):
        if k > 1:
            yield f"rows_per_unit {k // 2}", replace(mechanism, rows_per_unit=k // 2)  # type: ignore[call-arg]
        yield f"rows_per_unit {2 * k}", replace(mechanism, rows_per_unit=2 * k)  # type: ignore[call-arg]
    for batch in (mechanism.batch / 2, mechanism.batch * 2):
        yield f"batch {batch:g}", replace(mechanism, batch=batch)
    for steps in (mechanism.steps // 2, mechanism.steps * 2):
        if steps:
            yield f"steps {steps}", replace(mechanism, steps=steps)


def _row(
    change: str,
    setting: Setting,
    epsilon: float | None,
    tokens_per_row: float,
    parameters: int,
    first: dict[str, Any] | None = None,
) -> dict[str, Any]:
    terms, mechanism = setting.terms, setting.mechanism
    tokens = terms.rows_per_step * mechanism.steps * tokens_per_row
    return {
        "change": change,
        "mechanism": mechanism.name,
        "batch": terms.expected_batch,
        "sampling_probability": terms.sampling.rate,
        "rows_per_unit": getattr(mechanism, "rows_per_unit", 1),
        "steps": mechanism.steps,
        "epsilon": epsilon,
        "delta": setting.delta,
        "noise_multiplier": setting.noise_multiplier,
        "noise_per_gradient": setting.noise_per_gradient(),
        "rows_per_step": terms.rows_per_step,
        "tokens": round(tokens),
        # Forward 2, backward 4 operations a weight and token (Kaplan et al. 2020); attention left out.
        "operations": 6.0 * parameters * tokens,
        "relative_compute": tokens / first["tokens"] if first else 1.0,
        "relative_noise": setting.noise_per_gradient() / first["noise_per_gradient"] if first else 1.0,
    }


def memory(config: "Config", parameters: int, trainable: int) -> int:
    """Bytes at the peak of a step, an estimate: weights, clipped sum, optimiser state, activations."""
    states = {"adamw": 2, "adafactor": 0, "sgd": 1 if config.train.momentum else 0}[config.train.optimizer]
    weights = 4 * parameters + 4 * trainable * (1 + states)
    # Some 34 values of model width a token and layer (Korthikanti et al. 2022), width from P = 12 L d^2.
    layers = max(2, round((parameters / 1e6) ** 0.4 * 2))
    width = (parameters / (12 * layers)) ** 0.5
    return int(weights + 34 * 2 * width * layers * config.train.micro_tokens)
