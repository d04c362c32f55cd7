"""How much of a micro-batch is padding? python benchmarks/padding.py [--micro-tokens 8192] [--json]

A unit's rows stay together, so that one whose rows differ in length is mostly padding, unless its rows share lines.
Tokens with padding over tokens, for users of k rows whose lengths are uniform in 8 to 128 or log-normal (median 30, cut
off at 4 and 128), with lines that rows share and with a line for each row; beside it the same rows in batches by
length, whoever's they are, as ordinary training may have them.
"""

import argparse
import json

import numpy as np

from confide.packing import pack
from confide.sampling import Draw

ROWS = 4096
LENGTHS = {
    "uniform": lambda generator: generator.integers(8, 129, ROWS),
    "log-normal": lambda generator: np.clip(generator.lognormal(np.log(30), 0.9, ROWS).astype(int), 4, 128),
}


def packed(lengths: np.ndarray, k: int, micro_tokens: int, shares: bool) -> float:
    """Tokens with padding over tokens, as confide packs users of k rows."""
    group = np.arange(len(lengths)) // k
    draw = Draw([np.zeros(n, np.int64) for n in lengths], group, np.ones(len(lengths), np.float32))
    batches = [own for part in pack(draw, micro_tokens, shares) for own in part.parts or (part,)]
    widths = [max(lengths[line].sum() for line in own.lines) for own in batches]
    padded = sum(len(own.lines) * width for own, width in zip(batches, widths, strict=True))
    return float(padded / lengths.sum())


def sorted_by_length(lengths: np.ndarray, micro_tokens: int) -> float:
    """The same of batches of rows in the order of their length."""
    return packed(np.sort(lengths), 1, micro_tokens, False)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--micro-tokens", type=int, default=8192)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    found = []
    for name, drawn in LENGTHS.items():
        lengths = drawn(np.random.default_rng(0))
        by_length = sorted_by_length(lengths, args.micro_tokens)
        for k in (1, 2, 4, 8, 16):
            lines, rows = (packed(lengths, k, args.micro_tokens, shares) for shares in (True, False))
            found.append({"lengths": name, "k": k, "lines": lines, "rows": rows, "by_length": by_length})
    if args.json:
        print(json.dumps(found, indent=1))
        return
    print("| lengths | rows a user | in lines | a line a row | rows by length |\n|---|---|---|---|---|")
    for each in found:
        figures = " | ".join(f"{each[name]:.2f}" for name in ("lines", "rows", "by_length"))
        print(f"| {each['lengths']} | {each['k']} | {figures} |")


if __name__ == "__main__":
    main()
