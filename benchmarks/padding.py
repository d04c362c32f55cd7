"""How much of a micro-batch is padding? python benchmarks/padding.py [--rows 4096 64] [--micro-tokens 8192] [--json]

A unit's rows stay together, so that one whose rows differ in length is mostly padding, unless its rows share lines.
Tokens with padding over tokens, for users of k rows whose lengths are uniform in 8 to 128 or log-normal (median 30, cut
off at 4 and 128), with lines that rows share and with a line for each row; beside it the same rows in batches by
length, whoever's they are, as ordinary training may have them. `passes` is how many micro-batches the lines make: a
small draw is cut into more than it would need, since a pass costs less than padding to its longest row.
"""

import argparse
import json
from itertools import product

import numpy as np

from confide.privacy.sampling import Draw
from confide.training.packing import pack

LENGTHS = {
    "uniform": lambda generator, rows: generator.integers(8, 129, rows),
    "log-normal": lambda generator, rows: np.clip(
        generator.lognormal(np.log(30), 0.9, rows).astype(int), 4, 128
    ),
}


def packed(lengths: np.ndarray, k: int, micro_tokens: int, shares: bool) -> tuple[float, int]:
    """Tokens with padding over tokens, as confide packs users of k rows; and micro-batches."""
    group = np.arange(len(lengths)) // k
    draw = Draw([np.zeros(n, np.int64) for n in lengths], group, np.ones(len(lengths), np.float32))
    batches = [own for part in pack(draw, micro_tokens, shares) for own in part.parts or (part,)]
    widths = [max(lengths[line].sum() for line in own.lines) for own in batches]
    padded = sum(len(own.lines) * width for own, width in zip(batches, widths, strict=True))
    return float(padded / lengths.sum()), len(batches)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, nargs="+", default=[4096, 64], help="of a draw")
    parser.add_argument("--micro-tokens", type=int, default=8192)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    found = []
    for rows, (name, drawn) in product(args.rows, LENGTHS.items()):
        lengths = drawn(np.random.default_rng(0), rows)
        by_length, _ = packed(np.sort(lengths), 1, args.micro_tokens, False)
        for k in (1, 2, 4, 8, 16):
            lines, passes = packed(lengths, k, args.micro_tokens, True)
            alone, _ = packed(lengths, k, args.micro_tokens, False)
            found.append(
                {"draw": rows, "lengths": name, "k": k, "lines": lines, "rows": alone, "by_length": by_length}
                | {"passes": passes}
            )
    if args.json:
        print(json.dumps(found, indent=1))
        return
    print("| rows a draw | lengths | rows a user | in lines | passes | a line a row | rows by length |")
    print("|---|---|---|---|---|---|---|")
    for each in found:
        print(
            f"| {each['draw']} | {each['lengths']} | {each['k']} | {each['lines']:.2f} | {each['passes']} | "
            f"{each['rows']:.2f} | {each['by_length']:.2f} |"
        )


if __name__ == "__main__":
    main()
