"""The common part of mechanisms that draw each row with its own probability, computed from the unit graph alone."""

import hashlib
from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np

from confide.data.shape import Shape
from confide.data.unit_graph import UnitGraph
from confide.privacy.accounting import Population
from confide.privacy.bounding import bound_greedily, pairs_of
from confide.privacy.mechanisms.base import Mechanism
from confide.privacy.mechanisms.rows import RowSampler
from confide.privacy.mechanisms.values import PrivacyParameters, Sampler, Score
from confide.privacy.row_weights import solve
from confide.privacy.sampling import OwnRates
from confide.randomness.seal import Broken, Seal
from confide.randomness.streams import RunKey
from confide.utils.errors import InputError
from confide.utils.rounding import at_least, at_most

if TYPE_CHECKING:
    from confide.config.schema import Config


@dataclass(frozen=True)
class WeightedRows(Mechanism):
    """Row i is drawn with probability rho_i = B w_i / sum w and clipped on its own; weights come from the graph.

    Formal guarantee: zeroing out the rows R of a unit moves the sum of a step by at most C X, X Poisson-binomial with
    the rates of R, whoever else has those rows (`accounting.pairs.MixtureOfGaussians`; Ganesh et al. 2025, section 4).
    So T steps are dominated by the T-fold composition of N(X, s^2) against N(0, s^2), in both directions.
    """

    draws: ClassVar[str] = "rows"
    bound_key: ClassVar[str]  # the config key that says how many rows of a unit count

    @abstractmethod
    def weights(self, shape: Shape) -> np.ndarray:
        """Compute how much each row counts, float64[M] in [0, 1], from the graph alone."""

    def rates(self, shape: Shape) -> np.ndarray:
        """Compute the probability with which a step draws each row, float64[M].

        Raises:
            InputError: no row is left, or the batch is more than the weights allow.
        """
        weights = self.weights(shape)
        total = float(weights.sum())
        if total <= 0:
            raise InputError(f"{self.bound_key}: no row is left to train on; raise it")
        most = total / float(weights.max())
        if self.batch > most:
            raise InputError(
                f"train.batch: {self.batch:g} rows a step are more than the weights of {shape.rows} rows allow; "
                f"take at most {int(most)}, or raise {self.bound_key}"
            )
        return np.minimum(weights * (self.batch / total), 1.0)

    def key_binding(self, shape: Shape) -> bytes:
        return self.population(shape).rho.tobytes()

    def population(self, shape: Shape, steps: int | None = None) -> Population:
        """Return every unit with the rates of its rows."""
        return _population(self, shape, self.steps if steps is None else steps)

    def sampler(self, graph: UnitGraph, key: RunKey, phase: str, score: Score) -> Sampler:
        # use the rates that were accounted for, even if a file has changed since
        rates = self.population(graph.shape()).rho
        rows = np.flatnonzero(rates)
        return RowSampler(graph, rows, OwnRates(rates[rows]), key, phase)

    def parameters(self, shape: Shape, steps: int | None = None) -> PrivacyParameters:
        steps = self.steps if steps is None else steps
        population = self.population(shape, steps)
        rates = population.rho[population.rho > 0]
        divisor = self.divisor or self.batch
        low, high, zeroed = float(rates.min()), float(rates.max()), population.worst()
        return PrivacyParameters(
            rows=len(rates),
            units=shape.units,
            sampling=OwnRates(rates),
            expected_batch=self.batch,
            divisor=divisor,
            process=self._process(zeroed),
            zeroed=zeroed,
            delta=self._delta(len(rates), shape.units),
            rows_per_step=self.batch,
            rows_per_unit=int(population.counts.max(initial=0)),
            contribution=f"at most {at_most(population.means.max(initial=0))} rows expected a step, "
            f"each drawn with its "
            f"own probability ({at_least(low)} to {at_most(high)}), which follows from the unit graph",
            facts=self._facts(
                f"sampling probability of each row in use, from {at_least(low, 6)} to {at_most(high, 6)}",
                divisor,
                steps,
            ),
        )

    @classmethod
    def validation_errors(cls, config: "Config") -> Iterator[tuple[str, str]]:
        yield from super().validation_errors(config)
        privacy = config.privacy
        if privacy.sampling != "poisson":
            yield "privacy.sampling", f"mechanism {cls.name} draws each row by itself: use poisson"
        if privacy.selection is not None:
            yield "privacy.selection", f"mechanism {cls.name} weighs rows by the unit graph alone: remove it"
        if privacy.resample:
            yield "privacy.resample", "is an option of els and group"
        if config.train.sampling_rate is not None:
            yield "train.sampling_rate", f"mechanism {cls.name} gives each row its own: set train.batch"
        if privacy.adjacency == "add-or-remove":
            yield (
                "privacy.adjacency",
                f"mechanism {cls.name} draws by the unit graph, which add-or-remove would have to hide: "
                "use zero-out",
            )


@lru_cache(maxsize=8)
def _population(mechanism: WeightedRows, shape: Shape, steps: int) -> Population:
    assert shape.offsets is not None
    assert shape.rows_of_units is not None
    return Population(shape.offsets, shape.rows_of_units, mechanism.rates(shape), steps)


def kept_greedily(shape: Shape, cap: int | np.ndarray) -> np.ndarray:
    """Weigh each row 1 or 0, float64[M], so that no unit has more than `cap` rows, one for all or each its own."""
    if shape.pairs is not None:
        pairs = shape.pairs()
    else:
        assert shape.offsets is not None
        assert shape.rows_of_units is not None
        pairs = pairs_of(shape.offsets, shape.rows_of_units, shape.rows)
    kept = bound_greedily(pairs, shape.incidences, shape.rows, shape.units, cap, shape.folder)
    return kept.astype(np.float64)


def solved(shape: Shape, limits: np.ndarray, solver: Literal["auto", "highs", "pdlp"]) -> np.ndarray:
    """Solve the linear program with these limits for the rows' weights, float64[M], and store them next to the graph.

    Another version of a solver could give other weights, and a resumed run would then draw differently.
    """
    assert shape.offsets is not None
    assert shape.rows_of_units is not None
    name = hashlib.sha256(np.ascontiguousarray(limits, "<f8").tobytes() + solver.encode()).hexdigest()[:32]
    path = None if shape.folder is None else shape.folder / f"weights-{name}.npy"
    if path is not None and path.exists():
        return _kept(path, shape, limits)
    weights = solve(shape.offsets, shape.rows_of_units, shape.rows, limits, solver).weights
    if path is not None:
        Seal.against_damage().write_array(path, "weights", weights)
    return weights


def _kept(path: Path, shape: Shape, limits: np.ndarray) -> np.ndarray:
    """Read stored weights. Any valid weights are accounted for; anything that is not valid weights is refused."""
    try:
        weights = Seal.against_damage().read_array(path, "weights")
    except (OSError, Broken):
        weights = None
    if not (
        isinstance(weights, np.ndarray)
        and weights.dtype == np.float64
        and weights.shape == (shape.rows,)
        and bool(((weights >= 0) & (weights <= 1)).all())
        and bool((_loads(weights, shape) <= limits * (1 + 1e-9)).all())
    ):
        raise InputError(f"{path} is damaged: remove it, and the program is solved again")
    return weights


def _loads(weights: np.ndarray, shape: Shape) -> np.ndarray:
    """Return the sum of the weights of each unit's rows, float64[N]."""
    assert shape.offsets is not None
    assert shape.rows_of_units is not None
    unit = np.repeat(np.arange(shape.units), np.diff(shape.offsets))
    return np.bincount(unit, weights=weights[shape.rows_of_units], minlength=shape.units)
