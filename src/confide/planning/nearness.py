"""Measure how near users' gradients are at the base model: the tau that the concentration filter would need.

See Chua et al. 2024, section 5.3.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from confide.privacy.accounting.concentration import NEAR
from confide.privacy.mechanisms.concentration import Concentration, ConcentrationAggregation
from confide.privacy.mechanisms.uls import UnitSampler
from confide.privacy.sampling import OwnRates
from confide.randomness.streams import RunKey
from confide.runs.job import Job
from confide.training.optimisation import Optimisation
from confide.training.step import PrivateStep

USERS = 64
"""Number of users whose gradients are compared, each with each."""

SHARES = (0.1, 0.5, 0.9)
"""Quantiles of distances that are reported."""


@dataclass(frozen=True, eq=False)
class Nearness:
    """Users' mean gradients over k rows or chunks: float64 norms of each user, and distances of each pair."""

    k: int
    norms: np.ndarray
    distances: np.ndarray

    @property
    def norm(self) -> float:
        """Median norm, about the value that a clip norm would have."""
        return float(np.median(self.norms))

    @property
    def tau(self) -> float:
        """Least tau at which a step passes, apart from noise."""
        return _four_fifths(self.distances)

    @property
    def clipped_tau(self) -> float:
        """The same for gradients that are clipped at the median norm."""
        scale = np.minimum(1, self.norm / self.norms)
        squares = self.norms**2
        products = (squares[:, None] + squares - self.distances**2) / 2 * scale[:, None] * scale
        clipped = products.diagonal()[:, None] + products.diagonal() - 2 * products
        return _four_fifths(np.sqrt(np.maximum(clipped, 0)))

    def quantiles(self, shares: Sequence[float] = SHARES) -> list[float]:
        """Return quantiles of the distances between two different users, in units of the median norm."""
        pairs = self.distances[np.triu_indices(len(self.distances), 1)]
        return [float(value) for value in np.quantile(pairs, shares) / self.norm]

    def facts(self) -> dict[str, Any]:
        return {
            "users": len(self.norms),
            "k": self.k,
            "median_norm": self.norm,
            "quantiles": self.quantiles(),
            "tau": self.tau,
            "ratio": self.tau / self.norm,
            "clipped_ratio": self.clipped_tau / self.norm,
        }


def nearness(job: Job, k: int, key: RunKey, users: int = USERS) -> Nearness:
    """Compare gradients of some units at the job's current model, which must not have trained yet.

    *No guarantee*: gradients of private rows are measured. A tau that is chosen from them is covered by no
    guarantee, and everything that shows them must say so.

    Args:
        job: a job of the concentration filter, whose chunks or rows are measured.
        k: rows or chunks of each unit.
        key: the units and their rows are drawn from its stream; for another k, the same units.
        users: number of units; all units if there are fewer.
    """
    graph, mechanism = job.prepared.train, job.mechanism
    assert isinstance(mechanism, Concentration)
    chosen = key.stream("nearness", "users").permutation(graph.n_units)[:users]
    rates = OwnRates(np.isin(np.arange(graph.n_units), chosen).astype(float))
    chunk = mechanism.row_length if mechanism.like.rule == "random-chunk" else None
    sampler = UnitSampler(graph, rates, key, f"nearness {k}", k, chunk)
    aggregation = ConcentrationAggregation(None, 0.0, 1.0, tau=1.0, users=len(chosen), epsilon=math.inf)
    optimisation = Optimisation(1, optimizer="sgd")
    step = PrivateStep(
        job.model, job.task, sampler, aggregation, optimisation, key, micro_tokens=job.micro_tokens
    )
    job.model.train()
    assert step.units is not None
    step.units.collect(sampler.draw(0), 0)
    return Nearness(k, step.units.of_units.norms(), step.units.of_units.distances())


def _four_fifths(distances: np.ndarray) -> float:
    """Return the least distance that 4/5 of all ordered pairs do not exceed, each user with itself included."""
    ordered = np.sort(distances, axis=None)
    return float(ordered[math.ceil(NEAR * len(ordered)) - 1])
