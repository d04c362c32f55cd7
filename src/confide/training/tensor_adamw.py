"""AdamW for gradients that are mostly noise: each tensor has one second moment."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from confide.distributed.sharding import whole
from confide.utils.errors import InputError

_EPSILON = 1e-8  # as in torch's AdamW


class TensorAdamW(torch.optim.Optimizer):
    """AdamW (Loshchilov & Hutter 2019) that divides all elements of a tensor by the same number.

    That number is the root of the mean of their squares, over past steps too. Noise is alike on all elements of a
    gradient. Where it outweighs what is learnt, AdamW's own second moments all estimate one number (Tang et al. 2024),
    each from few squares, and they differ only by chance. The mean of a tensor's squares hardly varies by chance, and
    takes no memory. Where gradients outweigh the noise, a tensor's steps still have the length that the learning rate
    says. `confide study optimisers` compares the two.

    One second moment for many elements is the idea of Adam-mini (Zhang et al. 2024), whose blocks are parts of tensors.

    Formal guarantee: post-processing. It computes from noised gradients and its own state.

    Args:
        parameters: what it moves, float32 of any shape; or groups of them, as torch has them.
        lr: learning rate.
        betas: of the means of gradients, and of their squares.
        weight_decay: decoupled from the gradient.
    """

    def __init__(
        self,
        parameters: Iterable[torch.nn.Parameter] | Iterable[dict[str, Any]],
        lr: float,
        betas: tuple[float, float] = (0.9, 0.999),
        weight_decay: float = 0.0,
    ):
        super().__init__(
            parameters, {"lr": lr, "betas": betas, "weight_decay": weight_decay, "steps_taken": 0}
        )

    def allocate(self) -> None:
        """Allocate the state of parameters that have none."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter not in self.state:
                    square = torch.zeros((), dtype=torch.float32, device=parameter.device)
                    self.state[parameter] = {"exp_avg": torch.zeros_like(parameter), "exp_avg_sq": square}

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Take a step with the gradients that are there.

        Raises:
            InputError: a closure is given, which would compute gradients that nobody has noised.
        """
        if closure is not None:
            raise InputError("optimizer: it takes one gradient a step, and no closure")
        self.allocate()
        for group in self.param_groups:
            group["steps_taken"] += 1
            for parameter in group["params"]:
                if parameter.grad is not None:
                    _move(parameter, parameter.grad, self.state[parameter], group)


def _move(
    parameter: torch.Tensor, gradient: torch.Tensor, state: dict[str, torch.Tensor], group: dict[str, Any]
) -> None:
    (first, second), rate, steps = group["betas"], group["lr"], group["steps_taken"]
    mean, square = state["exp_avg"], state["exp_avg_sq"]
    mean.lerp_(gradient, 1 - first)
    # Row by row, of all ranks' parts: on a CPU one sum over tens of millions of float32 squares is percents too small.
    norms = whole(torch.linalg.vector_norm(gradient, dim=-1))
    square.lerp_(norms.square().sum() / max(1, gradient.numel()), 1 - second)
    root = (square / (1 - second**steps)).sqrt() + _EPSILON
    if group["weight_decay"]:
        parameter.mul_(1 - rate * group["weight_decay"])
    parameter.addcdiv_(mean, root, value=-rate / (1 - first**steps))
