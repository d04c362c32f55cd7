"""Refuse buffers that change during training: whatever they store about rows would be released without noise.

A running mean would be released as it is, and would affect the gradients of later rows. Frequencies that follow
the longest row of a batch make one unit's gradient depend on another's.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from confide.utils.errors import InputError


class Buffers:
    """Watches the buffers of a model while it runs."""

    def __init__(self, model: nn.Module) -> None:
        # Not `named_buffers`: a buffer may be created later, in a module that has none yet.
        self._modules = list(model.named_modules())

    @contextmanager
    def unmoved(self) -> Iterator[None]:
        """Allow no buffer to change its values inside the context.

        Three changes are allowed: a buffer may move to another device; a buffer that is never saved may be
        created; a buffer may grow at its end, as tables of positions do.

        Raises:
            InputError: names a buffer that changed.
        """
        before = {name: (values, _version(values)) for name, values, _ in self._found()}
        yield
        for name, values, is_saved in self._found():
            known, version = before.pop(name, (None, 0))
            if values is known and _version(values) == version:
                continue
            if known is None and not is_saved:
                continue
            if (
                known is None
                or values is known
                or _version(known) != version
                or not _begins_with(values, known)
            ):
                raise InputError(
                    f"buffer {name} changes as the model runs, by what rows it is given, and no noise covers what it "
                    "keeps of them: choose a model without it, or switch that off in its config (rows no longer than "
                    "the positions it was trained on, where it is a table of positions)"
                )

    def _found(self) -> Iterator[tuple[str, Tensor, bool]]:
        for module_name, module in self._modules:
            for name, values in module._buffers.items():
                if values is not None:
                    is_saved = name not in module._non_persistent_buffers_set
                    yield f"{module_name}.{name}".lstrip("."), values, is_saved


def _version(values: Tensor) -> int:
    """Return how often a tensor was written to.

    Return 0 for a tensor made in inference mode: it cannot be written to while gradients are recorded.
    """
    return 0 if values.is_inference() else values._version


def _begins_with(values: Tensor, known: Tensor) -> bool:
    if values.dim() != known.dim() or any(n < m for n, m in zip(values.shape, known.shape, strict=True)):
        return False
    return torch.equal(values[tuple(slice(n) for n in known.shape)].to(known), known)
