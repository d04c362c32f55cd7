"""A model split over the ranks by FSDP2, and the parts of its parameters.

Each rank holds a range of rows of every parameter, along its first axis, and borrows the rest for as long as
a block computes. All functions also take parameters that are not split: their part is the whole.
"""

import sys
from collections import Counter
from typing import TYPE_CHECKING, Any, TypeGuard

from torch import Tensor, nn

from confide.distributed.ranks import Ranks

if TYPE_CHECKING:  # half a second to import, which reading text does not need
    from torch.distributed.tensor import DTensor


def shard(model: nn.Module, ranks: Ranks) -> None:
    """Split a model, block by block, over the ranks; every rank gives the same weights, on the CPU or its device."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(ranks.device.type, (ranks.size,))
    for block in _blocks(model):
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)


def rest(model: nn.Module) -> None:
    """Free the weights that a forward pass borrowed if no backward pass does; this rank's parts then remain."""
    fsdp = sys.modules.get("torch.distributed.fsdp")  # if nobody imported it, nothing was borrowed
    if fsdp is None:
        return
    for module in model.modules():
        if isinstance(module, fsdp.FSDPModule):
            module.reshard()


def _blocks(model: Any) -> list[nn.Module]:
    """Return the layers that must stay in one piece, as transformers names them; else members of the model's lists.

    Layers that share a parameter with modules outside them, such as tied embeddings, are left out: these stay with the
    root.
    """
    inner = model.get_base_model() if hasattr(model, "get_base_model") else model
    names = set(getattr(inner, "_no_split_modules", None) or ())
    named = [module for module in model.modules() if type(module).__name__ in names]
    listed = [part for module in model.modules() if isinstance(module, nn.ModuleList) for part in module]
    everywhere = _uses(model)
    return [block for block in named or listed if _owns(block, everywhere)]


def _uses(module: nn.Module) -> Counter[int]:
    """Count the places in a module that hold each parameter, by identity."""
    return Counter(id(p) for part in module.modules() for p in part._parameters.values() if p is not None)


def _owns(block: nn.Module, everywhere: Counter[int]) -> bool:
    return all(everywhere[place] == count for place, count in _uses(block).items())


def is_split(tensor: Tensor) -> "TypeGuard[DTensor]":
    """Tell whether a tensor is split over the ranks."""
    module = sys.modules.get("torch.distributed.tensor")  # if nobody imported it, nothing is split
    return module is not None and isinstance(tensor, module.DTensor)


def is_sharded(model: nn.Module) -> bool:
    """Tell whether a parameter of a model is split over the ranks: all of them must then take its passes together."""
    return any(is_split(parameter) for parameter in model.parameters())


def kind(model: nn.Module) -> str:
    """Return the name of a model's class, as it was before FSDP2 gave it one of its own."""
    name = type(model).__name__
    return name.removeprefix("FSDP") if is_sharded(model) else name


def part(tensor: Tensor) -> Tensor:
    """Return this rank's part of a parameter, gradient or state, as a view."""
    return tensor.to_local() if is_split(tensor) else tensor


def first_index(parameter: Tensor) -> int:
    """Return the index, in the flattened parameter, of this rank's first element."""
    if not is_split(parameter):
        return 0
    each = -(-parameter.shape[0] // parameter.device_mesh.size())  # rows a rank, the last ones fewer
    rows = min(parameter.device_mesh.get_local_rank() * each, parameter.shape[0])
    return rows * (parameter.numel() // parameter.shape[0])


def added_up(whole: Tensor, parameter: Tensor) -> Tensor:
    """Return this rank's part of the sum over the ranks of their whole tensors, in the shape of a split parameter."""
    from torch.distributed.tensor import DTensor, Partial

    assert is_split(parameter)
    partial = DTensor.from_local(whole, parameter.device_mesh, [Partial()], run_check=False)
    return partial.redistribute(placements=parameter.placements).to_local()


def like(own: Tensor, parameter: Tensor) -> Tensor:
    """Build a tensor that is split as the parameter is, from this rank's part."""
    if not is_split(parameter):
        return own
    from torch.distributed.tensor import DTensor

    return DTensor.from_local(
        own,
        parameter.device_mesh,
        parameter.placements,
        run_check=False,
        shape=parameter.shape,
        stride=parameter.stride(),
    )


def whole(tensor: Tensor) -> Tensor:
    """Return the tensor with the parts of all ranks; all of them must call this together."""
    return tensor.full_tensor() if is_split(tensor) else tensor


def part_of(values: Tensor, parameter: Tensor) -> Tensor:
    """Return this rank's part of values that it has whole, split as the parameter is."""
    if not is_split(parameter):
        return values
    own = part(parameter)
    start = first_index(parameter)
    return like(values.reshape(-1)[start : start + own.numel()].view(own.shape).to(own.device), parameter)
