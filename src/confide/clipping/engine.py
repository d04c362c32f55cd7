"""Sum clipped per-unit gradients in one backward pass."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from types import MappingProxyType

import torch
from torch import Tensor, nn

from confide.clipping.buffers import Buffers
from confide.clipping.dropout import Lots
from confide.clipping.factors import norm_error, row_squares
from confide.clipping.rounding import exact, last_error, refuse_coarse_products
from confide.clipping.rule import Layer
from confide.clipping.rules import layers, refuse_mixing
from confide.clipping.slot import Allowance, Slot, settle
from confide.clipping.sums import Sums, bytes_of, fits_whole
from confide.clipping.tap import InDoubt, Receive, Seen, Taps
from confide.clipping.units import Units
from confide.distributed.ranks import Ranks
from confide.distributed.sharding import added_up, is_sharded
from confide.utils.errors import Diverged, InputError
from confide.utils.memory import OutOfMemory, ran_out

Batch = Mapping[str, Tensor]
Loss = Callable[[nn.Module, Batch], Tensor]


class NonFiniteGradient(Diverged):
    """A sum is infinite or not a number; raised only without a clip norm, where no unit is measured on its own."""


class ClippedSum:
    """The running sum of clipped unit gradients, at about the cost of ordinary training.

    A unit's gradient is g_u = sum over its rows b of weight_b * grad(loss_b), over all trainable parameters
    together, each of them times its scale: whatever is measured, clipped, added and returned is so. The sum receives
    min(1, C / |g_u|) g_u. If |g_u| is infinite or not a number, the sum receives nothing; an error instead would
    reveal something about the unit that no noise covers.

    One forward and one backward pass serve a whole batch. Taps on the trainable layers see each layer's input and
    output gradient and compute the norms at once. After the pass, the clipped sum takes one product per layer.
    Weights require no gradient meanwhile, so the plain gradient of a weight is never computed.

    *Formal guarantee*: none on its own. The sum has bounded sensitivity: leaving out one unit's rows, or setting
    their weights to 0, changes the result of `take` by a vector of norm at most C, *provided* that each row's loss
    is a function of that row and the weights alone. The bound includes rounding, except for how the terms of other
    units round; `confide.clipping.rounding` has the theorem. Modules known to break the condition are refused. The
    caller is responsible for the loss.

    Args:
        model: any module whose trainable parameters (those that require a gradient now) belong to layers
            with a rule; see `confide.clipping.rules`.
        loss: (model, batch) -> float[B], each row's loss, a function of that row alone.
        clip_norm: C > 0; None does not clip.
        ranks: the ranks that add to the same sum.
        scales: positive factors on the gradients of some parameters, by name: a number, or for a table of tokens
            [p, 1], one for each of its rows; 1 where there is none. Public: the same for all rows of data.

    Raises:
        UnsupportedParameter: a trainable parameter that no rule covers, by name.
        UnsupportedModule: a module that mixes rows, by name.
        InputError: nothing is trainable, or C is not a positive number.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        clip_norm: float | None,
        ranks: Ranks | None = None,
        scales: Mapping[str, float | Tensor] = MappingProxyType({}),
    ) -> None:
        if clip_norm is not None and not (0 < clip_norm < math.inf):
            raise InputError(f"clip_norm must be a positive number or null, got {clip_norm}")
        refuse_mixing(model)
        self._model = model
        self._loss = loss
        self._clip_norm = clip_norm
        self._ranks = ranks or Ranks()
        self._scales = {name: by for name, by in scales.items() if isinstance(by, Tensor) or by != 1}
        self._layers: list[Layer] = layers(model)
        self._parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
        if not self._parameters:
            raise InputError("the model has no trainable parameter: check the adapter")
        self._all = list(model.parameters())
        self._flags = [p.requires_grad for p in self._all]
        # Faster than model.parameters(), which takes as long as a small layer.
        self._places = [place for m in model.modules() for place in (m._modules, m._parameters)]
        self._built = self._contents()
        self._buffers = Buffers(model)
        self._is_split = is_sharded(model)
        if clip_norm is not None:
            with exact(self._device):
                refuse_coarse_products(self._device)
        self._has_batch_norm = any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in model.modules())
        self._in_order: set[str] = set()
        self._has_looked = False
        trained = sum(p.numel() for p in self._parameters.values())
        self._sums = Sums(
            self._parameters,
            self._ranks,
            are_spread=self._is_split and not fits_whole(trained, bytes_of(self._all)),
        )
        self._added = 0  # units in the sums

    @property
    def trainable(self) -> tuple[str, ...]:
        """Names of the parameters that are summed, as in `model.named_parameters()`."""
        return tuple(self._parameters)

    @property
    def are_sums_spread(self) -> bool:
        """True if no rank holds a whole gradient: all of them must then take each unit of `add_large` together."""
        return self._sums.are_spread

    def add(
        self,
        batch: Batch,
        unit: Tensor,
        weight: Tensor,
        begun: Mapping[int, dict[str, Tensor]] | None = None,
    ) -> Tensor:
        """Add the clipped gradients of the whole units of one batch.

        Args:
            batch: tensors whose first axis is the rows, B.
            unit: int64[B], each row's unit: 0..U-1 without a gap, in any order.
            weight: float[B], each row's weight in its unit's gradient.
            begun: the units of which other batches have rows, too, each with its gradient so far, as from `gradient`.
                That grows in place, and the sum receives nothing of it; nor is there a clip norm then. Not for sums
                that are spread.

        Returns:
            float32[U], the norms before clipping; of units that have begun, of their rows here. A norm is inf if it is
            not a finite number; that unit added nothing. All are nan without a clip norm, when no unit is measured on
            its own.

        Raises:
            InputError: a layer or the loss does not keep the rows apart, or the loss computes a gradient itself;
                the message says where.
        """
        units = Units.of(unit)
        if units.rows == 0:
            return torch.zeros(0, device=self._device)
        if self._clip_norm is None:  # ordinary training: one product per layer, no unit's norm
            self._add_plain(batch, weight)
            return torch.full((units.count,), torch.nan)
        self._check(batch, weight, units.rows)
        batch = {name: units.on(values.device).sort(values) for name, values in batch.items()}
        slots: dict[str, Slot] = {}
        self._backward(batch, units.on(weight.device).sort(weight), units, slots, dense=None)
        with exact(self._device):
            settle(list(slots.values()))
            added = units.count - len(begun or {})
            norms = self._together(units.count, max(1, added), [slot.norms() for slot in slots.values()])
            scale = self._scale(norms)
            for number, gradient in (begun or {}).items():
                own = int(units.number[number])
                scale[own] = 0
                for name, slot in slots.items():
                    found = slot.gradient(own)
                    gradient[name] = gradient[name].add_(found) if name in gradient else found
            self._added += added
            if bool((scale == 0).any()):
                for slot in slots.values():
                    slot.leave_out(scale == 0)
            for name in list(self._parameters if self.are_sums_spread else slots):
                self._sums.add(name, slots.pop(name, None), scale)
            return _finite_or_inf(norms[units.on(norms.device).number].float())

    def add_large(self, batches: Iterable[tuple[Batch, Tensor]]) -> float:
        """Add the clipped gradient of one unit whose rows come in several micro-batches.

        The memory needed is that of one micro-batch and one gradient, however many rows the unit has. If sums are
        spread, the ranks must call this together, each with rows of the same unit or with none.

        Args:
            batches: (batch, weight) pairs as for `add`, consumed one at a time; all rows belong to one unit.

        Returns:
            The norm before clipping, as from `add`; nan without a clip norm.

        Raises:
            InputError: as for `add`.
            OutOfMemory: the memory of a rank of a split model did not suffice.
        """
        if self._clip_norm is None:
            for batch, weight in batches:
                self._add_plain(batch, weight)
            return math.nan
        with self._failing_for_all():
            return self.add_gradient(self.gradient(batches))

    def gradient(
        self, batches: Iterable[tuple[Batch, Tensor]], begun: dict[str, Tensor] | None = None
    ) -> dict[str, Tensor]:
        """Return the gradient of rows of one unit, not clipped; of parameters that no row uses there is none.

        Args:
            batches: as for `add_large`.
            begun: the gradient of the unit's other rows so far. It grows in place.

        Raises:
            InputError: as for `add`.
        """
        found: dict[str, Tensor] = {} if begun is None else begun
        for batch, weight in batches:
            self._add_part(found, batch, weight)
        return found

    def allocate(self) -> None:
        """Allocate the sums now, so that no later addition runs out of memory for them."""
        self._sums.allocate()

    def complete(self, gradient: dict[str, Tensor]) -> None:
        """Give a gradient zeros for the parameters that its rows do not use, in the model's order. In place."""
        found = dict(gradient)
        gradient.clear()
        for name, parameter in self._parameters.items():
            gradient[name] = found[name] if name in found else _zeros(parameter)

    def add_gradient(self, gradient: dict[str, Tensor]) -> float:
        """Clip the gradient of one whole unit and add it. The tensors of `gradient` are used up.

        Args:
            gradient: as `gradient` returns it; over several ranks, the sum of what each has returned for its rows.

        Returns:
            The norm before clipping.
        """
        if self._clip_norm is None:
            for name, own in gradient.items():
                self._sums[name].add_(own)
            return math.nan
        with exact(self._device):
            squares = torch.zeros(1, dtype=torch.float64, device=self._device)
            for name in [name for name in self._parameters if name in gradient]:
                own = gradient[name][None]
                squares += row_squares(own).to(self._device) * (1 + norm_error(own)) ** 2
            if self.are_sums_spread:
                self._ranks.add_up([squares])
            norm = squares.sqrt_().mul_(1 + last_error(1, self._added, self._ranks.size))
            scale = self._scale(norm)
            self._added += 1
            for name in list(gradient) if bool(scale) else ():
                own = gradient.pop(name)
                self._sums[name].addcmul_(own, scale.to(own.device))
        return float(_finite_or_inf(norm))

    def take(self) -> dict[str, Tensor]:
        """Return the float32 sums since the last call, over all ranks, by parameter name, and start anew.

        A tied parameter appears once. For a parameter that is split over the ranks, this rank's part is returned.

        Raises:
            NonFiniteGradient: a sum is not finite, and there is no clip norm, so nothing was measured before.
        """
        sums = self._sums.take()
        self.forget()
        if self._clip_norm is None:
            is_finite = all(bool(torch.isfinite(values).all()) for values in sums.values())
            # Ranks that hold different parts end together: one that went on would wait for the others forever.
            if self._ranks.any(not is_finite) if self._is_split else not is_finite:
                raise _not_finite()
        return sums

    def forget(self) -> None:
        """Drop the sums since the last call of `take`."""
        self._sums.forget()
        self._added = 0

    @property
    def _device(self) -> torch.device:
        return next(iter(self._parameters.values())).device

    def _contents(self) -> list[int]:
        """Return the identity of each module and parameter of the model, place by place."""
        return [id(found) for place in self._places for found in place.values()]

    def _add_part(self, gradient: dict[str, Tensor], batch: Batch, weight: Tensor) -> None:
        """Add the summed gradient of all rows to `gradient`; if sums are spread, its entries are this rank's parts."""
        units = Units.one(len(weight))
        if not units.rows:
            return
        self._check(batch, weight, units.rows)
        if not self.are_sums_spread:
            self._backward(batch, weight, units, {}, dense=gradient)
            return
        whole: dict[str, Tensor] = {}
        self._backward(batch, weight, units, {}, dense=whole)
        if not weight.any():
            # This rank only takes part, on a row of another unit: if that is not finite, 0 times its gradient is not 0.
            whole = {}
        for name, parameter in self._parameters.items():
            own = added_up(whole.pop(name, _zeros(parameter)), parameter)
            gradient[name] = gradient[name].add_(own) if name in gradient else own

    def _add_plain(self, batch: Batch, weight: Tensor) -> None:
        self._add_part({name: self._sums[name] for name in self._parameters}, batch, weight)

    @contextmanager
    def _failing_for_all(self) -> Iterator[None]:
        """Mark that memory ran out in the middle of a pass that the ranks of a split model take together."""
        try:
            yield
        except (RuntimeError, MemoryError) as error:
            if self._is_split and ran_out(error):
                raise OutOfMemory from error
            raise

    def _together(self, units: int, added: int, norms: list[Tensor | None]) -> Tensor:
        """Combine norms of parts of the units' gradients, each [U, parts], into norms of the whole: float64[U].

        Args:
            added: how many of the units are added up in this call.
        """
        parts = [values.to(self._device) for values in norms if values is not None]
        nothing = torch.zeros(units, 0, device=self._device)
        whole: Tensor = torch.linalg.vector_norm(torch.cat([nothing, *parts], 1).double(), dim=1)
        return whole.mul_(1 + last_error(added, self._added, self._ranks.size))

    def _scale(self, norms: Tensor) -> Tensor:
        """Compute min(1, C / norm), and 0 where the norm is infinite or not a number: float32[U]."""
        assert self._clip_norm is not None
        return (self._clip_norm / norms).clamp_(max=1).nan_to_num_(nan=0.0).float()

    def _check(self, batch: Batch, weight: Tensor, rows: int) -> None:
        if self._contents() != self._built or [p.requires_grad for p in self._all] != self._flags:
            raise ValueError("the model's trainable parameters have changed since this sum was made")
        if self._has_batch_norm:  # it mixes rows in train mode, which may have been switched on meanwhile
            refuse_mixing(self._model)
        if weight.shape != (rows,):
            raise ValueError(f"weight has shape {tuple(weight.shape)} where the batch has {rows} rows")
        for name, values in batch.items():
            if values.shape[:1] != (rows,):
                raise InputError(
                    f"batch entry {name} has shape {tuple(values.shape)} where the batch has {rows} rows"
                )

    def _backward(
        self,
        batch: Batch,
        weight: Tensor,
        units: Units,
        slots: dict[str, Slot],
        dense: dict[str, Tensor] | None,
    ) -> None:
        """Take one forward and one backward pass; afterwards the slots hold the uses that the taps saw.

        Args:
            dense: if given, the summed gradients of all rows are added to it, by name, and not measured.
        """

        def receive(layer: Layer, kept: Tensor | None, grad: Tensor) -> None:
            with exact(grad.device):
                for own, use in layer.rule.uses(layer.module, layer.trainable, kept, grad):
                    name = layer.parameters[own]
                    if name not in slots:
                        own_units = units.on(grad.device)
                        slots[name] = self._slot(name, own_units, seen.uses[name], allowance, dense)
                    slots[name].receive(use.times(self._scales[name]) if name in self._scales else use)

        allowance, seen = Allowance(0), Seen()
        # Copied now because the host waits for a copy: later, it would wait for the whole forward pass.
        weight = weight.to(self._device, torch.float32)
        units.on(self._device)

        def weigh(losses: Tensor) -> Tensor:
            allowance.left = 2 * seen.largest
            return (losses.float() * weight.to(losses.device)).sum()

        # The rows of a single unit are clipped together, so their order does not matter.
        trusted = None if units.count == 1 else self._in_order
        # An additional pass over a split model would have to be taken by all ranks together.
        can_look = trusted is not None and not (self._is_split or self._has_looked)
        lots = Lots(self._device) if can_look else None
        try:
            self._pass(batch, units.rows, receive, seen, weigh, trusted, doubts=can_look)
            return
        except InDoubt:
            if lots is None:
                raise
        # Outside the handler, where the error would keep the tensors of the failed pass alive.
        self._look_for_order(batch, units.rows)
        lots.draw_again()
        seen.uses.clear()
        self._pass(batch, units.rows, receive, seen, weigh, trusted)

    def _pass(
        self,
        batch: Batch,
        rows: int,
        receive: Receive,
        seen: Seen,
        weigh: Callable[[Tensor], Tensor],
        trusted: set[str] | None = None,
        doubts: bool = False,
    ) -> None:
        """Take one forward pass and a backward pass from the scalar that `weigh` computes from the rows' losses."""

        # Refers to `seen` and not to the taps: a cycle through the taps would keep them and the model alive.
        def arrive(layer: Layer, kept: Tensor | None, grad: Tensor) -> None:
            if not seen.is_over:
                raise InputError(
                    f"the loss takes a gradient by itself, through module {layer.name}: what that adds to a unit's own "
                    "gradient cannot be clipped by unit; compute the loss by a forward pass alone"
                )
            receive(layer, kept, grad)

        widths = {values.shape[1] for values in batch.values() if values.dim() > 1}
        taps = Taps(self._parameters, self._layers, rows, widths, arrive, seen, trusted, doubts)
        # Without a clip norm no unit is bounded, so it does not matter what buffers store.
        unmoved = nullcontext() if self._clip_norm is None else self._buffers.unmoved()
        with taps.attached(), torch.enable_grad(), unmoved:
            with taps.forward():
                losses = self._loss(self._model, batch)
            if losses.shape != (rows,):
                raise InputError(
                    f"the loss must give one value for each of the {rows} rows, got shape {tuple(losses.shape)}"
                )
            total = weigh(losses)
            taps.seal(total)
            with torch.autocast(total.device.type, enabled=False):  # the caller's is for the forward pass
                total.backward()
            taps.refuse_unseen()

    def _look_for_order(self, batch: Batch, rows: int) -> None:
        """Find the layers whose input and output hold the rows one after another, or one entry for all rows.

        The loss of one row has no gradient at tensor entries that belong to another row. So a backward pass from one
        row's loss shows, layer by layer, whether the gradient lies only in the part that is taken to be that row's.

        Raises:
            InputError: a layer has gradients elsewhere.
        """
        own = 0

        def weigh(losses: Tensor) -> Tensor:
            nonlocal own
            own = int(losses.detach().argmax())  # the largest loss: a row that still has something to learn
            return losses[own].float()

        def receive(layer: Layer, kept: Tensor | None, grad: Tensor) -> None:
            touched = grad.flatten(1).any(1)
            if bool(touched[own]):
                self._in_order.add(layer.name)
            touched[own] = False
            if bool(touched.any()):
                raise InputError(
                    f"module {layer.name} ({type(layer.module).__name__}) runs on rows that do not lie one after "
                    "another, or that influence each other, so that no row has a gradient of its own there: freeze it"
                )

        with torch.no_grad(), _no_zeros(list(self._parameters.values())):
            self._pass(batch, rows, receive, Seen(), weigh)
        self._has_looked = True

    def _slot(
        self, name: str, units: Units, uses: int, allowance: Allowance, dense: dict[str, Tensor] | None
    ) -> Slot:
        parameter = self._parameters[name]
        target: Tensor | None = None
        if dense is not None:
            if name not in dense:
                dense[name] = _zeros(parameter)
            target = dense[name][None]
        return Slot(parameter.shape, units, uses, allowance, target)


@contextmanager
def _no_zeros(parameters: list[nn.Parameter]) -> Iterator[None]:
    """Replace zero parameters, such as half of a fresh adapter, inside the context: no gradient flows through zeros."""
    zeros = [p for p in parameters if not bool(p.any())]
    try:
        for p in zeros:
            ramp = torch.linspace(-0.02, 0.03, p.numel(), device=p.device)
            p.copy_(ramp.view_as(p))
        yield
    finally:
        for p in zeros:
            p.zero_()


def _not_finite() -> NonFiniteGradient:
    return NonFiniteGradient(
        "a gradient is infinite or not a number: lower the learning rate, use float32 or bf16 "
        "instead of float16, or look for empty or overlong rows"
    )


def _finite_or_inf(norms: Tensor) -> Tensor:
    return norms.masked_fill(norms.isnan(), math.inf)


def _zeros(parameter: Tensor) -> Tensor:
    return torch.zeros(parameter.shape, dtype=torch.float32, device=parameter.device)
