"""The step, and the loop around it. The same step serves the command line and library users.

One step of private training (000 Algorithm 2, 003 Algorithms 1 and 2): draw, clip each unit's gradient,
sum, add noise, divide, move.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch
from torch import nn

from confide.clipping import ClippedSum
from confide.distributed.ranks import Ranks
from confide.distributed.sharding import first_index, is_sharded, like, part, part_of, whole
from confide.models import loading as models
from confide.privacy.correlated_noise import Correlated
from confide.privacy.mechanisms.base import Combine, Sampler
from confide.privacy.sampling import Draw, Halt
from confide.randomness.streams import FastStream, Normal, RunKey, Stream, add_noise
from confide.training.microbatch import micro_batch
from confide.training.packing import IDLE, ONE, Pack, share
from confide.training.tasks import Batch, Task, each_line, each_row
from confide.utils.errors import InputError
from confide.utils.memory import OutOfMemory, give_back, not_again, ran_out, too_long

if TYPE_CHECKING:
    from confide.config.schema import Train

Vectors = dict[str, torch.Tensor]


class Observer(Protocol):
    """Somebody who knows all of a step but some units: what the guarantee is against."""

    def unknown(self, draw: Draw) -> np.ndarray:
        """The groups of the draw that are not known, bool[groups]."""

    def read(self, step: int, known: Vectors, total: Vectors) -> None:
        """Told the noised sum of a step and the part of it that is known, both scaled."""


OptimizerOf = Callable[[list[nn.Parameter]], torch.optim.Optimizer]
SchedulerOf = Callable[[torch.optim.Optimizer], torch.optim.lr_scheduler.LRScheduler]


@dataclass(frozen=True)
class Optimisation:
    """How noised gradients move the weights. Names as in the `train` section of the config.

    Attributes:
        optimizer_of, scheduler_of: a program's own. With either, the learning rate is theirs and not `rate`.
    """

    steps: int
    learning_rate: float = 1e-3
    schedule: str = "constant"
    warmup: int = 0
    optimizer: str = "adamw"
    weight_decay: float = 0.0
    momentum: float = 0.0
    betas: tuple[float, float] = (0.9, 0.999)
    optimizer_of: OptimizerOf | None = None
    scheduler_of: SchedulerOf | None = None

    @classmethod
    def of(cls, train: "Train", **changes: float | None) -> "Optimisation":
        """What the `train` section says, but for changes that are not None."""
        values = {name: getattr(train, name) for name in cls.__dataclass_fields__ if hasattr(train, name)}
        return cls(**values | {name: value for name, value in changes.items() if value is not None})

    def build(self, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        if self.optimizer_of is not None:
            return self._own(self.optimizer_of(parameters), parameters)
        rate, decay = self.learning_rate, self.weight_decay
        if self.optimizer == "adamw":
            # One pass over weights and moments. On a CPU it is blind to strides, and moves such weights wrongly.
            fused = all(part(parameter).is_contiguous() for parameter in parameters)
            return torch.optim.AdamW(parameters, lr=rate, betas=self.betas, weight_decay=decay, fused=fused)
        if self.optimizer == "adafactor":
            return torch.optim.Adafactor(parameters, lr=rate, weight_decay=decay)
        return torch.optim.SGD(parameters, lr=rate, momentum=self.momentum, weight_decay=decay)

    def _own(self, made: object, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        """A program's optimiser, seen to move what trains and to need one gradient a step."""
        if not isinstance(made, torch.optim.Optimizer):
            raise InputError(f"optimizer: it made a {type(made).__name__}, and no torch.optim.Optimizer")
        if isinstance(made, torch.optim.LBFGS):
            raise InputError(
                "optimizer: LBFGS asks for several gradients a step, each of which would cost privacy"
            )
        moved = {id(parameter) for group in made.param_groups for parameter in group["params"]}
        if moved != {id(parameter) for parameter in parameters}:
            raise InputError("optimizer: it moves other parameters than it was given")
        return made

    def scheduler(self, optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LRScheduler | None:
        """A program's scheduler, if there is one."""
        if self.scheduler_of is None:
            return None
        made = self.scheduler_of(optimizer)
        needs_loss = isinstance(made, torch.optim.lr_scheduler.ReduceLROnPlateau)
        if needs_loss or not isinstance(made, torch.optim.lr_scheduler.LRScheduler):
            why = ", which follows a loss that no noise covers" if needs_loss else ""
            raise InputError(
                f"scheduler: it made a {type(made).__name__}{why}; give an LRScheduler of the step alone"
            )
        return made

    def rate(self, step: int) -> float:
        """The learning rate of `step`, counted from 0."""
        if step < self.warmup:
            return self.learning_rate * (step + 1) / self.warmup
        share = (step - self.warmup) / max(1, self.steps - self.warmup)
        decay = {"constant": 1.0, "linear": 1 - share, "cosine": 0.5 * (1 + math.cos(math.pi * share))}
        return self.learning_rate * decay[self.schedule]


@dataclass(frozen=True)
class Report:
    """What one step did. Private: made from private rows, for the metrics file only.

    Attributes:
        loss: mean over the rows whose loss is finite.
        clipped: share of the units.
        left_out: units whose gradient was no finite number, and counted as zero.
    """

    step: int
    rows: int
    units: int
    tokens: int
    loss: float | None
    clipped: float | None
    learning_rate: float
    left_out: int = 0


@dataclass
class _Losses:
    """The task's loss of each row, kept for the report. Not a method of the step, which would hold itself, and the
    model, through its clipped sum: such a ring lives on until Python looks for rings.

    Attributes:
        count: whether the losses of the pass in hand are of rows that count.
    """

    task: Task
    count: bool = True
    kept: list[tuple[torch.Tensor, Batch]] = field(default_factory=list)

    def __call__(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        losses = self.task.row_loss(model, batch)
        if self.count:
            self.kept.append((losses.detach(), batch))
        return each_line(losses, batch)

    def take(self) -> list[torch.Tensor]:
        kept, self.kept = self.kept, []
        # Not before the passes are over: how many rows are there the host asks the device, and waits for the answer.
        return [each_row(losses, batch) for losses, batch in kept]


class Step:
    """One private step after another on a model.

    Formal guarantee: with the `Combine` and `Sampler` of one mechanism, step t computes
    (sum over drawn units of clip(g_u, C) + N(0, s^2 C^2 I)) * scale, where clip gives 0 for a gradient that is no
    finite number, so that none ends the run; `accounting` composes exactly that (where
    `combine.bands` is above 1, N is `correlated_noise.Correlated`, times s C and the sensitivity of its matrix). An
    empty draw is a noise-only step, and the scale never depends on what was drawn. With several ranks all draw
    the same, each clips its share of the units, and the noise of an element of the one sum is the same value
    wherever it is added: the noise is that of one process, not of one for each rank (`fast` noise of a model that
    is split: independent values, but others than one process draws).

    Args:
        model: what trains; parameters that require grad move.
        task: collates rows and computes each row's own loss.
        sampler: draws the logical batches.
        combine: clip norm, noise and scale.
        optimisation: optimiser and schedule.
        key: the run key; noise is a function of (key, phase, step, parameter, index).
        noise: `secure` or `fast`.
        micro_tokens: tokens of a physical micro-batch; halved when memory does not suffice.
        ranks: the processes that take the step together.
        say: told in a sentence when memory did not suffice.
        observer: reads the noised sums, in an audit; such a step adds up known and unknown units one after the other.
    """

    def __init__(
        self,
        model: nn.Module,
        task: Task,
        sampler: Sampler,
        combine: Combine,
        optimisation: Optimisation,
        key: RunKey,
        phase: str = "main",
        noise: str = "secure",
        micro_tokens: int = 8192,
        ranks: Ranks | None = None,
        say: Callable[[str], None] = lambda text: None,
        observer: Observer | None = None,
    ):
        self.model, self.task, self.sampler, self.combine = model, task, sampler, combine
        self.optimisation, self.key, self.phase = optimisation, key, phase
        # Two trainings whose noise is one vector in two sizes would give it away: where accounting of another version
        # finds another size for the same config, the noise must be another. A published key hides nothing, and repeats.
        self.noise_key = key if key.published else key.bound_to(combine.binding())
        self.fast = noise == "fast"
        self.micro_tokens = micro_tokens
        self.ranks, self.say, self.observer = ranks or Ranks(), say, observer
        self.parameters = models.trainable(model)
        self.is_split = is_sharded(model)
        self.optimizer = optimisation.build(list(self.parameters.values()))
        self.scheduler = optimisation.scheduler(self.optimizer)
        self.losses = _Losses(task)
        self.clipped = ClippedSum(model, self.losses, combine.clip_norm, self.ranks)
        self.correlated = Correlated(combine.bands, self._independent) if combine.bands > 1 else None

    def __call__(self, step: int, before_update: Callable[[Draw], None] | None = None) -> Report | Halt:
        """Take `step`, counted from 0. `before_update` is told the draw when the noised gradient is ready and unused.

        Where the mechanism ends the run, nothing is taken and nothing moves.
        """
        if not self.model.training:
            self.model.train()
        draw = self.sampler.draw(step)
        if isinstance(draw, Halt):
            return draw
        known, norms = self._known(draw, step)
        if isinstance(norms, Halt):
            return norms
        total = self._total()
        for name, vector in known.items():
            total[name] += vector
        self._add_noise(total, step, draw.noise_factor)
        if self.observer is not None:
            scaled = {name: vector * self.combine.scale for name, vector in known.items()}
            self.observer.read(step, scaled, total)
        for name, vector in total.items():
            self.parameters[name].grad = like(vector, self.parameters[name])
        if before_update is not None:
            before_update(draw)
        rate = self._set_rate(step)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        if self.scheduler is not None:
            self.scheduler.step()
        return self._report(step, draw, norms, rate)

    def _set_rate(self, step: int) -> float:
        """The learning rate of `step`, which the optimiser has from here on; a program's own has one already."""
        groups = self.optimizer.param_groups
        if self.optimisation.optimizer_of is not None or self.scheduler is not None:
            return float(groups[0]["lr"])
        rate = self.optimisation.rate(step)
        for group in groups:
            group["lr"] = rate
        return rate

    def _known(self, draw: Draw, step: int) -> tuple[Vectors, list[torch.Tensor] | Halt]:
        """What an observer knows of the sum, taken apart from the rest; and the norms of all units."""
        if self.observer is None:
            return {}, self._add_draw(draw, step)
        unknown = self.observer.unknown(draw)
        before = self._add_draw(draw.only(~unknown), step)
        known = self._total()
        after = self._add_draw(draw.only(unknown), step)
        if isinstance(before, Halt) or isinstance(after, Halt):
            raise AssertionError("a step that may end the run has no observer")
        return known, before + after

    def _total(self) -> dict[str, torch.Tensor]:
        """What the draw came to, before noise: the sum of the clipped gradients."""
        return self.clipped.take()

    def _add_draw(self, draw: Draw, step: int) -> list[torch.Tensor] | Halt:
        """Clip and add up the whole draw, in micro-batches that fit in memory; the norms of this rank's units."""
        while True:
            try:
                norms, failed = [self._add(draw, part, step) for part in self._share(draw)], False
            except (RuntimeError, MemoryError, OutOfMemory) as error:
                if not ran_out(error):
                    raise
                if self.is_split:  # the other ranks are in the middle of a pass, and cannot start over
                    raise not_again(self.micro_tokens) from error
                norms, failed = [], True
            if not self.ranks.any(failed):
                return norms
            self._halve(draw)

    def _share(self, draw: Draw) -> list[Pack]:
        shares = share(draw, self.micro_tokens, self.ranks.size, self.task.shares)
        own = shares[self.ranks.number]
        if self.is_split:  # the ranks compute each pass together: those with fewer go along
            own = own + [IDLE] * (max(len(other) for other in shares) - len(own))
        return own

    def _halve(self, draw: Draw) -> None:
        """Start the same draw over, in smaller pieces: nothing of it was used yet."""
        longest = max(len(row) for row in draw.rows)
        if self.micro_tokens <= longest:
            raise too_long(longest)
        self.clipped.forget()
        self.losses.take()
        give_back(self.ranks.device)
        self.micro_tokens //= 2
        self.say(
            f"memory ran out: micro-batches of {self.micro_tokens:,} tokens from now on, on the same draw"
        )

    def _add(self, draw: Draw, part: Pack, step: int) -> torch.Tensor:
        if part.parts:
            norm = self.clipped.add_large(
                self._pass(draw, own, step) for own in part.parts if self.is_split or own.lines
            )
            return torch.tensor([norm] if self.ranks.first else [])
        batch, weight = self._pass(draw, part, step)
        if not part.lines:
            self.clipped.add(batch, torch.zeros(1, dtype=torch.int64), weight)
            return torch.zeros(0)
        return self.clipped.add(batch, torch.from_numpy(part.units), weight)

    def _pass(self, draw: Draw, part: Pack, step: int) -> tuple[Batch, torch.Tensor]:
        """Some rows of the draw with their weights; where there are none, one that does not count."""

        def hide(row: str) -> Stream:
            return self.key.stream(self.phase, "hide", step, row)

        self.losses.count = bool(part.lines)
        if not self.losses.count:
            return micro_batch(self.task, draw, ONE, hide)[0], torch.zeros(1)
        return micro_batch(self.task, draw, part, hide)

    def _add_noise(self, total: dict[str, torch.Tensor], step: int, factor: float) -> None:
        """(sum + factor * noise) * scale, in place."""
        noise_scale = self.combine.noise_scale * factor
        if noise_scale == 0:
            for vector in total.values():
                vector.mul_(self.combine.scale)
            return
        if self.correlated is not None:
            for name, noise in self.correlated.at(step).items():
                total[name].add_(noise, alpha=noise_scale).mul_(self.combine.scale)
            return
        add_noise(self._with_sources(total, step), noise_scale, self.combine.scale)

    def _independent(self, step: int) -> Vectors:
        """The standard normal values of a step, as many as there are of this rank's weights."""
        values = {
            name: torch.zeros(part(p).shape, dtype=torch.float32, device=p.device)
            for name, p in self.parameters.items()
        }
        add_noise(self._with_sources(values, step), 1.0)
        return values

    def _with_sources(self, vectors: Vectors, step: int) -> list[tuple[torch.Tensor, Normal, int]]:
        """What `add_noise` takes."""
        return [
            (vector, self._source(step, name), first_index(self.parameters[name]))
            for name, vector in vectors.items()
        ]

    def _source(self, step: int, name: str) -> Normal:
        stream = self.noise_key.stream(self.phase, "noise", step, name)
        return FastStream(stream, self.ranks.device) if self.fast else stream

    def _report(self, step: int, draw: Draw, norms: list[torch.Tensor], rate: float) -> Report:
        losses = self.losses.take()
        clip = self.combine.clip_norm
        loss = torch.cat(losses).double() if losses else torch.zeros(0)
        loss = loss[loss.isfinite()]
        norm = torch.cat([values.cpu() for values in norms]) if norms else torch.zeros(0)
        over, out = (norm > (clip or math.inf)).sum(), norm.isinf().sum()
        seen = torch.tensor(
            [float(loss.sum()), len(loss), float(over), len(norm), float(out)],
            dtype=torch.float64,
            device=self.ranks.device,
        )
        self.ranks.add_up([seen])
        total, rows, clipped, units, left_out = seen.tolist()
        return Report(
            step=step,
            rows=len(draw.rows),
            units=draw.groups,
            tokens=sum(len(row) for row in draw.rows),
            loss=total / rows if rows else None,
            clipped=clipped / units if units and clip is not None else None,
            learning_rate=rate,
            left_out=int(left_out),
        )

    def state(self) -> dict[str, object] | None:
        """Everything that the next step depends on beside the arguments of the constructor, whole, on the CPU, where it
        may share memory with the model.

        All ranks ask together; the first gets it, the others None.
        """
        weights = {name: self._kept(p) for name, p in self.parameters.items()}
        optimizer = self.optimizer.state_dict()
        optimizer["state"] = {
            index: {
                name: self._kept(value) if torch.is_tensor(value) else value for name, value in state.items()
            }
            for index, state in optimizer["state"].items()
        }
        if not self.ranks.first:
            return None
        state = {"weights": weights, "optimizer": optimizer, "micro_tokens": self.micro_tokens}
        return state | ({"scheduler": self.scheduler.state_dict()} if self.scheduler is not None else {})

    def _kept(self, tensor: torch.Tensor) -> torch.Tensor | None:
        found = whole(tensor.detach())
        return found.cpu() if self.ranks.first else None

    def restore(self, state: dict[str, object]) -> None:
        """Go on from a state, which every rank has whole."""
        weights, optimizer = state["weights"], state["optimizer"]
        assert isinstance(weights, dict)
        assert isinstance(optimizer, dict)
        with torch.no_grad():
            for name, parameter in self.parameters.items():
                parameter.copy_(part_of(weights[name], parameter))
        parameters = list(self.parameters.values())
        split = {
            index: {name: _split_like(parameters[index], value) for name, value in values.items()}
            for index, values in optimizer["state"].items()
        }
        self.optimizer.load_state_dict({**optimizer, "state": split})
        if self.scheduler is not None:
            self.scheduler.load_state_dict(state["scheduler"])  # type: ignore[arg-type]
        before = state.get("micro_tokens", self.micro_tokens)
        assert isinstance(before, int)
        if before < self.micro_tokens:
            self.say(f"micro-batches of {before:,} tokens, as before")
        self.micro_tokens = min(before, self.micro_tokens)  # of a larger machine, perhaps


def _split_like(parameter: torch.Tensor, value: object) -> object:
    """An optimiser's value for a parameter: what has its shape is split as it is."""
    is_alike = isinstance(value, torch.Tensor) and value.shape == parameter.shape
    return part_of(value, parameter) if is_alike else value  # type: ignore[arg-type]
