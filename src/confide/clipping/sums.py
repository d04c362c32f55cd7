"""Keep the running sums of clipped gradients, one for each parameter, and add them up over the ranks."""

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn

from confide.clipping.slot import Slot
from confide.distributed.ranks import Ranks
from confide.distributed.sharding import added_up, is_split, part, part_of

BUFFER = 25 << 20
"""Bytes of a buffer of several sums, as in torch's own data-parallel training."""
_COPIES = 12  # bytes of a trained value: the sum, the gradient of a unit that has begun, and that of a pass
_SHARE = 8  # these may take this part of the model's bytes


def fits_whole(trained: int, model_bytes: int) -> bool:
    """Tell whether a rank of a split model is to hold whole sums and gradients of what trains.

    It is if three float32 copies take at most an eighth of the model's bytes, all ranks' parts together. That is so for
    LoRA, and never for full fine-tuning, where a rank could not even hold the weights. The rule asks for nothing but
    the model, so that every rank has the same answer.

    Args:
        trained: number of values that train.
        model_bytes: bytes of all parameters.
    """
    return _COPIES * _SHARE * trained <= model_bytes


def bytes_of(parameters: Iterable[Tensor]) -> int:
    """Return the bytes of parameters, those of all ranks together."""
    return sum(p.numel() * p.element_size() for p in parameters)


class Sums:
    """One float32 sum for each trained parameter, made when it is first needed.

    Whole sums lie in few buffers, which the ranks add up: a message for each of many small tensors would cost more than
    what it carries.

    Args:
        parameters: what trains, by name.
        ranks: the ranks that add to the same sums.
        are_spread: each rank has the sums of its part of each parameter alone. What it adds is the sum over all ranks.
    """

    def __init__(self, parameters: Mapping[str, nn.Parameter], ranks: Ranks, are_spread: bool) -> None:
        self._parameters, self._ranks, self.are_spread = parameters, ranks, are_spread
        self._shapes = {name: (part(p) if are_spread else p).shape for name, p in parameters.items()}
        self._buffers: list[Tensor] = []
        self._views: dict[str, Tensor] = {}
        self._fresh: set[str] = set()

    def allocate(self) -> None:
        """Allocate all sums, so that nothing that follows runs out of memory for them."""
        if self._views:
            return
        buffers, views = [], {}
        for names in self._groups():
            sizes = [_aligned(self._shapes[name].numel()) for name in names]
            buffer = torch.empty(sum(sizes), dtype=torch.float32, device=self._parameters[names[0]].device)
            buffers.append(buffer)
            for name, own in zip(names, buffer.split(sizes), strict=True):
                views[name] = own[: self._shapes[name].numel()].view(self._shapes[name])
        self._buffers, self._views, self._fresh = buffers, views, set(views)

    def _groups(self) -> list[list[str]]:
        """Return the parameters of each buffer: neighbours on one device; a large one has a buffer of its own."""
        groups: list[list[str]] = []
        held, device = BUFFER, None
        for name, parameter in self._parameters.items():
            size = 4 * self._shapes[name].numel()
            if held + size > BUFFER or parameter.device != device:
                groups.append([])
                held, device = 0, parameter.device
            groups[-1].append(name)
            held += size
        return groups

    def __getitem__(self, name: str) -> Tensor:
        """Return the sum of a parameter so far, to be added to in place."""
        self.allocate()
        if name in self._fresh:
            self._fresh.discard(name)
            self._views[name].zero_()
        return self._views[name]

    def add(self, name: str, slot: Slot | None, scale: Tensor) -> None:
        """Add sum_u scale_u * (unit u's gradient) of one parameter; `slot` is None if the loss did not use it."""
        parameter = self._parameters[name]
        if self.are_spread:
            total = torch.zeros(parameter.shape, dtype=torch.float32, device=parameter.device)
            if slot is not None:
                slot.add_scaled(total, scale)
            self[name].add_(added_up(total, parameter))
        elif slot is not None:
            self.allocate()
            slot.add_scaled(self._views[name], scale.to(parameter.device), name in self._fresh)
            self._fresh.discard(name)

    def take(self) -> dict[str, Tensor]:
        """Return the sums over all ranks, and start anew; of a split parameter, this rank's part."""
        sums = {name: self[name] for name in self._parameters}
        buffers = self._buffers
        self.forget()
        if self.are_spread:
            return sums
        self._ranks.add_up(buffers)
        for name, parameter in self._parameters.items():
            if is_split(parameter):
                sums[name] = part(part_of(sums[name], parameter)).clone()
        return sums

    def forget(self) -> None:
        """Drop the sums since the last call of `take`."""
        self._buffers, self._views, self._fresh = [], {}, set()


def _aligned(values: int) -> int:
    """Return room for so many values that the next ones begin where kernels like tensors to begin."""
    return -(-values // 64) * 64
