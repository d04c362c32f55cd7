"""The processes that train one model together, as torchrun starts them; or one process alone."""

import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from confide.utils.errors import InputError, RankLost
from confide.utils.memory import not_between_ranks, ran_out

_LAUNCHED = {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}  # torchrun sets these
_PATIENCE = timedelta(hours=2)  # one rank may read the text while the others wait
# A thread of gloo's may still have to let go of a tensor, for which it needs the interpreter. If a split model keeps
# the group alive, nobody waits for that thread; if it comes while the interpreter ends, it aborts the process.
_LAST_WORDS = 0.3  # seconds


def launched() -> bool:
    """Tell whether torchrun started this process as one of several."""
    return set(os.environ) >= _LAUNCHED and os.environ["WORLD_SIZE"] != "1"


def leave(code: int) -> None:
    """End this process at once if it is one of several on GPUs whose process group still exists, as after an error.

    At the interpreter's end NCCL would wait for the other ranks, which wait for this one; torchrun stops them only
    once this one has ended. Without such a group nothing happens.
    """
    if dist.is_available() and dist.is_initialized() and dist.get_backend() == "nccl":
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _device() -> torch.device:
    """Return the device of a process alone; of several GPUs the current one, which is the caller's choice."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def _local_device(local: int) -> torch.device:
    """Return the GPU of a rank, and make it the current one."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    if local >= torch.cuda.device_count():
        raise InputError(
            f"torchrun --nproc-per-node: there is no GPU for rank {local} of this machine, which has "
            f"{torch.cuda.device_count()}"
        )
    torch.cuda.set_device(local)
    return torch.device("cuda", local)


@dataclass(frozen=True)
class Ranks:
    """This process among those of the run. Every rank must make the same calls in the same order.

    Attributes:
        number: 0..size-1.
        size: how many there are; 1 if confide runs without torchrun.
        local_size: how many of them share this machine, this one included.
        device: the device on which this rank computes.
    """

    number: int = 0
    size: int = 1
    local_size: int = 1
    device: torch.device = field(default_factory=_device)

    @classmethod
    @contextmanager
    def joined(cls) -> Iterator["Ranks"]:
        """Join the ranks that torchrun started, for as long as the block runs; else yield this process alone.

        Raises:
            RankLost: a rank ended inside the block while this one waited for it.
        """
        if not set(os.environ) >= _LAUNCHED:
            yield cls()
            return
        device = _local_device(int(os.environ.get("LOCAL_RANK", "0")))
        if device.type == "cuda":
            dist.init_process_group("nccl", timeout=_PATIENCE, device_id=device)
        else:
            dist.init_process_group("gloo", timeout=_PATIENCE)
        local_size = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        ranks = cls(dist.get_rank(), dist.get_world_size(), local_size, device)
        try:
            yield ranks
        except RuntimeError as error:
            if isinstance(error, dist.DistError) or "gloo" in str(error):
                raise RankLost(f"rank {ranks.number}: another rank of the run has ended") from error
            raise
        ranks.wait()  # a rank that leaves while another still listens can crash it
        dist.destroy_process_group()  # not after an error: it would wait for ranks that have ended
        if device.type == "cpu":
            time.sleep(_LAST_WORDS)

    @property
    def first(self) -> bool:
        """True for the one rank that writes files and messages."""
        return self.number == 0

    @property
    def several(self) -> bool:
        return self.size > 1

    def wait(self) -> None:
        """Wait until every rank has made this call."""
        if self.several:
            dist.barrier()

    @contextmanager
    def first_ahead(self) -> Iterator[None]:
        """Run the block on the first rank, then on the others, so that they find the files it wrote."""
        if not self.first:
            self.wait()
        yield
        if self.first:
            self.wait()

    def add_up(self, tensors: Sequence[Tensor]) -> None:
        """Replace each tensor by its sum over the ranks, in place.

        Raises:
            InputError: memory ran out, and nobody knows what the other ranks have received. A new start could pair
                this rank's next message with another one of theirs, so the run ends.
        """
        if not self.several:
            return
        try:
            for work in [dist.all_reduce(tensor, async_op=True) for tensor in tensors]:
                work.wait()
        except (RuntimeError, MemoryError) as error:
            if ran_out(error):
                raise not_between_ranks() from error
            raise

    def send(self, tensors: Sequence[Tensor], to: int) -> None:
        """Send tensors to another rank, which receives as many of the same shapes."""
        for work in [dist.isend(tensor, to) for tensor in tensors]:
            if work is not None:
                work.wait()

    def receive(self, into: Tensor, sender: int) -> None:
        """Receive the next tensor that another rank sends, in place."""
        dist.recv(into, sender)

    def any(self, flag: bool) -> bool:
        """Return True if `flag` is true on any rank."""
        if not self.several:
            return flag
        count = torch.tensor([int(flag)], device=self.device)
        dist.all_reduce(count)
        return bool(count.item())

    def least(self, value: int) -> int:
        """Return the smallest of the ranks' values."""
        if not self.several:
            return value
        values = torch.tensor([value], device=self.device)
        dist.all_reduce(values, op=dist.ReduceOp.MIN)
        return int(values.item())

    def from_first(self, make: Callable[[], bytes]) -> bytes:
        """Return what the first rank makes. It alone does the work.

        Raises:
            InputError: the first rank has raised one; all ranks raise the same.
        """
        if not self.several:
            return make()
        told: list[Any] = [None]
        if self.first:
            try:
                told = [make()]
            except InputError as error:
                told = [error]
        dist.broadcast_object_list(told)
        if isinstance(told[0], InputError):
            raise told[0]
        return bytes(told[0])

    def alike(self, text: str) -> bool:
        """Tell whether every rank gave the same text."""
        if not self.several:
            return True
        texts: list[object] = [None] * self.size
        dist.all_gather_object(texts, text)
        return all(other == text for other in texts)
