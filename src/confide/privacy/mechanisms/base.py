"""A mechanism: an immutable value that says whom it protects, how steps draw and add noise, and what that proves.

Sampler, clip, noise and accountant come from the same value, so they cannot disagree. A mechanism answers with the
types of `values`:

- `needs`: the data that it works on (`DataNeeds`)
- `parameters`: rates, divisor and the process to account (`PrivacyParameters`)
- `phases` and `phase_of`: the steps of a run (`Phase`)
- `sampler`: the rows of a step (`Sampler`)
- `aggregation`: clip, noise and scale (`Aggregation`)
- `claim`: its own part of the guarantee (`ClaimParts`)
- `alternatives`: the settings that a plan shows besides the chosen one (`Alternative`)
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar

from confide.config import registry
from confide.data.shape import Shape
from confide.data.unit_graph import UnitGraph
from confide.privacy.accounting import DominatingPair, delta_default, least_noise, replaced
from confide.privacy.correlated_noise import SQUARE_ROOT, Correlation, correlation_of, exponent_for
from confide.privacy.guarantee import ANEW
from confide.privacy.histograms import Histograms
from confide.privacy.mechanisms.canary_rules import canary_errors
from confide.privacy.mechanisms.correlation_rules import correlation_errors
from confide.privacy.mechanisms.held_out_rules import PATIENCE, choice_errors
from confide.privacy.mechanisms.histogram_rules import histogram_errors
from confide.privacy.mechanisms.scaling_rules import scaling_errors, scaling_facts
from confide.privacy.mechanisms.values import (
    Aggregation,
    Alternative,
    ClaimParts,
    DataNeeds,
    DrawSettings,
    Phase,
    PrivacyParameters,
    Sampler,
    Score,
)
from confide.privacy.sampling import Sampling, bins_of, groups_of
from confide.randomness.streams import RunKey
from confide.utils.errors import InputError
from confide.utils.rounding import at_least, at_most

if TYPE_CHECKING:
    from confide.config.fields import Section
    from confide.config.schema import Config


@lru_cache(maxsize=256)  # the alternatives of a plan often share a process
def calibrated(process: DominatingPair, epsilon: float, delta: float) -> float:
    """Return `accounting.least_noise` of a process, cached."""
    return least_noise(process, epsilon, delta)


@dataclass(frozen=True)
class Mechanism(ABC):
    """The settings that all mechanisms share; each mechanism adds its own answers."""

    batch: float
    steps: int
    clip_norm: float = 1.0
    normalised: bool = True
    adjacency: str = "zero-out"
    sampling: str = "poisson"
    max_batch: int | None = None
    sampling_rate: float | None = None
    divisor: float | None = None
    row_length: int = 128
    bands: int = 1
    buffers: int = 0
    scales: tuple[tuple[str, float], ...] = ()
    common_tokens: float = 0.0
    optimizer: str = "tensor-adamw"
    schedule: str = "constant"
    warmup: int = 0
    histograms: Histograms | None = None

    name: ClassVar[str]
    Settings: ClassVar[type["Section"] | None] = None  # its own config section, under its name
    notion: ClassVar[str]
    draws: ClassVar[str]  # a step draws these: "rows" or "units"
    needs: ClassVar[DataNeeds] = DataNeeds()
    reads: ClassVar[tuple[str, ...]] = ()  # the keys of `registry.SPECIAL_KEYS` that it reads
    lengths: ClassVar[str] = "row boundaries and lengths"  # what is public about the rows
    compares: ClassVar[str] = "zero-out"  # the adjacency if the config names none
    correlates: ClassVar[bool] = False  # True if noise may be correlated over steps
    deals: ClassVar[bool] = False  # True if units may be dealt into the steps of an epoch (sampling: bins)
    clips: ClassVar[bool] = True  # False if no step clips, so that no tensor can count more in a norm
    counts: ClassVar[bool] = (
        False  # True if `parameters` accounts for histograms that are released with the model
    )
    has_plain_steps: ClassVar[bool] = False  # True if some steps of a run have no noise
    sums_are_covered: ClassVar[bool] = True  # True if the claim allows everybody to see every noised sum
    family: ClassVar[str] = ""  # mechanisms of one family protect the same unit; a plan compares them
    # Values of rows per unit that a suggestion tries; () if no rule of thumb is known.
    suggested_caps: ClassVar[tuple[int | str, ...]] = ()
    measures: ClassVar[str | None] = None  # `confide plan --measure` measures this before training
    measured: ClassVar[str] = "standard deviation on the mean clipped gradient, in units of the clip norm"

    def __post_init__(self) -> None:
        if any(correlation_errors(type(self), self)):
            raise AssertionError(
                f"{self.name}: nothing accounts for noise that is correlated over steps here"
            )
        if self.sampling == "bins" and self.protects and not self.deals:
            raise AssertionError(f"{self.name}: nothing accounts for balls in bins here")
        if self.histograms is not None and not self.counts:
            raise AssertionError(f"{self.name}: nothing accounts for histograms here")

    # who -------------------------------------------------------------------------------------------
    @property
    @abstractmethod
    def unit(self) -> str:
        """The protected unit, in words."""

    @property
    def draws_chunks(self) -> bool:
        """True if a step cuts random chunks out of a unit's running text."""
        return False

    @property
    def protects(self) -> bool:
        """True if there is any guarantee."""
        return self.notion != "none"

    @property
    def unit_is_one_row(self) -> bool:
        return self.needs.unit_is_one_row

    # bound and draw --------------------------------------------------------------------------------
    def cap(self, shape: Shape) -> int:
        """Return how many rows of a unit take part at most: per step if units are drawn, else in the run."""
        return 1

    @abstractmethod
    def sampler(self, graph: UnitGraph, key: RunKey, phase: str, score: Score) -> Sampler:
        """Build the sampler of this mechanism on a graph. Only rules that need perplexities call `score`."""

    @property
    def all_steps(self) -> int:
        """The number of steps of the run, over all stages."""
        return self.steps

    def phases(self, shape: Shape, noise_multiplier: float) -> tuple[Phase, ...]:
        """Return the kinds of steps that a run takes; `phase_of` says which step is of which kind."""
        return (Phase("main", self, noise_multiplier, self.steps),)

    def phase_of(self, step: int) -> tuple[int, int]:
        """Return (stage, step within the stage) of a step of the run; all are counted from 0."""
        return 0, step

    # combine ---------------------------------------------------------------------------------------
    def aggregation(self, parameters: PrivacyParameters, noise_multiplier: float) -> Aggregation:
        """Divide the *noised* sum by the divisor; with `normalised`, by clip_norm as well (De et al. 2022)."""
        scale = 1 / parameters.divisor / (self.clip_norm if self.normalised else 1)
        return Aggregation(
            self.clip_norm,
            noise_multiplier,
            scale,
            correlation=self.correlation,
            scales=self.scales,
            common_tokens=self.common_tokens,
        )

    @property
    def correlation(self) -> Correlation:
        """The matrix by which noise is correlated over steps."""
        return correlation_of(self.bands, self.buffers, self.exponent)

    @property
    def exponent(self) -> float:
        """The exponent of a banded matrix, for the learning rates of the planned steps.

        AdamW and Adafactor divide by the noise of single steps, which grows with the exponent, so they keep the least.
        """
        if self.optimizer != "sgd":
            return SQUARE_ROOT
        return exponent_for(self.bands, self.steps, self.schedule, self.warmup)

    @property
    def groups(self) -> int:
        """The number of groups of units that have their turns one after the other; 1 if there are none."""
        return groups_of(self.sampling, self.bands)

    @property
    def sensitivity(self) -> float:
        """How far one clipped gradient moves what is released of all steps, in clip norms."""
        return self.correlation.sensitivity

    # account ---------------------------------------------------------------------------------------
    @abstractmethod
    def parameters(self, shape: Shape, steps: int | None = None) -> PrivacyParameters:
        """Compute rates, divisors and the process to account, for `steps` steps (default: all).

        Raises:
            InputError: this mechanism cannot run on such data; the sentence names the key to change.
        """

    def least_noise(
        self, parameters: PrivacyParameters, shape: Shape, epsilon: float | None, delta: float
    ) -> float:
        """Compute the least noise multiplier that meets the target, certified."""
        assert epsilon is not None
        if self.histograms is not None:
            self.histograms.check_within(epsilon, delta, self.adjacency)
        return calibrated(parameters.process, epsilon, delta)  # type: ignore[arg-type]  # frozen values, all of them

    @property
    def scorer(self) -> str | None:
        """The language model whose perplexities a sampler may ask for; None stands for the base model."""
        return None

    def key_binding(self, shape: Shape) -> bytes:
        """Return all that decides draws and noise, apart from config and data. The run key is bound to it.

        If the same noise were scaled by two different multipliers, the difference of the two runs would be free of
        noise.
        """
        # Earlier versions kept a random part of such a draw: other rows with the same noise.
        return b"draws above the cap are made anew" if self.sampling == "truncated" else b""

    def rows_computed(self, parameters: PrivacyParameters) -> float:
        """Return the expected number of rows that all steps compute."""
        return parameters.rows_per_step * self.steps

    # plan ------------------------------------------------------------------------------------------
    @property
    def noise_unit(self) -> str:
        """The unit in which a plan states the noise per gradient, in words."""
        first = "; of a first step, and the weights hold less, since later steps take it back in part"
        return self.measured + ("" if self.correlation.is_independent else first)

    def alternatives(self, shape: Shape) -> Iterator[Alternative]:
        """Yield settings of this mechanism that a plan shows besides the chosen one."""
        expected = self.parameters(shape).expected_batch
        for factor in (0.5, 2.0):
            yield Alternative(f"batch {expected * factor:g}", self._scaled(factor))
        yield from self._halved_and_doubled("steps", self.steps)

    def _halved_and_doubled(self, key: str, value: int) -> Iterator[Alternative]:
        half: dict[str, Any] = {key: value // 2}
        twice: dict[str, Any] = {key: 2 * value}
        if value > 1:
            yield Alternative(f"{key} {value // 2}", replace(self, **half))
        else:
            yield Alternative(f"{key} halved", impossible="it is 1 already")
        yield Alternative(f"{key} {2 * value}", replace(self, **twice))

    def outlook(self, shape: Shape) -> dict[str, Any]:
        """Return further facts of a plan by key, as JSON values."""
        return {}

    def _scaled(self, factor: float) -> "Mechanism":
        """Return the mechanism with another batch, and literal constants for the batch scaled with it."""
        changes: dict[str, Any] = {"batch": self.batch * factor}
        for name in ("sampling_rate", "divisor", "max_batch"):
            value = getattr(self, name)
            if value is not None:
                changes[name] = math.ceil(value * factor) if name == "max_batch" else value * factor
        return replace(self, **changes)

    # claim -----------------------------------------------------------------------------------------
    def claim(self, shape: Shape, noise_multiplier: float, delta: float, steps: int) -> ClaimParts:
        """State this mechanism's own part of the guarantee after `steps` steps."""
        return ClaimParts(sampling="poisson" if self.sampling == "shuffle" else self.sampling)

    # from the config -------------------------------------------------------------------------------
    @classmethod
    def from_config(cls, config: "Config") -> "Mechanism":
        """Build the mechanism: each field takes the config key of the same name, from whatever section."""
        known: dict[str, Any] = {name: getattr(config, name) for name in type(config).model_fields}
        known["row_length"] = config.data.max_length
        known |= config.train.model_dump() | config.privacy.model_dump()
        known["adjacency"] = config.privacy.adjacency or cls.compares
        if not cls.correlates:  # an alternative, shown next to a mechanism that does
            known |= {"bands": 1, "buffers": 0}
        # Their order in the config means nothing.
        known["scales"] = tuple(sorted(config.privacy.scales.items())) if cls.clips else ()  # the same
        known["common_tokens"] = config.privacy.common_tokens if cls.clips else 0.0  # the same
        if config.privacy.sampling == "bins" and not cls.deals:
            known["sampling"] = "poisson"  # the same
        known["histograms"] = Histograms.asked(config) if cls.counts else None  # the same
        if cls.Settings is not None:
            known |= dict(getattr(config, registry.section(cls.name)))
        names = {field.name for field in fields(cls)}
        return cls(**{name: value for name, value in known.items() if name in names})

    @classmethod
    def all_validation_errors(cls, config: "Config") -> Iterator[tuple[str, str]]:
        """Yield (key, sentence) for each impossible combination of settings, including those of an audit."""
        yield from scaling_errors(cls, config)
        yield from canary_errors(cls, config)
        yield from histogram_errors(cls, config)
        if config.train.patience and config.data.eval is not None:
            yield from choice_errors(cls, config, PATIENCE)
        yield from cls.validation_errors(config)

    @classmethod
    def validation_errors(cls, config: "Config") -> Iterator[tuple[str, str]]:
        """Yield (key, sentence) for each impossible combination of settings."""
        yield from cls.target_errors(config)
        if cls.needs.named_unit and config.data.unit is None:
            yield "data.unit", f"mechanism {cls.name} protects a unit: name the field that holds it"
        # Where a unit is less than a user, a row that is added would move another of its user's rows into training.
        if config.data.eval_within is not None and cls.notion not in ("user-level DP", "none"):
            yield (
                "data.eval_within",
                f"holds out rows of each user, and mechanism {cls.name} protects something else",
            )
        if config.data.eval_within is not None and (cls.needs.redaction != "none" or cls.needs.secrets):
            yield "data.eval_within", f"is not for mechanism {cls.name}, which makes other rows of the text"
        if config.privacy.adjacency == "add-or-remove":
            yield from _literal_faults(config)
        yield from cls.draw_errors(DrawSettings.of(config))

    @classmethod
    def draw_errors(cls, asked: DrawSettings) -> Iterator[tuple[str, str]]:
        """Yield (key, sentence) for each impossible combination of what decides how steps draw."""
        if asked.sampling == "truncated" and asked.max_batch is None:
            yield "train.max_batch", "sampling: truncated needs the most that a step may hold"
        if asked.sampling != "truncated" and asked.max_batch is not None:
            yield "train.max_batch", f"is an option of sampling: truncated, not of {asked.sampling}"
        if asked.sampling == "bins" and not cls.deals:
            yield "privacy.sampling", f"bins are for uls and dp-sgd, not for {cls.name}: use poisson"
        if asked.max_batch is not None and asked.max_batch < asked.batch:
            yield "train.max_batch", f"{asked.max_batch} is below the expected batch {asked.batch:g}"
        if asked.adjacency == "add-or-remove":
            if asked.sampling_rate is None:
                yield "train.sampling_rate", _LITERAL
            if asked.delta is None:
                yield "privacy.delta", _LITERAL
            if asked.rows_per_unit == "median":
                yield "privacy.rows_per_unit", _LITERAL
            if asked.sampling not in ("poisson", "bins"):
                yield "privacy.sampling", "an add-or-remove claim needs sampling: poisson or bins"
        yield from correlation_errors(cls, asked)
        if asked.bands > 1 and asked.steps is not None and asked.bands > asked.steps:
            yield (
                "privacy.bands",
                f"{asked.bands} are more than the {asked.steps} steps; take at most as many",
            )

    @classmethod
    def target_errors(cls, config: "Config") -> Iterator[tuple[str, str]]:
        """Yield (key, sentence) where the config does not state exactly one privacy target."""
        privacy = config.privacy
        if privacy.epsilon is None and privacy.noise_multiplier is None:
            yield "privacy.epsilon", "say how much privacy: epsilon, or a noise_multiplier"
        if privacy.epsilon is not None and privacy.noise_multiplier is not None:
            yield "privacy.epsilon", "epsilon and noise_multiplier are both given; one follows from the other"

    # shared arithmetic -----------------------------------------------------------------------------
    def _rate(self, population: int, what: str) -> float:
        if population < 1:
            raise InputError(f"data.train: there are no {what} to train on")
        rate = self.sampling_rate if self.sampling_rate is not None else self.batch / population
        if rate > 1 and population == 1 and what == "units":
            raise InputError(
                "data.unit: there is a single unit, and one alone cannot be hidden among others: choose another "
                "data.unit, or bring the text of more people"
            )
        if rate > 1:
            raise InputError(
                f"train.batch: {self.batch:g} {what} a step are more than the {population} there are; "
                f"take at most {population}"
            )
        if (
            self.sampling == "truncated"
            and self.max_batch is not None
            and self.max_batch < (1 - 1e-9) * rate * population
        ):
            raise InputError(
                f"train.max_batch: {self.max_batch} is below the {at_most(rate * population, 6)} {what} that a step "
                "draws on average, so that most steps would be drawn anew; take more"
            )
        # An epoch has a whole number of steps, so a step holds about as many as were asked for.
        return 1 / bins_of(rate) if self.sampling == "bins" else rate

    def _sampling(self, rate: float) -> Sampling:
        """Return how a step draws, where each item has this probability on average over the steps."""
        if self.bands > self.steps:
            raise InputError(
                f"privacy.bands: {self.bands} are more than the {self.steps} steps; take at most as many"
            )
        found = Sampling(self.sampling, rate, self.max_batch, self.bands, self.buffers)
        if found.groups > 1 and found.groups * rate > 1:
            raise InputError(
                f"privacy.bands: with {found.groups} groups in turn each step wants more than its whole group; take at "
                f"most {math.floor(1 / rate)}"
            )
        return found

    def _process(self, process: DominatingPair) -> DominatingPair:
        return replaced(process) if self.adjacency == "replace-one" else process

    def _with_histograms(self, parameters: PrivacyParameters) -> PrivacyParameters:
        """Return the parameters with the cost of the histograms that are released with the model."""
        if self.histograms is None:
            return parameters
        return replace(
            parameters,
            process=self.histograms.before(parameters.process, self.adjacency),
            zeroed=self.histograms.before(parameters.zeroed, "zero-out"),
        )

    def _delta(self, rows: int, units: int) -> float:
        return delta_default(rows, units)

    def _expected(self, rate: float, population: int, divisor: float) -> float:
        """Return the expected batch; under add-or-remove the literal divisor: rate * N would reveal N."""
        return divisor if self.adjacency == "add-or-remove" else rate * population

    def _facts(self, sampled: str, divisor: float, steps: int, *more: str) -> tuple[str, ...]:
        """List what is public under the claim.

        Add-or-remove hides whether a unit is there, so then no graph is public.
        """
        graph = (
            "the unit graph: which rows belong to which unit, number of units and of rows, rows per unit",
            self.lengths,
        )
        turns = (
            f"which of {self.groups} groups each is in; step t draws from group t mod {self.groups} alone, with "
            f"{self.groups} times that probability, which is the mean over steps",
        )
        correlated = (
            f"the noise of all steps is C^-1 Z: C has {self.correlation.words} in each column, and Z is independent, "
            f"its standard deviation in clip norms the noise multiplier times {at_least(self.sensitivity, 6)}, the "
            "norm of C's first column",
        )
        if self.groups > 1:
            sampled = f"{sampled}, in the mean over steps"
        return (
            *(() if self.adjacency == "add-or-remove" else graph),
            sampled,
            *(turns if self.groups > 1 else ()),
            *(() if self.correlation.is_independent else correlated),
            *((_DEALT if self.correlation.is_independent else _KEPT,) if self.sampling == "bins" else ()),
            *((f"train.max_batch {self.max_batch}: {ANEW}",) if self.sampling == "truncated" else ()),
            *scaling_facts(self.scales, self.common_tokens),
            f"divisor {divisor:g} of the noised sum",
            f"number of steps {steps}",
            "delta, clip norm, noise multiplier and all other settings of the config",
            *more,
        )


_DEALT = (
    "that each of them takes part in exactly one step of every epoch, an epoch being as many steps in a row as one "
    "over that probability (which step, each draws uniformly, afresh and in secret); of an epoch that the run does not "
    "finish, in one of its steps or in none"
)
_KEPT = (
    "that an epoch is as many steps in a row as one over that probability, and that each of them takes part in exactly "
    "one step of every epoch, the same one in each (which one, each draws uniformly, once and in secret); of an epoch "
    "that the run does not finish, in one of its steps or in none"
)
_LITERAL = (
    "an add-or-remove claim needs a literal constant, since what is derived from the data moves with it"
)


def _literal_faults(config: "Config") -> Iterator[tuple[str, str]]:
    """Yield faults of an add-or-remove claim, beside those of the draws: what changes when a unit is added."""
    if config.train.divisor is None:
        yield "train.divisor", _LITERAL
    if config.privacy.noise_multiplier is None:
        yield "privacy.noise_multiplier", _LITERAL
    if isinstance(config.data.unit, list) and len(config.data.unit) > 1:
        yield "data.unit", "an add-or-remove claim needs rows with one owner each"
    if config.data.unit is None and isinstance(config.data.eval, float):
        yield (
            "data.eval",
            "without a unit the split goes by number, and a document that is added would move others",
        )
    if (
        config.data.unit is not None
        and config.data.without_unit == "own"
        and isinstance(config.data.eval, float)
    ):
        yield (
            "data.without_unit",
            "own numbers the documents of nobody, and data.eval holds out by that: one that is added would move others",
        )
    if config.data.max_documents is not None:
        yield "data.max_documents", "a unit that is added would push another one's document out"
    if registry.task_facts(config.task).has_classes:
        yield (
            "task",
            "the classes follow from the data, which an add-or-remove claim does not allow",
        )
