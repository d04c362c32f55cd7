"""The common part of mechanisms that draw rows: a fixed set of rows, each clipped on its own."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from confide.config import registry
from confide.data.shape import Shape
from confide.data.unit_graph import UnitGraph
from confide.privacy.accounting import DominatingPair
from confide.privacy.mechanisms.base import Mechanism
from confide.privacy.mechanisms.values import Alternative, PrivacyParameters, Sampler, Score
from confide.privacy.sampling import Draw, OwnRates, Sampling
from confide.privacy.selection import cap_of, select
from confide.randomness.streams import RunKey
from confide.utils.errors import InputError
from confide.utils.rounding import at_most

if TYPE_CHECKING:
    from confide.config.schema import Config


@dataclass(frozen=True)
class RowSampler:
    """Each row in use is drawn by itself and clipped on its own."""

    depends_on_step_alone: ClassVar[bool] = True

    graph: UnitGraph
    rows: np.ndarray  # int64[M]: row numbers in use
    sampling: Sampling | OwnRates
    key: RunKey
    phase: str

    def draw(self, step: int) -> Draw:
        drawn = self.rows[self.sampling.draw(len(self.rows), self.key, self.phase, step)]
        labels = self.graph.labels
        return Draw(
            rows=self.graph.fetch(drawn),
            group=np.arange(len(drawn)),
            weight=np.ones(len(drawn), np.float32),
            labels=None if labels is None else np.asarray(labels[drawn]),
            unit_ids=drawn,
        )

    def possible_rows(self) -> np.ndarray:
        return self.rows


@dataclass(frozen=True)
class CappedRows(Mechanism):
    """At most `rows_per_unit` rows of each unit are used, chosen once by a rule.

    Sources: Chua et al. 2024 ("Mind the Privacy Unit!"), section 4.1; Charles et al. 2024, Algorithm 1.
    """

    rows_per_unit: int | str = 4
    selection: str | None = None
    resample: bool = False
    draws: ClassVar[str] = "rows"

    def cap(self, shape: Shape) -> int:
        return cap_of(self.rows_per_unit, shape)

    def alternatives(self, shape: Shape) -> Iterator[Alternative]:
        yield from self._halved_and_doubled("rows_per_unit", self.cap(shape))
        yield from super().alternatives(shape)

    def sampler(self, graph: UnitGraph, key: RunKey, phase: str, score: Score) -> Sampler:
        shape = graph.shape()
        rule = self.selection or "random"
        perplexity = score() if rule.endswith("-ppl") else None
        rows = select(
            rule,
            graph,
            self.cap(shape),
            key.stream(phase, "selection"),
            perplexity=perplexity,
            resample=self.resample,
        )
        parameters = self.parameters(shape)
        if len(rows) != parameters.rows:
            raise AssertionError(f"selected {len(rows)} rows, accounted for {parameters.rows}")
        return RowSampler(graph, rows, parameters.sampling, key, phase)

    def parameters(self, shape: Shape, steps: int | None = None) -> PrivacyParameters:
        steps = self.steps if steps is None else steps
        if not shape.single_owner:
            raise InputError(
                f"data.unit: mechanism {self.name} needs rows with one owner each, and some rows here have several"
            )
        cap, rule = self.cap(shape), self.selection or "random"
        # A unit that may be added can have more rows than any existing one.
        full = self.resample or self.adjacency == "add-or-remove"
        most = cap if full else int(min(cap, shape.rows_per_unit.max(initial=0)))
        rows = cap * shape.units if self.resample else int(np.minimum(shape.rows_per_unit, cap).sum())
        rate = self._rate(rows, "rows")
        divisor = self.divisor or rate * rows
        sampling = Sampling(self.sampling, rate, self.max_batch)
        zeroed = self._account(most, sampling, steps)
        return PrivacyParameters(
            rows=rows,
            units=shape.units,
            sampling=sampling,
            expected_batch=self._expected(rate, rows, divisor),
            divisor=divisor,
            process=self._process(zeroed),
            zeroed=zeroed,
            delta=self._delta(rows, shape.units),
            rows_per_step=rate * rows,
            rows_per_unit=most,
            contribution=f"at most {most} rows in all, chosen once ({rule}); each may enter any step",
            facts=self._facts(
                f"sampling probability {at_most(rate, 6)} of each of the rows in use",
                divisor,
                steps,
                f"rows per unit capped at {cap}",
            ),
        )

    def _account(self, most: int, sampling: Sampling, steps: int) -> DominatingPair:
        raise AssertionError("each mechanism says how it is accounted")

    @classmethod
    def validation_errors(cls, config: "Config") -> Iterator[tuple[str, str]]:
        yield from super().validation_errors(config)
        if config.privacy.selection == "random-chunk":
            yield (
                "privacy.selection",
                f"random-chunk draws fresh chunks each step, as uls does; {cls.name} selects rows",
            )
        has_classes = registry.task_facts(config.task).has_classes
        if has_classes and (config.privacy.selection or "").endswith("-ppl"):
            yield "privacy.selection", "perplexity is a language model's; a classifier has none"
