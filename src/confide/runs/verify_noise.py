"""Verify the noise of steps: its size in each parameter, that each step has its own, and that no step is without.

Noise that is correlated over steps is turned back into independent noise by its matrix C, and then checked alike.
"""

from dataclasses import replace
from itertools import count

import numpy as np
import torch
from scipy.stats import chi2

from confide.models import loading as models
from confide.privacy.sampling import Draw
from confide.runs.job import Job
from confide.runs.verify_steps import (
    Check,
    each_undone,
    matrix,
    same_noise,
    stated_noise,
    take,
    take_and_undo,
)

ALARM = 1e-9  # probability that correct noise fails the check
ENOUGH, MOST_STEPS = 1_000_000, 16  # number of noise values that suffice, and the most steps taken for them
KEPT = 2_000_000  # values that are kept of the steps before, to turn correlated noise back
_FEW, _TOO_FEW = 64, 5  # values of a parameter by which steps are compared: the most and the least
_SAME = 1e-3


def noise_check(job: Job, draw: Draw) -> Check:
    """Check that the noise of steps has the stated standard deviation, in each parameter, fresh each time.

    With `bands` there are more steps than bands, so that the noise of the first step is taken back in full. With
    `buffers` it never is.
    """
    name = "noise of the stated size"
    stated = stated_noise(job)
    if stated == 0:
        quiet = not any(bool(v.any()) for v in take(job, [], same_noise(job)).values())
        return Check(name, quiet, "no noise is claimed, none is added" if quiet else "there is noise")
    clean = take_and_undo(job, [draw], replace(same_noise(job), noise_multiplier=0.0))
    squares, counts = dict.fromkeys(clean, 0.0), dict.fromkeys(clean, 0)
    earlier: dict[str, list[torch.Tensor]] = {key: [] for key in clean}
    repeats: set[str] = set()
    privacy = job.run.config.privacy
    few = MOST_STEPS if privacy.buffers else max(2, privacy.bands + 1)
    column = matrix(job, max(few, MOST_STEPS))
    reach = int(np.flatnonzero(column)[-1]) + 1
    said: dict[str, list[torch.Tensor]] = {key: [] for key in clean}
    share = max(1, KEPT // (reach * len(clean)))
    # The first step holds rows, the others none. Noise must go into both.
    taken = each_undone(job, [draw], same_noise(job), range(max(few, MOST_STEPS)))
    of_step: list[tuple[float, int]] = []  # the sum of squares of each step's noise, and of how many values
    for steps, values in zip(count(1), taken, strict=False):
        before = sum(squares.values()), sum(counts.values())
        for key, own in values.items():
            noise = (own.double() - clean[key] if steps == 1 else own.double()) / stated
            if reach > 1:
                said[key] = [noise.flatten()[:share].cpu(), *said[key][: reach - 1]]
                noise = torch.stack([c * part for c, part in zip(column, said[key], strict=False)]).sum(0)
            squares[key] += float((noise**2).sum())
            counts[key] += noise.numel()
            start = noise.flatten()[:_FEW]
            if len(start) >= _TOO_FEW and any(torch.allclose(start, o, atol=_SAME) for o in earlier[key]):
                repeats.add(key)
            earlier[key].append(start.clone())
        of_step.append((sum(squares.values()) - before[0], sum(counts.values()) - before[1]))
        if steps >= few and (steps >= MOST_STEPS or sum(counts.values()) >= ENOUGH):
            break
    wrong = [key for key in counts if not _plausible(squares[key], counts[key], len(counts))]
    n = sum(counts.values())
    measured = (sum(squares.values()) / max(n, 1)) ** 0.5 * stated
    odd = [step for step, own in enumerate(of_step) if not _plausible(*own, len(of_step))]
    ok = n > 0 and not wrong and not repeats and not odd and _plausible(sum(squares.values()), n, 1)
    detail = f"standard deviation {measured:.6g} over {n:,} values, stated {stated:.6g}"
    if wrong:
        detail += f"; another in {', '.join(wrong[:5])}"
    if odd:
        detail += f"; another in step {odd[0]}"
    if repeats:
        detail += f"; the same in two steps in {', '.join(sorted(repeats)[:5])}"
    return Check(name, ok, detail)


def _plausible(squares: float, n: int, tests: int) -> bool:
    """Return True if n standard normal values may have this sum of squares, with room for float32 rounding."""
    slack = 1e-4 * n
    low, high = chi2.cdf(squares + slack, n), chi2.sf(squares - slack, n)
    return bool(min(low, high) > ALARM / tests)


def empty_draw_check(job: Job) -> Check:
    """Check that a step that draws nothing is taken: with noise if noise is claimed."""
    before = {name: p.detach().clone() for name, p in models.trainable(job.model).items()}
    take(job, [], same_noise(job))
    after = models.trainable(job.model)
    moved = sum(int(not torch.equal(before[name], after[name])) for name in before)
    noisy = stated_noise(job) > 0
    ok = moved == len(before) if noisy else moved == 0
    return Check("an empty draw is a noise-only step", ok, f"{moved} of {len(before)} parameters moved")
