"""Take one step of private training: draw, clip each unit's gradient, sum, add noise, scale, update the weights.

Sources: Chua et al. 2024, Algorithm 2; Charles et al. 2024, Algorithms 1 and 2. The command line and calling
programs share this step.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from torch import nn

from confide.distributed.ranks import Ranks
from confide.distributed.sharding import first_index, like, part
from confide.models import loading as models
from confide.models.expected_tokens import expected_tokens
from confide.privacy.mechanisms.values import Aggregation, Sampler
from confide.privacy.sampling import Draw, StopTraining
from confide.randomness.streams import FastStream, Normal, RunKey, add_noise, tells_units
from confide.training.draw_ahead import DrawAhead
from confide.training.gradient_sum import GradientSum, Vectors
from confide.training.optimisation import RATE_FACTOR, Optimisation, scales_of
from confide.training.step_report import Report, reported
from confide.training.step_state import put_back, taken
from confide.training.tasks import Task
from confide.training.unit_comparison import UnitComparison
from confide.utils.memory import ran_out


class Observer(Protocol):
    """Observer who knows all of a step except some units: the adversary of the guarantee."""

    def unknown(self, draw: Draw) -> np.ndarray:
        """Tell which groups of the draw are not known: bool[groups]."""

    def read(self, step: int, known: Vectors, total: Vectors) -> None:
        """Read the noised sum of a step and the known part of it, both scaled."""


class PrivateStep:
    """Takes one private step after another on a model.

    Formal guarantee: with the `Aggregation` and `Sampler` of one mechanism, step t computes (sum over drawn units
    of clip(g_u, C) + N(0, s^2 C^2 I)) * scale. Here clip gives 0 for a gradient that is not finite, so that no
    unit can end the run. `accounting` composes exactly that (where noise is correlated over steps, N is
    `correlated_noise.CorrelatedNoise`, times s C and the sensitivity of its matrix). An empty draw is a noise-only
    step, and the scale never depends on what was drawn. With several ranks, all make the same draw, and each
    clips its share of the units. The noise of an element of the one sum is the same value wherever it is added:
    it is the noise of one process, not one noise per rank (`fast` noise of a split model: independent values, but
    others than one process draws).

    Args:
        model: what trains; the parameters that require grad move.
        task: collates rows and computes each row's own loss.
        sampler: draws the logical batches.
        aggregation: clip norm, noise and scale.
        optimisation: optimiser and schedule.
        key: the run key; noise is a function of (key, phase, step, parameter, index).
        phase: names the part of the run that the steps belong to.
        noise: `secure` or `fast`.
        micro_tokens: tokens of a physical micro-batch; halved if memory does not suffice.
        ranks: the processes that take the step together.
        say: called with a sentence if memory did not suffice.
        observer: reads the noised sums in an audit; such a step adds up known and unknown units one after the other.
        folder: where the gradients of all units go if units are compared and memory does not suffice.
    """

    def __init__(
        self,
        model: nn.Module,
        task: Task,
        sampler: Sampler,
        aggregation: Aggregation,
        optimisation: Optimisation,
        key: RunKey,
        phase: str = "main",
        noise: str = "secure",
        micro_tokens: int = 8192,
        ranks: Ranks | None = None,
        say: Callable[[str], None] = lambda text: None,
        observer: Observer | None = None,
        folder: Path | None = None,
    ):
        self.model, self.task, self.sampler, self.aggregation = model, task, sampler, aggregation
        self.optimisation, self.key, self.phase = optimisation, key, phase
        # Two trainings that add one noise vector in two sizes would give it away. Another version of the
        # accounting may find another size for the same config, so the noise must then be another. A published
        # key hides nothing, so its noise may repeat.
        self.noise_key = key if key.published else key.bound_to(aggregation.binding())
        if aggregation.common_tokens and not key.published:  # other probabilities make another training, too
            self.noise_key = self.noise_key.bound_to(expected_tokens(model).numpy().tobytes())
        self.fast = noise == "fast"
        self.ranks, self.observer = ranks or Ranks(), observer
        self.parameters = models.trainable(model)
        scales = scales_of(model, aggregation.scales, aggregation.common_tokens)
        self.optimizer = optimisation.build(
            self.parameters, aggregation.noise_std, models.token_embeddings(model), scales
        )
        self.scheduler = optimisation.scheduler(self.optimizer)
        self.gradients = GradientSum(
            model, task, aggregation.clip_norm, key, phase, micro_tokens, self.ranks, say, scales
        )
        self.units = (
            UnitComparison(self.gradients, self.parameters, aggregation, folder)
            if aggregation.radii
            else None
        )
        self._has_begun = False
        self._ahead = DrawAhead(self.ranks.device.type != "cpu")
        self.correlated = aggregation.correlation.noise(self._independent)
        self._said: Vectors | None = None  # the step's C^-1 Z, until it is remembered

    def __call__(
        self, step: int, before_update: Callable[[Draw], None] | None = None
    ) -> Report | StopTraining:
        """Take `step`, counted from 0.

        If the mechanism ends the run, no step is taken and no weight moves.

        Args:
            before_update: called with the draw once the noised gradient is ready and before it is used.
        """
        if not self.model.training:
            self.model.train()
        draw = self._ahead.draw(self.sampler, step)
        if isinstance(draw, StopTraining):
            return draw
        prepared = self._prepare(draw, step)
        if isinstance(prepared, StopTraining):
            return prepared
        known, norms, total = prepared
        if self.observer is not None:
            scaled = {name: vector * self.aggregation.scale for name, vector in known.items()}
            self.observer.read(step, scaled, total)
        for name, vector in total.items():
            self.parameters[name].grad = like(vector, self.parameters[name])
        if before_update is not None:
            before_update(draw)
        rate = self._set_rate(step)
        self.optimizer.step()
        if self.correlated is not None and self._said is not None:
            self.correlated.remember(step, self._said)
            self._said = None
        self.optimizer.zero_grad(set_to_none=True)
        if self.scheduler is not None:
            self.scheduler.step()
        return reported(
            step, draw, self.gradients.losses.take(), norms, self.aggregation.clip_norm, rate, self.ranks
        )

    def _prepare(self, draw: Draw, step: int) -> tuple[Vectors, list[torch.Tensor], Vectors] | StopTraining:
        """Return what the observer knows of the sum, the norms of this rank's units, and the noised sum, scaled.

        If memory runs out on any rank, all ranks start the same draw over: while sums and the optimiser's state are
        allocated, in the passes (not of a split model), once sums are added up, and in the noise. No weight has moved
        by then, and nothing was told to anybody. The noise is a function of the step, so it has the same values again.
        Once weights move, no step is started over; if memory runs out there, the run ends, and resumes from its last
        checkpoint.
        """
        while True:
            self._said = None
            # Ranks of a split model cannot start over in their passes, so they allocate all sums before. Others do so
            # in the first pass, and save a message.
            if self.gradients.is_split or not self._has_begun:
                self._has_begun = self._attempt(self._allocate) is not None
                if not self._has_begun:
                    self.gradients.start_over(draw)
                    continue
            known, norms = self._known(draw, step)
            if isinstance(norms, StopTraining):
                return norms
            total = self._attempt(partial(self._noised, known, step, draw.noise_factor))
            if total is not None:
                return known, norms, total
            self.gradients.start_over(draw)

    def _attempt(self, work: Callable[[], Vectors]) -> Vectors | None:
        """Return what `work` does; None if memory ran out on any rank."""
        try:
            found: Vectors | None = work()
        except (RuntimeError, MemoryError) as error:
            if not ran_out(error):
                raise
            found = None
        return None if self.ranks.any(found is None) else found

    def _allocate(self) -> Vectors:
        """Allocate what lasts, so that it cannot be missing where ranks wait for each other."""
        self.optimisation.allocate(self.optimizer)
        self.gradients.clipped.allocate()
        return {}

    def _noised(self, known: Vectors, step: int, factor: float) -> Vectors:
        """Compute the sum over all ranks, with noise and scaled."""
        total = (self.units or self.gradients).take()
        for name, vector in known.items():
            total[name] += vector
        self._add_noise(total, step, factor)
        return total

    def _set_rate(self, step: int) -> float:
        """Return the learning rate of `step`, and set it in the optimiser unless a program's own optimiser sets it."""
        groups = self.optimizer.param_groups
        if self.optimisation.optimizer_of is not None or self.scheduler is not None:
            return float(groups[0]["lr"] / groups[0].get(RATE_FACTOR, 1.0))
        rate = self.optimisation.rate(step)
        for group in groups:
            group["lr"] = rate * group.get(RATE_FACTOR, 1.0)  # a checkpoint of an older version has none
        return rate

    def _known(self, draw: Draw, step: int) -> tuple[Vectors, list[torch.Tensor] | StopTraining]:
        """Compute the part of the sum that the observer knows. Return it and the norms of all units."""
        if self.observer is None:
            return {}, (self.units or self.gradients).add(draw, step)
        if self.units is not None:
            raise AssertionError("a step that may end the run has no observer")
        unknown = self.observer.unknown(draw)
        before = self.gradients.add(draw.only(~unknown), step)
        known = self.gradients.take()
        return known, before + self.gradients.add(draw.only(unknown), step)

    def _add_noise(self, total: dict[str, torch.Tensor], step: int, factor: float) -> None:
        """Compute (sum + factor * noise) * scale, in place."""
        noise_scale = self.aggregation.noise_scale * factor
        if noise_scale == 0:
            for vector in total.values():
                vector.mul_(self.aggregation.scale)
            return
        sources, units = self._with_sources(total, step), None
        if self.correlated is not None:
            tells = tells_units(sources)
            said = self.correlated.take_back(step, total, noise_scale, tells)
            if tells:
                self._said, units = said, [said[name] for name in total]
        add_noise(sources, noise_scale, self.aggregation.scale, units=units)

    def _independent(self, step: int) -> Vectors:
        """Return the standard normal values of a step, one for each of this rank's weights, not on a grid.

        The noise of two neighbouring data sets should differ by a clipped gradient. Rounded to a grid first, it would
        differ by up to one step of the grid more in each weight.
        """
        values = {
            name: torch.zeros(part(p).shape, dtype=torch.float32, device=p.device)
            for name, p in self.parameters.items()
        }
        add_noise(self._with_sources(values, step), 1.0, on_grid=False)
        return values

    def _with_sources(self, vectors: Vectors, step: int) -> list[tuple[torch.Tensor, Normal, int]]:
        """Return the vectors with their noise sources, as `add_noise` takes them."""
        return [
            (vector, self._source(step, name), first_index(self.parameters[name]))
            for name, vector in vectors.items()
        ]

    def _source(self, step: int, name: str) -> Normal:
        stream = self.noise_key.stream(self.phase, "noise", step, name)
        return FastStream(stream, self.ranks.device) if self.fast else stream

    def state(self) -> dict[str, object] | None:
        """Return the state needed to resume, apart from the constructor's arguments.

        Full (unsharded) CPU tensors; they may alias the model's memory. All ranks must call this together; the
        first gets the state, the others None.
        """
        weights, optimizer = taken(self.parameters, self.optimizer, self.ranks)
        if not self.ranks.first:
            return None
        state = {"weights": weights, "optimizer": optimizer, "micro_tokens": self.gradients.micro_tokens}
        return state | ({"scheduler": self.scheduler.state_dict()} if self.scheduler is not None else {})

    def restore(self, state: dict[str, object]) -> None:
        """Continue from a full state, which every rank must hold."""
        put_back(self.parameters, self.optimizer, state)
        if self.scheduler is not None:
            self.scheduler.load_state_dict(state["scheduler"])  # type: ignore[arg-type]
        now = self.gradients.micro_tokens
        before = state.get("micro_tokens", now)
        assert isinstance(before, int)
        if before < now:
            self.gradients.say(f"micro-batches of {before:,} tokens, as before")
        self.gradients.micro_tokens = min(before, now)  # the checkpoint may come from a larger machine
