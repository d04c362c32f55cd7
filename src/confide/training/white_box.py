"""Audit a run in the white-box model: find out from the noised sums which canaries took part.

The analysis of DP-SGD lets everybody see every noised sum, so an attack may use them all. Training goes on
unchanged: at each step the sum is compared with each canary's gradient, and the result is kept.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from confide.clipping import ClippedSum
from confide.data.unit_graph import UnitGraph
from confide.privacy.sampling import Draw
from confide.randomness.seal import TAG_BYTES, Seal
from confide.training import evaluation
from confide.training.evidence_of_sums import evidence
from confide.training.gradient_sum import Vectors
from confide.training.tasks import Task
from confide.training.unit_comparison import Gradients
from confide.utils.errors import InputError

BATCH = 16  # canaries whose gradients are computed in one pass
LARGEST = 1 << 28  # values of the gradients of one pass


@dataclass(frozen=True)
class Readings:
    """Observer of a step who knows all units except the canaries, as does the adversary of a guarantee for one unit.

    The observer does not know which units are drawn. What is not known of a noised sum is a sum of the clipped
    gradients of those canaries that take part, and noise. Each canary's gradient is computed anew at each step, at the
    weights of that step, and `evidence` tells how well the canary's part in the sum explains it. It is a score, not a
    bound: whatever weakens this attack never affects a claim.

    Attributes:
        model, task: what trains; the weights stay as they are.
        path: for each step, float32[m] and its seal; a step that is taken again writes the same line again.
        steps: number of steps of the stage.
        units: int64, the canaries among the units of the training graph, or their rows if rows are drawn.
        contents: the graph of all contents.
        rows: int64[m], each canary's row in `contents`.
        seal: authenticates what is kept, with the key of the run.
        clip_norm, noise, scale: of the sums: the clip norm of a unit (None: nothing is clipped), the stated standard
            deviation of the noise, and the factor of both.
        rate: the probability that a unit takes part in a step.
        micro_tokens: tokens of a pass.
        writes: whether this rank keeps what it reads.
        scales: factors on the canaries' gradients, by name of a parameter, as `ClippedSum` has them.
    """

    model: nn.Module
    task: Task
    path: Path
    steps: int
    units: np.ndarray
    contents: UnitGraph
    rows: np.ndarray
    seal: Seal
    clip_norm: float | None
    noise: float
    scale: float
    rate: float
    micro_tokens: int = 8192
    writes: bool = True
    scales: Mapping[str, float | torch.Tensor] = field(default_factory=dict)

    def unknown(self, draw: Draw) -> np.ndarray:
        if draw.unit_ids is None:
            raise AssertionError("the draw does not say whom it drew")
        return np.isin(draw.unit_ids, self.units)

    def read(self, step: int, known: Vectors, total: Vectors) -> None:
        if not self.writes:
            return
        rest = {name: (total[name] - known[name]) / self.scale for name in total}
        was_training = self.model.training
        self.model.eval()  # without dropout, whose random numbers are those of training
        try:
            products, along = self._products(rest)
        finally:
            self.model.train(was_training)
        square = sum(float(vector.double().square().sum()) for vector in rest.values())
        width = sum(vector.numel() for vector in rest.values())
        found = evidence(products, along, square, width, self.rate, self.noise)
        lines = self._lines("r+" if self.path.exists() else "w+")
        lines["values"][step] = found
        lines["seal"][step] = np.frombuffer(self._seal_of(step, lines["values"][step]), np.uint8)
        lines.flush()

    def _products(self, rest: Mapping[str, torch.Tensor]) -> tuple[np.ndarray, np.ndarray]:
        """Compute inner products of the canaries' clipped gradients.

        Args:
            rest: what is not known of the sum.

        Returns:
            float64[m, m] with each other, and float64[m] with the rest of the sum.
        """
        whole = np.concatenate([rest[name].float().flatten().cpu().numpy() for name in rest])
        kept = Gradients(len(self.rows), len(whole), self.path.parent)
        precise = replace(self.task, autocast=False)
        # It gives whole gradients, and clips none.
        clipped = ClippedSum(self.model, precise.row_loss, 1.0, scales=self.scales)
        longest = int(self.contents.lengths_of(self.rows).max())
        size = max(1, min(BATCH, LARGEST // len(whole), self.micro_tokens // longest))
        for first in range(0, len(self.rows), size):
            own = self.rows[first : first + size]
            each: dict[int, dict[str, torch.Tensor]] = {number: {} for number in range(len(own))}
            batch = evaluation.collated(precise, self.contents, own)
            norms = clipped.add(batch, torch.arange(len(own)), torch.ones(len(own)), each).tolist()
            clipped.forget()
            for number, gradient in each.items():
                if not 0 < norms[number] < math.inf:  # in training such a canary adds nothing
                    continue
                clipped.complete(gradient)
                vector = np.concatenate([gradient.pop(name).flatten().cpu().numpy() for name in rest])
                scale = 1.0 if self.clip_norm is None else min(1.0, self.clip_norm / norms[number])
                kept.put(first + number, vector * np.float32(scale))
        return kept.products(whole)

    def told(self, steps: int) -> tuple[np.ndarray, float]:
        """Return the `scores`, and the probability that a canary which is there took part in any of the first steps."""
        return self.scores(steps), 1 - (1 - self.rate) ** steps

    def scores(self, steps: int) -> np.ndarray:
        """Score how strongly the first steps suggest that each canary was present: float64[m], in nats.

        Raises:
            InputError: no readings were kept, or some are not the ones that this run kept.
        """
        if not self.path.exists():
            raise InputError(
                f"{self.path}: missing, so the steps cannot be audited; canaries.white_box was not set, or another "
                "version of confide kept the readings"
            )
        try:
            kept = self._lines("r")[:steps]
        except (OSError, ValueError):
            raise self._damaged() from None
        for step, line in enumerate(kept):
            if self._seal_of(step, line["values"]) != line["seal"].tobytes():
                raise self._damaged()
        found: np.ndarray = np.asarray(kept["values"], dtype=np.float64).sum(0)
        return found

    def _damaged(self) -> InputError:
        return InputError(
            f"{self.path} is damaged, of another run, or of several versions of confide: the steps cannot be audited; "
            "`confide audit --attacks` names those that need the model alone"
        )

    def _seal_of(self, step: int, values: np.ndarray) -> bytes:
        return self.seal.tag(f"{self.path.name} {step}", np.ascontiguousarray(values, "<f4").tobytes())

    def _lines(self, mode: Any) -> np.memmap:
        line = np.dtype([("values", "<f4", (len(self.rows),)), ("seal", "u1", (TAG_BYTES,))])
        return np.memmap(self.path, line, mode, shape=(self.steps,))
