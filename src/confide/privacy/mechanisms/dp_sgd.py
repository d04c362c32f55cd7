"""Example-level DP-SGD (Abadi et al. 2016): the unit is one row."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from confide.data.shape import Shape
from confide.data.unit_graph import UnitGraph
from confide.privacy.mechanisms.base import Mechanism
from confide.privacy.mechanisms.group import example_level
from confide.privacy.mechanisms.rows import RowSampler
from confide.privacy.mechanisms.values import DataNeeds, PrivacyParameters, Sampler, Score
from confide.randomness.streams import RunKey
from confide.utils.rounding import at_most

if TYPE_CHECKING:
    from confide.config.schema import Config


@dataclass(frozen=True)
class DPSGD(Mechanism):
    """Every row is drawn independently with probability B / M and clipped on its own.

    Formal guarantee: (epsilon, delta)-DP for one row under zero-out adjacency: the T-fold composition of
    N(Bernoulli(p), s^2) against N(0, s^2) (with correlated noise, and other sampling: see
    `group.example_level`). A person with many rows gets a weaker guarantee: see els, uls.
    """

    name: ClassVar[str] = "dp-sgd"
    notion: ClassVar[str] = "(epsilon, delta)-DP"
    suggested_caps: ClassVar[tuple[int | str, ...]] = (1,)
    draws: ClassVar[str] = "rows"
    correlates: ClassVar[bool] = True
    deals: ClassVar[bool] = True
    counts: ClassVar[bool] = True
    needs: ClassVar[DataNeeds] = DataNeeds(named_unit=False)

    @property
    def unit(self) -> str:
        return (
            f"one row: at most {self.row_length} tokens of one document (a longer document is several units)"
        )

    def sampler(self, graph: UnitGraph, key: RunKey, phase: str, score: Score) -> Sampler:
        return RowSampler(graph, np.arange(graph.n_rows), self.parameters(graph.shape()).sampling, key, phase)

    def parameters(self, shape: Shape, steps: int | None = None) -> PrivacyParameters:
        steps = self.steps if steps is None else steps
        rate = self._rate(shape.rows, "rows")
        divisor = self.divisor or rate * shape.rows
        sampling = self._sampling(rate)
        zeroed = example_level(sampling, steps, self.correlation)
        parameters = PrivacyParameters(
            rows=shape.rows,
            units=shape.rows,
            sampling=sampling,
            expected_batch=self._expected(rate, shape.rows, divisor),
            divisor=divisor,
            process=self._process(zeroed),
            delta=self._delta(shape.rows, shape.rows),
            rows_per_step=rate * shape.rows,
            rows_per_unit=1,
            contribution="1 row",
            facts=self._facts(f"sampling probability {at_most(rate, 6)} of each of the rows", divisor, steps),
            zeroed=zeroed,
        )
        return self._with_histograms(parameters)

    @classmethod
    def validation_errors(cls, config: "Config") -> Iterator[tuple[str, str]]:
        yield from super().validation_errors(config)
        if config.privacy.selection is not None:
            yield (
                "privacy.selection",
                f"{cls.name} uses every row: a rule that selects within a user is for els, group, uls",
            )
        if config.privacy.resample:
            yield (
                "privacy.resample",
                f"{cls.name} uses every row once: resample is an option of els and group",
            )
