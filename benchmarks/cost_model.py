"""Is the clipping's cost model right? Times both ways to a layer's norms and clipped sum, and what it would choose.

    python benchmarks/cost_model.py [--device cuda] [--json]

For layers of several sizes, 16 rows of 128 tokens and units of k rows: keeping the factors (Gram norm, then one
product) against one dense gradient for each unit (product, norm, weighted sum).
"""

import argparse
import json
import statistics
import time

import torch

from confide.clipping.factors import Outer, add_weighted, row_squares
from confide.clipping.rounding import exact
from confide.clipping.slot import dense_is_faster
from confide.clipping.units import Units
from confide.utils.allocator import keep_freed_memory

ROWS, POSITIONS = 16, 128
LAYERS = ((32, 256), (32, 768), (256, 256), (256, 1024), (256, 8192), (768, 768), (768, 3072), (1024, 4096))
MOST = 1 << 30  # bytes of dense gradients that are tried


def factors(use: Outer, units: Units, total: torch.Tensor) -> None:
    scale = use.squares(units)[0].rsqrt().float()
    use.add_scaled(total, scale[units.of_row.to(scale.device)], fresh=True)


def dense(use: Outer, units: Units, total: torch.Tensor) -> None:
    each = torch.empty(units.count, *total.shape, device=total.device)
    use.add_to(each, units, fresh=True)
    scale = row_squares(each).rsqrt().float()
    add_weighted(total.view(-1), each.view(units.count, -1), scale, fresh=True)


def milliseconds(work, use: Outer, units: Units, total: torch.Tensor, rounds: int) -> float:
    taken = []
    for _ in range(rounds + 1):
        if total.is_cuda:
            torch.cuda.synchronize()
        began = time.perf_counter()
        work(use, units, total)
        if total.is_cuda:
            torch.cuda.synchronize()
        taken.append(time.perf_counter() - began)
    return 1e3 * statistics.median(taken[1:])


def measure(device: torch.device, rounds: int) -> list[dict]:
    found = []
    for p, q in LAYERS:
        use = Outer(*(torch.randn(ROWS, POSITIONS, width, device=device) for width in (q, p)))
        total = torch.empty(q, p, device=device)
        for k in (1, 2, 8):
            units = Units.of(torch.arange(ROWS) // k)
            if 4 * units.count * p * q > MOST:
                continue
            with exact(device):
                ways = {
                    way.__name__: milliseconds(way, use, units, total, rounds) for way in (factors, dense)
                }
            chosen = "dense" if dense_is_faster(units, POSITIONS, q, p) else "factors"
            best = min(ways, key=ways.__getitem__)
            lost = ways[chosen] / ways[best] - 1
            found.append({"layer": f"{p} x {q}", "k": k, **ways, "chosen": chosen, "lost": lost})
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    keep_freed_memory()
    rows = measure(torch.device(args.device), args.rounds)
    if args.json:
        print(json.dumps(rows, indent=1))
        return
    print("| layer | k | factors, ms | dense, ms | chosen | lost |\n|---|---|---|---|---|---|")
    for row in rows:
        print(
            f"| {row['layer']} | {row['k']} | {row['factors']:.2f} | {row['dense']:.2f} | {row['chosen']} | "
            f"{row['lost']:.0%} |"
        )


if __name__ == "__main__":
    main()
