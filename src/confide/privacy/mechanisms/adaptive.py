"""Adaptive DP (Wu et al. 2022): noise that follows how private the rows look to a language model.

Mode `private` is proved: its factors are released with noise of their own, under a Renyi filter. Mode `nominal` is
the method of the paper, and an estimate.
"""

import hashlib
import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from scipy.stats import rankdata

from confide.config import registry
from confide.config.schema import Adaptive
from confide.data.shape import Shape
from confide.data.unit_graph import UnitGraph
from confide.models import files as model_files
from confide.models.names import location, public_name
from confide.privacy.accounting import RenyiBudget, RenyiFilter, Scaled
from confide.privacy.mechanisms.dp_sgd import DPSGD
from confide.privacy.mechanisms.rows import RowSampler
from confide.privacy.mechanisms.values import ClaimParts, Phase, PrivacyParameters, Sampler, Score
from confide.privacy.sampling import Draw, StopTraining
from confide.randomness.streams import RunKey
from confide.utils.errors import InputError
from confide.utils.rounding import at_least, at_most

if TYPE_CHECKING:
    from confide.config.schema import Config

GRID = 100
"""Factors are rounded down to a multiple of 1 / GRID, in noise and budget, so that few costs are computed."""

_SPENT = "the privacy budget does not pay for another step"
_HIGHEST = 700.0  # a mean token loss whose exponential is still finite


@dataclass(frozen=True)
class AdaptiveNoise(DPSGD):
    """DP-SGD in which the noise of step t has standard deviation gamma_t s C, with gamma_t between `floor` and 1.

    Each row has a privacy probability rho in [0, 1], which grows with its perplexity under a language model.

    `private`: gamma_t = (sum of rho over a Poisson draw of its own + N(0, s_g^2)) / B_g, rounded down to 1/100 and
    clipped to [floor, 1]. The budget is the cost of the planned steps, each with gamma = `expected` and a release. So
    s is the planned noise divided by `expected`, and all planned steps fit if gamma never falls below `expected`.

    Formal guarantee of `private`: (epsilon, delta)-DP for one row under zero-out adjacency, in which the row's
    gradient and its rho count for nothing. rho is a function of the row and of a model that saw no private row, so a
    release has sensitivity 1 and is a sampled Gaussian. Given gamma_t, a step is a sampled Gaussian too. A release is
    paid for before its value is looked at, and a step before it is taken, each only if it fits the budget at every
    order (`accounting.RenyiFilter`: Feldman and Zrnic 2021, Theorem 3.1). If it does not fit, the run ends. This
    decision depends only on the gammas so far, which are released. A run that ends early makes the same claim: the
    amount left unspent depends on the gammas.

    `nominal` (Wu et al. 2022, equations 4 to 6): gamma_t is the mean of rho over the drawn rows, where rho is
    normalised over the data set; it is 1 for an empty draw. The size of the noise reveals something about the rows and
    nothing hides that, so the result is an estimate. Its epsilon is that of steps at the least factor, as if the
    factors were public; the paper does not say how it counted.
    """

    adaptive: Adaptive = field(default_factory=Adaptive)
    task: str = "causal-lm"
    settled: float | None = None  # the noise multiplier, once a stage has settled it

    name: ClassVar[str] = "adaptive"
    reads: ClassVar[tuple[str, ...]] = ("adaptive",)
    suggested_caps: ClassVar[tuple[int | str, ...]] = ()
    correlates: ClassVar[bool] = False
    deals: ClassVar[bool] = False
    counts: ClassVar[bool] = False

    @property
    def is_private(self) -> bool:
        return self.adaptive.mode == "private"

    @property
    def planned(self) -> float:
        """The factor with which a step is planned."""
        return self.adaptive.floor if self.adaptive.expected is None else self.adaptive.expected

    @property
    def scorer(self) -> str | None:
        return self.adaptive.scorer

    def key_binding(self, shape: Shape) -> bytes:
        return b"" if self.scorer is None else _identity(self.scorer)

    # draw ------------------------------------------------------------------------------------------
    def phases(self, shape: Shape, noise_multiplier: float) -> tuple[Phase, ...]:
        settled = replace(self, settled=noise_multiplier)
        return (Phase("main", settled, noise_multiplier, self.steps),)

    def sampler(self, graph: UnitGraph, key: RunKey, phase: str, score: Score) -> Sampler:
        rows = super().sampler(graph, key, phase, score)
        assert isinstance(rows, RowSampler)
        losses = _mean_losses(score())
        if not self.is_private:
            return _Nominal(rows, normalised(losses, self.adaptive.normalise), self.adaptive.floor)
        if self.settled is None:
            raise AssertionError("what a step may spend follows from its noise: ask the mechanism of a stage")
        budget = self._budget(graph.shape())
        release = _Release(
            rho=self._probabilities(losses, graph),
            rate=budget.release_q,
            expected=self._released_rows(graph.n_rows),
            noise=budget.release(self.settled).noise_multiplier,
            floor=self.adaptive.floor,
            key=key,
            phase=phase,
        )
        return _Private(rows, release, budget, self.settled)

    def _probabilities(self, losses: np.ndarray, graph: UnitGraph) -> np.ndarray:
        """Compute rho of every row, float64[M] in [0, 1], each from the mean token loss of that row alone."""
        if self.adaptive.probability == "nll":
            vocabulary = graph.vocabulary if self.scorer is None else _vocabulary(self.scorer)
            by_loss: np.ndarray = np.clip(losses / math.log(vocabulary), 0.0, 1.0)
            return by_loss
        assert self.adaptive.between is not None
        low, high = self.adaptive.between
        by_perplexity: np.ndarray = np.clip((np.exp(losses) - low) / (high - low), 0.0, 1.0)
        return by_perplexity

    # account ---------------------------------------------------------------------------------------
    def parameters(self, shape: Shape, steps: int | None = None) -> PrivacyParameters:
        parameters = super().parameters(shape, steps)
        if not self.is_private:
            process = Scaled(parameters.process, self.adaptive.floor)
            return replace(parameters, process=process, zeroed=Scaled(parameters.zeroed, self.adaptive.floor))
        budget = self._budget(shape)
        return replace(
            parameters,
            process=self._process(budget),
            zeroed=budget,
            contribution="1 row: its clipped gradient, and its privacy probability in what the noise is sized by",
            facts=(*parameters.facts, *self._released(budget, self._released_rows(shape.rows))),
        )

    def _budget(self, shape: Shape) -> RenyiBudget:
        rows = self._released_rows(shape.rows)
        rate = self._rate(shape.rows, "rows")
        share, least = min(1.0, rows / shape.rows), self.adaptive.floor
        return RenyiBudget(rate, self.steps, self.planned, share, self.adaptive.gamma_noise, least)

    def _released_rows(self, rows: int) -> float:
        """Return B_g, the expected number of rows of the draw from which a gamma is made."""
        stated = self.adaptive.gamma_batch
        if stated is not None and stated > rows:
            raise InputError(
                f"adaptive.gamma_batch: {stated:g} rows are more than the {rows} there are; take at most {rows}"
            )
        return float(rows) if stated is None else stated

    # claim -----------------------------------------------------------------------------------------
    def claim(self, shape: Shape, noise_multiplier: float, delta: float, steps: int) -> ClaimParts:
        parts = super().claim(shape, noise_multiplier, delta, steps)
        who = "the base model" if self.scorer is None else public_name(self.scorer)
        parts = replace(
            parts,
            public_facts=(f"the model that gives the rows' perplexities: {who}",),
            not_covered=(
                "rows that the model which gives perplexities has seen before: it is taken to have seen no private row",
            ),
        )
        if self.is_private:
            return replace(
                parts,
                library="PLD" if self._budget(shape).is_fixed else "RDP",
                calibration=f"The noise multiplier is that of a planned step divided by {self.planned:g}; that of a "
                f"step is gamma times it, gamma from {self.adaptive.floor:g} to 1.",
            )
        return replace(
            parts,
            estimate_reasons=(
                "the noise of a step is multiplied by gamma, the mean privacy probability of the rows that were "
                "drawn, normalised over the data set: its size tells of them, and nothing hides that; what is counted "
                f"are steps at the least gamma, {self.adaptive.floor:g}, as if gammas were public",
            ),
            not_covered=(
                *parts.not_covered,
                "what the size of the noise tells of the drawn rows, and through normalisation of all rows",
            ),
            epsilons=self._at_planned_noise(shape, noise_multiplier, delta, steps),
        )

    def _at_planned_noise(
        self, shape: Shape, noise_multiplier: float, delta: float, steps: int
    ) -> tuple[tuple[str, float], ...]:
        if self.planned == self.adaptive.floor:
            return ()
        process = super().parameters(shape, steps).process
        epsilon = process.curve(self.planned * noise_multiplier).epsilon(delta)
        return ((f"if gamma is {self.planned:g} in every step, and public", epsilon),)

    def _released(self, budget: RenyiBudget, rows: float) -> Iterator[str]:
        noise = self.adaptive.gamma_noise
        size = (
            f"{at_least(budget.release_share, 6)} noise multipliers" if noise is None else at_least(noise, 6)
        )
        yield (
            "gamma, which multiplies the noise of a step, and with it after how many steps the run ends: made from "
            f"rows drawn with probability {at_most(budget.release_q, 6)} (B_g = {rows:g} expected), noise of standard "
            f"deviation s_g = {size}, floor {self.adaptive.floor:g}, planned with {self.planned:g}"
        )
        meaning = "its mean token loss over the logarithm of the vocabulary"
        if self.adaptive.between is not None:
            low, high = self.adaptive.between
            meaning = f"its perplexity between {low:g} and {high:g}"
        yield f"the privacy probability of a row: {meaning}, cut off at 0 and 1"

    # from the config -------------------------------------------------------------------------------
    @classmethod
    def validation_errors(cls, config: "Config") -> Iterator[tuple[str, str]]:
        privacy, adaptive = config.privacy, config.adaptive
        if privacy.adjacency == "add-or-remove":
            yield (
                "privacy.adjacency",
                "adaptive draws the rows of gamma with a probability that follows from their number, which "
                "add-or-remove hides: use zero-out or replace-one",
            )
            return
        yield from super().validation_errors(config)
        if privacy.sampling != "poisson":
            yield "privacy.sampling", "the filter of adaptive counts rows drawn one by one: use poisson"
        yield from _foreign_to_the_mode(adaptive)
        if adaptive.expected is not None and adaptive.expected < adaptive.floor:
            yield "adaptive.expected", f"{adaptive.expected:g} is below the floor, {adaptive.floor:g}"
        if (adaptive.probability == "perplexity") != (adaptive.between is not None):
            yield (
                "adaptive.between",
                "probability: perplexity needs [low, high], stated without a look at the data"
                if adaptive.between is None
                else f"is for probability: perplexity, and this is {adaptive.probability}",
            )
        elif adaptive.between is not None and not 0 <= adaptive.between[0] < adaptive.between[1] < math.inf:
            yield "adaptive.between", "is [low, high] with 0 <= low < high"
        if registry.task_facts(config.task).has_classes and adaptive.scorer is None:
            yield "adaptive.scorer", "a classifier has no perplexity: name a language model that gives it"


def _foreign_to_the_mode(adaptive: Adaptive) -> Iterator[tuple[str, str]]:
    keys = ("probability", "gamma_batch", "gamma_noise") if adaptive.mode == "nominal" else ("normalise",)
    other = "private" if adaptive.mode == "nominal" else "nominal"
    for key in keys:
        if getattr(adaptive, key) != getattr(Adaptive(), key):
            yield f"adaptive.{key}", f"is for mode: {other}, and this is {adaptive.mode}"


def _mean_losses(perplexity: np.ndarray) -> np.ndarray:
    """Compute mean token losses. A NaN counts as the highest loss, so that no row can end a run by its text."""
    with np.errstate(divide="ignore", invalid="ignore"):
        losses: np.ndarray = np.nan_to_num(
            np.clip(np.log(perplexity), 0.0, _HIGHEST), nan=_HIGHEST, posinf=_HIGHEST
        ).astype(np.float64)
        return losses


def normalised(losses: np.ndarray, by: str) -> np.ndarray:
    """Compute privacy probabilities from mean token losses, stretched from 0 to 1 over the data set.

    This is equation 4 of Wu et al. 2022. All are 1 if the losses are all alike. The paper does not say which
    normalisation it used. With perplexity or its logarithm, the result is near 0 for nearly all rows as soon as one
    row is very surprising.
    """
    values = {"perplexity": np.exp, "log-perplexity": np.asarray, "rank": rankdata}[by](losses)
    low, high = float(values.min()), float(values.max())
    return (values - low) / (high - low) if high > low else np.ones(len(losses))


@dataclass(frozen=True)
class _Release:
    """The gamma of a step, with noise: a function of the key, the step and the rows' privacy probabilities.

    Attributes:
        rho: privacy probabilities of the rows, float64[M].
        rate: the probability with which each row is drawn.
        expected: the expected number of drawn rows.
        noise: standard deviation of the noise.
    """

    rho: np.ndarray
    rate: float
    expected: float
    noise: float
    floor: float
    key: RunKey
    phase: str

    def mean(self, step: int) -> float:
        """Compute the released value: the noised sum of a draw's probabilities over the expected rows."""
        drawn = self.key.stream(self.phase, "gamma draw", step).uniform(len(self.rho)) < self.rate
        # The same noise at another size, as by another accounting, would give away the sum.
        stream = self.key.stream(self.phase, "gamma noise", step, repr(float(self.noise)))
        noise = self.noise * float(stream.normal(1)[0])
        return (float(self.rho[drawn].sum()) + noise) / self.expected

    def gamma(self, step: int) -> float:
        mean = min(1.0, max(0.0, self.mean(step)))
        return max(self.floor, math.floor(GRID * mean) / GRID)


class _Private:
    """Rows as in DP-SGD, each step with its gamma, until the budget is spent.

    All state kept between steps is a function of key and data, so a resumed run computes it again.
    """

    def __init__(self, rows: RowSampler, release: _Release, budget: RenyiBudget, noise_multiplier: float):
        self._rows, self._release, self._budget, self._noise = rows, release, budget, noise_multiplier
        self._filter = RenyiFilter(budget.limit(noise_multiplier))
        self._gammas: list[float] = []
        self._is_spent = False

    def draw(self, step: int) -> Draw | StopTraining:
        while len(self._gammas) <= step and not self._is_spent:
            self._go_on()
        if step >= len(self._gammas):
            return StopTraining(_SPENT)
        return replace(self._rows.draw(step), noise_factor=self._gammas[step])

    def possible_rows(self) -> np.ndarray:
        return self._rows.possible_rows()

    def _go_on(self) -> None:
        """Make the next gamma, paid for before it is looked at.

        The run ends after the planned number of steps, and before if the budget does not cover the gamma or its step.
        """
        release = self._budget.release(self._noise)
        self._is_spent = len(self._gammas) == self._budget.steps or not self._filter.allows(release)
        if self._is_spent:
            return
        self._filter.spend(release)
        gamma = self._release.gamma(len(self._gammas))
        step = self._budget.step(self._noise, gamma)
        self._is_spent = not self._filter.allows(step)
        if not self._is_spent:
            self._filter.spend(step)
            self._gammas.append(gamma)


@dataclass(frozen=True)
class _Nominal:
    """Rows as in DP-SGD; the noise is multiplied by the mean privacy probability of the drawn rows."""

    rows: RowSampler
    rho: np.ndarray
    floor: float

    def draw(self, step: int) -> Draw:
        own = self.rows
        drawn = own.sampling.draw(len(own.rows), own.key, own.phase, step)
        gamma = float(self.rho[drawn].mean()) if len(drawn) else 1.0
        return replace(own.draw(step), noise_factor=max(self.floor, gamma))

    def possible_rows(self) -> np.ndarray:
        return self.rows.possible_rows()


def _settings(scorer: str) -> Any:
    key, place = "adaptive.scorer", location(scorer)
    return model_files.settings_of(key, scorer, model_files.place(key, scorer, place, False), False)


def _vocabulary(scorer: str) -> int:
    """Return the number of token ids of a scorer."""
    return int(_settings(scorer).get_text_config().vocab_size)


def _identity(scorer: str) -> bytes:
    """Hash the identity of a scorer's weights: the files of a local folder, or the commit on a hub."""
    settings, digest = _settings(scorer), hashlib.sha256()
    digest.update(str(getattr(settings, "_commit_hash", None)).encode())
    for path in sorted(Path(location(scorer)).glob("*.safetensors")):
        with open(path, "rb") as stream:
            digest.update(hashlib.file_digest(stream, "sha256").digest())
    return digest.digest()
