"""Configure user-level sampling at a compute budget (Charles et al. 2024, section 3 and appendices C and I).

A step that expects n users with k rows each computes k n rows. Doubling k makes a user's mean gradient shorter,
so the clip norm can be smaller. Doubling n spreads the noise over more users, but each is drawn more often.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import nn

from confide.clipping import ClippedSum
from confide.data.unit_graph import UnitGraph
from confide.privacy.accounting import least_noise
from confide.privacy.mechanisms.uls import UnitSampler, UserLevelSampling
from confide.privacy.sampling import Draw, Sampling
from confide.randomness.seal import Seal
from confide.randomness.streams import RunKey
from confide.runs.job import Job
from confide.training.microbatch import micro_batch
from confide.training.optimisation import scales_of
from confide.training.packing import Pack, pack
from confide.training.tasks import Batch, Task
from confide.utils.errors import InputError

USERS = 128
"""Number of users whose gradients are measured (Charles et al. 2024, appendix I.1)."""

_FIRST = 16  # users that a measured path starts with, at most
_PHASE = "gradient norms"


def noise_variance(noise_multiplier: float, norm: float, count: float) -> float:
    """Compute the variance of one coordinate of the noise on a step's gradient: (s L / count)^2.

    See Charles et al. 2024, equations 5 and 6.

    Args:
        noise_multiplier: s.
        norm: L, which the clip norm equals: of a row's gradient under ELS, of a user's mean gradient under ULS.
        count: divisor of the noised sum: rows under ELS, users under ULS.
    """
    return (noise_multiplier * norm / count) ** 2


# ways to spend a budget ----------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Split:
    """A compute budget of k n rows a step: n users expected, k rows of each."""

    k: int
    n: float

    @property
    def budget(self) -> float:
        return self.k * self.n


# strategies (Charles et al. 2024, appendix I.1) ------------------------------------------------------------
@dataclass(frozen=True)
class Place:
    """A place on a path of doublings, and the value of either doubling there.

    Attributes:
        by_k, by_n: tau_k and tau_n, or an oracle's losses; None if the doubling is not possible, or if the path
            ends and nothing was compared.
    """

    split: Split
    by_k: float | None = None
    by_n: float | None = None


def estimate_and_double(
    norm: Callable[[int], float],
    noise_multiplier: Callable[[float], float],
    start: Split,
    budget: float,
    most_k: int,
    users: int,
) -> tuple[Place, ...]:
    """Double k or n from `start` until the budget is reached: Estimate-and-Double (Charles et al. 2024, Algorithm 3).

    tau_k = L(2k) / L(k) and tau_n = (s(2n) / 2n) / (s(n) / n) tell by how much either doubling shrinks the noise
    s L / n on the gradient; k is doubled if tau_k < tau_n, else n. The algorithm as printed leaves the division
    by n out of tau_n. Since s grows with n, it would then always double k.

    A doubling past `most_k` rows or past all users (a probability above 1) is not possible; then the other one is
    made. As in the algorithm, a budget that no number of doublings gives exactly is exceeded, by less than a
    factor of 2.

    Args:
        norm: k -> L(k), of the mean gradient of k rows of a user.
        noise_multiplier: n -> s(n), of user-level sampling with n users expected per step.

    Returns:
        Every place of the path, the chosen one last.

    Raises:
        InputError: not even `most_k` rows of all users spend the budget.
    """

    def by_k(split: Split) -> float:
        return float(norm(2 * split.k) / norm(split.k))

    def by_n(split: Split) -> float:
        return float(noise_multiplier(2 * split.n) / (2 * noise_multiplier(split.n)))

    return doubled(start, budget, most_k, users, by_k, by_n)


def doubled(
    start: Split,
    budget: float,
    most_k: int,
    users: int,
    by_k: Callable[[Split], float],
    by_n: Callable[[Split], float],
) -> tuple[Place, ...]:
    """Double k if `by_k` is less than `by_n`, else n, until the budget is reached; return every place passed.

    Raises:
        InputError: not even `most_k` rows of all users spend the budget.
    """
    path: list[Place] = []
    split = start
    while split.budget < budget:
        place = Place(
            split,
            by_k(split) if 2 * split.k <= most_k else None,
            by_n(split) if 2 * split.n <= users else None,
        )
        path.append(place)
        if place.by_k is None and place.by_n is None:
            raise InputError(
                f"budget: {budget:g} rows a step are more than doublings of {start.k} rows of {start.n:g} users "
                f"come to with at most {most_k} rows of {users} users"
            )
        if place.by_n is None or (place.by_k is not None and place.by_k < place.by_n):
            split = Split(2 * split.k, split.n)
        else:
            split = Split(split.k, 2 * split.n)
    return (*path, Place(split))


def measured_split(job: Job, epsilon: float) -> dict[str, Any]:
    """Run Estimate-and-Double for the rows per step of a user-level sampling job, by gradients of its own rows.

    *No guarantee*: see `gradient_norms`. A split that is chosen in this way is covered by no guarantee, and
    everything that shows it must say so.

    Args:
        job: a job that has not trained yet.
        epsilon: the target of the noise, at the job's delta and steps.

    Raises:
        InputError: as for `estimate_and_double` and `gradient_norms`.
    """
    mechanism, setting = job.mechanism, job.setting
    assert isinstance(mechanism, UserLevelSampling)
    if mechanism.divisor or mechanism.sampling_rate:
        raise InputError(
            "train.divisor: --measure chooses train.batch, which a literal divisor or sampling_rate leaves no part in"
        )
    here = Split(mechanism.cap(setting.shape), setting.parameters.expected_batch)
    most_users = min(setting.shape.units // mechanism.groups, mechanism.max_batch or setting.shape.units)
    start = here.budget
    while start > max(1, min(_FIRST, most_users, here.budget / 4)):
        start /= 2

    def norm(k: int) -> float:
        return float(measured_norms(job, [k])[0])

    @cache
    def noise(n: float) -> float:
        process = replace(mechanism, batch=n).parameters(setting.shape).process
        return least_noise(process, epsilon, setting.delta) * mechanism.sensitivity

    def deviation(split: Split) -> float:
        deviation: float = noise_variance(noise(split.n), norm(split.k), split.n) ** 0.5
        return deviation

    most_rows = int(setting.shape.rows_per_unit.max())
    path = estimate_and_double(norm, noise, Split(1, start), here.budget, most_rows, most_users)
    return {
        "users": min(USERS, setting.shape.units),
        "path": [{"k": p.split.k, "n": p.split.n, "by_k": p.by_k, "by_n": p.by_n} for p in path],
        "noise": deviation(path[-1].split),
        "noise_of_config": deviation(here),
    }


# norms of gradients --------------------------------------------------------------------------------------------
def measured_norms(job: Job, ks: Sequence[int], users: int = USERS) -> np.ndarray:
    """Return `gradient_norms` of a job's training rows at its base model; each k is measured once and kept.

    Chunks are measured if the config's user-level sampling would draw chunks, else rows. The norms are kept in
    the run folder, bound to the model's weights and to the data. The job must not have trained yet.
    """
    config = job.run.config
    mechanism = UserLevelSampling.from_config(config)
    assert isinstance(mechanism, UserLevelSampling)
    chunk = mechanism.row_length if mechanism.rule == "random-chunk" else None
    key, data = job.run.key(), job.prepared.train.plain_digest()
    what = f"{config.task} {config.adapter.model_dump_json()} {chunk} {users}"
    if mechanism.scales:
        what += f" {mechanism.scales}"
    if mechanism.common_tokens:
        what += f" common tokens {mechanism.common_tokens!r}"
    scales = scales_of(job.model, mechanism.scales, mechanism.common_tokens)
    name = key.bound_to(job.base, data, what.encode()).fingerprint(b"norms")[:16]

    def measured(k: int) -> np.ndarray:
        return job.run.once(
            f"gradient-norm-{k}-{name}",
            lambda: gradient_norms(
                job.model, job.task, job.prepared.train, [k], key, users, chunk, job.micro_tokens, scales
            ),
            job.ranks,
            Seal(key),
        )

    return np.concatenate([measured(k) for k in ks])


def gradient_norms(
    model: nn.Module,
    task: Task,
    graph: UnitGraph,
    ks: Sequence[int],
    key: RunKey,
    users: int = USERS,
    chunk: int | None = None,
    micro_tokens: int = 8192,
    scales: Mapping[str, float | torch.Tensor] = MappingProxyType({}),
) -> np.ndarray:
    """Measure the norm of the mean gradient of up to k rows, as the median over sampled users: float64[len(ks)].

    See Charles et al. 2024, equation 8. The same users are measured for every k. The model does not change.

    *No guarantee*: gradients of private rows are measured. A choice based on them is not covered by any
    guarantee, and everything that shows them, or what followed from them, must say so.

    Args:
        key: users, and rows of a user, are drawn from its stream.
        users: number of sampled users; all users if there are fewer.
        chunk: tokens of a random chunk, if user-level sampling draws chunks; None: rows, at random.
        micro_tokens: tokens of a physical micro-batch.
        scales: factors on the gradients of parameters, by name, as `ClippedSum` has them.

    Raises:
        InputError: a row has several owners, a gradient is not finite, or the median is zero.
    """
    sampling = Sampling("shuffle", min(1.0, users / graph.n_units))  # the first of a random order
    clipped = ClippedSum(model, task.packed_loss, 1.0, scales=scales)  # no norm is taken without a clip norm
    was_training = model.training
    model.train()
    try:
        draws = [UnitSampler(graph, sampling, key, _PHASE, k, chunk).draw(0) for k in ks]
        found = np.array([np.median(_norms(clipped, task, draw, key, micro_tokens)) for draw in draws])
    finally:
        model.train(was_training)
    if not found.all():
        raise InputError(
            "data.max_length: the gradients of half of the users are zero, so their median tells nothing; are the rows "
            "too short to hold anything to predict?"
        )
    return found


def _norms(clipped: ClippedSum, task: Task, draw: Draw, key: RunKey, micro_tokens: int) -> np.ndarray:
    """Compute the norm of each drawn unit's gradient, in some order: float64[units]."""
    found: list[float] = []

    def batch_of(part: Pack) -> tuple[Batch, torch.Tensor]:
        return micro_batch(task, draw, part, lambda row: key.stream(_PHASE, "hide", 0, row))

    for part in pack(draw, micro_tokens, task.packs_rows):
        if part.parts:
            found.append(clipped.add_large(map(batch_of, part.parts)))
        else:
            batch, weight = batch_of(part)
            found += clipped.add(batch, torch.from_numpy(part.units), weight).tolist()
        clipped.forget()
    return np.array(found)
