"""Suggest a setting: try many at one target and one compute budget, ranked by what they promise.

The ranking follows `progress.py`, a rule of thumb. Each setting is ranked at its own learning rate, which follows from
its steps and its noise: at one rate for all, that rate would decide which is best. The noise of every setting is
accounted, and that of the first ones is certified.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from confide.config.schedule import ADAMS
from confide.data.shape import Shape
from confide.planning import rates
from confide.planning.candidates import Candidate, Target, rounded
from confide.planning.cost import Size
from confide.planning.plan import rival
from confide.planning.progress import FITTED, lengths_of_thumb
from confide.planning.verdict import shown
from confide.privacy import mechanisms
from confide.privacy.mechanisms.base import Mechanism
from confide.privacy.mechanisms.statement import CalibratedMechanism, calibrate
from confide.privacy.strength import large_delta
from confide.utils.errors import InputError

if TYPE_CHECKING:
    from confide.config.schema import Config

STEPS = tuple(round(4 * 2 ** (i / 2)) for i in range(17))
"""Numbers of steps that are tried: 4 to 1,024, each 1.4 times the one before."""

DEALT = 20
"""Number of first settings that are also tried with balls in bins and correlated noise: these take longer."""

SUGGESTED = 5
"""Number of first settings that are certified and shown with a reason, unless more are asked for."""

_BY_SHAPE = (
    "ranked by the shape of the data and constants, which costs no privacy. This is a rule of thumb, no promise. It "
    "was fitted to the bundled model with all weights and independent noise, and tried at epsilon 8 with correlated "
    "noise, on two smaller models, and on one of them with LoRA"
)
_MEASURED = (
    "ranked by gradients of private rows, so what is chosen is not covered by the guarantee: a rule of thumb"
)


ALIKE = 0.03
"""Step of the logarithm of progress within which settings count as equal.

Settings within one step are ordered by how many rows they can reach, and by progress if these are equal.
"""

NEARLY = 0.1
"""Settings that lose less than this, in the logarithm of progress, are told of as nearly as good."""

UNFITTED = 0.1
"""What a setting must gain to stand first with a number of steps that the rule was not fitted to."""


def suggest(
    config: "Config",
    shape: Shape,
    size: Size,
    rows: float | None = None,
    norms: Callable[[int], float] | None = None,
    count: int = SUGGESTED,
    progress: Callable[[int], object] = lambda done: None,
) -> dict[str, Any]:
    """Suggest settings for the config's target at a budget of rows computed in all, the most promising first.

    *No guarantee*: the ranking follows from the shape, which is public, and from constants. With `norms` that
    were measured on private rows it is not covered.

    Args:
        rows: the budget; default: what the config itself computes.
        norms: k -> L(k), the norm of the mean gradient of k rows of a unit; default: a rule of thumb.
        count: number of settings to certify and return.
        progress: called after each setting.

    Returns:
        `budget_rows`, `considered`, `impossible`, `basis`, and `ranked`: each with mechanism, sampling, bands,
            buffers, rows_per_unit, batch, steps, learning_rate (None if the rule knows none), noise_multiplier,
            noise_per_gradient, rows_seen, operations, progress, reason, and the `settings` to run it. `nearly`: the
            fewest and the most steps of settings that come within a tenth of the first. `learning_rate`: the rule's
            for the first one, the config's, and what is untried; None if the rule knows none. `correlated`, where it
            knows no rate, so that correlated noise is not ranked: the `bands` or `buffers`, and the `sampling` that
            goes with them, with which the first would have the least noise in its weights, how much, relative to its
            own, and the `rate_factor` by which its learning rate may be higher; None if none would have less.

    Raises:
        InputError: the config asks for no epsilon, its mechanism has no rivals to compare, or nothing is possible.
    """
    if config.privacy.epsilon is None:
        raise InputError("privacy.epsilon: a suggestion needs a target; a stated noise_multiplier is none")
    if config.train.optimizer not in ADAMS:
        raise InputError(
            "train.optimizer: the ranking follows the steps of tensor-adamw and adamw, which have one length whatever "
            "the gradient's; "
            f"of {config.train.optimizer} it knows nothing"
        )
    own = mechanisms.build(config)
    if own.adjacency == "add-or-remove":
        raise InputError(
            "privacy.adjacency: add-or-remove needs literal constants, and a suggestion has none"
        )
    # With a budget of its own a suggestion needs neither batch nor draws, which this data may not allow.
    plain = own if rows is None else replace(own, batch=1.0, sampling="poisson", bands=1, buffers=0)
    parameters = plain.parameters(shape)
    budget = own.rows_computed(parameters) if rows is None else rows
    if not STEPS[0] <= budget < math.inf:
        raise InputError(
            f"{budget:g} rows: a suggestion takes {STEPS[0]} steps at least, of a row or more each"
        )
    target = Target(
        config.privacy.epsilon,
        config.privacy.delta or parameters.delta,
        shape,
        size,
        norms or lengths_of_thumb,
        rates.schedule(config),
    )
    found: list[Candidate] = []
    refused = 0
    for family in _families(own, config):
        near: list[float] = []
        for steps in STEPS:
            try:
                candidate = target.candidate(_at(family, shape, budget, steps), _next(near))
            except InputError:
                refused += 1
                near.clear()
            else:
                near.append(candidate.noise_multiplier)
                found.append(candidate)
            progress(1)
    if not found:
        way = "fewer" if budget > shape.units else "more"
        raise InputError(
            f"{budget:g} rows: no setting spends them on {shape.units} units; give {way} with --rows"
        )
    considered = len(found) + refused
    found.sort(key=_order)
    # A fixed number, so that what comes first does not depend on how many are asked for.
    found = sorted([*(_best(each, target, config) for each in found[:DEALT]), *found[DEALT:]], key=_order)
    first = found[0]
    nearly = [each.mechanism.steps for each in found if first.progress - each.progress < NEARLY]
    correlated = None if rates.is_known(config) or _is_watched(config) else _correlated(first, target, config)
    return {
        "budget_rows": budget,
        "considered": considered,
        "impossible": refused,
        "basis": _MEASURED if norms else _BY_SHAPE,
        "ranked": [_row(place, each, first, target, config) for place, each in enumerate(found[:count], 1)],
        "nearly": (min(nearly), max(nearly)),
        "correlated": correlated,
        "learning_rate": _named(first, config, size),
        "warning": large_delta(first.parameters.units, target.delta),
    }


def _named(first: Candidate, config: "Config", size: Size) -> dict[str, Any] | None:
    """Say which learning rate the rule has for the first setting, beside that of the config; and what is untried."""
    if not rates.is_known(config):
        return None
    return {
        "by_rule": rates.rate(first, config, size),
        "of_config": config.train.learning_rate,
        "steps": first.mechanism.steps,
        "schedule": rates.schedule(config),
        "untried": rates.untried(config, size),
    }


def _is_watched(config: "Config") -> bool:
    """Return True if an audit will read the noised sums: that takes Poisson draws and independent noise."""
    return config.canaries is not None and config.canaries.white_box


def _best(each: Candidate, target: Target, config: "Config") -> Candidate:
    """Return the best of a setting's kin: dealt into bins, or with correlated noise where the rule knows its rate."""
    if _is_watched(config):
        return each
    kin = [target.dealt(each)]
    if rates.is_known(config):
        kin += target.correlated(each, _warmup(config, each.mechanism.steps))
    return max(kin, key=lambda other: other.progress)


def _correlated(first: Candidate, target: Target, config: "Config") -> dict[str, Any] | None:
    """Find the bands with the least noise in the weights, and tell how much that is; None if none have less."""
    kin = target.correlated(first, _warmup(config, first.mechanism.steps))
    found = {each.in_weights: each for each in (first, *kin)}
    best = found[min(found)]
    if best is first:
        return None
    return {
        "bands": best.mechanism.bands,
        "buffers": best.mechanism.buffers,
        "sampling": best.mechanism.sampling,
        "rate_factor": 1 / math.sqrt(best.share),
        "noise_in_weights": best.in_weights / first.in_weights,
    }


def _families(own: Mechanism, config: "Config") -> Iterator[Mechanism]:
    """Yield the mechanisms to compare, with each number of rows per unit; batch and steps are still open."""
    if not own.suggested_caps:
        known = [name for name in mechanisms.NAMES if mechanisms.find(name).suggested_caps]
        raise InputError(
            f"privacy.mechanism: there is no suggestion for {own.name}, only for {', '.join(known)}"
        )
    for name in mechanisms.family(own) or (own.name,):
        other = replace(
            rival(name, own, config), sampling="poisson", bands=1, buffers=0, schedule=rates.schedule(config)
        )
        for cap in other.suggested_caps:
            yield replace(other, rows_per_unit=cap) if hasattr(other, "rows_per_unit") else other  # type: ignore[call-arg]


def _at(family: Mechanism, shape: Shape, budget: float, steps: int) -> Mechanism:
    """Return the mechanism with the batch that spends the budget in so many steps, up to rounding."""
    a_unit = replace(family, batch=1.0, steps=steps).parameters(shape).rows_per_step
    return replace(family, batch=rounded(budget / (steps * a_unit)), steps=steps)


def _order(each: Candidate) -> tuple[float, ...]:
    worth = each.progress - (0.0 if each.mechanism.steps in FITTED else UNFITTED)
    return -round(worth / ALIKE), -round(each.reach), -worth


def _next(near: list[float]) -> float:
    """Guess the noise of a few more steps from that of the last settings."""
    if len(near) < 2:
        return near[-1] if near else 1.0
    return near[-1] ** 2 / near[-2]


def _row(
    place: int,
    each: Candidate,
    first: Candidate,
    target: Target,
    config: "Config",
) -> dict[str, Any]:
    shape = target.shape
    setting = calibrate(each.mechanism, shape, target.epsilon, None, target.delta)
    rows = each.mechanism.rows_computed(each.parameters)
    tokens = rows * shape.tokens / max(shape.rows, 1)
    return {
        "place": place,
        "mechanism": each.mechanism.name,
        "sampling": each.mechanism.sampling,
        "bands": each.mechanism.bands,
        "buffers": each.mechanism.buffers,
        "rows_per_unit": each.cap,
        "batch": each.mechanism.batch,
        "steps": each.mechanism.steps,
        "sampling_probability": each.parameters.sampling.rate,
        "noise_multiplier": setting.noise_multiplier,
        "noise_per_gradient": setting.noise_per_gradient(),
        "learning_rate": rates.rate(each, config, target.size),
        "rows_seen": rows,
        "operations": target.size.operations(tokens),
        "progress": math.exp(each.progress),
        "reason": _reason(each, first),
        "settings": _settings(each, setting, config, target.size),
    }


def _settings(each: Candidate, setting: CalibratedMechanism, config: "Config", size: Size) -> dict[str, Any]:
    """Return the keys of the config that make it this setting."""
    found: dict[str, Any] = {"privacy.mechanism": each.mechanism.name}
    if hasattr(each.mechanism, "rows_per_unit"):
        found["privacy.rows_per_unit"] = each.mechanism.rows_per_unit
    found["privacy.selection"] = getattr(each.mechanism, "selection", None)
    found["privacy.resample"] = getattr(each.mechanism, "resample", False)
    found["privacy.sampling"], found["privacy.bands"] = each.mechanism.sampling, each.mechanism.bands
    if each.mechanism.buffers or config.privacy.buffers:
        found["privacy.buffers"] = each.mechanism.buffers
    found["privacy.delta"] = setting.delta
    batch = each.mechanism.batch
    found["train.batch"] = int(batch) if batch.is_integer() else batch
    found["train.steps"] = each.mechanism.steps
    if config.train.warmup:
        found["train.warmup"] = _warmup(config, each.mechanism.steps)
    found |= rates.settings(each, config, size)
    return found | {"train.sampling_rate": None, "train.divisor": None, "train.max_batch": None}


def _warmup(config: "Config", steps: int) -> int:
    """Return the warm-up steps: the same share of the run as in the config."""
    return config.train.warmup * steps // config.train.steps


def _reason(each: Candidate, first: Candidate) -> str:
    """Explain the place of a setting in the ranking, in a sentence."""
    steps, most = each.mechanism.steps, first.mechanism.steps
    facts = f"{steps} steps with noise {shown(math.sqrt(each.ratio))} times as long as the gradient"
    if not each.mechanism.correlation.is_independent:
        facts += f", {shown(math.sqrt(each.share))} of which stays in the weights"
    if each is first:
        return f"{facts}: first by this rule, of the settings that are possible"
    if each.progress - first.progress > ALIKE and steps not in FITTED:
        few = "few" if steps < FITTED.start else "many"
        return f"{facts}: better by this rule, which was not fitted to so {few} steps"
    if first.progress - each.progress < ALIKE:
        reached = f", but it reaches {each.reach:,.0f} rows, the first {first.reach:,.0f}"
        return f"{facts}: as good by this rule{reached if round(each.reach) < round(first.reach) else ''}"
    noise, signal_lost = math.log(each.noise / first.noise), math.log(first.signal / each.signal)
    in_noise = (math.log1p(each.ratio) - math.log1p(first.ratio)) / 2
    stays = math.log(each.share / first.share) / 2
    is_alike = each.mechanism.correlation == first.mechanism.correlation
    lost = {
        "noise": in_noise if is_alike and noise >= signal_lost else -math.inf,
        "signal": in_noise if is_alike and signal_lost > noise else -math.inf,
        "bands": -math.inf if is_alike else in_noise + stays,
        "steps": math.log(most * first.rate / (steps * each.rate)) - stays,
        "walk": each.walk - first.walk,
    }
    why = {
        "noise": f"{each.noise / first.noise:.3g} times the noise per gradient of the first",
        "signal": f"{each.cap} rows of a unit at a time tell less of what units share than {first.cap}",
        "bands": f"{math.exp(in_noise + stays):.3g} times as much noise of a step stays, for what the step learns",
        "steps": f"{steps} steps go less far than {most}, each at a rate that suits it",
        "walk": f"{steps} steps wander further than {most}, each at a rate that suits it",
    }
    return f"{facts}: {why[max(lost, key=lambda name: lost[name])]}"
