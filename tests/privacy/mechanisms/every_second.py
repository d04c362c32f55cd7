"""A mechanism as an outside contributor writes it: one file. Its line is put into the registry by the test."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from pydantic import Field

from confide.config.fields import Section
from confide.data.shape import Shape
from confide.data.unit_graph import UnitGraph
from confide.privacy.mechanisms.dp_sgd import DPSGD
from confide.privacy.mechanisms.rows import RowSampler
from confide.privacy.mechanisms.values import ClaimParts, PrivacyParameters, Sampler, Score
from confide.randomness.streams import RunKey


class Every(Section):
    every: int = Field(2, ge=1, description="one of so many rows is used")


@dataclass(frozen=True)
class EverySecondRow(DPSGD):
    """DP-SGD on every second row; the others are dropped.

    Formal guarantee: that of DP-SGD on the rows that are left, under zero-out and replace-one, which move no row's
    number. Under add-or-remove all numbers behind a row move, so the used rows before and after have none in common.
    """

    every: int = 2

    name: ClassVar[str] = "every-second"
    Settings: ClassVar[type[Section]] = Every

    def _used(self, rows: int) -> np.ndarray:
        return np.arange(0, rows, self.every)

    def sampler(self, graph: UnitGraph, key: RunKey, phase: str, score: Score) -> Sampler:
        return RowSampler(
            graph, self._used(graph.n_rows), self.parameters(graph.shape()).sampling, key, phase
        )

    def parameters(self, shape: Shape, steps: int | None = None) -> PrivacyParameters:
        return super().parameters(replace(shape, rows=len(self._used(shape.rows))), steps)

    def claim(self, shape: Shape, noise_multiplier: float, delta: float, steps: int) -> ClaimParts:
        parts = super().claim(shape, noise_multiplier, delta, steps)
        return replace(parts, public_facts=(f"one of {self.every} rows is used",))

    @classmethod
    def validation_errors(cls, config) -> Iterator[tuple[str, str]]:
        yield from super().validation_errors(config)
        if config.privacy.adjacency == "add-or-remove":
            yield (
                "privacy.adjacency",
                "rows are dropped by number, and a row more moves all numbers: use zero-out",
            )
        if config.every_second.every > 9:
            yield "every_second.every", "use dp-sgd on less data"
