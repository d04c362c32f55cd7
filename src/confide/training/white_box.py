"""Audit a run in the white-box model: score its canaries by the noised sums.

The analysis of DP-SGD lets everybody see every noised sum, so an attack may use them all. Training goes on
unchanged: after each step, the sum is compared with each canary's gradient, and the result is kept.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from confide.clipping import ClippedSum
from confide.data.unit_graph import UnitGraph
from confide.models import loading as models
from confide.privacy.sampling import Draw
from confide.randomness.seal import TAG_BYTES, Broken, Seal
from confide.training import evaluation
from confide.training.gradient_sum import Vectors
from confide.training.tasks import Task
from confide.utils.errors import InputError

BATCH = 64  # canaries whose gradient norms are computed at a time
STRIDE = 1e-2
"""Distance by which the weights are moved to measure a change in loss, as a share of their norm."""


@dataclass(frozen=True)
class Readings:
    """Observer of a step who knows all units except the canaries, as does the adversary of a guarantee for one unit.

    The observer does not know which units are drawn. A canary's reading is the derivative of its loss along the
    part of the noised sum that is not known: the inner product of that part with the canary's gradient. It is
    computed as a difference of losses, by two passes without gradients over all canaries per step. It is a score,
    not a bound: rounding of the losses makes this attack weaker, but never affects a claim.

    Attributes:
        model, task: what trains; after each reading, the weights are exactly as before.
        path: for each step, float32[m] and its seal; a step that is taken again writes the same line again.
        steps: number of steps of the stage.
        units: int64, the canaries among the units of the training graph, or their rows if rows are drawn.
        contents: the graph of all contents.
        rows: int64[m], each canary's row in `contents`.
        seal: authenticates what is kept, with the key of the run.
        micro_tokens: tokens of a pass.
        writes: whether this rank keeps what it reads.
    """

    model: nn.Module
    task: Task
    path: Path
    steps: int
    units: np.ndarray
    contents: UnitGraph
    rows: np.ndarray
    seal: Seal
    micro_tokens: int = 8192
    writes: bool = True

    def unknown(self, draw: Draw) -> np.ndarray:
        if draw.unit_ids is None:
            raise AssertionError("the draw does not say whom it drew")
        return np.isin(draw.unit_ids, self.units)

    def read(self, step: int, known: Vectors, total: Vectors) -> None:
        if not self.writes:
            return
        if not self._norms_path.exists():
            self.seal.write_array(self._norms_path, self._norms_path.name, self._norms())
        derivatives = self._derivatives({name: total[name] - known[name] for name in total})
        lines = self._lines("r+" if self.path.exists() else "w+")
        lines["values"][step] = derivatives
        lines["seal"][step] = np.frombuffer(self._seal_of(step, lines["values"][step]), np.uint8)
        lines.flush()

    @torch.no_grad()
    def _derivatives(self, direction: Mapping[str, torch.Tensor]) -> np.ndarray:
        """Compute the derivative of each canary's loss along a direction: float64[m]."""
        weights = models.trainable(self.model)
        before = {name: weights[name].detach().clone() for name in direction}
        length = _norm(direction)
        if length == 0:
            return np.zeros(len(self.rows))
        stride = STRIDE * max(_norm(before), 1.0) / length
        sides = []
        for sign in (1.0, -1.0):
            for name, vector in direction.items():
                weights[name].copy_(before[name] + sign * stride * vector)
            sides.append(self._losses())
        for name, values in before.items():
            weights[name].copy_(values)
        difference: np.ndarray = (sides[0] - sides[1]) / (2 * stride)
        return difference

    def _losses(self) -> np.ndarray:
        """Compute the mean token loss of each canary."""
        precise = replace(self.task, autocast=False)
        losses, counted, _ = evaluation.row_losses(
            self.model, precise, self.contents, self.micro_tokens, among=self.rows
        )
        means: np.ndarray = losses / np.maximum(1, counted)
        return means

    @property
    def _norms_path(self) -> Path:
        return self.path.with_suffix(".norms.npy")

    def _norms(self) -> np.ndarray:
        """Compute the norm of each canary's gradient: float64[m]."""
        precise, found = replace(self.task, autocast=False), []
        clipped = ClippedSum(self.model, precise.row_loss, 1.0)
        for first in range(0, len(self.rows), BATCH):
            own = self.rows[first : first + BATCH]
            batch = evaluation.collated(precise, self.contents, own)
            found += clipped.add(batch, torch.arange(len(own)), torch.ones(len(own))).tolist()
            clipped.forget()
        return np.array(found)

    def scores(self, steps: int) -> np.ndarray:
        """Score how strongly the first steps suggest that each canary was present: float64[m].

        A canary's readings are divided by the norm of its gradient before the first step. They are taken relative
        to the mean over the canaries, since what all share tells nothing of any one.

        Raises:
            InputError: no readings were kept, or some are not the ones that this run kept.
        """
        if not self.path.exists():
            raise InputError(
                f"{self.path}: missing, so the steps cannot be audited; was canaries.white_box set?"
            )
        try:
            norms = self.seal.read_array(self._norms_path, self._norms_path.name)
            kept = self._lines("r")[:steps]
        except (Broken, OSError, ValueError):
            raise self._damaged() from None
        for step, line in enumerate(kept):
            if self._seal_of(step, line["values"]) != line["seal"].tobytes():
                raise self._damaged()
        values = np.asarray(kept["values"], dtype=np.float64) / np.where(norms > 0, norms, 1.0)
        found: np.ndarray = (values - values.mean(1, keepdims=True)).sum(0)
        return found

    def _damaged(self) -> InputError:
        return InputError(
            f"{self.path} is damaged, or of another run: the steps of this run cannot be audited; "
            "`confide audit --attacks` names those that need the model alone"
        )

    def _seal_of(self, step: int, values: np.ndarray) -> bytes:
        return self.seal.tag(f"{self.path.name} {step}", np.ascontiguousarray(values, "<f4").tobytes())

    def _lines(self, mode: Any) -> np.memmap:
        line = np.dtype([("values", "<f4", (len(self.rows),)), ("seal", "u1", (TAG_BYTES,))])
        return np.memmap(self.path, line, mode, shape=(self.steps,))


def _norm(vectors: Mapping[str, torch.Tensor]) -> float:
    return float(sum(float(v.float().square().sum(dtype=torch.float64)) for v in vectors.values()) ** 0.5)
