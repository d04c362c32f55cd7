"""No privacy: ordinary training, or the non-private twin of a private run on the same draws."""

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, ClassVar

from confide.data.shape import Shape
from confide.data.unit_graph import UnitGraph
from confide.privacy.accounting import MixtureOfGaussians
from confide.privacy.mechanisms.base import Mechanism
from confide.privacy.mechanisms.values import Aggregation, DataNeeds, Phase, PrivacyParameters, Sampler, Score
from confide.randomness.streams import RunKey

if TYPE_CHECKING:
    from confide.config.schema import Config


@dataclass(frozen=True)
class NonPrivate(Mechanism):
    """The draws of another mechanism, neither clipped nor noised. It protects nobody and says so."""

    like: Mechanism | None = None
    name: ClassVar[str] = "none"
    clips: ClassVar[bool] = False
    notion: ClassVar[str] = "none"
    needs: ClassVar[DataNeeds] = DataNeeds(named_unit=False)
    has_plain_steps: ClassVar[bool] = True
    sums_are_covered: ClassVar[bool] = False

    @property
    def inner(self) -> Mechanism:
        if self.like is None:
            raise AssertionError("built without the mechanism whose draws it repeats")
        return self.like

    @property
    def unit(self) -> str:
        return self.inner.unit

    @property
    def unit_is_one_row(self) -> bool:
        return self.inner.unit_is_one_row

    @property
    def draws_chunks(self) -> bool:
        return self.inner.draws_chunks

    @property
    def draws(self) -> str:  # type: ignore[override]
        return self.inner.draws

    @property
    def all_steps(self) -> int:
        return self.inner.all_steps

    def cap(self, shape: Shape) -> int:
        return self.inner.cap(shape)

    def phases(self, shape: Shape, noise_multiplier: float) -> tuple[Phase, ...]:
        return tuple(
            replace(phase, mechanism=self.twin(phase.mechanism), noise_multiplier=0.0)
            for phase in self.inner.phases(shape, noise_multiplier)
        )

    def phase_of(self, step: int) -> tuple[int, int]:
        return self.inner.phase_of(step)

    def rows_computed(self, parameters: PrivacyParameters) -> float:
        return self.inner.rows_computed(parameters)

    def sampler(self, graph: UnitGraph, key: RunKey, phase: str, score: Score) -> Sampler:
        return self.inner.sampler(graph, key, phase, score)

    def aggregation(self, parameters: PrivacyParameters, noise_multiplier: float) -> Aggregation:
        return Aggregation(None, 0.0, 1 / parameters.divisor)

    def parameters(self, shape: Shape, steps: int | None = None) -> PrivacyParameters:
        parameters = self.inner.parameters(shape, steps)
        # Every unit, every step, no noise: a process whose epsilon is infinite at any noise given here.
        bare = MixtureOfGaussians.bernoulli(1.0, max(1, steps or self.steps))
        return replace(parameters, process=bare, zeroed=bare)

    def least_noise(
        self, parameters: PrivacyParameters, shape: Shape, epsilon: float | None, delta: float
    ) -> float:
        return 0.0

    @property
    def scorer(self) -> str | None:
        return self.inner.scorer

    def key_binding(self, shape: Shape) -> bytes:
        return self.inner.key_binding(shape)

    @classmethod
    def from_config(cls, config: "Config") -> "Mechanism":
        from confide.privacy.mechanisms import find

        # Without a run to repeat, draw as the kind of data suggests: users, if the data name them.
        name = "uls" if isinstance(config.data.unit, str) else "dp-sgd"
        return cls.twin(find(name).from_config(config))

    @classmethod
    def twin(cls, mechanism: Mechanism) -> "NonPrivate":
        """Return the non-private twin of a mechanism: the same draws, without clip and noise."""
        shared = {field.name: getattr(mechanism, field.name) for field in fields(Mechanism)}
        return cls(
            **shared | {"bands": 1, "buffers": 0, "histograms": None, "scales": (), "common_tokens": 0.0},
            like=replace(mechanism, scales=(), common_tokens=0.0),
        )

    @classmethod
    def validation_errors(cls, config: "Config") -> Iterator[tuple[str, str]]:
        privacy = config.privacy
        if privacy.epsilon is not None or privacy.noise_multiplier:
            key = "epsilon" if privacy.epsilon is not None else "noise_multiplier"
            yield (
                f"privacy.{key}",
                "mechanism none adds no noise and promises nothing: remove it, or choose a mechanism",
            )
