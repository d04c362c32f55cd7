"""The values that a mechanism answers with: which data it needs, what a step does, and what it claims."""

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np

from confide.privacy.accounting import DominatingPair
from confide.privacy.correlated_noise import INDEPENDENT, Correlation
from confide.privacy.sampling import Draw, OwnRates, Sampling, StopTraining
from confide.randomness.streams import RunKey

if TYPE_CHECKING:
    from confide.config.schema import Config
    from confide.privacy.mechanisms.base import Mechanism

Redaction = Literal["none", "instead", "beside", "apart"]
Score = Callable[[], np.ndarray]  # perplexity of every row under the scorer, computed only when asked for


@dataclass(frozen=True)
class Game:
    """An audit's game of guessing at a made-up unit.

    Attributes:
        name: in the manifest of canaries, and in results.
        texts: number of random texts that are made for one unit.
        contents: number of contents that may stand in the unit's place; 1 if the coin decides whether it is there.
        has_mask: the last content has a mask in the place of the secret.
    """

    name: str
    texts: int
    contents: int
    has_mask: bool = False

    @property
    def compares_contents(self) -> bool:
        """True if the coin decides which content is in the data, and not whether the unit is there."""
        return self.contents > 1


PRESENCE = Game("presence", texts=1, contents=1)
VALUE = Game("value", texts=2, contents=2)
MASK = Game("mask", texts=1, contents=2, has_mask=True)
GAMES = {game.name: game for game in (PRESENCE, VALUE, MASK)}


class Sampler(Protocol):
    """Draws the logical batch of a step (counted from 0), or ends the run.

    A sampler whose draw is a function of the step alone, and of nothing that a step before it has left, may say so by
    an attribute `depends_on_step_alone = True`: its draws are then made ahead.
    """

    def draw(self, step: int) -> Draw | StopTraining: ...

    def possible_rows(self) -> np.ndarray | None:
        """Return the row numbers that it can ever draw, sorted, int64; None if every row of the graph may be drawn."""


@dataclass(frozen=True)
class DataNeeds:
    """The data that a mechanism needs, before any model is loaded.

    Attributes:
        named_unit: the data must name the unit that is protected (`data.unit`).
        secrets: the units are the secrets that rows hold, so secrets are looked for.
        redaction: how sensitive text is treated. "none": not at all. "instead": rows are redacted. "beside": redacted
            rows
            are kept in addition to the training rows. "apart": rows in which nothing was sensitive are kept apart from
            the redacted ones.
        game: how an audit guesses at made-up units: whether they are there, which of two texts they hold, or whether a
            number stands there or a mask.
    """

    named_unit: bool = True
    secrets: bool = False
    redaction: Redaction = "none"
    game: Game = PRESENCE

    @property
    def second_graph(self) -> bool:
        """True if there are rows besides the training rows, in which nothing is sensitive."""
        return self.redaction in ("beside", "apart")

    @property
    def unit_is_one_row(self) -> bool:
        return not (self.named_unit or self.secrets)

    @property
    def covers_whole_documents(self) -> bool:
        """True if a unit is made of whole documents, and not of rows, secrets or marked characters."""
        return self.named_unit and self.redaction == "none" and not self.secrets


@dataclass(frozen=True)
class DrawSettings:
    """The settings that must go together for draws to be accounted, whether a config states them or `planning.account`.

    Each is the config's key of the same name; `steps` is None if they are yet to be found.
    """

    sampling: str
    adjacency: str | None
    batch: float
    max_batch: int | None
    sampling_rate: float | None
    steps: int | None
    bands: int
    buffers: int
    delta: float | None
    rows_per_unit: int | str

    @classmethod
    def of(cls, config: "Config") -> "DrawSettings":
        known = config.train.model_dump() | config.privacy.model_dump()
        return cls(**{field.name: known[field.name] for field in fields(cls)})


@dataclass(frozen=True)
class Aggregation:
    """Turns clipped gradients into one noised vector: (sum + noise) * scale.

    Clip and noise use the same `clip_norm`, so their norms cannot differ.

    Attributes:
        clip_norm: the norm that no unit's gradient exceeds; None clips nothing and adds no noise.
        noise_multiplier: standard deviation of the noise, in clip norms.
        scale: factor on the noised sum; never a function of the rows or units drawn.
        correlation: the matrix by which noise is correlated over steps.
        scales: factors on the gradients of tensors, by a part of their names, as `privacy.scales` has them. Clip norm
            and noise are those of gradients that were multiplied so ("scale-then-privatise").
        common_tokens: the power by which rows of common tokens are multiplied as well, as `privacy.common_tokens` has
            it; 0 multiplies none.
    """

    clip_norm: float | None
    noise_multiplier: float
    scale: float
    correlation: Correlation = field(default=INDEPENDENT, kw_only=True)
    scales: tuple[tuple[str, float], ...] = field(default=(), kw_only=True)
    common_tokens: float = field(default=0.0, kw_only=True)

    @property
    def radii(self) -> tuple[float, ...]:
        """Distances at which the gradients of all units are compared; () compares none."""
        return ()

    @property
    def compared_units(self) -> int:
        """The number of units compared in a step: all of them, the same number in each step."""
        return 0

    def keep(self, counts: np.ndarray, key: RunKey, phase: str, step: int) -> np.ndarray | StopTraining:
        """Choose which of the compared units are kept. Called only if there are `radii`.

        Args:
            counts: int64[radii, N]: how many units are within each distance of each unit, itself included.
            key: the run key.
            phase: the phase of the step.
            step: the step, counted from 0.

        Returns:
            The numbers of the units whose mean is taken, int64; or the reason why the run ends.
        """
        raise AssertionError(f"{type(self).__name__} compares no units")

    def binding(self) -> bytes:
        """Return everything besides the key that the noise depends on, as text that no renaming in the code changes."""
        clip = "none" if self.clip_norm is None else float(self.clip_norm).hex()
        noise, scale = float(self.noise_multiplier).hex(), float(self.scale).hex()
        numbers = (clip, noise, scale, self.correlation.binding)
        scales = (
            f" scales {', '.join(f'{name!r} {by.hex()}' for name, by in sorted(self.scales))}"
            if self.scales
            else ""
        )
        common = f" common tokens {float(self.common_tokens).hex()}" if self.common_tokens else ""
        return f"clip norm, noise multiplier, scale, bands: {' '.join(numbers)}{scales}{common}".encode()

    @property
    def noise_scale(self) -> float:
        """Standard deviation of the noise on the sum; of correlated noise, before later steps take part of it back."""
        if self.clip_norm is None:
            return 0.0
        return self.noise_multiplier * self.clip_norm * self.correlation.sensitivity

    @property
    def noise_std(self) -> float:
        """Standard deviation of the noise on each element of what moves the weights, the scaled sum; it is public.

        Independent noise has it in each step. Of correlated noise it is that of the first step: later ones have up to
        1.16 times as much, and up to 1.4 times with the coefficients that `sgd` has. A mechanism that adapts its noise
        has less in some steps: how much less may depend on the rows drawn, so it is left out.
        """
        return self.noise_scale * self.scale


@dataclass(frozen=True)
class PrivacyParameters:
    """Everything that follows from the shape of the data alone, and is public under the claim.

    Attributes:
        rows: rows in use (M).
        units: units in use (N).
        sampling: how a step draws, with the probability of each row or unit.
        expected_batch: expected rows or units of a step.
        divisor: constant by which the noised sum is divided, never the number drawn.
        process: the process to account; gives a guarantee for a noise.
        zeroed: the process against the unit zeroed out, which bounds anyone who guesses the unit's text; under
            zero-out adjacency it is `process` itself.
        delta: the default delta of this data.
        rows_per_step: expected rows that a step computes.
        rows_per_unit: how many rows a unit may contribute; None if all may.
        contribution: the same in words.
        facts: the public facts, in words.
    """

    rows: int
    units: int
    sampling: Sampling | OwnRates
    expected_batch: float
    divisor: float
    process: DominatingPair
    zeroed: DominatingPair
    delta: float
    rows_per_step: float
    rows_per_unit: int | None
    contribution: str
    facts: tuple[str, ...]

    @property
    def mean_rate(self) -> float:
        """The probability of a row or unit in the mean over steps, of which some may be drawn anew."""
        return self.sampling.mean_rate(round(self.expected_batch / self.sampling.rate))


@dataclass(frozen=True)
class Phase:
    """Steps of one kind: from which rows they draw, how, and how they combine them.

    Attributes:
        name: name of the phase in the run key and in the ledger.
        mechanism: draws and combines.
        noise_multiplier: of its steps.
        steps: number of steps.
        on_public: draws from the rows in which nothing is sensitive any more, not from the training rows.
        learning_rate: None takes that of the config.
    """

    name: str
    mechanism: "Mechanism"
    noise_multiplier: float
    steps: int
    on_public: bool = False
    learning_rate: float | None = None


@dataclass(frozen=True)
class ClaimParts:
    """The mechanism's own part of a guarantee; `statement.state_guarantee` adds the parts common to all runs.

    Attributes:
        worlds: the two worlds that the claim compares, in words, if the adjacency alone does not say it.
        estimate_reasons: why the figures are an estimate; empty if they are a theorem.
        public_facts: public facts besides `PrivacyParameters.facts`.
        calibration: how the noise follows from the target, in a sentence; empty if it follows from epsilon.
        not_covered: what this mechanism leaves uncovered, besides what every run does.
        epsilons: (assumption, epsilon) for every epsilon that rests on an estimated quantity.
        secret_targets: (prior, allowed posterior) pairs that were asked for.
        weakest_secrets: (id, prior, allowed posterior, upper bound of the reached posterior) of those closest to their
            allowed posterior.
        sampling: the sampling that the accounting assumes; if the run draws otherwise, the guarantee is an estimate.
        library: the part of dp_accounting that the numbers come from.
    """

    worlds: str = ""
    estimate_reasons: tuple[str, ...] = ()
    public_facts: tuple[str, ...] = ()
    calibration: str = ""
    not_covered: tuple[str, ...] = ()
    epsilons: tuple[tuple[str, float], ...] = ()
    secret_targets: tuple[tuple[float, float], ...] = ()
    weakest_secrets: tuple[tuple[str, float, float, float], ...] = ()
    sampling: str = "poisson"
    library: str = "PLD"


@dataclass(frozen=True)
class Alternative:
    """Another setting that a plan shows besides the chosen one.

    Attributes:
        change: the setting that differs, in words.
        mechanism: the mechanism with that setting; None if `impossible`.
        noise_multiplier: its noise, if it is known already; None stands for the least that meets the plan's target.
        facts: more about it, by the key of the plan's row; JSON values.
        impossible: the reason why it cannot be chosen.
    """

    change: str
    mechanism: "Mechanism | None" = None
    noise_multiplier: float | None = None
    facts: dict[str, Any] = field(default_factory=dict)
    impossible: str | None = None
