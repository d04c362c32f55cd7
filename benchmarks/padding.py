"""How much of a micro-batch is padding? python benchmarks/padding.py [--micro-tokens 8192] [--json]

A unit's rows stay together, and are padded to the longest row of their micro-batch: so a unit whose rows differ in
length costs more than its tokens. Tokens with padding over tokens, for users of k rows whose lengths are uniform in 8
to 128 or log-normal (median 30, cut off at 4 and 128); beside it the same rows in batches by length, whoever's they
are, as ordinary training may have them.
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


def packed(lengths: np.ndarray, k: int, micro_tokens: int) -> float:
    """Tokens with padding over tokens, as confide packs users of k rows."""
    group = np.arange(len(lengths)) // k
    draw = Draw([np.zeros(n, np.int64) for n in lengths], group, np.ones(len(lengths), np.float32))
    batches = [rows for part in pack(draw, micro_tokens) for rows in (part.parts or (part.rows,))]
    return float(sum(len(rows) * lengths[rows].max() for rows in batches) / lengths.sum())


def sorted_by_length(lengths: np.ndarray, micro_tokens: int) -> float:
    """The same of batches of rows in the order of their length."""
    return packed(np.sort(lengths), 1, micro_tokens)


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
            ours = packed(lengths, k, args.micro_tokens)
            found.append({"lengths": name, "k": k, "packed": ours, "by_length": by_length})
    if args.json:
        print(json.dumps(found, indent=1))
        return
    print("| lengths | rows a user | padded / tokens | rows by length |\n|---|---|---|---|")
    for each in found:
        print(f"| {each['lengths']} | {each['k']} | {each['packed']:.2f} | {each['by_length']:.2f} |")


if __name__ == "__main__":
    main()
