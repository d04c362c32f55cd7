"""Move the weights by noised gradients: optimiser, scheduler and learning rate. All of it is post-processing."""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from fnmatch import fnmatchcase
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from confide.config.schedule import ADAMS, share_of_peak
from confide.config.train_section import EMBEDDINGS
from confide.distributed.sharding import part
from confide.models import loading as models
from confide.models.expected_tokens import expected_tokens, refuse_if_silent
from confide.training.tensor_adamw import TensorAdamW
from confide.utils.errors import InputError

if TYPE_CHECKING:
    from confide.config.schema import Config
    from confide.config.train_section import Train

OptimizerOf = Callable[[list[nn.Parameter]], torch.optim.Optimizer]
SchedulerOf = Callable[[torch.optim.Optimizer], torch.optim.lr_scheduler.LRScheduler]

_SCALES = (1e-6, 1e6)

RATE_FACTOR = "rate_factor"
"""The key under which the optimiser keeps a group's factor on the learning rate."""


def betas_of(steps: int) -> tuple[float, float]:
    """Return AdamW's betas for a run of so many steps, where the config states none.

    The mean over past gradients then spans at most a seventieth of the run, and never more than usual. With the usual
    0.9 a short run has gone on for steps before its mean has caught up: `confide study optimisers` compares both in 32
    and 96 steps on newsgroups at epsilon 8. Longer runs, other texts and larger epsilons were not measured: there the
    rule is a guess.
    """
    return min(0.9, max(0.3, round(1 - 70 / steps, 3))), 0.999


def has_part(name: str, word: str) -> bool:
    """Return True if a part of a tensor's name, whole between points, is the word; * stands for any characters."""
    return fnmatchcase(f".{name}.", f"*.{word}.*")


def factors_of(
    names: Iterable[str],
    factors: Mapping[str, float],
    embeddings: Collection[str] = (),
    key: str = "train.rate_factors",
) -> dict[str, float]:
    """Return the factor of each tensor: on its learning rate, or on its gradient.

    Args:
        names: of all tensors that are trained, such as `transformer.h.0.attn.c_attn.weight`.
        factors: by a part of a name, whole between points, with * for any characters; or by `EMBEDDINGS`.
        embeddings: names of the token embeddings.
        key: the key of the config that states them.

    Raises:
        InputError: one of `factors` fits no tensor.
    """
    found = dict.fromkeys(names, 1.0)
    for word, factor in factors.items():
        fit = [name for name in found if (name in embeddings if word == EMBEDDINGS else has_part(name, word))]
        if not fit:
            parts = sorted({part for name in found for part in name.split(".") if not part.isdigit()})
            close = get_close_matches(word, [EMBEDDINGS, *parts], n=1)
            raise InputError(
                f"{key}: no tensor that is trained has {word!r} as a part of its name, between points"
                f"{f' (did you mean {close[0]!r}?)' if close else ''}; the parts of their names are "
                f"{', '.join(parts)}, and {EMBEDDINGS} stands for those of tokens"
            )
        for name in fit:
            found[name] *= factor
    return found


def scales_of(
    model: nn.Module, scales: Iterable[tuple[str, float]], common_tokens: float = 0.0
) -> dict[str, float | torch.Tensor]:
    """Return the factor on the gradient of each trainable tensor of a model, by name.

    Args:
        scales: as `Aggregation.scales` has them.
        common_tokens: the power by which the rows of common tokens count less; see `_rare`.

    Returns:
        A number; for tables of tokens float32[p, 1] if `common_tokens` is not 0, a factor for each row.

    Raises:
        InputError: one of `scales` fits no tensor, or those on a tensor multiply to one that is out of bounds. With one
            beyond float32 every gradient would count as not finite, and a run would learn nothing.
    """
    found: dict[str, float | torch.Tensor] = {}
    found |= _checked(
        factors_of(models.trainable(model), dict(scales), models.token_embeddings(model), "privacy.scales")
    )
    return found | {name: found[name] * rows for name, rows in _rare(model, common_tokens).items()}


def _rare(model: nn.Module, power: float) -> dict[str, torch.Tensor]:
    """Return a factor on each row of the tables of tokens that are trained, by name; none if the power is 0.

    It is (V p)^-power for a token that the model expects with probability p before it has seen private text, and at
    most 1: so for tokens that are rarer than if all V were alike. The output's curvature along the row of a token grows
    with p, so that the rows of common tokens need shorter steps, and noise in them costs most.
    Source: Li et al. 2022, "Private Adaptive Optimization with Side Information" (AdaDPS), who scale gradients by what
    is known of tokens before they are clipped.
    """
    if not power:
        return {}
    parameters, found = models.trainable(model), {}
    for name in models.token_tables(model):
        table, expected = parameters[name], expected_tokens(model)
        # A padded vocabulary has rows that no output stands for, or outputs for which there is no row.
        expected = nn.functional.pad(expected, (0, len(table) - len(expected)))
        common = (len(table) * expected).clamp(min=1.0)
        found[name] = common.pow(-power).to(table.device, torch.float32)[:, None]
    return found


def _checked(found: dict[str, float]) -> dict[str, float]:
    least, most = _SCALES
    for name, factor in found.items():
        if not least <= factor <= most:
            raise InputError(
                f"privacy.scales: {name} is multiplied by {factor}; possible are {least} to {most}"
            )
    return found


def check_factors(config: "Config", model: nn.Module) -> None:
    """Check that the model has what `train.rate_factors`, `privacy.scales` and `privacy.common_tokens` speak of.

    Raises:
        InputError: a word fits no tensor that is trained, or a factor is out of bounds; no table of tokens is trained,
            or the model does not write text.
    """
    factors_of(models.trainable(model), config.train.rate_factors, models.token_embeddings(model))
    scales_of(model, config.privacy.scales.items())
    if config.privacy.common_tokens:
        if not models.token_tables(model):
            raise InputError(
                "privacy.common_tokens: no embeddings of tokens are trained here: leave it out, or take adapter.kind: "
                "matrices or full"
            )
        refuse_if_silent(model)


@dataclass(frozen=True)
class Optimisation:
    """Rule by which noised gradients move the weights. Names are as in the `train` section of the config.

    Attributes:
        rate_factors: as `factors_of` takes them.
        optimizer_of, scheduler_of: given by a calling program. With either, it sets the learning rate, and `rate`
            is not used. An optimiser whose groups of parameters have a key `noise_std` is told the noise there.
    """

    steps: int
    learning_rate: float = 1e-3
    schedule: str = "constant"
    warmup: int = 0
    optimizer: str = "tensor-adamw"
    weight_decay: float = 0.0
    momentum: float = 0.0
    betas: tuple[float, float] = (0.9, 0.999)
    rate_factors: Mapping[str, float] = field(default_factory=dict)
    optimizer_of: OptimizerOf | None = None
    scheduler_of: SchedulerOf | None = None

    @classmethod
    def of(cls, train: "Train", **changes: float | str | None) -> "Optimisation":
        """Read the `train` section, with every change that is not None applied."""
        values = {name: getattr(train, name) for name in cls.__dataclass_fields__ if hasattr(train, name)}
        values |= {name: value for name, value in changes.items() if value is not None}
        return cls(**values | {"betas": values["betas"] or betas_of(values["steps"])})

    def build(
        self,
        parameters: Mapping[str, nn.Parameter],
        noise_std: float = 0.0,
        embeddings: Collection[str] = (),
        scales: Mapping[str, float | torch.Tensor] = MappingProxyType({}),
    ) -> torch.optim.Optimizer:
        """Make the optimiser of the steps.

        A parameter W with a scale s moves as if U were trained, with W = W_0 + s U: the gradient that it gets is that
        of U, s times its own, and its learning rate is s times as high. Weight decay grows with the rate, and Adafactor
        goes by the size of W: there the two differ.

        Args:
            parameters: what it moves, by name.
            noise_std: standard deviation of the noise on each element of their gradients, `Aggregation.noise_std`.
            embeddings: names of the token embeddings among them.
            scales: factors on their gradients, by name; 1 where there is none. A tensor, or a row of it, moves by as
                much more or less. For a row, that holds for weight decay, too.

        Raises:
            InputError: a calling program's own is no optimiser of one gradient a step and of these parameters, or
                there are `rate_factors` beside it; or one of these fits no parameter.
        """
        every = list(parameters.values())
        if self.optimizer_of is not None:
            return self._own(self.optimizer_of(every), every, noise_std)
        most = {name: by if isinstance(by, float) else float(by.max()) for name, by in scales.items()}
        made = self._of_groups(self._groups(parameters, embeddings, most), bool(noise_std))
        for group in made.param_groups:
            group["lr"] *= group[RATE_FACTOR]
        _slow_down(
            made,
            {
                parameters[name]: by / most[name]
                for name, by in scales.items()
                if isinstance(by, torch.Tensor)
            },
        )
        return made

    def _groups(
        self, parameters: Mapping[str, nn.Parameter], embeddings: Collection[str], scales: Mapping[str, float]
    ) -> list[dict[str, Any]]:
        """Group parameters by their factor on the learning rate."""
        groups: dict[float, list[nn.Parameter]] = {}
        for name, factor in factors_of(parameters, self.rate_factors, embeddings).items():
            groups.setdefault(factor * scales.get(name, 1.0), []).append(parameters[name])
        return [{"params": members, RATE_FACTOR: factor} for factor, members in groups.items()]

    def _of_groups(self, groups: list[dict[str, Any]], is_noised: bool) -> torch.optim.Optimizer:
        rate, decay = self.learning_rate, self.weight_decay
        if self.optimizer == "tensor-adamw" and is_noised:
            return TensorAdamW(groups, lr=rate, betas=self.betas, weight_decay=decay)
        if self.optimizer in ADAMS:
            # The fused optimiser makes one pass over weights and moments. On a CPU it ignores strides, and
            # updates such weights wrongly.
            fused = all(part(each).is_contiguous() for group in groups for each in group["params"])
            return torch.optim.AdamW(groups, lr=rate, betas=self.betas, weight_decay=decay, fused=fused)
        if self.optimizer == "adafactor":
            return torch.optim.Adafactor(groups, lr=rate, weight_decay=decay)
        return torch.optim.SGD(groups, lr=rate, momentum=self.momentum, weight_decay=decay)

    def allocate(self, optimizer: torch.optim.Optimizer) -> None:
        """Allocate the optimiser's state, with the values that it would have: the update then allocates almost nothing.

        Adafactor's state is small, and a calling program's own optimiser is left alone.
        """
        if self.optimizer_of is not None:
            return
        if isinstance(optimizer, TensorAdamW):
            optimizer.allocate()
            return
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter in optimizer.state:
                    continue
                if isinstance(optimizer, torch.optim.AdamW):
                    device = parameter.device if group["fused"] else "cpu"
                    optimizer.state[parameter] = {
                        "step": torch.zeros((), dtype=torch.float32, device=device),
                        "exp_avg": torch.zeros_like(parameter),
                        "exp_avg_sq": torch.zeros_like(parameter),
                    }
                elif isinstance(optimizer, torch.optim.SGD) and group["momentum"]:
                    optimizer.state[parameter] = {"momentum_buffer": torch.zeros_like(parameter)}

    def _own(self, made: object, parameters: list[nn.Parameter], noise_std: float) -> torch.optim.Optimizer:
        """Check a calling program's optimiser: it must move the trainable weights and need one gradient per step.

        Tell it the noise if it asks for it.
        """
        if self.rate_factors:
            raise InputError(
                "train.rate_factors: the program's own optimizer sets its learning rates: give it groups of "
                "parameters there, and leave this out"
            )
        if not isinstance(made, torch.optim.Optimizer):
            raise InputError(f"optimizer: it made a {type(made).__name__}, and no torch.optim.Optimizer")
        if isinstance(made, torch.optim.LBFGS):
            raise InputError(
                "optimizer: LBFGS asks for several gradients a step, each of which would cost privacy"
            )
        moved = {id(parameter) for group in made.param_groups for parameter in group["params"]}
        if moved != {id(parameter) for parameter in parameters}:
            raise InputError("optimizer: it moves other parameters than it was given")
        for group in made.param_groups:
            if "noise_std" in group:
                group["noise_std"] = noise_std
        return made

    def scheduler(self, optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LRScheduler | None:
        """Return the scheduler of a calling program, or None."""
        if self.scheduler_of is None:
            return None
        made = self.scheduler_of(optimizer)
        needs_loss = isinstance(made, torch.optim.lr_scheduler.ReduceLROnPlateau)
        if needs_loss or not isinstance(made, torch.optim.lr_scheduler.LRScheduler):
            why = ", which follows a loss that no noise covers" if needs_loss else ""
            raise InputError(
                f"scheduler: it made a {type(made).__name__}{why}; give an LRScheduler of the step alone"
            )
        # A program's own optimiser may have several rates as it likes; beside it there are no factors and scales.
        rates = {round(group["lr"] / group.get(RATE_FACTOR, 1.0), 12) for group in optimizer.param_groups}
        if self.optimizer_of is None and len(rates) > 1:
            key = "train.rate_factors" if self.rate_factors else "privacy.scales"
            raise InputError(
                f"scheduler: a {type(made).__name__} gives all tensors one rate, and {key} asks for "
                "several: leave that out, or give a scheduler that multiplies rates, such as LambdaLR"
            )
        return made

    def rate(self, step: int) -> float:
        """Compute the learning rate of `step`, counted from 0."""
        return self.learning_rate * share_of_peak(step, self.steps, self.schedule, self.warmup)


def _slow_down(optimizer: torch.optim.Optimizer, rows: Mapping[nn.Parameter, torch.Tensor]) -> None:
    """Let each row of some tables move by its own share of a step: float32[p, 1]. It copies them meanwhile."""
    before: dict[nn.Parameter, torch.Tensor] = {}

    def keep(*_: Any) -> None:
        before.update((table, table.detach().clone()) for table in rows)

    @torch.no_grad()
    def restrain(*_: Any) -> None:
        for table, share in rows.items():
            table.copy_(before.pop(table).float().lerp_(table.float(), share))

    if rows:
        optimizer.register_step_pre_hook(keep)
        optimizer.register_step_post_hook(restrain)
