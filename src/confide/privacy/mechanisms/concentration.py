"""The concentration filter: noise in proportion to how much users differ.

Sources: Chua et al. 2024 ("Mind the Privacy Unit!"), Algorithm 3; Asi and Liu 2024.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from confide.config import registry
from confide.data.shape import Shape
from confide.data.unit_graph import UnitGraph
from confide.privacy.accounting.concentration import NEAR, TEST_SCALE, THRESHOLD_SCALE, Filtered
from confide.privacy.mechanisms.base import Mechanism
from confide.privacy.mechanisms.uls import UserLevelSampling, averaging_errors
from confide.privacy.mechanisms.values import (
    Aggregation,
    Alternative,
    ClaimParts,
    PrivacyParameters,
    Sampler,
    Score,
)
from confide.privacy.sampling import StopTraining
from confide.randomness.streams import RunKey, Stream
from confide.utils.rounding import at_most

if TYPE_CHECKING:
    from confide.config.schema import Config

FRACTIONS = (1, 4, 16)
"""A plan shows plain user sampling besides the filter, with one user in this many drawn per step."""


@dataclass(frozen=True)
class ConcentrationAggregation(Aggregation):
    """The mean over the users that the filter keeps, with noise of an absolute size; nothing is clipped.

    Distances between users' gradients come in as counts, so the decisions here do not depend on how they are computed.
    All randomness comes from the run key, under purposes of its own. The noise on the threshold belongs to no step, so
    a resumed run uses the same threshold.

    Attributes:
        tau: the distance within which two users are near.
        users: N, the number of all users.
        epsilon: of the whole claim; the Laplace noises follow from it.
    """

    tau: float
    users: int
    epsilon: float

    def binding(self) -> bytes:
        """Return the binding of the noise, extended by the values on which the filter's decisions depend."""
        own = f"tau, users, epsilon: {float(self.tau).hex()} {self.users} {float(self.epsilon).hex()}"
        return super().binding() + b"; " + own.encode()

    @property
    def radii(self) -> tuple[float, ...]:
        """The two distances at which units are compared: one for the test, one for the choice of who is kept."""
        return self.tau, 2 * self.tau

    @property
    def noise_scale(self) -> float:
        """Standard deviation of the noise on the mean."""
        return self.noise_multiplier * self.tau / self.users

    @property
    def compared_units(self) -> int:
        return self.users

    def keep(self, counts: np.ndarray, key: RunKey, phase: str, step: int) -> np.ndarray | StopTraining:
        near, within = counts
        if not self.passes(near, key, phase, step):
            return StopTraining(
                f"at step {step + 1} too few users' gradients were within tau {self.tau:g} of each other"
            )
        return np.flatnonzero(self.keeps(within, key, phase, step))

    def passes(self, near: np.ndarray, key: RunKey, phase: str, step: int) -> bool:
        """Tell whether the step is taken.

        Args:
            near: int64[N], for each user how many users are within tau, itself included.
        """
        once, now = (
            key.stream(phase, "concentration threshold"),
            key.stream(phase, "concentration test", step),
        )
        threshold = NEAR * self.users + laplace(once, THRESHOLD_SCALE / self.epsilon)
        score = float(near.sum()) / self.users + laplace(now, TEST_SCALE / self.epsilon)
        return score >= threshold

    def keeps(self, within: np.ndarray, key: RunKey, phase: str, step: int) -> np.ndarray:
        """Choose who is kept: bool[N].

        Args:
            within: int64[N], for each user how many users are within 2 tau, itself included.
        """
        chance = np.clip((within - self.users / 2) / (self.users / 6), 0, 1)
        return key.stream(phase, "concentration keep", step).uniform(len(within)) < chance


def laplace(stream: Stream, scale: float) -> float:
    """Draw a Laplace value by inverse transform: a sign, and an exponential size from 53 random bits.

    The size is at most 36.7 scales. No probability of exceeding a value is off by more than 2^-53 and float64
    rounding. Nobody sees more of the filter's values than comparisons.
    """
    sign, size = stream.uniform(2)
    return math.copysign(scale * -math.log1p(-size), sign - 0.5)


@dataclass(frozen=True)
class Concentration(Mechanism):
    """Every user takes part in every step; the mean is over users near most others, with noise in proportion to tau.

    This adds less noise than user sampling if users' mean gradients differ less than the clip norm would have to be.
    Chua et al. 2024 (Figures 3 and 7) find that tau / clip norm must be below 0.1 for that, and that it is about 1 on
    their data sets.

    Formal guarantee: `accounting.concentration.Filtered`: (epsilon, delta)-DP for one user under replace-one, N
    public, where its proof covers N, epsilon, delta and the number of steps, which takes some thousand users.
    Elsewhere the same pair is an estimate, since the paper gives no proof of its noise constant.
    """

    tau: float = 1.0
    epsilon: float = 1.0
    delta: float | None = None
    rows_per_unit: int | str = 4
    selection: str | None = None
    chunked: bool = True
    name: ClassVar[str] = "concentration"
    clips: ClassVar[bool] = False
    reads: ClassVar[tuple[str, ...]] = ("privacy.tau",)
    notion: ClassVar[str] = "user-level DP"
    draws: ClassVar[str] = "units"
    compares: ClassVar[str] = "replace-one"
    measures: ClassVar[str | None] = "nearness"
    sums_are_covered: ClassVar[bool] = False
    measure: ClassVar[str] = (
        "standard deviation on the mean of the users kept, in units of tau; of uls on the mean clipped gradient, in "
        "units of the clip norm: its `noise x` is the tau / clip norm below which the filter adds less"
    )

    @property
    def like(self) -> UserLevelSampling:
        """Plain user sampling with the same draws: every user in every step."""
        return UserLevelSampling(
            batch=self.batch,
            steps=self.steps,
            clip_norm=self.clip_norm,
            adjacency=self.adjacency,
            sampling_rate=1.0,
            row_length=self.row_length,
            rows_per_unit=self.rows_per_unit,
            selection=self.selection,
            chunked=self.chunked,
        )

    @property
    def unit(self) -> str:
        return self.like.unit

    @property
    def draws_chunks(self) -> bool:
        return self.like.draws_chunks

    def cap(self, shape: Shape) -> int:
        return self.like.cap(shape)

    def sampler(self, graph: UnitGraph, key: RunKey, phase: str, score: Score) -> Sampler:
        return self.like.sampler(graph, key, phase, score)

    def aggregation(self, parameters: PrivacyParameters, noise_multiplier: float) -> Aggregation:
        return ConcentrationAggregation(None, noise_multiplier, 1.0, self.tau, parameters.units, self.epsilon)

    def parameters(self, shape: Shape, steps: int | None = None) -> PrivacyParameters:
        """Compute the parameters of user sampling at full batch; noise and claim always cover all planned steps."""
        plain = self.like.parameters(shape)
        process = self._process_of(shape, plain.delta)
        return replace(
            plain,
            process=process,
            zeroed=process,  # zeroing a user out is one way to replace it
            facts=(
                "the unit graph: which rows belong to which unit, number of units and of rows, rows per unit",
                self.lengths,
                "every unit takes part in every step",
                f"tau {self.tau:g}, and the noise on the mean of those kept: noise multiplier * tau / number of units",
                f"number of steps {self.steps}; the step at which the test ends the run is released under the claim",
                "delta, noise multiplier and all other settings of the config",
                f"at most {self.cap(shape)} {'random chunks' if self.draws_chunks else 'rows'} of a unit",
            ),
        )

    def _process_of(self, shape: Shape, default: float) -> Filtered:
        return Filtered(shape.units, self.steps, self.epsilon, self.delta or default)

    def least_noise(
        self, parameters: PrivacyParameters, shape: Shape, epsilon: float | None, delta: float
    ) -> float:
        """Return the noise multiplier of the paper. It follows from the settings; nothing is searched for."""
        return self._process_of(shape, delta).noise_multiplier

    def alternatives(self, shape: Shape) -> Iterator[Alternative]:
        """Yield plain user sampling at the same target and adjacency, and other numbers of steps.

        The filter's noise is in units of tau, that of user sampling in units of the clip norm. The ratio of the two
        noises is the tau / clip norm at which both add the same noise.
        """
        for part in FRACTIONS:
            drawn = shape.units / part
            if drawn >= 1:
                plain = replace(self.like, sampling_rate=None, batch=drawn)
                yield Alternative(f"uls, {drawn:.0f} units a step", plain)
        yield from self._halved_and_doubled("steps", self.steps)

    def claim(self, shape: Shape, noise_multiplier: float, delta: float, steps: int) -> ClaimParts:
        return replace(
            super().claim(shape, noise_multiplier, delta, steps),
            estimate_reasons=self._estimate_reasons(shape, noise_multiplier, delta),
            calibration="The noise multiplier is sqrt(8 ln(e^epsilon T / delta)) s, in units of tau / number of "
            "units, where s answers (epsilon / 2, delta / 2) for T full batches (Chua et al. 2024, Algorithm 3).",
            not_covered=("the choice of tau, where gradients of private rows were looked at",),
        )

    def _estimate_reasons(self, shape: Shape, noise_multiplier: float, delta: float) -> tuple[str, ...]:
        proved = self._process_of(shape, delta).proved(noise_multiplier)
        if proved <= self.epsilon:
            return ()
        reached = (
            "nothing is proved" if math.isinf(proved) else f"what is proved is epsilon {at_most(proved)}"
        )
        return (
            f"the noise constant of Chua et al. 2024 could not be re-derived for {shape.units:,} units: {reached}",
        )

    @classmethod
    def from_config(cls, config: "Config") -> "Mechanism":
        chunked = registry.task_facts(config.task).cuts_documents
        return replace(super().from_config(config), chunked=chunked)  # type: ignore[call-arg]

    @classmethod
    def target_errors(cls, config: "Config") -> Iterator[tuple[str, str]]:
        privacy = config.privacy
        if privacy.noise_multiplier is not None:
            yield (
                "privacy.noise_multiplier",
                "the filter's tests spend half of an epsilon, from which its noise follows too: give privacy.epsilon",
            )
        if privacy.epsilon is None:
            yield "privacy.epsilon", "the filter's tests and its noise follow from it: say how much privacy"
        if privacy.tau is None:
            yield (
                "privacy.tau",
                "say within which distance most users' gradients lie: the noise is in proportion to it; with any "
                "value there, `confide plan CONFIG --measure` tells what it would have to be",
            )

    @classmethod
    def validation_errors(cls, config: "Config") -> Iterator[tuple[str, str]]:
        yield from super().validation_errors(config)
        yield from averaging_errors(config)
        yield from _full_batch_faults(config)
        yield from _clipping_faults(config)
        if config.privacy.adjacency not in (None, "replace-one"):
            yield "privacy.adjacency", "the filter's argument replaces one of N users: leave it out"


def _full_batch_faults(config: "Config") -> Iterator[tuple[str, str]]:
    from confide.config.train_section import Train

    train, why = config.train, "every unit takes part in every step of the filter: remove it"
    if config.privacy.sampling != "poisson":
        yield "privacy.sampling", why
    if train.sampling_rate not in (None, 1):
        yield "train.sampling_rate", why
    if train.batch != Train().batch:
        yield "train.batch", why


def _clipping_faults(config: "Config") -> Iterator[tuple[str, str]]:
    from confide.config.schema import Privacy

    privacy, default = config.privacy, Privacy()
    if privacy.clip_norm != default.clip_norm:
        yield "privacy.clip_norm", "the filter clips nothing; what bounds a unit is privacy.tau: remove it"
    if privacy.normalised != default.normalised:
        yield (
            "privacy.normalised",
            "the filter clips nothing, so there is no clip norm to divide by: remove it",
        )
    if config.train.divisor is not None:
        yield "train.divisor", "the filter divides by how many units it keeps: remove it"
