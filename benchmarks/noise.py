"""Measure how long noise for a vector of a model's size takes: `python benchmarks/noise.py`."""

import argparse
import statistics
import time

import torch

from confide.randomness.streams import RunKey, add_noise

SIZES = {"the bundled model": 5_322_240, "GPT-2": 124_439_808}


def seconds(values: torch.Tensor, rounds: int) -> float:
    """Return the median time of some rounds, each with other noise."""
    key, found = RunKey.from_text("benchmark"), []
    for number in range(rounds + 1):
        began = time.perf_counter()
        add_noise([(values, key.stream("benchmark", "noise", number), 0)], 1.0)
        found.append(time.perf_counter() - began)
    return statistics.median(found[1:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    for name, size in SIZES.items():
        took = seconds(torch.zeros(size), given.rounds)
        print(f"{name}: {1e3 * took:.0f} ms, {1e9 * took / size:.1f} ns a value on {given.threads} threads")


if __name__ == "__main__":
    main()
