"""Watch the backward pass by a tap on the output of each trainable layer."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from confide.clipping.rule import Layer
from confide.utils.errors import InputError
from confide.utils.memory import ran_out

Receive = Callable[[Layer, Tensor | None, Tensor], None]


class _Tap(torch.autograd.Function):
    """The identity function; its backward passes the layer's input and output gradient on to a callback.

    Autograd itself keeps the input, so that gradient checkpointing drops and recomputes it like any other activation.
    The backward of the graph runs once, however often forward hooks run. The anchor is a scalar that requires a
    gradient: because of it, the backward pass reaches the tap although no weight requires a gradient.
    """

    @staticmethod
    def forward(ctx: Any, output: Tensor, anchor: Tensor, kept: Tensor | None, receive: Any) -> Tensor:
        ctx.save_for_backward(kept)
        ctx.receive = receive
        return output.detach()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        (kept,) = ctx.saved_tensors
        ctx.receive(kept, grad)
        return grad, None, None, None


@dataclass
class Seen:
    """Record of how a forward pass used the layers.

    Attributes:
        uses: parameter name -> number of uses.
        largest: bytes of the largest output of a layer.
        is_over: True once the forward pass is over: gradients that arrive now belong to the backward pass of its loss.
    """

    uses: dict[str, int] = field(default_factory=dict)
    largest: int = 0
    is_over: bool = False


class InDoubt(InputError):
    """A layer ran on a tensor whose first axis may not be the batch's rows: it is not known yet which part is whose."""


class Taps:
    """Taps on the layers of a model for one forward and backward pass over a batch of `rows` rows.

    A trainable parameter requires a gradient only *between* tapped layers, never inside one. So autograd forms no
    weight gradient inside a layer. For a use that no tap sees, it does form one, which `refuse_unseen` finds.

    Args:
        widths: possible numbers of tokens per row in the batch. Where one axis joins rows and positions, each row must
            have one of these numbers of entries. Any other number is a selection, such as the tokens without padding.
        seen: the record to which the forward pass is written.
        trusted: names of the layers whose first axis may join rows and positions, row by row, or may hold a single
            entry for all rows; None trusts all.
        doubts: if True, raise `InDoubt` where a first axis as long as the batch may hold positions instead of rows.
    """

    def __init__(
        self,
        trainable: Mapping[str, Tensor],
        watched: Sequence[Layer],
        rows: int,
        widths: Container[int],
        receive: Receive,
        seen: Seen,
        trusted: Container[str] | None = None,
        doubts: bool = False,
    ) -> None:
        _refuse_hooks(watched)
        self._seen = seen
        self._trusted = trusted
        self._doubts = doubts
        self._trainable = trainable
        self._live = dict(trainable)
        self._unseen: set[str] = set()
        self._handles: list[Any] = []
        self._first: dict[str, int] = {}
        self._watched = watched
        self._rows = rows
        self._widths = widths
        self._receive = receive
        self._spread: Layer | None = None  # the last that ran once for all rows and gave one entry for each
        self._anchors: dict[torch.device, Tensor] = {}

    @contextmanager
    def attached(self) -> Iterator[None]:
        """Attach the taps inside the context; afterwards, even after an error, the model is as it was before."""
        handles = self._handles
        before = {name: parameter.grad for name, parameter in self._trainable.items()}
        for name, parameter in self._trainable.items():
            parameter.grad = None
            handles.append(parameter.register_hook(partial(self._mark, name)))
        try:
            for layer in self._watched:
                handles.append(layer.module.register_forward_pre_hook(partial(self._enter, layer)))
                # Before all other hooks: their changes to the output are no part of the layer. In the backward pass,
                # autograd goes through those changes first and reaches the tap afterwards.
                leave = partial(self._leave, layer)
                handles.append(layer.module.register_forward_hook(leave, prepend=True, with_kwargs=True))
                self._first[layer.name] = handles[-1].id
            yield
        finally:
            for handle in handles:
                handle.remove()
            for parameter in (*self._trainable.values(), *self._live.values()):
                parameter.requires_grad_(True)
                parameter.grad = None
            for name, parameter in self._trainable.items():
                parameter.grad = before[name]

    @contextmanager
    def forward(self) -> Iterator[None]:
        """Wrap the forward pass, to explain an error that the taps may have caused.

        Raises:
            InputError: the model failed after a tap returned one entry per row in place of a single entry for all rows.
        """
        try:
            yield
        except (RuntimeError, ValueError, IndexError) as error:
            layer = self._spread
            if layer is None or ran_out(error):
                raise
            raise InputError(
                f"module {layer.name} ({type(layer.module).__name__}) runs once for all rows, and the model does not "
                "take one entry for each of them in its place, so that no row has a gradient of its own there: freeze "
                "it, or leave it out of adapter.targets"
            ) from error

    def seal(self, loss: Tensor) -> None:
        """Mark the end of the forward pass.

        Raises:
            InputError: the loss depends on no trainable parameter.
        """
        self._seen.is_over = True
        if not loss.requires_grad:
            raise InputError("the loss depends on no trainable parameter: check the adapter and the loss")

    def refuse_unseen(self) -> None:
        """Check, after the backward pass, that every use of a trainable parameter went through a tap.

        Raises:
            InputError: names a parameter that was used outside its layer.
        """
        # Both signs are needed. A checkpoint may end before a layer's bias requires a gradient again: the bias then
        # gets no gradient, but its hook runs. A part of a weight split by FSDP gets a gradient, but runs no hook.
        unseen = self._unseen | {name for name, p in self._trainable.items() if p.grad is not None}
        if unseen:
            raise InputError(
                f"parameter {min(unseen)} is used outside its own layer's forward pass, where its gradient "
                "cannot be clipped by unit: freeze it, or call the layer instead"
            )

    def _enter(self, layer: Layer, module: nn.Module, args: Any) -> None:
        for own, name in layer.parameters.items():
            parameter = module._parameters[own]
            assert parameter is not None
            if parameter is not self._live[name]:  # under FSDP, for a while the whole and not the part
                self._live[name] = parameter
                self._handles.append(parameter.register_hook(partial(self._mark, name)))
            parameter.requires_grad_(False)

    def _mark(self, name: str, grad: Tensor) -> None:
        self._unseen.add(name)

    def _leave(self, layer: Layer, module: nn.Module, args: Any, kwargs: Any, output: Tensor) -> Tensor:
        if not torch.is_grad_enabled():
            raise InputError(
                f"module {layer.name} ran with gradients switched off: turn gradient checkpointing on with "
                'gradient_checkpointing_kwargs={"use_reentrant": False}, and take no torch.no_grad() in the '
                "loss; where the model itself lets it learn nothing, freeze it, or leave it out of adapter.targets"
            )
        if next(iter(module._forward_hooks)) != self._first[layer.name]:
            raise InputError(
                f"module {layer.name} got a forward hook with prepend=True inside the loss, which may change its "
                "output before the tap on it: register the hook before training, or remove it"
            )
        given, count = layer.rule.reads(layer, args, kwargs), output.shape[:1].numel()
        joined = given.shape[:1] != (self._rows,) or output.shape[:1] != (self._rows,)
        if joined:
            given, output = self._by_row(layer, given, output)
        elif self._doubts and (output.dim() < 3 or output.shape[1] == self._rows):
            raise InDoubt(_first_axis(layer, given, self._rows))
        for name in layer.parameters.values():
            self._live[name].requires_grad_(True)
        seen = self._seen
        if not seen.is_over:
            seen.largest = max(seen.largest, output.nbytes)
            for name in layer.parameters.values():
                seen.uses[name] = seen.uses.get(name, 0) + 1
        if given.is_floating_point() and output.dtype.itemsize < given.dtype.itemsize:
            given = given.to(output.dtype)  # the values that autocast multiplied with, and would have kept
        kept = given if layer.rule.keeps_input(layer.trainable) else None
        if output.device not in self._anchors:
            self._anchors[output.device] = torch.zeros((), device=output.device, requires_grad=True)
        anchor, receive = self._anchors[output.device], partial(self._receive, layer)
        tapped: Tensor = _Tap.apply(output, anchor, kept, receive)  # type: ignore[no-untyped-call]
        return tapped.flatten(0, 1) if joined and count != 1 else tapped

    def _by_row(self, layer: Layer, given: Tensor, output: Tensor) -> tuple[Tensor, Tensor]:
        """Return input and output with the batch's rows as first axis, where the model joined it with the next."""
        rows, count = self._rows, len(output) if output.dim() else 0
        width, rest = divmod(count, rows)
        fits = width and not rest and (self._trusted is None or width in self._widths)
        if given.shape[:1] != (count,) or not (count == 1 or fits):
            raise InputError(_first_axis(layer, given, rows))
        if self._trusted is not None and layer.name not in self._trusted:
            raise InDoubt(_first_axis(layer, given, rows))
        if count == 1:  # expanded, so that a single entry for all rows gets a gradient for each row
            self._spread = layer
            return given.expand(rows, *given.shape[1:]), output.expand(rows, *output.shape[1:])
        return given.unflatten(0, (rows, -1)), output.unflatten(0, (rows, -1))


def _refuse_hooks(watched: Sequence[Layer]) -> None:
    """Refuse hooks that come between a layer and its tap: the output gradient that arrives would not be the layer's.

    Raises:
        InputError: a hook on all modules, or one of the kind that changes gradients inside a layer.
    """
    every = nn.modules.module
    if (
        every._global_forward_hooks
        or every._global_forward_pre_hooks
        or every._global_backward_hooks
        or every._global_backward_pre_hooks
    ):
        raise InputError(
            "a hook is registered on all modules (torch.nn.modules.module.register_module_..._hook), which may change "
            "gradients before they are clipped: remove it, or register it on the modules that need it"
        )
    for layer in watched:
        if layer.module._backward_hooks and layer.module._is_full_backward_hook is False:
            raise InputError(
                f"module {layer.name} has a hook by register_backward_hook, which may change gradients inside the "
                "layer, where they are not clipped: use register_full_backward_hook, or remove it"
            )


def _first_axis(layer: Layer, given: Tensor, rows: int) -> str:
    name = layer.name.lower()
    remedy = "pass its input with one entry for each row"
    if "position" in name or name.endswith(("wpe", "pos_emb")):
        remedy = "pass position_ids of shape (rows, tokens) in the batch"
    elif "token_type" in name or "segment" in name:
        remedy = "pass token_type_ids of shape (rows, tokens) in the batch"
    return (
        f"module {layer.name} ({type(layer.module).__name__}) ran on a tensor of shape {tuple(given.shape)}, "
        f"whose first axis is not the batch's {rows} rows, so that no row has a gradient of its own there: "
        f"{remedy}, or freeze it"
    )
