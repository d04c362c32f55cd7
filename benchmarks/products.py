"""How much faster is oneDNN than MKL at the products of linear layers? python benchmarks/products.py [--json]

Float32 layers of several sizes on the CPU: the forward pass of a linear layer and the gradient of its input, by what
torch calls by itself and by oneDNN, in turn; medians over rounds, each shape seen before. `confide.models.fast.onednn`
says where the latter is used.
"""

import argparse
import json
import statistics
import time
from functools import partial

import torch
from torch.nn import functional

from confide.models.fast import onednn as products
from confide.utils.allocator import keep_freed_memory

LAYERS = "64x256 128x512 256x256 256x1024 1024x256 768x768 768x3072 3072x768 256x8192 768x50257".split()
POSITIONS = (1, 128, 2048)


def race(ways: dict, rounds: int) -> dict[str, float]:
    """Median seconds of each, taken in turn after one that warms up."""
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(rounds + 1):
        for name, work in ways.items():
            began = time.perf_counter()
            work()
            if number:
                taken[name].append(time.perf_counter() - began)
    return {name: statistics.median(own) for name, own in taken.items()}


def measure(layers: list[str], positions: list[int], rounds: int) -> list[dict]:
    found = []
    for layer in layers:
        inputs, outputs = map(int, layer.split("x"))
        weight, bias = torch.randn(outputs, inputs), torch.randn(outputs)
        for rows in positions:
            given, grad = torch.randn(rows, inputs), torch.randn(rows, outputs)
            ways = {
                "forward": partial(functional.linear, given, weight, bias),
                "forward, oneDNN": partial(products.product, given, weight, bias),
                "backward": partial(torch.matmul, grad, weight),
                "backward, oneDNN": partial(products.product, grad, weight.T),
            }
            seconds = race(ways, rounds)
            found.append({"layer": layer, "positions": rows, **seconds})
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--layers", nargs="+", default=LAYERS, help="inputs x outputs, such as 64x256")
    parser.add_argument("--positions", type=int, nargs="+", default=POSITIONS)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    if not products.exist():
        parser.error("this torch has no oneDNN")
    keep_freed_memory()
    with torch.no_grad():
        found = measure(args.layers, args.positions, args.rounds)
    if args.json:
        print(json.dumps(found, indent=1))
        return
    print("| layer | positions | forward, MKL's time by oneDNN's | backward |\n|---|---|---|---|")
    for each in found:
        gains = " | ".join(f"{each[way] / each[f'{way}, oneDNN']:.2f}" for way in ("forward", "backward"))
        print(f"| {each['layer']} | {each['positions']} | {gains} |")


if __name__ == "__main__":
    main()
