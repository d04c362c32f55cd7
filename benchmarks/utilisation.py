"""How busy ranks are: the schedule of a draw, simulated on shapes of data, without a model.

    python benchmarks/utilisation.py [--plot FILE.svg]

Utilisation is what one rank would need for the draw, over the ranks' number times what the slowest of them needs.
Counted are tokens with padding, the assumed cost of each pass, and that of each gradient that is sent or received.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import numpy as np

from confide.privacy.sampling import Draw
from confide.training.schedule import share
from confide.training.utilisation import apart, spread, together, utilisation
from confide.utils.chart import Panel, panels_svg

# users of a draw, rows of each, tokens of a row, ranks, tokens of a micro-batch; `to` gives a spread of lengths
SHAPES = (
    (128, 10, 2048, 8, 16384),
    (128, 10, 2048, 16, 16384),
    (10, 5000, 64, 2, 16384),
    (10, 5000, 128, 8, 16384),
    (10, 500, 1024, 64, 16384),
    (16, 100, 512, 8, 16384),
    (24, 40, 1024, 16, 16384),
    (50, 20, 4096, 8, 16384),
    (64, 64, 256, 4, 8192),
    (100, 1, 4096, 2, 16384),
    (100, 300, 128, 16, 16384),
    (256, 8, 1024, 8, 16384),
    (300, 30, 1024, 64, 65536),
    (512, 4, 512, 16, 16384),
    (1000, 1, 512, 8, 16384),
    (1000, 10, 256, 32, 16384),
    (2048, 1, 1024, 64, 16384),
    (4096, 2, 128, 8, 65536),
    (10000, 1, 256, 64, 16384),
    (10000, 5, 64, 16, 65536),
)


def draw_of(users: int, rows: int, tokens: int, spread: bool, seed: int = 0) -> Draw:
    """Make a draw; with `spread`, users have from 1 row to twice as many, and rows from an eighth of the tokens on."""
    generator = np.random.default_rng(seed)
    counts = generator.integers(1, 2 * rows, users) if spread else np.full(users, rows)
    lengths = (
        generator.integers(max(2, tokens // 8), tokens + 1, counts.sum())
        if spread
        else np.full(counts.sum(), tokens)
    )
    empty = np.zeros(tokens, np.int32)
    return Draw(
        [empty[:length] for length in lengths.tolist()],
        np.repeat(np.arange(users), counts),
        np.ones(counts.sum(), np.float32),
    )


LENGTHS = ["equal", "spread"]
# Ranks that work apart; that take each pass together, and hold a whole gradient; that hold parts of one.
WAYS = {"ddp": apart, "fsdp": together, "fsdp-full": spread}


def measure(shape: tuple[int, int, int, int, int], is_spread: bool, ways: list[str]) -> dict[str, object]:
    users, rows, tokens, ranks, micro_tokens = shape
    draw = draw_of(users, rows, tokens, is_spread)
    began = time.perf_counter()
    share(draw, micro_tokens, ranks, 0)
    seconds = time.perf_counter() - began
    return {
        "users": users,
        "rows": rows,
        "tokens": tokens,
        "ranks": ranks,
        "micro_tokens": micro_tokens,
        "lengths": "spread" if is_spread else "equal",
        "seconds": round(seconds, 3),
    } | {way: round(utilisation(draw, micro_tokens, ranks, WAYS[way]), 3) for way in ways}


NAMES = {"ddp": "ddp", "fsdp": "fsdp, LoRA", "fsdp-full": "fsdp, full"}


def picture(found: list[dict[str, object]], ways: list[str]) -> str:
    """Draw the utilisation of every shape, from the least of each way to the largest."""
    panels = []
    for lengths in LENGTHS:
        own = [each for each in found if each["lengths"] == lengths]
        lines = {
            NAMES[way]: list(enumerate(sorted(float(str(each[way])) for each in own), 1))
            for way in ways
            if own
        }
        if lines:
            panels.append(Panel(f"Rows of {lengths} lengths", "shapes, sorted", "utilisation", lines))
    return panels_svg("How busy ranks are, simulated", panels)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--lengths", nargs="+", choices=LENGTHS, default=LENGTHS, help="rows of a draw")
    parser.add_argument(
        "--ways", nargs="+", choices=list(WAYS), default=list(WAYS), help="how ranks share it"
    )
    parser.add_argument("--plot", type=Path)
    args = parser.parse_args()
    found = [measure(shape, lengths == "spread", args.ways) for lengths in args.lengths for shape in SHAPES]
    for each in found:
        print(json.dumps(each))
    for lengths in args.lengths:
        for way in args.ways:
            values = [float(str(each[way])) for each in found if each["lengths"] == lengths]
            print(lengths, way, f"least {min(values):.3f}, mean {np.mean(values):.3f}")
    if args.plot:
        args.plot.write_text(picture(found, args.ways))


if __name__ == "__main__":
    main()
