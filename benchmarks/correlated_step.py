"""Measure what correlated noise costs a step of the quickstart: `python benchmarks/correlated_step.py`.

Time is that of a step over that of the same step with independent noise, in turn, once bands and buffers are full. The
memory is what lies there between two steps and the allocator's peak on top, over the same of independent noise.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
from pathlib import Path

import numpy as np
import torch

from _measure import Clock, peak
from confide.cli.quickstart import config
from confide.models import loading as models
from confide.privacy.correlated_noise import INDEPENDENT, Banded, Buffered, Correlation
from confide.privacy.mechanisms.values import Aggregation
from confide.privacy.sampling import Draw
from confide.randomness.streams import RunKey
from confide.training.optimisation import Optimisation
from confide.training.step import PrivateStep
from confide.training.tasks.causal_lm import CausalLM
from confide.utils.allocator import keep_freed_memory

MATRICES: dict[str, Correlation] = {
    "independent": INDEPENDENT,
    "10 bands": Banded(10),
    "2 buffers": Buffered(2),
    "3 buffers": Buffered(3),
}
CLOCK = Clock(torch.device("cpu"))


@dataclasses.dataclass(frozen=True)
class Same:
    """A sampler that draws the same rows at every step."""

    batch: Draw

    def draw(self, step: int) -> Draw:
        return self.batch


class Run:
    """The steps of one run, and the number of those that it has taken."""

    def __init__(self, matrix: Correlation, args: argparse.Namespace):
        own = config(Path("unused"))
        self.model = models.load_model(own)
        vocabulary = self.model.config.vocab_size
        extra = frozenset(models.accepted(self.model))
        task = CausalLM(0, None, vocabulary, (), extra, False, torch.device("cpu"), caches=True)
        rows = list(np.random.default_rng(0).integers(2, vocabulary, (args.rows, args.length)))
        draw = Draw(rows, np.arange(len(rows)), np.ones(len(rows), np.float32))
        self.copies, self.taken = max(0, matrix.copies - 1), 0  # that of the step itself is gone between two
        self.take = PrivateStep(
            self.model,
            task,
            Same(draw),
            Aggregation(1.0, 1.0, 1 / args.rows, correlation=matrix),
            Optimisation(10_000, 1e-3),
            RunKey.from_text("benchmark"),
            micro_tokens=8192,
        )

    def step(self) -> None:
        self.take(self.taken)
        self.taken += 1

    def memory(self) -> int:
        """Bytes of weights, states and earlier noise between two steps, and a step's peak on top of them."""
        trains = sum(p.numel() for p in models.trainable(self.model).values())
        between = sum(p.nbytes for p in self.model.parameters()) + 4 * trains * (2 + self.copies)
        return between + peak(self.step, torch.device("cpu"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=195, help="rows of a step, of one unit each")
    parser.add_argument("--length", type=int, default=32, help="tokens of a row")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--warm", type=int, default=10, help="steps of each before the first that counts")
    args = parser.parse_args()
    keep_freed_memory()
    runs = {name: Run(matrix, args) for name, matrix in MATRICES.items()}
    for run in runs.values():
        for _ in range(args.warm):
            run.step()
    times: dict[str, list[float]] = {name: [] for name in runs}
    for number in range(args.rounds):
        order = list(runs)
        for name in order[number % len(order) :] + order[: number % len(order)]:
            began = CLOCK.now()
            runs[name].step()
            times[name].append(CLOCK.now() - began)
    memory = {name: run.memory() for name, run in runs.items()}
    first = next(iter(runs))
    print(f"{args.rows} rows of {args.length} tokens: a step of independent noise takes", end=" ")
    print(f"{statistics.median(times[first]):.2f} s and {memory[first] / 2**20:.0f} MiB")
    for name in runs:
        ratios = [own / base for own, base in zip(times[name], times[first], strict=True)]
        low, middle, high = statistics.quantiles(ratios, n=4, method="inclusive")
        print(
            f"{name}: time x {middle:.3f} ({low:.3f} to {high:.3f}), memory x {memory[name] / memory[first]:.3f}"
        )


if __name__ == "__main__":
    main()
