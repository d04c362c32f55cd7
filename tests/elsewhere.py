"""Confide on a device that is not there: tensors of the CPU that say they lie elsewhere, and refuse to meet those here.

Without a GPU nothing else shows a tensor that was left on the CPU, or one that is used there although it is not. What
the device computes is the CPU's; its own kernels (noise, attention, autocast) are not tried. As a program, it runs
`confide` for each list of arguments in a JSON list, all on that device, and prints exit codes, output and errors.
"""

import json
import sys
from collections import Counter
from dataclasses import astuple
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils import backend_registration
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing

aten = torch.ops.aten
NAME = "elsewhere"
# These go from one device to the other, or take places from the CPU, as they do for CUDA.
_CROSSING = (aten.copy_, aten._to_copy)
_INDEXING = (aten.index, aten.index_put_, aten.index_put, aten._index_put_impl_)
_ASKING = (aten._local_scalar_dense, aten._unique2, aten.equal, aten.masked_select, aten.nonzero)
# What was done from which the host does not go on before a GPU has done all that it was given: it then stands idle.
waits: Counter[str] = Counter()
_registered: list[torch.library.Library] = []


class Elsewhere(torch.Tensor):
    """A tensor of the device; `raw` is what it holds, on the CPU."""

    raw: torch.Tensor
    is_cuda = property(lambda self: True)

    @staticmethod
    def __new__(cls, raw: torch.Tensor, requires_grad: bool = False) -> "Elsewhere":
        made = torch.Tensor._make_wrapper_subclass(
            cls,
            raw.size(),
            strides=raw.stride(),
            storage_offset=raw.storage_offset(),
            dtype=raw.dtype,
            layout=raw.layout,
            device=torch.device(NAME, 0),
            requires_grad=requires_grad,
        )
        made.raw = raw
        return made

    def tolist(self) -> Any:
        waits["tolist"] += 1
        return self.detach().raw.tolist()

    def numpy(self, *_: Any, **__: Any) -> Any:
        raise TypeError(f"a tensor on {NAME} is no NumPy array: copy it to the CPU first")

    __array__ = numpy

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})


class Device(TorchDispatchMode):
    """Inside, tensors can be made on the device as on any other."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})


def _run(func: Any, args: Any, kwargs: Any) -> Any:
    leaves, shape = pytree.tree_flatten((args, kwargs))
    there = [x for x in leaves if isinstance(x, Elsewhere)]
    here = [x for x in leaves if isinstance(x, torch.Tensor) and not isinstance(x, Elsewhere)]
    asked = kwargs.get("device")
    goes = bool(there) if asked is None else torch.device(asked).type == NAME
    if not there and not goes:
        return func(*args, **kwargs)
    if func is aten._fused_sdp_choice.default:
        return 0  # plain attention
    if there and here:
        _refuse(func, args, here)
    if _waits(func.overloadpacket, leaves, bool(there) != goes or bool(here)):
        waits[str(func.overloadpacket)] += 1
    plain = [x.raw if isinstance(x, Elsewhere) else x for x in leaves]
    own_args, own = pytree.tree_unflatten(plain, shape)
    if asked is not None:
        own = {name: value for name, value in own.items() if name not in ("pin_memory", "non_blocking")}
        own["device"] = "cpu"
    found = func(*own_args, **own)
    if func is aten.copy_.default and not isinstance(args[0], Elsewhere):
        return args[0]
    if goes:
        found = pytree.tree_map(lambda x: Elsewhere(x) if isinstance(x, torch.Tensor) else x, found)
    return return_and_correct_aliasing(func, args, kwargs, found) if there else found


def _waits(packet: Any, leaves: list[Any], crosses: bool) -> bool:
    if packet in _CROSSING:
        return crosses
    if (
        packet in _INDEXING
    ):  # places on the CPU are copied, and of a mask the host must know how many it names
        return crosses or any(isinstance(x, torch.Tensor) and x.dtype == torch.bool for x in leaves[1:])
    return packet in _ASKING


def _refuse(func: Any, args: Any, here: list[torch.Tensor]) -> None:
    packet = func.overloadpacket
    if packet in _CROSSING:
        return
    if packet in _INDEXING:
        put = args[2:3]  # in the places of args[1], which may be here
        mixed = not isinstance(args[0], Elsewhere) or any(
            x.dim() > 0 and not isinstance(x, Elsewhere) for x in put
        )
    else:
        mixed = any(x.dim() > 0 for x in here)
    if mixed:
        raise RuntimeError(
            f"all tensors must be on one device: {packet}, of {[tuple(x.shape) for x in here]} here"
        )


def install() -> torch.device:
    """Make the device known to torch, for good, and the place where confide computes."""
    from confide.distributed.ranks import Ranks
    from confide.models import loading as models
    from confide.randomness import streams as noise
    from confide.randomness.chacha_gpu import ChaChaStream
    from confide.training import memory_fit as physical

    module = backend_registration._DummyBackendModule()
    type(module).get_amp_supported_dtype = lambda self: [torch.bfloat16]
    backend_registration._setup_privateuseone_for_python_backend(NAME, backend_module=module)
    # Else `to` would make new parameters, and what was tied would be so no more.
    torch.__future__.set_swap_module_params_on_conversion(True)
    autocast, kernels = torch.library.Library("_", "IMPL"), torch.library.Library("aten", "IMPL")
    _registered.extend((autocast, kernels))
    autocast.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")
    # What torch's own Python bindings call past any mode.
    kernels.impl(
        "empty_strided",
        lambda size, stride, dtype=None, **_: Elsewhere(torch.empty_strided(size, stride, dtype=dtype)),
        "PrivateUse1",
    )
    kernels.impl("copy_", lambda *a: _run(aten.copy_.default, a, {}), "PrivateUse1")
    kernels.impl("index.Tensor", lambda *a: _run(aten.index.Tensor, a, {}), "PrivateUse1")

    device = torch.device(NAME, 0)
    physical.MOST[NAME], physical.SHARE[NAME] = 4096, 0.8
    honest = Ranks.__init__

    def here(
        self: Ranks,
        number: int = 0,
        size: int = 1,
        local_size: int = 1,
        device: torch.device = device,
    ) -> None:
        honest(self, number, size, local_size, device)

    def add_normal(
        self: ChaChaStream, tensor: torch.Tensor, scale: float, start: int = 0, shift: float | None = None
    ) -> None:
        """Add noise of another generator, and on no grid."""
        assert isinstance(tensor, Elsewhere)
        made = noise.Stream(self._key).normal(tensor.numel(), start)
        tensor.detach().raw.view(-1).add_(made, alpha=scale)

    save = models.save

    def save_from_here(model: Any, *rest: Any) -> Any:
        """Transformers asks for addresses in memory, of which these tensors have none."""
        try:
            return save(model.cpu(), *rest)
        finally:
            model.to(device)

    Ranks.__init__, ChaChaStream.add_normal, models.save = here, add_normal, save_from_here  # type: ignore
    return device


if __name__ == "__main__":
    install()
    from tests.command import confide

    with Device():
        print(json.dumps([astuple(confide(*arguments)) for arguments in json.loads(sys.argv[1])]))
