"""Verify that this model does what is claimed on these rows. The check runs on the user's own model, not on ours.

Every check computes one thing in two ways, so that it can fail. The slow way uses plain autograd, one row at a
time, and the numbers of the config itself.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from itertools import product

import numpy as np
import torch
from scipy.optimize import lsq_linear

from confide.clipping import ClippedSum
from confide.models import adapters
from confide.models import loading as models
from confide.models.base import computes_coarsely, in_float32
from confide.models.fast.activations import original_layers
from confide.privacy.mechanisms.concentration import ConcentrationAggregation
from confide.privacy.mechanisms.values import Aggregation
from confide.privacy.sampling import Draw, StopTraining
from confide.runs.job import Job
from confide.runs.verify_draws import draw_checks
from confide.runs.verify_histograms import histogram_checks
from confide.runs.verify_noise import empty_draw_check, noise_check
from confide.runs.verify_steps import (
    PHASE,
    Check,
    combine,
    is_private,
    scale,
    scales,
    take,
    take_and_undo,
)
from confide.training.microbatch import micro_batch
from confide.training.packing import Pack, pack
from confide.training.tasks import Batch, each_row
from confide.utils.errors import InputError

TOLERANCE = 1e-4  # tolerance of fast sums and losses against slow ones, in float32
IN_BF16 = 0.05  # the same in bf16: rows alone and rows together are rounded differently
_FEW_TOKENS = 3  # a row of two predicts its second token from the first alone
_ROUNDED = 1e-6  # what float32 makes of a gradient of zero, over the others
# By how much, relatively, a norm may be overestimated: half of what clipping.slot allows for.
ROUNDED_UP = 0.03
UNITS, ROWS = 4, 16  # number of units tested, and rows of each

Gradient = Mapping[str, torch.Tensor]


def verify(job: Job) -> dict[str, object]:
    """Run all checks on a job's model and rows, in each stage. Afterwards the weights are exactly as before.

    Returns:
        `ok`, `max_relative_error` of the clipping, and `checks`.

    Raises:
        InputError: the draws of the config are all empty, or the model has parts that cannot be clipped.
    """
    phases = job.phases()
    found = [_verified(job.alone(phase)) for phase in phases]
    checks = [Check(*found) for found in histogram_checks(job)]
    checks += [
        replace(check, name=f"{phase.name}: {check.name}" if len(phases) > 1 else check.name)
        for phase, (_, checks) in zip(phases, found, strict=True)
        for check in checks
    ]
    return {
        "ok": all(check.ok for check in checks),
        "max_relative_error": max(error for error, _ in found),
        "checks": [asdict(check) for check in checks],
    }


def _verified(job: Job) -> tuple[float, list[Check]]:
    """Return the largest relative error of the clipping, and the checks of a job of one stage."""
    precise = replace(job, task=replace(job.task, autocast=False))
    before = {name: p.detach().clone() for name, p in job.model.named_parameters()}
    was_training = job.model.training
    try:
        _stir(precise)
        draw = _some_units(precise)
        coarse = _coarse(job, draw)
        with in_float32(job.model):
            slow = _unit_gradients(precise, draw)
            error = _clipping(precise, draw, slow)
            checks = [_as_a_loop(draw, error, TOLERANCE), *coarse, _rows_alone(precise, draw)]
            checks += [_coverage(precise, draw, before, slow)]
            step = _compared if combine(job).radii else _step
            checks += [step(precise, draw, slow), noise_check(precise, draw), empty_draw_check(precise)]
            checks += draw_checks(job)
    finally:
        with torch.no_grad():
            for name, parameter in job.model.named_parameters():
                parameter.copy_(before[name])
        job.model.zero_grad(set_to_none=True)
        job.model.train(was_training)
    return error, checks


def _stir(job: Job) -> None:
    """Move the weights a little: at its start a LoRA factor is zero, and so is the gradient of its partner."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in job.model.parameters():
            if parameter.requires_grad:
                noise = torch.randn(parameter.shape, generator=generator) * 0.02
                parameter.add_(noise.to(parameter.device))


def _some_units(job: Job) -> Draw:
    """Take the first units of the first draws that hold any: real rows, as in training.

    Every second row is cut, so that rows are padded, or share lines, even if all have one length.
    """
    sampler = job.mechanism.sampler(
        job.prepared.train, job.key, PHASE, lambda: np.ones(job.prepared.train.n_rows)
    )
    rows: list[np.ndarray] = []
    group: list[int] = []
    weight: list[float] = []
    labels: list[int] = []
    units = 0
    for step in range(1000):
        draw = sampler.draw(step)
        if isinstance(draw, StopTraining):
            break
        for unit in range(draw.groups):
            for i in np.flatnonzero(draw.group == unit)[:ROWS]:
                row = draw.rows[i]
                rows.append(row[: max(2, len(row) // 2)] if len(rows) % 2 else row)
                group.append(units)
                weight.append(float(draw.weight[i]))
                labels += [] if draw.labels is None else [int(draw.labels[i])]
            units += 1
            if units == UNITS:
                break
        if units == UNITS:
            break
    if not units:
        raise InputError("train.batch: a thousand draws in a row held nothing: set it higher")
    return Draw(rows, np.array(group), np.array(weight, np.float32), np.array(labels) if labels else None)


def _batch(job: Job, draw: Draw, part: Pack) -> tuple[Batch, torch.Tensor]:
    """Collate rows with the streams of the step's own first draw."""
    return micro_batch(job.task, draw, part, lambda row: job.key.stream(PHASE, "hide", 0, row))


def _losses(job: Job, draw: Draw, part: Pack) -> torch.Tensor:
    """Compute the loss of each row, line by line."""
    batch, _ = _batch(job, draw, part)
    return each_row(job.task.row_loss(job.model, batch), batch)


def _unit_gradients(job: Job, draw: Draw) -> list[dict[str, torch.Tensor]]:
    """Compute each unit's gradient by plain autograd, one row at a time, by parameter name, times its scale.

    The model is used as it is written, without the fast paths.
    """
    parameters, factors = models.trainable(job.model), scales(job)
    gradients: list[dict[str, torch.Tensor]] = []
    job.model.train()
    with original_layers(job.model):
        for unit in range(draw.groups):
            job.model.zero_grad(set_to_none=True)
            for i in np.flatnonzero(draw.group == unit).tolist():
                loss = _losses(job, draw, Pack.of([[i]]))[0]
                if loss.requires_grad:
                    (loss * float(draw.weight[i])).backward()
            gradients.append(
                {n: p.grad.detach() * factors[n] for n, p in parameters.items() if p.grad is not None}
            )
    job.model.zero_grad(set_to_none=True)
    return gradients


def _norm(gradient: Gradient) -> float:
    # Squares are summed in float64: a long float32 sum is biased.
    norm: float = sum(float((g.double() ** 2).sum()) for g in gradient.values()) ** 0.5
    return norm


def _slow_sum(slow: list[dict[str, torch.Tensor]], scales: Sequence[float]) -> dict[str, torch.Tensor]:
    """Sum the units' gradients, each times its scale: float64 by parameter name."""
    total: dict[str, torch.Tensor] = {}
    for gradient, factor in zip(slow, scales, strict=True):
        for name, values in gradient.items():
            total[name] = total.get(name, 0.0) + values.double() * factor
    return total


def _error(
    job: Job, fast: Gradient, slow: list[dict[str, torch.Tensor]], clip: float | None, times: float = 1.0
) -> float:
    """Compute how far a fast sum, clipped and multiplied by a constant, is from a loop's, as in `_difference`.

    Fast norms are rounded up, so that no unit adds more than C. So a unit's scale may be less than the loop's by
    that much, but never more. Of all such scales, those are used that bring the loop nearest.
    """
    norms = np.array([max(_norm(gradient), 1e-30) for gradient in slow])
    most = np.ones(len(slow)) if clip is None else np.minimum(1, clip / norms)
    least = most if clip is None else np.minimum(1, clip / (norms * (1 + ROUNDED_UP)))
    scales = most.copy()
    free = np.flatnonzero(most > least)
    if len(free):
        # Least squares over a box, from inner products only: gradients are as large as the model.
        products = np.array([[_inner(a, b) for b in slow] for a in slow])
        target = np.array([_inner(gradient, fast) for gradient in slow]) / times - products @ most
        values, vectors = np.linalg.eigh(products[np.ix_(free, free)])
        roots = np.sqrt(values.clip(1e-12 * values[-1]))  # parallel gradients leave some eigenvalues at 0
        found = lsq_linear(
            roots[:, None] * vectors.T,
            vectors.T @ target[free] / roots,
            bounds=(least[free] - most[free], np.zeros(len(free))),
            method="bvls",
        )
        scales[free] += found.x
    return _difference(job, fast, _slow_sum(slow, (scales * times).tolist()))


def _inner(a: Gradient, b: Gradient) -> float:
    """Compute the inner product of two gradients, over the parameters that both have."""
    return sum(float((values.double() * b[name].double()).sum()) for name, values in a.items() if name in b)


def _difference(job: Job, fast: Gradient, slow: Gradient) -> float:
    """Compute |fast - slow| / |slow| over all trainable parameters; a missing one counts as zero."""
    difference = 0.0
    for name, parameter in models.trainable(job.model).items():
        nothing = torch.zeros((), dtype=torch.float64, device=parameter.device)
        gap = fast.get(name, nothing).double() - slow.get(name, nothing)
        difference += float((gap**2).sum())
    return float((difference / max(_norm(slow) ** 2, 1e-60)) ** 0.5)


def _clipping(job: Job, draw: Draw, slow: list[dict[str, torch.Tensor]]) -> float:
    """Compare the fast clipped sum with a loop over units, with all, some and none of them clipped."""
    # If tokens are hidden, a unit may hide none, and then has no gradient.
    norms = [norm for gradient in slow if (norm := _norm(gradient)) > 0] or [1.0]
    worst = 0.0
    layouts = {False, job.task.packs_rows}  # one line per row, and lines that rows share
    for clip, shares in product((0.5 * min(norms), float(np.median(norms)), 2 * max(norms)), layouts):
        clipped = ClippedSum(job.model, job.task.packed_loss, clip, scales=scales(job))
        for part in pack(draw, job.micro_tokens, shares):
            if part.parts:
                clipped.add_large(_batch(job, draw, own) for own in part.parts)
            else:
                batch, weight = _batch(job, draw, part)
                clipped.add(batch, torch.from_numpy(part.units), weight)
        worst = max(worst, _error(job, clipped.take(), slow, clip))
    return worst


def _as_a_loop(draw: Draw, error: float, most: float, how: str = "") -> Check:
    detail = f"{draw.groups} units at 3 clip norms: relative error {error:.2e} (at most {most:g})"
    return Check(f"fast clipping equals a loop over units{how}", error <= most, detail)


def _coarse(job: Job, draw: Draw) -> list[Check]:
    """Check the clipping in the precision of training, if that is not float32: other kernels compute it."""
    if not (job.task.autocast or computes_coarsely(job.model)):
        return []
    error = _clipping(job, draw, _unit_gradients(job, draw))
    how = "bf16" if job.task.autocast else job.run.config.base.precision
    return [_as_a_loop(draw, error, IN_BF16, f", in {how}")]


def _rows_alone(job: Job, draw: Draw) -> Check:
    """Check that a row's loss does not depend on the other rows, on padding, or on chance."""
    rows = range(len(draw.rows))
    with torch.no_grad():
        alone = torch.cat([_losses(job, draw, Pack.of([[i]])) for i in rows])
        company = [Pack.of([[i] for i in rows])]
        if job.task.packs_rows:
            company += [own for part in pack(draw, job.micro_tokens, True) for own in part.parts or (part,)]
        error = max(
            float(((_losses(job, draw, part) - own).abs() / own.abs().clamp(min=1e-6)).max())
            for part in company
            for own in [alone[part.rows]]
        )
    return Check(
        "a row's loss is a function of that row alone",
        error <= TOLERANCE,
        f"{len(rows)} rows alone and together: largest relative difference {error:.1e}",
    )


def _coverage(job: Job, draw: Draw, before: Gradient, slow: Sequence[Gradient]) -> Check:
    """Check that an optimiser step without noise moves what the config says to train, and nothing else.

    Where no row has more than two tokens, attention has nothing to choose: its weights move by a rounding error, or not
    at all. Both count as not moving. With longer rows a tiny gradient counts: that of a bias of keys is only rounding.
    """
    stirred = {name: p.detach().clone() for name, p in job.model.named_parameters()}
    config = job.run.config
    wanted = adapters.wanted(job.model, config.adapter, config.task)
    take(job, [draw], Aggregation(None, 0.0, 1.0))
    moved = {name for name, p in job.model.named_parameters() if not torch.equal(p, stirred[name])}
    with torch.no_grad():
        for name, parameter in job.model.named_parameters():
            parameter.copy_(stirred[name])
    longest = max(map(len, draw.rows), default=0)
    faint = _faint(slow) if longest < _FEW_TOKENS else set()
    still, astray = sorted(wanted & faint | wanted - moved), sorted(moved - wanted)
    detail = f"{len(wanted)} parameters move, {len(before) - len(wanted)} do not"
    if still:
        detail = f"{len(still)} do not move: {', '.join(still[:5])}"
        if longest < _FEW_TOKENS:
            why = "so attention has no earlier token to choose from"
            detail += f"; the rows have at most {longest} tokens, {why}"
    elif astray:
        detail = f"{len(astray)} move that should not: {', '.join(astray[:5])}"
    return Check("every trainable parameter is covered and moves", not still and not astray, detail)


def _faint(gradients: Sequence[Gradient]) -> set[str]:
    """Return the parameters whose gradients are no more than rounding errors of the largest ones."""
    norms: dict[str, float] = {}
    for each in gradients:
        norms |= {name: max(norms.get(name, 0.0), _norm({name: one})) for name, one in each.items()}
    most = max(norms.values(), default=0.0)
    return {name for name, norm in norms.items() if norm <= _ROUNDED * most}


def _step(job: Job, draw: Draw, slow: list[dict[str, torch.Tensor]]) -> Check:
    """Check a step without noise against the formula: (sum of clipped gradients) / (expected batch)."""
    clip = job.run.config.privacy.clip_norm if is_private(job) else None
    fast = take_and_undo(job, [draw], replace(combine(job), noise_multiplier=0.0))
    error = _error(job, fast, slow, clip, scale(job))
    said = f"clip norm {clip:g}" if clip is not None else "nothing clipped"
    detail = f"{said}, times {scale(job):.4g} whatever was drawn: relative error {error:.2e}"
    return Check("a step divides the clipped sum by a constant", error <= TOLERANCE, detail)


def _compared(job: Job, draw: Draw, slow: list[dict[str, torch.Tensor]]) -> Check:
    """Check the filter on a few users: who is near whom, their mean if all are near, and no step if none are."""
    vectors = [torch.cat([g.flatten().double() for _, g in sorted(unit.items())]) for unit in slow]
    widest = max(float((a - b).norm()) for a in vectors for b in vectors)
    # Without Laplace noise, which with so few users would end the run by chance.
    aggregation = combine(job)
    assert isinstance(aggregation, ConcentrationAggregation)
    aggregation = replace(aggregation, noise_multiplier=0.0, users=len(slow), epsilon=math.inf)
    near, far = replace(aggregation, tau=1.01 * widest + 1e-30), replace(aggregation, tau=1e-3 * widest)
    expected = _slow_sum(slow, [1 / len(slow)] * len(slow))
    error = _difference(job, take_and_undo(job, [draw], near), expected)
    ended = widest == 0 or not take_and_undo(job, [draw], far)
    end = "it ends" if ended else "it does not end"
    detail = f"the mean of {len(slow)} users: relative error {error:.2e}; {end} where they are far apart"
    return Check("a step is the mean of the users that are kept", error <= TOLERANCE and ended, detail)
