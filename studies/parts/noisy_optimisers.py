"""Optimisers that are said to move weights better under noise: candidates, which live here until one of them wins.

Formal guarantee: that of the run, whichever of them moves its weights. Each is a function of the noised gradients of
the steps before it and of public numbers (rate, number of steps, standard deviation of the noise), so what it makes of
them is post-processing. Where weights are moved to another point before a gradient is taken there, that point is such a
function too, and the gradient is clipped and noised as any other.

The noise's standard deviation reaches them as `noise_std` of a group of parameters, where confide puts it. None has
weight decay, as the study has none. All compute elementwise, in float32, on tensors of any shape. What they remember
lies in the optimiser's state, so that a run resumes exactly.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable
from typing import Any

import torch

from confide.utils.errors import InputError

State = dict[str, Any]
"""What is remembered of one parameter: tensors of its shape, numbers, and `step`, which counts from 1."""

_EPSILON = 1e-8  # as in torch's AdamW


class NoisyOptimiser(torch.optim.Optimizer):
    """Moves each parameter on its own by its noised gradient.

    Args:
        parameters: what it moves.
        lr: learning rate.
        settings: of the subclass; each becomes a key of the groups of parameters.
    """

    def __init__(self, parameters: Iterable[torch.nn.Parameter], lr: float, **settings: Any):
        super().__init__(parameters, {"lr": lr, "noise_std": 0.0, **settings})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Take a step.

        Raises:
            InputError: a closure is given, which would compute gradients that nobody has noised.
        """
        if closure is not None:
            raise InputError("optimizer: it takes one gradient a step, and no closure")
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    state = self.state[parameter]
                    state["step"] = state.get("step", 0) + 1
                    self.move(parameter, parameter.grad, state, group)

    @abstractmethod
    def move(
        self, parameter: torch.Tensor, gradient: torch.Tensor, state: State, group: dict[str, Any]
    ) -> None:
        """Move a parameter in place.

        Args:
            parameter: float32, any shape.
            gradient: of the same shape, noised.
            state: of the parameter, to read and to change.
            group: `lr`, `noise_std` and the settings.
        """


def mean_of(state: State, name: str, value: torch.Tensor, beta: float) -> torch.Tensor:
    """Return Adam's mean over the steps so far, with its correction for having begun at zero (Kingma & Ba 2015)."""
    held = state.setdefault(name, torch.zeros_like(value))
    held.lerp_(value, 1 - beta)
    mean: torch.Tensor = held / (1 - beta ** state["step"])
    return mean


def adam(state: State, gradient: torch.Tensor, betas: tuple[float, float]) -> torch.Tensor:
    """Return the direction of Adam (Kingma & Ba 2015, Algorithm 1): the mean over the root of the mean square."""
    first = mean_of(state, "exp_avg", gradient, betas[0])
    second = mean_of(state, "exp_avg_sq", gradient.square(), betas[1])
    return first / (second.sqrt() + _EPSILON)


def low_pass(state: State, gradient: torch.Tensor, pole: float) -> torch.Tensor:
    """Return the gradient through a low-pass filter of first order.

    m[t] = pole m[t-1] + (1 - pole) / 2 (g[t] + g[t-1]), over what the same filter makes of ones. In contrast to a mean
    over the past, it lets nothing through that changes its sign in every step.

    Source: Zhang et al. 2024, "DOPPLER: Differentially Private Optimizers with Low-pass Filter for Privacy Noise
    Reduction", whose filters have any order, and whose correction is this one. The two coefficients are ours.
    """
    before = state.get("gradient")
    share = (1 - pole) / 2
    passed = share * (gradient if before is None else gradient + before)
    ones = share * (1 if before is None else 2)
    if before is not None:
        passed += pole * state["passed"]
        ones += pole * state["ones"]
    state |= {"gradient": gradient.clone(), "passed": passed, "ones": ones}
    return passed / ones


def noise_of(group: dict[str, Any]) -> float:
    """Return the noise's standard deviation.

    Raises:
        InputError: the run has no noise.
    """
    noise = float(group["noise_std"])
    if noise <= 0:
        raise InputError("optimizer: it divides by the noise, and this run has none")
    return noise


class BiasCorrectedAdamW(NoisyOptimiser):
    """AdamW without the noise's own variance in the second moment.

    The corrected moment has a floor, since a mean of few squares of noise lies below the noise's variance half of the
    time.

    Source: Tang et al. 2024, "DP-AdamBC: Your DP-Adam Is Actually DP-SGD (Unless You Apply Bias Correction)". The floor
    is a share of the noise's variance here, and a number of its own there.

    Args:
        betas: AdamW's.
        floor: the least second moment, in variances of the noise.
    """

    def __init__(
        self,
        parameters: Iterable[torch.nn.Parameter],
        lr: float,
        betas: tuple[float, float] = (0.9, 0.999),
        floor: float = 0.1,
    ):
        super().__init__(parameters, lr, betas=betas, floor=floor)

    def move(
        self, parameter: torch.Tensor, gradient: torch.Tensor, state: State, group: dict[str, Any]
    ) -> None:
        first = mean_of(state, "exp_avg", gradient, group["betas"][0])
        second = self.corrected(gradient, state, group)
        least = max(group["floor"] * group["noise_std"] ** 2, _EPSILON**2)
        parameter.addcdiv_(first, second.clamp(min=least).sqrt(), value=-group["lr"])

    def corrected(self, gradient: torch.Tensor, state: State, group: dict[str, Any]) -> torch.Tensor:
        """Return the second moment less the noise's variance, before the floor; it may be negative."""
        second = mean_of(state, "exp_avg_sq", gradient.square(), group["betas"][1])
        return second - float(group["noise_std"]) ** 2


class ConstantMomentSGD(NoisyOptimiser):
    """SGD with momentum, in units of the noise: AdamW whose second moment is the noise's variance, a public constant.

    In heavy noise nearly all of AdamW's second moment is the noise's variance, and its estimate of it is itself noisy.
    Rates are then comparable with AdamW's.

    Args:
        momentum: share of the past in the mean, as AdamW's first beta.

    Raises:
        InputError: on a step of a run that has no noise.
    """

    def __init__(self, parameters: Iterable[torch.nn.Parameter], lr: float, momentum: float = 0.9):
        super().__init__(parameters, lr, momentum=momentum)

    def move(
        self, parameter: torch.Tensor, gradient: torch.Tensor, state: State, group: dict[str, Any]
    ) -> None:
        mean = mean_of(state, "exp_avg", gradient, group["momentum"])
        parameter.sub_(mean, alpha=group["lr"] / noise_of(group))


class FlooredAdamW(NoisyOptimiser):
    """AdamW whose second moment is at least the noise's variance.

    The true second moment of a noised gradient is never less, so a smaller estimate is one by chance: after one step,
    that of two elements in three where there is noise alone. In heavy noise this is nearly `ConstantMomentSGD`. Where
    gradients outweigh the noise it is AdamW, and its steps are never longer than AdamW's.

    Args:
        betas: AdamW's.
    """

    def __init__(
        self, parameters: Iterable[torch.nn.Parameter], lr: float, betas: tuple[float, float] = (0.9, 0.999)
    ):
        super().__init__(parameters, lr, betas=betas)

    def move(
        self, parameter: torch.Tensor, gradient: torch.Tensor, state: State, group: dict[str, Any]
    ) -> None:
        first = mean_of(state, "exp_avg", gradient, group["betas"][0])
        second = mean_of(state, "exp_avg_sq", gradient.square(), group["betas"][1])
        least = max(group["noise_std"], _EPSILON)
        parameter.addcdiv_(first, second.sqrt().clamp(min=least), value=-group["lr"])


class LowPassAdamW(NoisyOptimiser):
    """AdamW on gradients that went through a low-pass filter: `low_pass`, which names the source.

    Args:
        betas: AdamW's.
        pole: the filter's; at 0 it is the mean of two gradients.
    """

    def __init__(
        self,
        parameters: Iterable[torch.nn.Parameter],
        lr: float,
        betas: tuple[float, float] = (0.9, 0.999),
        pole: float = 0.5,
    ):
        super().__init__(parameters, lr, betas=betas, pole=pole)

    def move(
        self, parameter: torch.Tensor, gradient: torch.Tensor, state: State, group: dict[str, Any]
    ) -> None:
        direction = adam(state, low_pass(state, gradient, group["pole"]), group["betas"])
        parameter.sub_(direction, alpha=group["lr"])


class KalmanAdamW(NoisyOptimiser):
    """AdamW on gradients through a Kalman filter that is simplified to one number, kappa.

    The filter keeps a share 1 - kappa of the gradient that it had, and takes a share kappa of the new one, which is
    computed at a point beyond the weights: x + (1 - kappa) / kappa (x - x before). To first order, that makes up for
    how far the weights have moved since.

    Source: Zhang et al. 2024, "DiSK: Differentially Private Optimizer with Simplified Kalman Filter for Noise
    Reduction". It mixes gradients at two points, by a number gamma. At gamma = (1 - kappa) / kappa, as here, only that
    of the point beyond is left; the authors' code has this case, too. Here the filter begins with the first gradient.

    Between steps the model has the weights of the point beyond. After the last step it has the weights themselves.

    Args:
        steps: of the run.
        betas: AdamW's.
        kappa: share of the new gradient, above 0 and at most 1; 0.7 in the authors' code.
    """

    def __init__(
        self,
        parameters: Iterable[torch.nn.Parameter],
        lr: float,
        steps: int,
        betas: tuple[float, float] = (0.9, 0.999),
        kappa: float = 0.7,
    ):
        super().__init__(parameters, lr, steps=steps, betas=betas, kappa=kappa)

    def move(
        self, parameter: torch.Tensor, gradient: torch.Tensor, state: State, group: dict[str, Any]
    ) -> None:
        kappa = group["kappa"]
        weights = state.setdefault("weights", parameter.clone())
        filtered = state.setdefault("filtered", gradient.clone())
        filtered.lerp_(gradient, kappa)
        moved = adam(state, filtered, group["betas"]) * -group["lr"]
        weights += moved
        beyond = 0.0 if state["step"] == group["steps"] else (1 - kappa) / kappa
        parameter.copy_(weights + beyond * moved)


class ScheduleFreeAdamW(NoisyOptimiser):
    """AdamW with a constant rate and a mean over its weights in place of a schedule.

    Gradients are taken between the weights z of the steps and their mean x, at y = (1 - beta1) z + beta1 x.

    Source: Defazio et al. 2024, "The Road Less Scheduled", Algorithm 1, without warm-up and weight decay.

    Between steps the model has the weights y. After the last step it has x.

    Args:
        steps: of the run.
        betas: beta1 is the share of the mean x, the second that of AdamW.
    """

    def __init__(
        self,
        parameters: Iterable[torch.nn.Parameter],
        lr: float,
        steps: int,
        betas: tuple[float, float] = (0.9, 0.999),
    ):
        super().__init__(parameters, lr, steps=steps, betas=betas)

    def move(
        self, parameter: torch.Tensor, gradient: torch.Tensor, state: State, group: dict[str, Any]
    ) -> None:
        of_mean, beta = group["betas"]
        last = state.setdefault("last", parameter.clone())
        mean = state.setdefault("mean", parameter.clone())
        square = state.setdefault("exp_avg_sq", torch.zeros_like(gradient))
        square.lerp_(gradient.square(), 1 - beta)
        rate = group["lr"] * (1 - beta ** state["step"]) ** 0.5
        last.addcdiv_(gradient, square.sqrt() + _EPSILON, value=-rate)
        state["weight"] = state.get("weight", 0.0) + rate**2
        mean.lerp_(last, rate**2 / state["weight"])
        parameter.copy_(mean if state["step"] == group["steps"] else last.lerp(mean, of_mean))
