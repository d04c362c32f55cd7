"""The values that a mechanism answers with: what data it needs, what a step does, and what it claims."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np

from confide.privacy.accounting import DominatingPair
from confide.privacy.correlated_noise import sensitivity
from confide.privacy.sampling import Draw, OwnRates, Sampling, StopTraining
from confide.randomness.streams import RunKey

if TYPE_CHECKING:
    from confide.privacy.mechanisms.base import Mechanism

Redaction = Literal["none", "instead", "beside", "apart"]
Score = Callable[[], np.ndarray]  # perplexity of every row under the scorer, made only when asked for


@dataclass(frozen=True)
class Game:
    """How an audit guesses at a made-up unit: what its coin decides.

    Attributes:
        name: in the manifest of canaries, and in results.
        texts: random texts that are made for one unit.
        contents: what may stand in the data in the unit's place; 1 if the coin decides whether the unit is there.
        has_mask: the last content has a mask in the place of the secret.
    """

    name: str
    texts: int
    contents: int
    has_mask: bool = False

    @property
    def compares_contents(self) -> bool:
        """Whether the coin decides which content stands there, and not whether one does."""
        return self.contents > 1


PRESENCE = Game("presence", texts=1, contents=1)
VALUE = Game("value", texts=2, contents=2)
MASK = Game("mask", texts=1, contents=2, has_mask=True)
GAMES = {game.name: game for game in (PRESENCE, VALUE, MASK)}


class Sampler(Protocol):
    """Draws the logical batch of a step (counted from 0), or ends the run."""

    def draw(self, step: int) -> Draw | StopTraining: ...

    def possible_rows(self) -> np.ndarray | None:
        """int64: the row numbers that it can ever draw, sorted; None if every row of the graph may be drawn."""


@dataclass(frozen=True)
class DataNeeds:
    """What a mechanism needs of the data, before a model is looked at.

    Attributes:
        named_unit: the data must name the unit that is protected (`data.unit`).
        secrets: the units are the secrets that rows hold, so secrets are looked for.
        redaction: what is done with sensitive text. Nothing ("none"); rows are redacted ("instead"); redacted rows
            are kept besides the training rows ("beside"); or rows in which nothing was sensitive are kept apart from
            the redacted ones ("apart").
        game: how an audit guesses at made-up units: whether they are there, which of two texts they hold, or whether a
            number stands there or a mask.
    """

    named_unit: bool = True
    secrets: bool = False
    redaction: Redaction = "none"
    game: Game = PRESENCE

    @property
    def second_graph(self) -> bool:
        """Whether there are rows besides the training rows, in which nothing is sensitive."""
        return self.redaction in ("beside", "apart")

    @property
    def unit_is_one_row(self) -> bool:
        return not (self.named_unit or self.secrets)

    @property
    def covers_whole_documents(self) -> bool:
        """Whether a unit is made of whole documents, and not of rows, secrets or marked characters."""
        return self.named_unit and self.redaction == "none" and not self.secrets


@dataclass(frozen=True)
class Aggregation:
    """Turns clipped gradients into one noised vector: (sum + noise) * scale.

    Clip and noise are made from the one `clip_norm`, so they cannot use different norms.

    Attributes:
        clip_norm: the norm that no unit's gradient exceeds; None clips nothing and adds no noise.
        noise_multiplier: standard deviation of the noise, in clip norms.
        scale: what the noised sum is multiplied by; never a function of what was drawn.
        bands: the steps over which noise is correlated; 1 if it is independent.
    """

    clip_norm: float | None
    noise_multiplier: float
    scale: float
    bands: int = field(default=1, kw_only=True)

    @property
    def radii(self) -> tuple[float, ...]:
        """Distances at which the gradients of all units are compared; () compares none."""
        return ()

    @property
    def compared_units(self) -> int:
        """How many units are compared in a step: all, and the same number in each."""
        return 0

    def keep(self, counts: np.ndarray, key: RunKey, phase: str, step: int) -> np.ndarray | StopTraining:
        """Who is kept of the units that were compared; asked only if there are `radii`.

        Args:
            counts: int64[radii, N]: how many units are within each distance of each unit, itself included.

        Returns:
            int64: the numbers of the units whose mean is taken; or why the run ends.
        """
        raise AssertionError(f"{type(self).__name__} compares no units")

    def binding(self) -> bytes:
        """Everything besides the key that the noise depends on, as text that no renaming in the code changes."""
        clip = "none" if self.clip_norm is None else float(self.clip_norm).hex()
        numbers = (clip, float(self.noise_multiplier).hex(), float(self.scale).hex(), str(self.bands))
        return f"clip norm, noise multiplier, scale, bands: {' '.join(numbers)}".encode()

    @property
    def noise_scale(self) -> float:
        """Standard deviation of the noise on the sum. Correlated noise: before what later steps take back."""
        if self.clip_norm is None:
            return 0.0
        return self.noise_multiplier * self.clip_norm * sensitivity(self.bands)


@dataclass(frozen=True)
class PrivacyParameters:
    """What follows from the shape of the data alone, and is public under the claim.

    Attributes:
        rows: rows in use (M).
        units: units in use (N).
        sampling: how a step draws, with the probability of each row or unit.
        expected_batch: expected rows or units of a step.
        divisor: what the noised sum is divided by: a constant, never what was drawn.
        process: from noise to a guarantee.
        zeroed: the process against the unit zeroed out, by which whoever guesses at its text is bound; where the
            adjacency is zero-out, `process` itself.
        delta: the default delta of this data.
        rows_per_step: expected rows that a step computes.
        rows_per_unit: how many rows a unit may contribute; None where all may.
        contribution: the same in words.
        facts: what is public, in words.
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


@dataclass(frozen=True)
class Phase:
    """Steps of one kind: which rows they draw from, how, and what is made of what they draw.

    Attributes:
        name: phase of the run key and of the ledger.
        mechanism: draws and combines.
        noise_multiplier: of its steps.
        steps: how many.
        on_public: draws from the rows in which nothing is sensitive any more, not from the training rows.
        learning_rate: None: that of the config.
    """

    name: str
    mechanism: "Mechanism"
    noise_multiplier: float
    steps: int
    on_public: bool = False
    learning_rate: float | None = None


@dataclass(frozen=True)
class ClaimParts:
    """The mechanism's own part of a guarantee; `statement.state_guarantee` adds what every run says.

    Attributes:
        worlds: what the claim compares, in words, if the adjacency alone does not say it.
        estimate_reasons: why the figures are an estimate; empty if they are a theorem.
        public_facts: what is public, besides `PrivacyParameters.facts`.
        calibration: how the noise follows from what was asked, in a sentence; empty if it follows from epsilon.
        not_covered: what this mechanism leaves uncovered, besides what every run does.
        epsilons: (assumption, epsilon) for every epsilon that rests on an estimated quantity.
        secret_targets: (prior, allowed posterior) pairs that were asked for.
        weakest_secrets: (id, prior, allowed posterior, upper bound of the reached posterior) of those closest to their
            allowed posterior.
        sampling: the draws that the accounting assumes; if the run draws otherwise, the guarantee is an estimate.
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
        mechanism: with that setting; None if `impossible`.
        noise_multiplier: its noise, if it is known already; None: the least that meets the plan's target.
        facts: more about it, by the key of the plan's row; JSON values.
        impossible: why it cannot be had.
    """

    change: str
    mechanism: "Mechanism | None" = None
    noise_multiplier: float | None = None
    facts: dict[str, Any] = field(default_factory=dict)
    impossible: str | None = None
