"""Compute what a config costs, before a single gradient: noise, guarantee, compute, memory, and its neighbours."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

from confide.data.shape import Shape
from confide.planning.account import MOST_UNITS
from confide.planning.cost import Size
from confide.planning.devices import OnDevices
from confide.planning.memory import Kept, Memory, memory
from confide.privacy import mechanisms
from confide.privacy.accounting import delta_default
from confide.privacy.guarantee import Guarantee
from confide.privacy.mechanisms.base import Mechanism
from confide.privacy.mechanisms.statement import CalibratedMechanism, calibrate, state_guarantee, warnings
from confide.privacy.mechanisms.values import Alternative
from confide.privacy.sampling import Sampling
from confide.utils.chart import Panel, panels_svg
from confide.utils.errors import InputError

if TYPE_CHECKING:
    from confide.config.schema import Config

Item = TypeVar("Item")


@dataclass(frozen=True)
class PlannedSetting:
    """One setting of a plan, with its noise and cost.

    Attributes:
        change: the difference from the chosen setting, in words.
        mechanism: its name.
        batch: expected rows or units of a step.
        sampling_probability: of each row or unit; for rows with probabilities of their own, the mean.
        rows_per_unit: the most rows of a unit: in a step if units are drawn, else in all.
        steps: noised steps.
        epsilon: the epsilon that it meets; a string if no finite one holds, since JSON has no infinity; None if
            nothing is claimed.
        noise_per_gradient: as `Plan.measure` describes it.
        rows_per_step: expected rows that a step computes.
        tokens: expected tokens that all steps compute.
        operations: floating-point operations of all steps, an estimate.
        relative_compute, relative_noise: relative to those of the chosen setting.
        facts: further facts of a mechanism's own, by key.
    """

    change: str
    mechanism: str
    batch: float
    sampling_probability: float
    rows_per_unit: int
    steps: int
    epsilon: float | str | None
    delta: float
    noise_multiplier: float
    noise_per_gradient: float
    rows_per_step: float
    tokens: int
    operations: float
    relative_compute: float = 1.0
    relative_noise: float = 1.0
    facts: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        values = asdict(self)
        shown: dict[str, Any] = values | values.pop("facts")
        return shown


@dataclass(frozen=True)
class Impossible:
    """A setting that is impossible, and why."""

    change: str
    impossible: str
    facts: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return {"change": self.change, **self.facts, "impossible": self.impossible}


@dataclass(frozen=True)
class WhatIf:
    """The noise if there were more units, and a step drew as many as now. *No guarantee*: the units do not exist."""

    times_users: float
    units: int
    epsilon: float
    delta: float
    noise_multiplier: float
    noise_per_gradient: float
    note: str = "a what-if: these units are not there, and no run may claim it"


@dataclass(frozen=True)
class Plan:
    """Cost and guarantee of a config, before a gradient is computed.

    Attributes:
        guarantee: what the run would promise after all its steps.
        chosen: the config's own setting.
        measure: the meaning of `noise_per_gradient`, in words.
        phases: (name, steps, noise multiplier) of the steps of the run.
        neighbours: other settings, at the same target.
        what_if: the noise if there were more units.
        memory: what training takes, by part: an estimate.
        gradients_bytes: for a mechanism that compares the gradients of all units; else None.
        warnings: sentences that a person should read before training.
        outlook: further facts of a mechanism's own, by key.
        devices: the run on devices that were asked for.
        histograms: what is counted and released with the model, in words; "" if nothing is.
        verdict: whether there are enough units, `words` and figures; None if no rule is known.
    """

    guarantee: Guarantee
    chosen: PlannedSetting
    measure: str
    phases: tuple[tuple[str, int, float], ...]
    neighbours: tuple[PlannedSetting | Impossible, ...]
    what_if: tuple[WhatIf, ...]
    memory: Memory
    gradients_bytes: int | None
    warnings: tuple[str, ...]
    outlook: dict[str, Any] = field(default_factory=dict)
    verdict: dict[str, Any] | None = None
    devices: OnDevices | None = None
    histograms: str = ""

    @property
    def noise_multiplier(self) -> float:
        """Standard deviation of the noise over the clip norm."""
        return self.chosen.noise_multiplier

    def to_json(self) -> dict[str, Any]:
        """Return all of it, as `confide plan --json` prints it."""
        found: dict[str, Any] = {
            "chosen": self.chosen.to_json(),
            "measure": self.measure,
            "stages": [
                {"name": name, "steps": steps, "noise_multiplier": noise}
                for name, steps, noise in self.phases
            ],
            "neighbours": [each.to_json() for each in self.neighbours],
            "what_if": [asdict(each) for each in self.what_if],
            **self.outlook,
            "memory_bytes": self.memory.whole,
            "memory": asdict(self.memory),
            "guarantee": self.guarantee.to_json(),
            "warnings": list(self.warnings),
            "verdict": self.verdict,
        }
        if self.histograms:
            found["histograms"] = self.histograms
        if self.devices is not None:
            found["devices"] = self.devices.to_json()
        return found if self.gradients_bytes is None else found | {"gradients_bytes": self.gradients_bytes}


def plan(
    config: "Config",
    shape: Shape,
    size: Size,
    progress: Callable[[int], object] = lambda done: None,
    times_users: Sequence[float] = (),
    kept: Kept | None = None,
    chunk: int = 0,
    on_cpu: bool = False,
) -> Plan:
    """Plan the config's own setting and its neighbours at the same target.

    Args:
        shape: rows per unit; nothing else of the data is used.
        size: size of the model.
        progress: called as each neighbour is done.
        times_users: factor on the number of units, for `Plan.what_if`.
        kept: what autograd was seen to keep of a row.
        chunk: tokens whose logits are made at a time; 0 for all at once.
        on_cpu: the run trains on a CPU.

    Raises:
        InputError: the mechanism cannot run on such data, or no noise meets the target.
    """
    mechanism, privacy = mechanisms.build(config), config.privacy
    chosen = calibrate(mechanism, shape, privacy.epsilon, privacy.noise_multiplier, privacy.delta)
    guarantee = state_guarantee(
        chosen,
        mechanism.all_steps,
        privacy.published_key is not None,
        config,
        {"state": "planned, not trained"},
    )
    epsilon = guarantee.to_json()["epsilon"] if mechanism.protects else None
    tokens = shape.tokens / max(shape.rows, 1)
    first = in_plan("this config", chosen, epsilon, tokens, size)
    found: list[PlannedSetting | Impossible] = []
    if guarantee.notion != "none" and chosen.noise_multiplier > 0:
        target = privacy.epsilon or (None if mechanism.needs.secrets else guarantee.epsilon)
        for other in _watched(alternatives(mechanism, shape, config), progress):
            found.append(_neighbour(other, chosen, target, tokens, size, first))
    return Plan(
        guarantee=guarantee,
        chosen=first,
        measure=mechanism.noise_unit,
        phases=tuple(
            (phase.name, phase.steps, phase.noise_multiplier)
            for phase in mechanism.phases(shape, chosen.noise_multiplier)
        ),
        neighbours=tuple(found),
        what_if=tuple(_with_users(factor, chosen) for factor in times_users),
        memory=memory(config, size, kept, chunk, on_cpu),
        gradients_bytes=4 * shape.units * size.trainable if chosen.aggregation().radii else None,
        warnings=tuple(warnings(chosen, config)),
        outlook=mechanism.outlook(shape),
        histograms="" if mechanism.histograms is None else mechanism.histograms.short,
    )


def _neighbour(
    other: Alternative,
    chosen: CalibratedMechanism,
    target: float | None,
    tokens: float,
    size: Size,
    first: PlannedSetting,
) -> PlannedSetting | Impossible:
    if other.mechanism is None:
        assert other.impossible is not None
        return Impossible(other.change, other.impossible, other.facts)
    try:
        known = other.noise_multiplier
        asked = target if known is None else None
        setting = calibrate(other.mechanism, chosen.shape, asked, known, chosen.delta)
    except InputError as error:
        return Impossible(other.change, str(error), other.facts)
    row = in_plan(other.change, setting, target, tokens, size)
    return replace(
        row,
        relative_compute=row.tokens / first.tokens,
        relative_noise=row.noise_per_gradient / first.noise_per_gradient,
        facts=other.facts,
    )


def _with_users(factor: float, chosen: CalibratedMechanism) -> WhatIf:
    """Compute the noise if there were `factor` times the units (Charles et al. 2024, section 4 and Figure 5).

    Raises:
        InputError: the mechanism's noise does not follow from an epsilon and one rate, or no epsilon is asked for.
    """
    mechanism, parameters = chosen.mechanism, chosen.parameters
    if not factor > 0:
        raise InputError(f"--times-users {factor:g}: give a number above 0, as in 10")
    if not 1 <= factor * parameters.units < MOST_UNITS:
        raise InputError(
            f"--times-users {factor:g}: of {parameters.units:,} units that is no number of people"
        )
    has_rate = isinstance(parameters.sampling, Sampling) and not chosen.aggregation().radii
    if not has_rate or not mechanism.protects or mechanism.needs.redaction != "none":
        raise InputError(f"--times-users: {mechanism.name} has no rate of its units to scale")
    if not chosen.noise_multiplier:
        raise InputError("--times-users: without noise there is no epsilon to keep")
    epsilon = chosen.curve().epsilon(chosen.delta)
    delta = min(
        chosen.delta, delta_default(round(factor * parameters.rows), round(factor * parameters.units))
    )
    more = replace(
        mechanism,
        sampling_rate=min(1.0, parameters.sampling.rate / factor),
        divisor=parameters.divisor,
        # A cap costs nothing. Here the rate alone changes, and with fewer units it would give more than the cap.
        sampling="poisson" if mechanism.sampling == "truncated" else mechanism.sampling,
        max_batch=None,
    )
    setting = calibrate(more, chosen.shape, epsilon, None, delta)
    return WhatIf(
        times_users=factor,
        units=round(factor * parameters.units),
        epsilon=epsilon,
        delta=delta,
        noise_multiplier=setting.noise_multiplier,
        noise_per_gradient=setting.noise_per_gradient(),
    )


def _watched(items: Iterable[Item], progress: Callable[[int], object]) -> Iterator[Item]:
    for item in items:
        yield item
        progress(1)


def alternatives(mechanism: Mechanism, shape: Shape, config: "Config") -> Iterator[Alternative]:
    """Yield other mechanisms of the same family at equal compute, then the mechanism's own alternatives."""
    for name in mechanisms.family(mechanism):
        if name != mechanism.name:
            yield Alternative(f"{name}, as many rows a step", _instead(name, mechanism, shape, config))
    yield from mechanism.alternatives(shape)


def rival(name: str, mechanism: Mechanism, config: "Config") -> Mechanism:
    """Return another mechanism for the config, without the literal constants that stand for the batch."""
    other = replace(
        mechanisms.find(name).from_config(config), sampling_rate=None, divisor=None, max_batch=None
    )
    if name != mechanism.name and getattr(mechanism, "selection", None) == "random-chunk":
        other = replace(other, selection=None)  # type: ignore[call-arg]  # only user sampling cuts chunks
    return other


def _instead(name: str, mechanism: Mechanism, shape: Shape, config: "Config") -> Mechanism:
    """Return another mechanism for the config that computes as many rows per step."""
    other = rival(name, mechanism, config)
    parameters = mechanism.parameters(shape)
    # Rows are drawn one by one, or as many at a time as a unit gives.
    a_unit = replace(other, batch=1.0, sampling="poisson").parameters(shape).rows_per_step
    batch = parameters.rows_per_step / a_unit
    if mechanism.max_batch is not None:
        other = replace(other, max_batch=math.ceil(mechanism.max_batch * batch / parameters.expected_batch))
    return replace(other, batch=batch)


def in_plan(
    change: str, setting: CalibratedMechanism, epsilon: float | str | None, tokens_per_row: float, size: Size
) -> PlannedSetting:
    """Put a setting and its cost into a row of a plan.

    Args:
        change: the difference from the chosen setting, in words.
        epsilon: the epsilon that it meets.
        tokens_per_row: of the data, on average.
        size: size of the model.
    """
    parameters, mechanism = setting.parameters, setting.mechanism
    tokens = mechanism.rows_computed(parameters) * tokens_per_row
    return PlannedSetting(
        change=change,
        mechanism=mechanism.name,
        batch=parameters.expected_batch,
        sampling_probability=parameters.sampling.rate,
        rows_per_unit=mechanism.cap(setting.shape),
        steps=mechanism.steps,
        epsilon=epsilon,
        delta=setting.delta,
        noise_multiplier=setting.noise_multiplier,
        noise_per_gradient=setting.noise_per_gradient(),
        rows_per_step=parameters.rows_per_step,
        tokens=round(tokens),
        operations=size.operations(tokens),
    )


def program_svg(found: dict[str, Any]) -> str:
    """Draw the sweep of a plan for secrets (Ganesh et al., "Hush!", Figure 1 a and c): rows kept and noise, by c."""
    rows = sorted((row for row in found["neighbours"] if "impossible" not in row), key=lambda row: row["c"])
    x = "c, relative to the value that drops no row"
    kept = {
        "with any weight": [(row["c"], row["share_kept"]) for row in rows],
        "effective": [
            (row["c"], row["effective_rows"] / row["rows_kept"] * row["share_kept"]) for row in rows
        ],
    }
    noise = {
        name: [(row["c"], row["noise"][name]) for row in rows] for name in (rows[0]["noise"] if rows else ())
    }
    return panels_svg(
        "What tightening the program costs and saves",
        [
            Panel("rows", x, "share of rows", kept, log_x=True),
            Panel(
                "noise multiplier", x, "noise multiplier", noise, log_x=True, log_y=True, below=tuple(noise)
            ),
        ],
    )
