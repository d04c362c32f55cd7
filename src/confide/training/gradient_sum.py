"""Sum the clipped gradients of a draw, in micro-batches that fit in memory."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import nn

from confide.clipping import ClippedSum
from confide.distributed.ranks import Ranks
from confide.distributed.sharding import is_sharded
from confide.privacy.sampling import Draw
from confide.randomness.streams import RunKey, Stream
from confide.training.lockstep import share_spread, share_together
from confide.training.microbatch import micro_batch
from confide.training.packing import Open, Pack
from confide.training.schedule import share
from confide.training.tasks import Batch, Task, each_line, each_row
from confide.utils.memory import OutOfMemory, give_back, not_again, ran_out, too_long

Vectors = dict[str, torch.Tensor]
"""One tensor for each trainable parameter, by name; of a split model, this rank's part."""


@dataclass
class Losses:
    """The task's loss of each row, kept for the report.

    This is not a method of `GradientSum`: that object would then refer to itself, and to the model, through its
    clipped sum. Such a reference cycle stays in memory until Python's garbage collector looks for cycles.

    Attributes:
        count: whether the current pass is over rows that count.
    """

    task: Task
    count: bool = True
    kept: list[tuple[torch.Tensor, Batch]] = field(default_factory=list)

    def __call__(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        losses = self.task.row_loss(model, batch)
        if self.count:
            self.kept.append((losses.detach(), batch))
        return each_line(losses, batch)

    def take(self) -> list[torch.Tensor]:
        kept, self.kept = self.kept, []
        # Only after the passes: selecting the rows that exist makes the host wait for the device.
        return [each_row(losses, batch) for losses, batch in kept]


class GradientSum:
    """Sum of the clipped gradients of the units of a draw.

    Formal guarantee: after `add`, `take` is the sum over the units u of the draw of w_u clip(g_u, C), where clip
    gives 0 for a gradient that is not finite. With several ranks, each clips its share of the units, and all get
    the one sum.

    Args:
        model: computes gradients; the parameters that require grad count.
        task: collates rows and computes each row's own loss.
        clip_norm: C; None clips nothing.
        key: masks of a masked language model are a function of (key, phase, step, row).
        micro_tokens: tokens of a physical micro-batch; halved if memory does not suffice.
        ranks: the processes that add up one draw together.
        say: called with a sentence if memory did not suffice.
        scales: factors on the gradients of parameters, by name, as `ClippedSum` has them.
    """

    def __init__(
        self,
        model: nn.Module,
        task: Task,
        clip_norm: float | None,
        key: RunKey,
        phase: str,
        micro_tokens: int,
        ranks: Ranks,
        say: Callable[[str], None],
        scales: Mapping[str, float | torch.Tensor],
    ):
        self.task, self.key, self.phase = task, key, phase
        self.micro_tokens, self.ranks, self.say = micro_tokens, ranks, say
        self.is_split = is_sharded(model)
        self.losses = Losses(task)
        self.clips = clip_norm is not None
        self.clipped = ClippedSum(model, self.losses, clip_norm, ranks, scales)
        self._arriving = torch.empty(0)
        self._pieces: list[
            tuple[Pack | Open, Vectors]
        ] = []  # gradients of units that other ranks hold rows of, too
        self._begun: dict[int, Vectors] = {}  # gradients of units that the next pass has rows of, too

    def take(self) -> Vectors:
        """Return the sum so far, and start a new one."""
        return self.clipped.take()

    def add(self, draw: Draw, step: int) -> list[torch.Tensor]:
        """Clip and add up the whole draw. Return the norms of this rank's units."""
        return self.add_packs(draw, step, self._share)

    def add_packs(
        self,
        draw: Draw,
        step: int,
        packs: Callable[[Draw], Iterable[Pack]],
        each: Callable[[Pack, torch.Tensor], torch.Tensor] = lambda pack, norms: norms,
    ) -> list[torch.Tensor]:
        """Clip and add up the whole draw, packed by `packs`. Return the norms of this rank's units.

        Args:
            packs: splits the draw into micro-batches.
            each: called with each pack after it was added, and with its norms; returns the norms to keep.
        """
        while True:
            is_passing = True
            try:
                norms, failed = [each(pack, self._add(draw, pack, step)) for pack in packs(draw)], False
                is_passing = False
                self._allocate()
            except (RuntimeError, MemoryError, OutOfMemory) as error:
                if not ran_out(error):
                    raise
                if self.is_split and is_passing:  # the other ranks wait in the middle of a pass
                    raise not_again(self.micro_tokens) from error
                norms, failed = [], True
            if not self.ranks.any(failed):
                return norms + self._exchange()
            self.start_over(draw)

    def _share(self, draw: Draw) -> Sequence[Pack]:
        deal = share
        if self.is_split:
            deal = share_spread if self.clipped.are_sums_spread else share_together
        return deal(draw, self.micro_tokens, self.ranks.size, self.ranks.number, self.task.packs_rows)

    def _allocate(self) -> None:
        """Allocate what `_exchange` and `take` need, while running out of memory can still start the draw over."""
        self.clipped.allocate()
        for piece, gradient in self._pieces:
            self.clipped.complete(gradient)
            if piece.holders[0] == self.ranks.number:
                self._arriving = torch.empty(
                    max(g.numel() for g in gradient.values()), device=self.ranks.device
                )

    def _exchange(self) -> list[torch.Tensor]:
        """Send the pieces to the first holder of each unit, which clips the sum. Return the norms of this rank's units.

        Units are taken in the same order everywhere, so no two ranks wait for each other.
        """
        norms = []
        for piece, gradient in sorted(self._pieces, key=lambda held: held[0].unit):
            owner, *others = piece.holders
            if owner != self.ranks.number:
                self.ranks.send(list(gradient.values()), owner)
                continue
            for other in others:
                for values in gradient.values():
                    arriving = self._arriving[: values.numel()].view(values.shape)
                    self.ranks.receive(arriving, other)
                    values.add_(arriving)
            norms.append(torch.tensor([self.clipped.add_gradient(gradient)]))
        self._pieces, self._arriving = [], torch.empty(0)
        return norms

    def start_over(self, draw: Draw) -> None:
        """Forget what was added, for the same draw in smaller pieces. Nothing of it has been used yet.

        Raises:
            InputError: the pieces are of one row already.
        """
        longest = max(map(len, draw.rows), default=self.micro_tokens)
        if self.micro_tokens <= longest:
            raise too_long(longest)
        self.clipped.forget()
        self._pieces, self._arriving, self._begun = [], torch.empty(0), {}
        self.losses.take()
        give_back(self.ranks.device)
        self.micro_tokens //= 2
        self.say(
            f"memory ran out: micro-batches of {self.micro_tokens:,} tokens from now on, on the same draw"
        )

    def _add(self, draw: Draw, part: Pack, step: int) -> torch.Tensor:
        if part.parts:
            passes = (self._pass(draw, own, step) for own in part.parts)
            if part.holders:
                self._pieces.append((part, self.clipped.gradient(passes)))
                return torch.zeros(0)
            norm = self.clipped.add_large(passes)
            return torch.tensor([] if self.clipped.are_sums_spread and not self.ranks.first else [norm])
        batch, weight = self._pass(draw, part, step)
        if not part.lines:
            self.clipped.add(batch, torch.zeros(1, dtype=torch.int64), weight)
            return torch.zeros(0)
        if part.opens and self.clips:
            return self._add_open(part, batch, weight)
        return self.clipped.add(batch, torch.from_numpy(part.units), weight)

    def _add_open(self, part: Pack, batch: Batch, weight: torch.Tensor) -> torch.Tensor:
        """Add a pass that has some lines only of some units. Return the norms of the units that it makes whole."""
        begun = {each.number: self._begun.pop(each.unit, {}) for each in part.opens}
        found = torch.zeros(0)
        if part.units.any():
            norms = self.clipped.add(batch, torch.from_numpy(part.units), weight, begun)
            found = norms[[number for number in range(len(norms)) if number not in begun]].cpu()
        else:  # rows of one unit need not be told apart
            self.clipped.gradient([(batch, weight)], begun[0])
        for each in part.opens:
            if not each.ends:
                self._begun[each.unit] = begun[each.number]
            elif each.holders:
                self._pieces.append((each, begun[each.number]))
            else:
                found = torch.cat([found, torch.tensor([self.clipped.add_gradient(begun[each.number])])])
        return found

    def _pass(self, draw: Draw, part: Pack, step: int) -> tuple[Batch, torch.Tensor]:
        """Collate some rows of the draw, with their weights. If there are none, collate one row that does not count."""

        def hide(row: str) -> Stream:
            return self.key.stream(self.phase, "hide", step, row)

        self.losses.count = bool(part.lines)
        if not self.losses.count:
            shortest = Pack.of([[min(range(len(draw.rows)), key=lambda i: len(draw.rows[i]))]])
            return micro_batch(self.task, draw, shortest, hide)[0], torch.zeros(1)
        return micro_batch(self.task, draw, part, hide)
