"""What two ranks cost beside one process with as many threads: steps of LoRA on a CPU, in pairs that take turns.

    python benchmarks/ranks.py [--pairs 15] [--ways ddp fsdp] [--parts]

The process has two threads, and each of the two gloo ranks has one. All take the same draw of made-up rows. Both
sides stay alive, and while one takes a step the other waits in a read. A pair is one step of each, in an order that
alternates. The ratio is that of the times of a pair; its interval holds the median with 95 % (bootstrap over pairs).
On a machine that others use, single ratios scatter widely; `processor` is the ratio of the processor's seconds, all
threads and ranks together, which others disturb less and which waiting does not count in.

`--parts` adds the seconds of a step by part, on the process and on each rank.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import time
from typing import Any

import numpy as np

SIZES = {"hidden_size": 256, "intermediate_size": 704, "num_hidden_layers": 4, "vocab_size": 2048}
UNITS, ROWS, TOKENS, MICRO_TOKENS = 16, 2, 64, 1024
SIDES = ("one process, two threads", "two ranks")


class Side:
    """Processes that take steps together when they are told to.

    Args:
        way: `alone`, `ddp` or `fsdp`.
    """

    def __init__(self, way: str, parts: bool):
        count = 1 if way == "alone" else 2
        with socket.socket() as free:
            free.bind(("localhost", 0))
            port = free.getsockname()[1]
        self._processes = []
        for rank in range(count):
            environment = os.environ | {"OMP_NUM_THREADS": str(2 // count)}
            if count > 1:
                places = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count}
                places |= {"MASTER_ADDR": "localhost", "MASTER_PORT": port}
                environment |= {name: str(value) for name, value in places.items()}
            command = [sys.executable, __file__, "--worker", way, *(["--parts"] if parts else [])]
            self._processes.append(
                subprocess.Popen(
                    command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
                )
            )
        self._told()

    def step(self) -> list[dict[str, float]]:
        """Take a step. Return the seconds of each process, whole and by part."""
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.write("step\n")
            process.stdin.flush()
        return self._told()

    def _told(self) -> list[dict[str, float]]:
        found = []
        for process in self._processes:
            assert process.stdout is not None
            line = process.stdout.readline()
            if not line:
                raise RuntimeError("a worker has ended, and says why above")
            found.append(json.loads(line))
        return found

    def end(self) -> None:
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.close()
        for process in self._processes:
            process.wait(timeout=60)


def work(way: str, parts: bool) -> None:
    """Take a step for each line of the standard input, and print its seconds."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    import _measure
    from confide.config import registry
    from confide.config.model_sections import Adapter
    from confide.distributed.ranks import Ranks
    from confide.distributed.sharding import shard
    from confide.models import adapters
    from confide.models import loading as models
    from confide.models.fast.activations import install_fast_layers
    from confide.privacy.mechanisms.values import Aggregation
    from confide.privacy.sampling import Draw
    from confide.randomness.streams import RunKey
    from confide.training.optimisation import Optimisation
    from confide.training.step import PrivateStep
    from confide.utils.allocator import keep_freed_memory

    class Same:
        def draw(self, step: int) -> Draw:
            generator = np.random.default_rng(0)
            lengths = generator.integers(TOKENS // 4, TOKENS + 1, UNITS * ROWS)
            rows = [generator.integers(2, SIZES["vocab_size"], length) for length in lengths]
            return Draw(rows, np.repeat(np.arange(UNITS), ROWS), np.full(UNITS * ROWS, 1 / ROWS, np.float32))

    keep_freed_memory()
    with Ranks.joined() as ranks:
        torch.manual_seed(0)
        model = LlamaForCausalLM(LlamaConfig(**SIZES, num_attention_heads=4, num_key_value_heads=4))
        for module in model.modules():
            models.drop_nothing(module)
        install_fast_layers(model)
        model = adapters.adapt(model, Adapter(kind="lora", rank=16), "causal-lm")
        if way == "fsdp":
            shard(model, ranks)
        extra, device = frozenset(models.accepted(model)), torch.device("cpu")
        step = PrivateStep(
            model,
            registry.task("causal-lm")(0, None, SIZES["vocab_size"], (0, 1), extra, False, device),
            Same(),
            Aggregation(1.0, 1.0, 1 / UNITS),
            Optimisation(1, 1e-3),
            RunKey.from_text("ranks"),
            micro_tokens=MICRO_TOKENS,
            ranks=ranks,
        )
        step(0)
        print(json.dumps({}), flush=True)
        for number, _ in enumerate(sys.stdin, 1):
            ranks.wait()
            began, used = time.perf_counter(), time.process_time()
            found: dict[str, float] = {}
            if parts:
                [found] = _measure.parts([_Taken(step, number)], 1, _measure.Clock(device))
            else:
                step(number)
            found |= {"seconds": time.perf_counter() - began, "processor": time.process_time() - used}
            print(json.dumps(found), flush=True)


class _Taken:
    """A step as `_measure.parts` takes it."""

    def __init__(self, step: Any, number: int):
        self._step, self._number = step, number

    def step(self) -> None:
        self._step(self._number)


def interval(ratios: list[float]) -> tuple[float, float]:
    """Return the interval that holds the median with 95 %, by resampling the pairs."""
    generator = np.random.default_rng(0)
    medians = np.median(generator.choice(ratios, (4000, len(ratios))), axis=1)
    low, high = np.quantile(medians, [0.025, 0.975])
    return float(low), float(high)


def measure(way: str, pairs: int) -> dict[str, Any]:
    sides = [Side("alone", False), Side(way, False)]
    times: list[list[float]] = [[], []]
    used: list[list[float]] = [[], []]
    try:
        for number in range(pairs + 1):
            for place in (0, 1) if number % 2 else (1, 0):
                found = sides[place].step()
                times[place].append(max(each["seconds"] for each in found))
                used[place].append(sum(each["processor"] for each in found))
            print(f"pair {number}: {times[0][-1]:.3f} s, {times[1][-1]:.3f} s", file=sys.stderr, flush=True)
    finally:
        for side in sides:
            side.end()
    alone, ranks = (each[1:] for each in times)  # the first pair warms up
    ratios = [b / a for a, b in zip(alone, ranks, strict=True)]
    low, high = interval(ratios)
    return {
        "way": way,
        "pairs": pairs,
        "seconds": [round(statistics.median(each), 3) for each in (alone, ranks)],
        "least": [round(min(each), 3) for each in (alone, ranks)],
        "ratio": round(statistics.median(ratios), 3),
        "interval": [round(low, 3), round(high, 3)],
        "processor": round(
            statistics.median(b / a for a, b in zip(used[0][1:], used[1][1:], strict=True)), 3
        ),
        "all": [round(min(ratios), 3), round(max(ratios), 3)],
        "load": round(os.getloadavg()[0], 2),
    }


def by_part(way: str, steps: int) -> None:
    """Print the median seconds of each part of a step, of each process."""
    for name, kind in zip(SIDES, ("alone", way), strict=True):
        side = Side(kind, True)
        found = [side.step() for _ in range(steps)]
        side.end()
        for rank in range(len(found[0])):
            middle = {part: statistics.median(step[rank][part] for step in found) for part in found[0][rank]}
            print(name, kind, rank, {part: round(value, 3) for part, value in middle.items()}, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--pairs", type=int, default=15)
    parser.add_argument("--ways", nargs="+", choices=["ddp", "fsdp"], default=["ddp"])
    parser.add_argument("--parts", action="store_true")
    parser.add_argument("--worker", choices=["alone", "ddp", "fsdp"], help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        work(args.worker, args.parts)
        return
    for way in args.ways:
        if args.parts:
            by_part(way, args.pairs)
        print(json.dumps(measure(way, args.pairs)), flush=True)


if __name__ == "__main__":
    main()
