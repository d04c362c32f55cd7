"""Take single steps for a verification: on chosen draws, with the job's own noise or another, and undo them."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from scipy.special import binom, roots_sh_chebyt

from confide.models import loading as models
from confide.privacy.mechanisms.values import Aggregation
from confide.privacy.sampling import Draw
from confide.runs.job import Job
from confide.training.optimisation import Optimisation, scales_of
from confide.training.step import PrivateStep

PHASE = "verify"


@dataclass(frozen=True)
class Check:
    """One check: its name, whether it passed, and the observed result."""

    name: str
    ok: bool
    detail: str


@dataclass(frozen=True)
class _Fixed:
    """A sampler that draws what it is told, then nothing."""

    draws: list[Draw]

    def draw(self, step: int) -> Draw:
        nothing = Draw([], np.zeros(0, np.int64), np.zeros(0, np.float32))
        return self.draws[step] if step < len(self.draws) else nothing

    def possible_rows(self) -> None:
        return None


def combine(job: Job) -> Aggregation:
    """Return how the job's steps combine the gradients of units."""
    return job.mechanism.aggregation(job.setting.parameters, job.setting.noise_multiplier)


def same_noise(job: Job) -> Aggregation:
    """Return an aggregation with the job's own noise that compares no units: a few drawn ones are not all of them."""
    aggregation = combine(job)
    return Aggregation(1.0, aggregation.noise_scale, aggregation.scale) if aggregation.radii else aggregation


def is_private(job: Job) -> bool:
    """Return True if steps clip: ordinary ones, on text without anything sensitive, do not."""
    return combine(job).clip_norm is not None


def scales(job: Job) -> dict[str, float | torch.Tensor]:
    """Return the factor on the gradient of each trainable parameter, or on each row of it, from the config."""
    if not is_private(job):
        return scales_of(job.model, ())
    privacy = job.run.config.privacy
    return scales_of(job.model, privacy.scales.items(), privacy.common_tokens)


def matrix(job: Job, steps: int) -> np.ndarray:
    """Compute the first column of C, by which noise is correlated over so many steps: float64[steps].

    It follows from the binomial series itself, or from the points of the quadrature in scipy's tables.
    """
    privacy, exponent, k = job.run.config.privacy, job.mechanism.exponent, np.arange(steps)
    if privacy.buffers:
        points, weights = roots_sh_chebyt(privacy.buffers)
        found: np.ndarray = (weights / weights.sum()) @ points[:, None] ** k
        return found
    return np.where(k < privacy.bands, binom(k + exponent - 1, k), 0.0)


def stated_noise(job: Job) -> float:
    """Return the standard deviation of the noise on the update, from the numbers of the config and the claim."""
    privacy, s = job.run.config.privacy, job.setting.noise_multiplier
    if combine(job).radii:
        assert privacy.tau is not None
        return s * privacy.tau / job.setting.parameters.units
    return s * privacy.clip_norm * _norm(job) * scale(job) if is_private(job) else 0.0


def _norm(job: Job) -> float:
    """Compute the norm of C's first column of a run without end."""
    privacy = job.run.config.privacy
    # Its elements fall off at least as fast as exp(-0.6 k / d^2).
    return float(np.linalg.norm(matrix(job, max(privacy.bands, 100 * privacy.buffers**2))))


def scale(job: Job) -> float:
    """Return the factor of the clipped and noised sum, from the config: 1 / divisor, times 1 / C if normalised."""
    privacy = job.run.config.privacy
    divisor = job.mechanism.divisor or job.setting.parameters.expected_batch
    return 1 / divisor / (privacy.clip_norm if privacy.normalised and is_private(job) else 1.0)


def take(job: Job, draws: list[Draw], aggregation: Aggregation) -> dict[str, torch.Tensor]:
    """Take the first step on these draws. Return the noised and scaled vectors that moved the weights, by name."""
    return next(_taken(job, draws, aggregation, range(1)))


def take_and_undo(job: Job, draws: list[Draw], aggregation: Aggregation) -> dict[str, torch.Tensor]:
    """Take the first step as `take` does; afterwards the weights are as before."""
    return next(each_undone(job, draws, aggregation, range(1)))


def each_undone(
    job: Job, draws: list[Draw], aggregation: Aggregation, steps: Iterable[int]
) -> Iterator[dict[str, torch.Tensor]]:
    """Yield what `take` returns of one step after the other, each from the same weights."""
    taken = _taken(job, draws, aggregation, steps)
    while True:
        with _undone(job):
            found = next(taken, None)
        if found is None:
            return
        yield found


def _taken(
    job: Job, draws: list[Draw], aggregation: Aggregation, steps: Iterable[int]
) -> Iterator[dict[str, torch.Tensor]]:
    config, numbers = job.run.config, list(steps)
    step = PrivateStep(
        job.model,
        job.task,
        _Fixed(draws),
        aggregation,
        Optimisation(len(numbers) + 1, 1e-3),
        job.key,
        PHASE,
        config.privacy.noise,
        job.micro_tokens,
    )
    for number in numbers:
        seen: dict[str, torch.Tensor] = {}

        def look(draw: Draw, seen: dict[str, torch.Tensor] = seen) -> None:
            seen.update({n: p.grad.clone() for n, p in step.parameters.items() if p.grad is not None})

        step(number, before_update=look)
        yield seen


@contextmanager
def _undone(job: Job) -> Iterator[None]:
    kept = {name: p.detach().clone() for name, p in models.trainable(job.model).items()}
    try:
        yield
    finally:
        with torch.no_grad():
            for name, parameter in models.trainable(job.model).items():
                parameter.copy_(kept[name])
