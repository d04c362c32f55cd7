"""Is evaluation as fast as plain inference? python benchmarks/evaluation.py [--device cuda] [--json]

Rows of 8 to 128 random tokens, for the GPT-2 of 4 layers and 256 wide with random weights. Evaluation gives every row's
loss, tokens and hits; plain inference computes logits and mean loss of the same rows, in batches as large, of rows of
like length, and keeps nothing. Interleaved; the ratio is the median over rounds.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional
from transformers import AutoModelForCausalLM

from confide.data.unit_graph import GraphWriter, UnitGraph
from confide.training import evaluation
from confide.training.tasks.causal_lm import CausalLM
from confide.utils.allocator import keep_freed_memory
from step import SHAPES

ROWS, MICRO_TOKENS = 1000, 8192


def rows_on_disk(folder: Path, vocabulary: int) -> UnitGraph:
    generator = np.random.default_rng(0)
    with GraphWriter(folder / "graph", vocabulary) as writer:
        for row in range(ROWS):
            writer.add(generator.integers(2, vocabulary, generator.integers(8, 129)), [f"u{row}"])
    return UnitGraph.open(folder / "graph")


@torch.no_grad()
def inference(model: torch.nn.Module, rows: list[np.ndarray], device: torch.device) -> float:
    total, start = 0.0, 0
    while start < len(rows):
        stop = start + 1
        while stop < len(rows) and (stop - start + 1) * len(rows[stop]) <= MICRO_TOKENS:
            stop += 1
        some = [torch.from_numpy(row.astype(np.int64)) for row in rows[start:stop]]
        ids = torch.nn.utils.rnn.pad_sequence(some, batch_first=True).to(device)
        logits = model(input_ids=ids, use_cache=False).logits
        total += float(functional.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten()))
        start = stop
    return total


def seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    keep_freed_memory()
    device = torch.device(args.device)
    config = SHAPES["small"]()
    model = AutoModelForCausalLM.from_config(config).to(device).eval()
    task = CausalLM(0, None, config.vocab_size, (), frozenset({"position_ids"}), False, device, caches=True)
    with tempfile.TemporaryDirectory() as folder:
        graph = rows_on_disk(Path(folder), config.vocab_size)
        rows = sorted(graph.fetch(np.arange(ROWS)), key=len)
        ways = {
            "inference": lambda: inference(model, rows, device),
            "evaluation": lambda: evaluation.row_losses(model, task, graph, MICRO_TOKENS),
        }
        taken = {name: [seconds(way) for _ in range(1)] for name, way in ways.items()}  # a warm-up
        for number in range(args.rounds):
            for name in sorted(ways, reverse=bool(number % 2)):
                taken[name].append(seconds(ways[name]))
    pairs = zip(taken["evaluation"][1:], taken["inference"][1:], strict=True)
    found = {
        "rows": ROWS,
        "inference_seconds": statistics.median(taken["inference"][1:]),
        "evaluation_seconds": statistics.median(taken["evaluation"][1:]),
        "ratio": statistics.median(ours / plain for ours, plain in pairs),
    }
    print(json.dumps(found, indent=1) if args.json else "\n".join(f"{k}: {v:.3g}" for k, v in found.items()))


if __name__ == "__main__":
    main()
