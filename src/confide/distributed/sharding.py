"""A model split over the ranks by FSDP2, and the parts of its parameters.

Each rank holds a range of rows of every parameter, along its first axis, and borrows the rest for as long as
a block computes. All functions also take parameters that are not split: their part is the whole.
"""

import sys
from collections import Counter
from typing import TYPE_CHECKING, Any, TypeGuard

import torch
from torch import Tensor, nn

from confide.distributed.ranks import Ranks

if TYPE_CHECKING:  # half a second to import, which reading text does not need
    from torch.distributed.tensor import DTensor


def shard(model: nn.Module, ranks: Ranks, coarse: torch.dtype | None = None) -> None:
    """Split a model, block by block, over the ranks; every rank gives the same weights, on the CPU or its device.

    Args:
        coarse: the type in which autocast will multiply. Linear layers of float32 are then borrowed in it: half of the
            bytes are sent, and nobody keeps a second copy. All other layers, such as norms, are borrowed as they are
            held. The results are those of autocast on weights that are borrowed in float32. None borrows all as held.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    mesh = init_device_mesh(ranks.device.type, (ranks.size,))
    # What a layer is given stays as it is: autocast converts that.
    policy = MixedPrecisionPolicy(param_dtype=coarse, reduce_dtype=torch.float32, cast_forward_inputs=False)
    blocks = _blocks(model)
    for block in blocks:
        norms = None if coarse is None else _beside_linear(block)
        if norms is None:
            fully_shard(block, mesh=mesh)
            continue
        for norm in norms:  # they are small: kept until the backward pass, they are sent only once
            fully_shard(norm, mesh=mesh, reshard_after_forward=False)
        _convert_without_autocast(block)
        fully_shard(block, mesh=mesh, mp_policy=policy)
    head = None if coarse is None else _head(model, blocks)
    if head is not None:
        _convert_without_autocast(head)
        fully_shard(head, mesh=mesh, mp_policy=policy, reshard_after_forward=False)
    fully_shard(model, mesh=mesh)


def _beside_linear(block: nn.Module) -> list[nn.Module] | None:
    """Return the norms of a block, if float32 weights lie in them and in linear layers alone; else None.

    Any other layer may compute with its weights where autocast does not reach, and must get them in float32.
    """
    norms = []
    for module in block.modules():
        own = {p.dtype for p in module._parameters.values() if p is not None}
        if own <= {torch.bfloat16} or _is_linear(module):
            continue
        if "Norm" not in type(module).__name__ or any(module.children()):
            return None
        norms.append(module)
    return norms


def _is_linear(module: nn.Module) -> bool:
    """Return True for a linear layer of float32 weights, of torch or of GPT-2."""
    written = getattr(
        type(module), "written", type(module)
    )  # confide's faster layers tell what they stand for
    is_conv1d = (written.__module__, written.__name__) == ("transformers.pytorch_utils", "Conv1D")
    held = {p.dtype for p in module._parameters.values() if p is not None}
    return (written is nn.Linear or is_conv1d) and held == {torch.float32}


def _head(model: Any, blocks: list[nn.Module]) -> nn.Module | None:
    """Return the output layer if it is a linear one of float32, in no block, and shares no weights; else None."""
    inner = model.get_base_model() if hasattr(model, "get_base_model") else model
    head = inner.get_output_embeddings() if hasattr(inner, "get_output_embeddings") else None
    if head is None or not _is_linear(head) or not _owns(head, _uses(model)):
        return None
    found: nn.Module = head
    return None if any(found is part for block in blocks for part in block.modules()) else found


def _convert_without_autocast(borrowed: nn.Module) -> None:
    """Let linear layers compute in the type of their input where autocast is off, as in tests of isolation."""
    for module in borrowed.modules():
        if _is_linear(module):
            own = _AsGiven()
            module.register_forward_pre_hook(own.convert, with_kwargs=True)
            module.register_forward_hook(own.restore, always_call=True)


class _AsGiven:
    """Converts the borrowed weights of one layer to the type of its input, for one call."""

    def __init__(self) -> None:
        self.borrowed: dict[str, nn.Parameter] = {}

    def convert(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        given = args[0] if args else next(iter(kwargs.values()))
        if torch.is_autocast_enabled(given.device.type):
            return
        for name, held in module._parameters.items():
            if held is not None and held.dtype != given.dtype:
                self.borrowed[name] = held
                own = nn.Parameter(held.detach().to(given.dtype), requires_grad=held.requires_grad)
                module._parameters[name] = own

    def restore(self, module: nn.Module, *_: Any) -> None:
        module._parameters.update(self.borrowed)
        self.borrowed.clear()


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
