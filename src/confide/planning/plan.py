"""What a config costs, before a single gradient: noise, guarantee, compute, memory, beside its neighbours."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar, cast, get_args

import numpy as np
from torch import nn

from confide.data.shape import Shape
from confide.models import loading as models
from confide.privacy import mechanisms
from confide.privacy.accounting import Accountant, Targets, delta_default, least_noise_for_secrets
from confide.privacy.guarantee import PRIORS
from confide.privacy.mechanisms.base import Mechanism
from confide.privacy.mechanisms.secret import Choice, SecretProtection
from confide.privacy.mechanisms.statement import Setting, settle, state_guarantee, warnings
from confide.privacy.sampling import Sampling
from confide.training.memory_fit import MOST, held
from confide.utils.chart import Panel, panels_svg
from confide.utils.errors import InputError

if TYPE_CHECKING:
    from confide.config.schema import Config

Item = TypeVar("Item")

USER_LEVEL = ("uls", "els", "group")
MOST_UNITS = 1e11
"""More units than there can be: about as many as people who ever lived."""

GROWTH = 10
"""How much a larger prior than was asked for may grow, where a plan shows what its protection would cost."""


@dataclass(frozen=True)
class Size:
    """What of a model decides its cost: weights in all and those that train, layers, width, vocabulary."""

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
        """Forward 2, backward 4 operations a weight and token (Kaplan et al. 2020); attention left out."""
        return 6.0 * self.parameters * tokens


def plan(
    config: "Config",
    shape: Shape,
    size: Size,
    progress: Callable[[int], object] = lambda done: None,
    times_users: Sequence[float] = (),
) -> dict[str, Any]:
    """The config's own setting and its neighbours at the same target.

    Args:
        shape: rows per unit; nothing else of the data is looked at.
        size: of the model.
        progress: called as each neighbour is done.
        times_users: how many times the units there might be, for `what_if`.

    Returns:
        `chosen` and `neighbours`, each with noise_multiplier, epsilon (for neighbours the target that they meet),
        delta, noise_per_gradient (`measure` says what that is), rows_per_step, tokens and compute, or with
        `impossible`, the reason; for secrets a neighbour is another c of the program, with what it keeps and its
        noise by both accountants; `stages`, what the steps of the run are; `what_if`, the noise were there more
        units, which is no guarantee; `memory_bytes`, an estimate; `gradients_bytes`, of a mechanism that compares all
        units; `warnings`, sentences; and `guarantee`, what the run would promise after all its steps.
    """
    mechanism, privacy = mechanisms.build(config), config.privacy
    chosen = settle(mechanism, shape, privacy.epsilon, privacy.noise_multiplier, privacy.delta)
    published = privacy.published_key is not None
    guarantee = state_guarantee(
        chosen, mechanism.all_steps, published, config, {"state": "planned, not trained"}
    )
    tokens = shape.tokens / max(shape.rows, 1)
    # As in the guarantee: a string where nothing holds, since JSON has no infinity.
    epsilon = guarantee.to_json()["epsilon"] if mechanism.notion != "none" else None
    first = _row("this config", chosen, epsilon, tokens, size)
    rows: list[dict[str, Any]] = []
    what_if = [_with_users(factor, chosen) for factor in times_users]
    if isinstance(mechanism, SecretProtection):
        return {
            "chosen": first,
            "measure": mechanism.measure,
            "neighbours": [_of_choice(c, chosen, first) for c in _watched(mechanism.sweep(shape), progress)],
            "larger_priors": _larger_priors(mechanism, shape),
            "memory_bytes": memory(config, size),
            "guarantee": guarantee.to_json(),
            "warnings": warnings(chosen),
        }
    if guarantee.notion != "none" and chosen.noise_multiplier > 0:
        target = privacy.epsilon or guarantee.epsilon
        for change, other in _watched(neighbours(mechanism, shape, config), progress):
            try:
                if other is None:
                    raise InputError("it is 1 already")
                setting = settle(other, shape, target, None, chosen.delta)
            except InputError as error:
                rows.append({"change": change, "impossible": str(error)})
                continue
            rows.append(_row(change, setting, target, tokens, size, first))
    return {
        "chosen": first,
        "measure": mechanism.measure,
        "stages": [
            {"name": stage.name, "steps": stage.steps, "noise_multiplier": stage.noise_multiplier}
            for stage in mechanism.stages(shape, chosen.noise_multiplier)
        ],
        "neighbours": rows,
        "what_if": what_if,
        "memory_bytes": memory(config, size),
        "guarantee": guarantee.to_json(),
        "warnings": warnings(chosen),
    } | ({"gradients_bytes": 4 * shape.units * size.trainable} if mechanism.filters else {})


def _with_users(factor: float, chosen: Setting) -> dict[str, Any]:
    """The noise if there were `factor` times the units, as many drawn in a step as now (003, section 4 and Figure 5).

    *No guarantee*: the units are not there.

    Raises:
        InputError: the mechanism's noise does not follow from an epsilon and one rate, or none is asked for.
    """
    mechanism, terms = chosen.mechanism, chosen.terms
    if not factor > 0:
        raise InputError(f"--times-users {factor:g}: give a number above 0, as in 10")
    if not 1 <= factor * terms.units < MOST_UNITS:
        raise InputError(f"--times-users {factor:g}: of {terms.units:,} units that is no number of people")
    if (
        not isinstance(terms.sampling, Sampling)
        or mechanism.notion == "none"
        or mechanism.redaction != "none"
        or mechanism.filters
    ):
        raise InputError(f"--times-users: {mechanism.name} has no rate of its units to scale")
    if not chosen.noise_multiplier:
        raise InputError("--times-users: without noise there is no epsilon to keep")
    if mechanism.sampling == "truncated":
        raise InputError(
            "--times-users: how often a truncated step is full depends on the rows there are; use "
            "privacy.sampling: poisson"
        )
    epsilon = chosen.curve().epsilon(chosen.delta)
    delta = min(chosen.delta, delta_default(round(factor * terms.rows), round(factor * terms.units)))
    more = replace(mechanism, sampling_rate=min(1.0, terms.sampling.rate / factor), divisor=terms.divisor)
    setting = settle(more, chosen.shape, epsilon, None, delta)
    return {
        "times_users": factor,
        "units": round(factor * terms.units),
        "epsilon": epsilon,
        "delta": delta,
        "noise_multiplier": setting.noise_multiplier,
        "noise_per_gradient": setting.noise_per_gradient(),
        "note": "a what-if: these units are not there, and no run may claim it",
    }


def _watched(items: Iterable[Item], progress: Callable[[int], object]) -> Iterator[Item]:
    for item in items:
        yield item
        progress(1)


def _of_choice(choice: Choice, chosen: Setting, first: dict[str, Any]) -> dict[str, Any]:
    """One c of the program: what is kept of the rows, and the noise by both accountants."""
    change = f"c {choice.c:g}"
    if choice.spread is None or choice.impossible is not None:
        return {"change": change, "c": choice.c, "impossible": choice.impossible}
    mechanism, spread = chosen.mechanism, choice.spread
    assert isinstance(mechanism, SecretProtection)
    noise = choice.noise[mechanism.accountant]
    return first | {
        "change": change,
        "epsilon": None,
        "sampling_probability": mechanism.batch / spread.kept,
        "c": choice.c,
        "rows_kept": spread.kept,
        "share_kept": spread.kept / chosen.shape.rows,
        "effective_rows": spread.effective,
        "effective_rows_per_step": mechanism.batch * spread.effective / spread.kept,
        "epochs": mechanism.steps * mechanism.batch / spread.total,
        "largest_probability": choice.rate,
        "noise": choice.noise,
        "noise_multiplier": noise,
        "noise_per_gradient": noise / chosen.terms.divisor,
        "relative_noise": noise / chosen.noise_multiplier,
    }


def _larger_priors(mechanism: SecretProtection, shape: Shape) -> list[dict[str, float]]:
    """How the noise grows as larger priors are protected too: each of PRIORS up to a value, in every secret, may
    reach what the secret's own may, or ten times itself where that is more."""
    targets, population = mechanism.targets(shape), mechanism.population(shape)
    found = []
    asked = targets
    for prior in PRIORS:
        allowed = np.maximum(targets.posterior, GROWTH * prior)
        asked = Targets(
            np.concatenate([asked.unit, targets.unit]),
            np.concatenate([asked.prior, np.full(len(targets.prior), prior)]),
            np.concatenate([asked.posterior, allowed]),
        )
        noise = least_noise_for_secrets(population, asked, mechanism.accountant)
        found.append({"prior": prior, "noise_multiplier": noise})
    return found


def neighbours(
    mechanism: Mechanism, shape: Shape, config: "Config"
) -> Iterator[tuple[str, Mechanism | None]]:
    """Other mechanisms at equal compute, then the mechanism's own; None where nothing is left to halve."""
    if mechanism.name in USER_LEVEL:
        for name in USER_LEVEL:
            if name != mechanism.name:
                yield f"{name}, as many rows a step", _instead(name, mechanism, shape, config)
    yield from mechanism.neighbours(shape)


def rival(name: str, mechanism: Mechanism, config: "Config") -> Mechanism:
    """Another mechanism of the config, without the literal constants that stand for the batch."""
    other = replace(
        mechanisms.find(name).from_config(config), sampling_rate=None, divisor=None, max_batch=None
    )
    if name != mechanism.name and getattr(mechanism, "selection", None) == "random-chunk":
        other = replace(other, selection=None)  # type: ignore[call-arg]  # only user sampling cuts chunks
    return other


def _instead(name: str, mechanism: Mechanism, shape: Shape, config: "Config") -> Mechanism:
    """Another mechanism of the config that computes as many rows a step."""
    other = rival(name, mechanism, config)
    terms = mechanism.terms(shape)
    # Rows are drawn one by one, or as many at a time as a unit gives.
    a_unit = replace(other, batch=1.0, sampling="poisson").terms(shape).rows_per_step
    batch = terms.rows_per_step / a_unit
    if mechanism.max_batch is not None:
        other = replace(other, max_batch=math.ceil(mechanism.max_batch * batch / terms.expected_batch))
    return replace(other, batch=batch)


def _row(
    change: str,
    setting: Setting,
    epsilon: float | str | None,
    tokens_per_row: float,
    size: Size,
    first: dict[str, Any] | None = None,
) -> dict[str, Any]:
    terms, mechanism = setting.terms, setting.mechanism
    tokens = mechanism.rows_computed(terms) * tokens_per_row
    return {
        "change": change,
        "mechanism": mechanism.name,
        "batch": terms.expected_batch,
        "sampling_probability": terms.sampling.rate,
        "rows_per_unit": mechanism.cap(setting.shape),
        "steps": mechanism.steps,
        "epsilon": epsilon,
        "delta": setting.delta,
        "noise_multiplier": setting.noise_multiplier,
        "noise_per_gradient": setting.noise_per_gradient(),
        "rows_per_step": terms.rows_per_step,
        "tokens": round(tokens),
        "operations": size.operations(tokens),
        "relative_compute": tokens / first["tokens"] if first else 1.0,
        "relative_noise": setting.noise_per_gradient() / first["noise_per_gradient"] if first else 1.0,
    }


def memory(config: "Config", size: Size) -> int:
    """Bytes at the peak of a step, an estimate: weights, clipped sum, optimiser state, activations.

    Fitted to peaks of processes that train GPT-2 on a CPU; other families may need up to twice as much.
    """
    train = config.train
    weights = 4 * size.parameters + 4 * size.trainable * (2 + held(config))
    # Float32 values a token and layer, in units of the width: what autograd keeps (Korthikanti et al. 2022 count
    # 34 bytes at half precision) and what the clipping keeps beside it, which checkpoints do not drop. With
    # LoRA a process is larger by what its allocations leave unused.
    kept = 34 if config.adapter.kind == "lora" else 14 if train.gradient_checkpointing else 20
    token = 4 * kept * size.width * size.layers
    if config.task != "classification":
        token += 2 * 4 * size.vocabulary  # logits, and the softmax that becomes their gradient
    tokens = MOST["cpu"] if train.micro_tokens == "auto" else train.micro_tokens
    return int(weights + token * tokens)


def program_svg(found: dict[str, Any]) -> str:
    """The sweep of a plan for secrets, as a picture (002, Figure 1 a and c): rows kept and noise, by c."""
    rows = sorted((row for row in found["neighbours"] if "impossible" not in row), key=lambda row: row["c"])
    x = "c, relative to the value that drops no row"
    kept = {
        "with any weight": [(row["c"], row["share_kept"]) for row in rows],
        "effective": [
            (row["c"], row["effective_rows"] / row["rows_kept"] * row["share_kept"]) for row in rows
        ],
    }
    noise = {name: [(row["c"], row["noise"][name]) for row in rows] for name in get_args(Accountant)}
    return panels_svg(
        "What tightening the program costs and saves",
        [
            Panel("rows", x, "share of rows", kept, log_x=True),
            Panel(
                "noise multiplier", x, "noise multiplier", noise, log_x=True, log_y=True, below=tuple(noise)
            ),
        ],
    )
