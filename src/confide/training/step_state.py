"""What a step must know again to go on after a checkpoint: weights and the optimiser's state, whole and on the CPU."""

from collections.abc import Mapping
from typing import Any

import torch

from confide.distributed.ranks import Ranks
from confide.distributed.sharding import part_of, whole


def taken(
    parameters: Mapping[str, torch.nn.Parameter], optimizer: torch.optim.Optimizer, ranks: Ranks
) -> tuple[dict[str, torch.Tensor | None], dict[str, Any]]:
    """Return the weights by name, and the optimiser's state as its `state_dict`.

    Full (unsharded) CPU tensors; they may alias the model's memory. All ranks must call this together. Only the first
    gets the tensors, the others None in their places.
    """

    def kept(tensor: torch.Tensor) -> torch.Tensor | None:
        found = whole(tensor.detach())
        return found.cpu() if ranks.first else None

    weights = {name: kept(parameter) for name, parameter in parameters.items()}
    state = optimizer.state_dict()
    state["state"] = {
        index: {name: kept(value) if torch.is_tensor(value) else value for name, value in each.items()}
        for index, each in state["state"].items()
    }
    return weights, state


def put_back(
    parameters: Mapping[str, torch.nn.Parameter], optimizer: torch.optim.Optimizer, state: Mapping[str, Any]
) -> None:
    """Give parameters and optimiser their part of what `taken` returned, under `weights` and `optimizer`."""
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(part_of(state["weights"][name], parameter))
    # The state is kept by the parameter's place in the optimiser, which need not be its place in the model.
    own = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    split = {
        index: {name: _split_like(own[index], value) for name, value in values.items()}
        for index, values in state["optimizer"]["state"].items()
    }
    optimizer.load_state_dict({**state["optimizer"], "state": split})


def _split_like(parameter: torch.Tensor, value: object) -> object:
    """Split an optimiser's value like its parameter, if it has the parameter's shape."""
    is_alike = isinstance(value, torch.Tensor) and value.shape == parameter.shape
    return part_of(value, parameter) if is_alike else value  # type: ignore[arg-type]
