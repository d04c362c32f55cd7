"""Does this model on these rows do what is claimed? Checked on the user's own model, not on ours.

Every check compares two ways of computing one thing, so that each can fail.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace

import numpy as np
import torch

from confide.clipping import ClippedSum
from confide.finetuning import Job
from confide.mechanisms.base import Combine
from confide.packing import pack
from confide.sampling import Draw
from confide.tasks import Batch
from confide.training import Optimisation, Step

TOLERANCE = 1e-4  # of the fast clipped sum against brute force, in float32
UNITS = 4


@dataclass(frozen=True)
class Check:
    """One check: its name, whether it passed, and what was seen."""

    name: str
    ok: bool
    detail: str


def verify(job: Job) -> dict[str, object]:
    """All checks on a job's model and rows; the model's weights are as before afterwards.

    Returns:
        `ok`, `max_relative_error` of the clipping, and `checks`.
    """
    precise = replace(job, task=replace(job.task, autocast=False))
    before = {name: p.detach().clone() for name, p in job.model.named_parameters()}
    try:
        _stir(precise)
        draw = _some_units(precise)
        error, clipping = _clipping(precise, draw)
        checks = [clipping, _rows_alone(precise, draw), _coverage(precise, draw)]
        checks += [_noise(precise), _empty_draw(precise)]
    finally:
        with torch.no_grad():
            for name, parameter in job.model.named_parameters():
                parameter.copy_(before[name])
    return {
        "ok": all(c.ok for c in checks),
        "max_relative_error": error,
        "checks": [asdict(c) for c in checks],
    }


def _stir(job: Job) -> None:
    """Move the weights a little: at its start a LoRA factor is zero, and so is the gradient of its partner."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in job.model.parameters():
            if parameter.requires_grad:
                noise = torch.randn(parameter.shape, generator=generator) * 0.02
                parameter.add_(noise.to(parameter.device))


def _some_units(job: Job) -> Draw:
    """The first units of the first draws that hold any: real rows, as training would see them."""
    sampler = job.mechanism.sampler(
        job.prepared.train, job.key, "verify", lambda: np.ones(job.prepared.train.n_rows)
    )
    for step in range(1000):
        draw = sampler.draw(step)
        if draw.groups:
            kept = draw.group < UNITS
            labels = None if draw.labels is None else draw.labels[kept]
            rows = [row for row, keep in zip(draw.rows, kept, strict=True) if keep]
            return Draw(rows, draw.group[kept], draw.weight[kept], labels)
    raise AssertionError("a thousand draws in a row were empty")


def _batch(job: Job, draw: Draw, rows: np.ndarray) -> Batch:
    # One row at a time under masked-lm, so that a row hides the same tokens alone and in company.
    hide = job.key.stream("verify", "hide") if job.task.kind == "masked-lm" else None
    labels = None if draw.labels is None else draw.labels[rows]
    return job.task.collate([draw.rows[i] for i in rows], labels, hide)


def _clipping(job: Job, draw: Draw) -> tuple[float, Check]:
    """The fast clipped sum against a loop over units with plain autograd."""
    model, task = job.model, job.task
    parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
    batches = [(_batch(job, draw, part.rows), part) for part in pack(draw, job.run.config.train.micro_tokens)]
    gradients = []
    model.train()
    for batch, part in batches:
        for unit in np.unique(part.units):
            own = torch.from_numpy(part.units == unit)
            weight = torch.from_numpy(draw.weight[part.rows][part.units == unit]).to(task.device)
            model.zero_grad(set_to_none=True)
            (task.row_loss(model, batch)[own.to(task.device)] * weight).sum().backward()
            gradients.append(
                {n: p.grad.detach().double() for n, p in parameters.items() if p.grad is not None}
            )
    model.zero_grad(set_to_none=True)
    norms = [sum(float((g**2).sum()) for g in gradient.values()) ** 0.5 for gradient in gradients]
    clip = float(np.median(norms))  # so that some units are clipped and some are not
    clipped = ClippedSum(model, task.row_loss, clip)
    for batch, part in batches:
        clipped.add(batch, torch.from_numpy(part.units), torch.from_numpy(draw.weight[part.rows]))
    fast = clipped.take()
    difference = size = 0.0
    for name in parameters:
        slow = torch.zeros_like(fast[name], dtype=torch.float64)
        for gradient, norm in zip(gradients, norms, strict=True):
            if name in gradient:
                slow += gradient[name] * min(1.0, clip / max(norm, 1e-30))
        difference += float(((fast[name].double() - slow) ** 2).sum())
        size += float((slow**2).sum())
    error = (difference / max(size, 1e-60)) ** 0.5
    detail = f"{len(norms)} units, clip norm {clip:.4g}: relative error {error:.2e} (at most {TOLERANCE:g})"
    return error, Check("fast clipping equals a loop over units", error <= TOLERANCE, detail)


def _rows_alone(job: Job, draw: Draw) -> Check:
    """A row's loss must not depend on the rows beside it, nor on padding."""
    name = "a row's loss is a function of that row alone"
    if job.task.kind == "masked-lm":
        return Check(
            name, True, "not compared: which tokens are hidden differs between batches of another shape"
        )
    rows = np.arange(len(draw.rows))
    with torch.no_grad():
        together = job.task.row_loss(job.model, _batch(job, draw, rows))
        alone = torch.cat([job.task.row_loss(job.model, _batch(job, draw, rows[i : i + 1])) for i in rows])
    error = float(((together - alone).abs() / alone.abs().clamp(min=1e-6)).max())
    return Check(
        name,
        error <= TOLERANCE,
        f"{len(rows)} rows alone and together: largest relative difference {error:.1e}",
    )


def _coverage(job: Job, draw: Draw) -> Check:
    """Every trainable parameter gets a gradient, and moves."""
    clipped = ClippedSum(job.model, job.task.row_loss, 1.0)
    for part in pack(draw, job.run.config.train.micro_tokens):
        weight = torch.from_numpy(draw.weight[part.rows])
        clipped.add(_batch(job, draw, part.rows), torch.from_numpy(part.units), weight)
    still = [name for name, vector in clipped.take().items() if not bool(vector.any())]
    trainable = sum(p.requires_grad for p in job.model.parameters())
    detail = f"{trainable} parameters" if not still else f"no gradient reaches {', '.join(still[:5])}"
    return Check("every trainable parameter is covered and moves", not still, detail)


@dataclass(frozen=True)
class _Nothing:
    """A sampler whose every draw is empty."""

    def draw(self, step: int) -> Draw:
        return Draw([], np.zeros(0, np.int64), np.zeros(0, np.float32))


def _noise_only(job: Job, combine: Combine, look: Callable[[Step], None]) -> None:
    step = Step(
        job.model,
        job.task,
        _Nothing(),
        combine,
        Optimisation(1, 1e-3),
        job.key,
        "verify",
        job.run.config.privacy.noise,
    )
    step(0, before_update=lambda: look(step))


def _noise(job: Job) -> Check:
    """What a noise-only step adds has the stated standard deviation, on the real parameters."""
    name = "noise of the stated size"
    combine = job.mechanism.combine(job.setting.terms, job.setting.noise_multiplier)
    stated = combine.noise_scale * combine.scale
    if stated == 0:
        return Check(
            name, job.mechanism.notion == "none" or job.setting.noise_multiplier == 0, "no noise is claimed"
        )
    seen: list[torch.Tensor] = []
    _noise_only(
        job,
        combine,
        lambda s: seen.extend(p.grad.double().flatten() for p in s.parameters.values() if p.grad is not None),
    )
    values = torch.cat(seen)
    measured, n = float(values.std()), len(values)
    allowed = 6 * stated / (2 * n) ** 0.5 + 1e-4 * stated
    shift = abs(float(values.mean())) <= 6 * stated / n**0.5
    detail = f"standard deviation {measured:.6g} over {n:,} values, stated {stated:.6g}"
    return Check(name, abs(measured - stated) <= allowed and shift, detail)


def _empty_draw(job: Job) -> Check:
    """A step that draws nothing is taken, with noise and the same divisor."""
    combine = job.mechanism.combine(job.setting.terms, job.setting.noise_multiplier)
    before = [p.detach().clone() for p in job.model.parameters() if p.requires_grad]
    _noise_only(job, combine, lambda step: None)
    after = [p for p in job.model.parameters() if p.requires_grad]
    moved = sum(int(not torch.equal(a, b)) for a, b in zip(before, after, strict=True))
    noisy = combine.noise_scale > 0
    ok = moved == len(before) if noisy else moved == 0
    return Check("an empty draw is a noise-only step", ok, f"{moved} of {len(before)} parameters moved")
