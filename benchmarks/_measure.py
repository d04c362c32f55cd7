"""Time, memory and parts of a training step."""

from __future__ import annotations

import functools
import inspect
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
from torch.profiler import ProfilerActivity, profile

from _methods import Method
from confide.clipping import engine, slot, tap
from confide.training import step as training
from confide.training.tasks import Task
from confide.training.tensor_adamw import TensorAdamW
from confide.utils.allocator import keep_freed_memory, set_thresholds


@dataclass(frozen=True)
class Clock:
    """Seconds: on a GPU when it has done all that it was told, on the CPU by the wall or of the processor."""

    device: torch.device
    of_processor: bool = False

    def now(self) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.process_time() if self.of_processor else time.perf_counter()


def glibc_as_it_is() -> bool:
    """Memory of the CPU as a process has it that sets nothing, or somewhat better; whether glibc agreed.

    By itself glibc comes to the size of the largest block that it has seen mapped and freed, 32 MiB at most, and to
    twice that (mallopt(3), M_MMAP_THRESHOLD). Here it is 32 MiB, whatever was seen.
    """
    return set_thresholds(mmap=32 << 20, trim=64 << 20, pad=128 << 10)


def interleaved(
    methods: Sequence[Method], rounds: int, clock: Clock, by_itself: bool = False
) -> list[list[float]]:
    """Seconds of each method's step in each round, after one that warms up. The order rotates.

    Args:
        by_itself: each method has about the memory that it would have alone: that of others is given back, it takes two
            steps to have its own, and only then one that counts. Gaps between what others hold stay, and can be used.
    """
    for method in methods:
        method.step()
    times: list[list[float]] = [[] for _ in methods]
    for number in range(rounds):
        for place in range(len(methods)):
            turn = (place + number) % len(methods)
            if by_itself:
                keep_freed_memory() if methods[turn].keeps_memory else glibc_as_it_is()
                for _ in range(2):
                    methods[turn].step()
            began = clock.now()
            methods[turn].step()
            times[turn].append(clock.now() - began)
    return times


def ratio(times: list[float], base: list[float]) -> tuple[float, float, float]:
    """Median, lower and upper quartile over rounds of time / base of the same round."""
    ratios = [a / b for a, b in zip(times, base, strict=True)]
    if len(ratios) < 2:
        return ratios[0], ratios[0], ratios[0]
    low, _, high = statistics.quantiles(ratios, n=4, method="inclusive")
    return statistics.median(ratios), low, high


def peak(work: Callable[[], object], device: torch.device) -> int:
    """Most bytes of tensors that `work` holds at a time, on top of what was there before.

    On the CPU these are the allocator's own events. What lay there before and is freed meanwhile is not
    taken off. NumPy's buffers are not seen: confide's blocks of noise, made when the activations are gone.
    """
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        work()
        return torch.cuda.max_memory_allocated(device) - before
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        work()
    events = [e for e in recorded.profiler.kineto_results.events() if e.name() == "[memory]"]  # type: ignore[union-attr]
    live = most = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        live += event.nbytes()
        most = max(most, live)
    return most


class Stopwatch:
    """Seconds by part. Parts within parts are taken off the outer one."""

    def __init__(self, clock: Clock):
        self.seconds: dict[str, float] = defaultdict(float)
        self._clock = clock
        self._open = ["between"]
        self._since = clock.now()

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        self._turn()
        self._open.append(name)
        try:
            yield
        finally:
            self._turn()
            self._open.pop()

    def _turn(self) -> None:
        now = self._clock.now()
        self.seconds[self._open[-1]] += now - self._since
        self._since = now

    def timed(self, name: str, work: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(work)
        def timed_work(*args: Any, **kwargs: Any) -> Any:
            with self.part(name):
                return work(*args, **kwargs)

        return timed_work


PARTS = {
    "collate": [(Task, "collate")],
    "forward": [(Task, "row_loss")],
    "backward": [(torch.Tensor, "backward")],
    "optimiser": [(torch.optim.AdamW, "step"), (TensorAdamW, "step")],
    "taps": [(tap.Taps, "_enter"), (tap.Taps, "_leave"), (tap.Taps, "seal")],
    "norms": [(slot.Slot, "_measure")],
    "dense gradients": [(slot.Slot, "_fold")],
    "clipped sum": [(slot.Slot, "add_scaled"), (engine.ClippedSum, "take")],
    "noise": [(training, "add_noise")],
}


def parts(methods: Sequence[Method], steps: int, clock: Clock) -> list[dict[str, float]]:
    """Seconds of each method's step by part, the median over `steps`, taken in turn.

    `backward` is the pass without what the taps do in it; of that, `rules` is what is neither norms nor dense
    gradients: biases and norm layers.
    """
    watch = Stopwatch(clock)
    taps, signature = engine.Taps, inspect.signature(engine.Taps)

    def timed_rules(*args: Any) -> tap.Taps:
        given = signature.bind(*args).arguments
        return taps(**given | {"receive": watch.timed("rules", given["receive"])})

    found: list[list[dict[str, float]]] = [[] for _ in methods]
    with ExitStack() as patches:
        for part, places in PARTS.items():
            for owner, name in places:
                timed = watch.timed(part, getattr(owner, name))
                patches.enter_context(mock.patch.object(owner, name, timed))
        patches.enter_context(mock.patch.object(engine, "Taps", timed_rules))
        for _ in range(steps):
            for method, own in zip(methods, found, strict=True):
                watch.seconds.clear()
                with watch.part("other"):
                    method.step()
                del watch.seconds["between"]
                own.append(dict(watch.seconds))
    return [{part: statistics.median(step[part] for step in own) for part in own[0]} for own in found]
