"""Ways to take one training step, each on its own copy of a model: ordinary training, confide, Opacus."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from confide.clipping import ClippedSum
from confide.models import loading as models
from confide.models.fast.activations import install_fast_layers
from confide.models.fast.switch import off
from confide.privacy.mechanisms.values import Aggregation
from confide.privacy.sampling import Draw
from confide.randomness.streams import RunKey
from confide.training.optimisation import Optimisation
from confide.training.packing import pack
from confide.training.step import PrivateStep
from confide.training.tasks import Batch, Task
from confide.utils.memory import OutOfMemory

OPTIMISATION = Optimisation(steps=1000, learning_rate=1e-4, optimizer="adamw")
NOISE_MULTIPLIER = 1.0


@dataclass(frozen=True)
class Setting:
    """What every method trains, and on what.

    Attributes:
        model: in its first state; methods train copies.
        task: confide's; what is not confide computes with `switch.off`, as transformers' own trainer does.
        rows: token arrays of one logical batch.
        micro_tokens: tokens of a physical micro-batch.
        clip_norm: the bound C.
    """

    model: nn.Module
    task: Task
    rows: list[np.ndarray]
    micro_tokens: int
    clip_norm: float = 1.0

    def draw(self, k: int) -> Draw:
        """The rows as units of k rows each; the last may have fewer."""
        group = np.arange(len(self.rows)) // k
        return Draw(self.rows, group, (1 / np.bincount(group))[group].astype(np.float32))

    def batches(self, k: int) -> Iterator[tuple[Batch, Tensor, Tensor]]:
        """(batch, unit, weight) of every micro-batch; no unit may exceed one."""
        draw = self.draw(k)
        for part in pack(draw, self.micro_tokens):
            if part.parts:
                raise ValueError(f"a unit of {k} rows exceeds {self.micro_tokens} tokens")
            batch = self.task.collate([self.rows[i] for i in part.rows])
            yield batch, torch.from_numpy(part.units), torch.from_numpy(draw.weight[part.rows])


class Method(ABC):
    """One way to take a step.

    Attributes:
        k: rows that are clipped together.
        keeps_memory: by itself, it would keep freed memory in the process, as confide's runs do.
    """

    name: str
    keeps_memory = False

    def __init__(self, setting: Setting, k: int):
        self.setting, self.k = setting, k
        self.model = copy.deepcopy(setting.model).train()
        self.parameters = models.trainable(self.model)
        self.optimizer: torch.optim.Optimizer

    @abstractmethod
    def step(self) -> None: ...

    def optimizer_copies(self) -> int:
        """Bytes that lie there between two steps: weights, buffers, gradients and the optimiser's state."""
        own = list(chain(self.model.parameters(), self.model.buffers()))
        own += [p.grad for p in self.model.parameters() if p.grad is not None]
        own += [v for state in self.optimizer.state.values() for v in state.values() if torch.is_tensor(v)]
        return sum(tensor.numel() * tensor.element_size() for tensor in own)


class Plain(Method):
    """Ordinary training: the mean loss of the rows, accumulated over the same micro-batches.

    Args:
        own_task: compute logits and losses as confide does, so that what remains is the price of privacy alone.
        compiled: let torch compile the model, which confide refuses.
    """

    def __init__(self, setting: Setting, k: int, own_task: bool = False, compiled: bool = False):
        super().__init__(setting, k)
        self.own_ways: Callable[[], AbstractContextManager[None]] = nullcontext if own_task else off
        if own_task:
            install_fast_layers(self.model)
        if compiled:
            self.model.compile()
        self.name = "plain, compiled" if compiled else "plain, by confide" if own_task else "plain"
        self.keeps_memory = own_task
        self.optimizer = OPTIMISATION.build(self.parameters)

    def step(self) -> None:
        for batch, _, _ in self.setting.batches(self.k):
            with self.own_ways():
                losses = self.setting.task.row_loss(self.model, batch)
                (losses.sum() / len(self.setting.rows)).backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)


@dataclass(frozen=True)
class _Same:
    """A sampler that draws the same rows at every step."""

    batch: Draw

    def draw(self, step: int) -> Draw:
        return self.batch


class Confide(Method):
    """The step of a run: clipped by units of k rows, secure noise."""

    name = "confide"
    keeps_memory = True

    def __init__(self, setting: Setting, k: int):
        super().__init__(setting, k)
        install_fast_layers(self.model)
        draw = setting.draw(k)
        self.trainer = PrivateStep(
            self.model,
            setting.task,
            _Same(draw),
            Aggregation(setting.clip_norm, NOISE_MULTIPLIER, 1 / draw.groups),
            OPTIMISATION,
            RunKey.from_text("benchmark"),
            micro_tokens=setting.micro_tokens,
            say=_refuse_halves,
        )
        self.optimizer = self.trainer.optimizer
        self._next = 0

    def step(self) -> None:
        self.trainer(self._next)
        self._next += 1


def _refuse_halves(text: str) -> None:
    """A step that goes on with smaller micro-batches would be compared with others that have larger ones."""
    raise OutOfMemory(text)


def clipped_sum(setting: Setting, k: int) -> dict[str, Tensor]:
    """confide's sum of clipped gradients before noise, by parameter name; the model is left as it was."""
    total = ClippedSum(setting.model, setting.task.row_loss, setting.clip_norm)
    for batch in setting.batches(k):
        total.add(*batch)
    return total.take()


def median_norm(setting: Setting, k: int) -> float:
    """Norm that half of the units exceed: as a clip norm, it tells clipping apart from scaling."""
    total = ClippedSum(setting.model, setting.task.row_loss, setting.clip_norm)
    return float(torch.cat([total.add(*batch) for batch in setting.batches(k)]).median())


class Peer(Method):
    """A method of Opacus, which clips by row: k is 1."""

    wrapped: Any  # Opacus' module around the model
    private: Any  # Opacus' optimiser around ours

    def __init__(self, setting: Setting, k: int = 1):
        if k != 1:
            raise ValueError("Opacus clips by row")
        super().__init__(setting, k)
        self.optimizer = OPTIMISATION.build(self.parameters)

    @abstractmethod
    def _backward(self, batch: Batch) -> None: ...

    def step(self) -> None:
        self._accumulate()
        self.private.zero_grad(set_to_none=True)

    def _accumulate(self) -> None:
        """As Opacus' own memory manager does: the optimiser moves with the last micro-batch."""
        batches = list(self.setting.batches(self.k))
        for number, (batch, _, _) in enumerate(batches, 1):
            self._backward(batch)
            self.private.signal_skip_step(number < len(batches))
            self.private.step()
            if number < len(batches):
                self.private.zero_grad(set_to_none=True)

    def clipped_sum(self) -> dict[str, Tensor]:
        """The sum of clipped gradients before noise, by parameter name, as this method computes it."""
        rate = self.optimizer.param_groups[0]["lr"]
        noise, self.private.noise_multiplier = self.private.noise_multiplier, 0.0
        self.optimizer.param_groups[0]["lr"] = 0.0
        self._accumulate()
        sums = {name: p.summed_grad.detach().clone() for name, p in self.parameters.items()}
        self.private.zero_grad(set_to_none=True)
        self.optimizer.state.clear()
        self.private.noise_multiplier = noise
        self.optimizer.param_groups[0]["lr"] = rate
        return sums

    def _options(self) -> dict[str, Any]:
        return {
            "noise_multiplier": NOISE_MULTIPLIER,
            "max_grad_norm": self.setting.clip_norm,
            "expected_batch_size": len(self.setting.rows),
        }


class Hooks(Peer):
    """Opacus' grad_sample_mode="hooks": every row's gradient is formed."""

    name = "opacus-hooks"

    def __init__(self, setting: Setting, k: int = 1):
        super().__init__(setting, k)
        from opacus import GradSampleModule
        from opacus.optimizers import DPOptimizer

        self.wrapped = GradSampleModule(self.model, strict=False)
        self.private = DPOptimizer(self.optimizer, **self._options())

    def _backward(self, batch: Batch) -> None:
        with off():
            self.setting.task.row_loss(self.wrapped, batch).mean().backward()


class Ghost(Peer):
    """Opacus' grad_sample_mode="ghost": norms in a first backward pass, the clipped sum in a second."""

    name = "opacus-ghost"

    def __init__(self, setting: Setting, k: int = 1):
        super().__init__(setting, k)
        from opacus.grad_sample import GradSampleModuleFastGradientClipping
        from opacus.optimizers import DPOptimizerFastGradientClipping
        from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping

        self.wrapped = GradSampleModuleFastGradientClipping(
            self.model, max_grad_norm=setting.clip_norm, strict=False
        )
        self.private = DPOptimizerFastGradientClipping(self.optimizer, **self._options())
        self._criterion = DPLossFastGradientClipping(self.wrapped, self.private, _RowLoss())

    def _backward(self, batch: Batch) -> None:
        with off():
            self._criterion(self.setting.task.row_loss(self.wrapped, batch)).backward()


class _RowLoss:
    """What Opacus takes for a criterion: here the losses are each row's already."""

    reduction = "mean"

    def __call__(self, losses: Tensor) -> Tensor:
        return losses


def for_peers(setting: Setting) -> Setting:
    """The same on a copy of the model as users of Opacus change it for full fine-tuning.

    The output layer gets weights of its own, and each Conv1D of transformers becomes a linear layer.
    """
    model: Any = copy.deepcopy(setting.model)
    head = model.get_output_embeddings()
    if head.weight is model.get_input_embeddings().weight:
        head.weight = nn.Parameter(head.weight.detach().clone())
        model.config.tie_word_embeddings = False
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if type(child).__name__ == "Conv1D":
                setattr(module, name, _linear(child))
    return replace(setting, model=model)


def _linear(layer: Any) -> nn.Linear:
    inputs, outputs = layer.weight.shape
    result = nn.Linear(inputs, outputs, device=layer.weight.device)
    with torch.no_grad():
        result.weight.copy_(layer.weight.T)
        result.bias.copy_(layer.bias)
    return result
