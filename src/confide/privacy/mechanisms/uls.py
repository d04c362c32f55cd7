"""ULS: user-level sampling, or user-wise DP-SGD (Charles et al. 2024, Algorithm 2; Chua et al. 2024, Algorithm 2)."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from confide.config import registry
from confide.data.shape import Shape
from confide.data.unit_graph import UnitGraph
from confide.privacy.mechanisms.base import Mechanism
from confide.privacy.mechanisms.group import example_level
from confide.privacy.mechanisms.values import Alternative, PrivacyParameters, Sampler, Score
from confide.privacy.sampling import Draw, OwnRates, Sampling
from confide.privacy.selection import cap_of, random_chunks, random_rows, select
from confide.randomness.streams import RunKey, Stream
from confide.utils.errors import InputError
from confide.utils.rounding import at_most

if TYPE_CHECKING:
    from confide.config.schema import Config


@dataclass(frozen=True)
class UnitSampler:
    """Draws units, and up to k rows or chunks of each drawn unit; their mean gradient is clipped."""

    depends_on_step_alone: ClassVar[bool] = True

    graph: UnitGraph
    sampling: Sampling | OwnRates
    key: RunKey
    phase: str
    k: int
    chunk: int | None  # tokens of a random chunk; None: whole rows
    chosen: dict[int, np.ndarray] | None = None  # the fixed rows of each unit that a rule chose

    def draw(self, step: int) -> Draw:
        units = self.sampling.draw(self.graph.n_units, self.key, self.phase, step)
        stream = self.key.stream(self.phase, "rows", step)
        rows, group, labels = self._rows(units, stream)
        counts = np.bincount(group, minlength=len(units))
        # The mean over the k' drawn rows or chunks of a unit: weight 1/k' each, however many rows it has.
        weight = 1.0 / counts[group] if len(group) else np.zeros(0)
        return Draw(rows, group, weight.astype(np.float32), labels, unit_ids=units)

    def possible_rows(self) -> None:
        return None

    def _rows(
        self, units: np.ndarray, stream: Stream
    ) -> tuple[list[np.ndarray], np.ndarray, np.ndarray | None]:
        if len(units) == 0:
            return [], np.zeros(0, np.int64), None
        if self.chunk is not None:
            chunks, group = random_chunks(self.graph, units, self.k, self.chunk, stream)
            return chunks, group, None
        if self.chosen is not None:
            parts = [self.chosen[int(unit)] for unit in units]
            numbers = np.concatenate(parts)
            group = np.repeat(np.arange(len(units)), [len(part) for part in parts])
        else:
            numbers, group = random_rows(self.graph, units, self.k, stream)
        labels = self.graph.labels
        return self.graph.fetch(numbers), group, None if labels is None else np.asarray(labels[numbers])


@dataclass(frozen=True)
class UserLevelSampling(Mechanism):
    """Each user is drawn with probability q = n / N; up to k rows or random chunks of each are averaged, then clipped.

    Formal guarantee: (epsilon, delta)-DP for one user under zero-out adjacency, whatever the user's number
    of rows: a drawn user moves the sum by at most C, so T steps are the T-fold composition of
    N(Bernoulli(q), s^2) against N(0, s^2) (with correlated noise, and other sampling: see
    `group.example_level`). Every row must have exactly one owner: else removing one
    owner would change another's mean.
    """

    rows_per_unit: int | str = 4
    selection: str | None = None
    name: ClassVar[str] = "uls"
    notion: ClassVar[str] = "user-level DP"
    family: ClassVar[str] = "user-level"
    suggested_caps: ClassVar[tuple[int | str, ...]] = (1, 2, 4, 8, 16, 32)
    measures: ClassVar[str | None] = "split"
    draws: ClassVar[str] = "units"
    correlates: ClassVar[bool] = True
    deals: ClassVar[bool] = True
    counts: ClassVar[bool] = True
    chunked: bool = True

    @property
    def unit(self) -> str:
        return "all text of one user"

    @property
    def rule(self) -> str:
        return self.selection or ("random-chunk" if self.chunked else "random")

    @property
    def draws_chunks(self) -> bool:
        return self.rule == "random-chunk"

    def cap(self, shape: Shape) -> int:
        return cap_of(self.rows_per_unit, shape)

    def alternatives(self, shape: Shape) -> Iterator[Alternative]:
        yield from self._halved_and_doubled("rows_per_unit", self.cap(shape))
        yield from super().alternatives(shape)

    def sampler(self, graph: UnitGraph, key: RunKey, phase: str, score: Score) -> Sampler:
        shape = graph.shape()
        parameters, k = self.parameters(shape), self.cap(shape)
        if self.rule == "random-chunk":
            return UnitSampler(graph, parameters.sampling, key, phase, k, self.row_length)
        if self.rule == "random":
            return UnitSampler(graph, parameters.sampling, key, phase, k, None)
        perplexity = score() if self.rule.endswith("-ppl") else None
        rows = select(self.rule, graph, k, key.stream(phase, "selection"), perplexity=perplexity)
        bounds = np.cumsum(np.minimum(shape.rows_per_unit, k))[:-1]
        return UnitSampler(
            graph, parameters.sampling, key, phase, k, None, dict(enumerate(np.split(rows, bounds)))
        )

    def parameters(self, shape: Shape, steps: int | None = None) -> PrivacyParameters:
        steps = self.steps if steps is None else steps
        if not shape.single_owner:
            raise InputError(
                "data.unit: user sampling needs rows with one owner each (removing one owner would change "
                "another's mean), and some rows here have several"
            )
        k = self.cap(shape)
        rate = self._rate(shape.units, "units")
        divisor = self.divisor or rate * shape.units
        sampling = self._sampling(rate)
        zeroed = example_level(sampling, steps, self.correlation)
        # Chunks overlap rows, so a unit with fewer rows than k still gives up to k chunks.
        drawn = np.minimum(shape.rows_per_unit, k).mean() if self.rule != "random-chunk" else k
        parameters = PrivacyParameters(
            rows=shape.rows,
            units=shape.units,
            sampling=sampling,
            expected_batch=self._expected(rate, shape.units, divisor),
            divisor=divisor,
            process=self._process(zeroed),
            zeroed=zeroed,
            delta=self._delta(shape.rows, shape.units),
            rows_per_step=float(rate * shape.units * drawn),
            rows_per_unit=None,
            contribution=f"all its rows; a step that draws it uses at most {k} ({self.rule})",
            facts=self._facts(
                f"sampling probability {at_most(rate, 6)} of each of the units",
                divisor,
                steps,
                f"at most {k} {'random chunks' if self.draws_chunks else 'rows'} of a drawn unit",
            ),
        )
        return self._with_histograms(parameters)

    @classmethod
    def from_config(cls, config: "Config") -> "Mechanism":
        import dataclasses

        chunked = registry.task_facts(config.task).cuts_documents
        return dataclasses.replace(super().from_config(config), chunked=chunked)  # type: ignore[call-arg]

    @classmethod
    def validation_errors(cls, config: "Config") -> Iterator[tuple[str, str]]:
        yield from super().validation_errors(config)
        yield from averaging_errors(config)


def averaging_errors(config: "Config") -> Iterator[tuple[str, str]]:
    """Yield (key, sentence) for each setting that does not go with the mean of a unit's rows or chunks."""
    cuts_documents = registry.task_facts(config.task).cuts_documents
    if config.privacy.selection == "random-chunk" and not cuts_documents:
        yield (
            "privacy.selection",
            f"random-chunk cuts running text; task {config.task} needs whole rows: use random",
        )
    if config.privacy.resample:
        yield (
            "privacy.resample",
            f"{config.privacy.mechanism} averages over what a unit has: resample is an option of els and group",
        )
    if isinstance(config.data.unit, list) and len(config.data.unit) > 1:
        yield "data.unit", "user sampling needs rows with one owner each: name one field"
