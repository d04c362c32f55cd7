"""What a masked model saves where its output layer runs on hidden tokens alone: python benchmarks/masked.py [--json]

Clipped sums of a random model in the shape of BERT, over rows of random tokens, with logits of the hidden tokens and of
all. Both ways take turns; the ratio is the median over rounds. `--shape tiny` is BERT-Tiny (2 layers, 128 wide),
`--shape small` 4 layers, 256 wide.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from functools import partial
from unittest import mock

import numpy as np
import torch
from torch import Tensor, nn
from transformers import AutoModelForMaskedLM, BertConfig

from confide.clipping import ClippedSum
from confide.randomness.streams import RunKey
from confide.training.tasks import masked_lm
from confide.training.tasks.base import Batch
from confide.utils.allocator import keep_freed_memory

SHAPES = {"tiny": (2, 128), "small": (4, 256)}
MASK, TOKENS = 1, 2  # ids: the mask, and the first that is text


def shaped(layers: int, width: int, vocabulary: int) -> nn.Module:
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=vocabulary,
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=width // 64,
        intermediate_size=4 * width,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    model: nn.Module = AutoModelForMaskedLM.from_config(config)
    return model


def everywhere(model: nn.Module, places: Tensor, forward: Callable[[], Tensor]) -> Tensor:
    """Make the logits of all tokens, and take those of the hidden ones."""
    logits = forward()
    return logits.gather(1, places[:, :, None].expand(-1, -1, logits.shape[-1]))


def seconds(clipped: ClippedSum, batch: Batch) -> float:
    units = torch.arange(len(batch["input_ids"]))
    began = time.perf_counter()
    clipped.add(batch, units, torch.ones(len(units)))
    taken = time.perf_counter() - began
    clipped.take()
    return taken


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, default="tiny")
    parser.add_argument("--vocabulary", type=int, default=30_522)
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    keep_freed_memory()
    model = shaped(*SHAPES[args.shape], args.vocabulary)
    extra, device = frozenset({"position_ids", "token_type_ids"}), torch.device("cpu")
    task = masked_lm.MaskedLM(0, MASK, args.vocabulary, (0, MASK), extra, False, device)
    generator, key = np.random.default_rng(0), RunKey.from_text("masked")
    rows = [generator.integers(TOKENS, args.vocabulary, args.length) for _ in range(args.rows)]
    batch = task.collate(rows, hide=[key.stream("masked", "hide", i) for i in range(args.rows)])
    clipped = ClippedSum(model, task.packed_loss, 1.0)
    ways = {
        "hidden": partial(seconds, clipped, batch),
        "all": mock.patch.object(masked_lm, "logits_at", everywhere)(partial(seconds, clipped, batch)),
    }
    taken = {name: [way()] for name, way in ways.items()}  # a warm-up
    for number in range(args.rounds):
        for name in sorted(ways, reverse=bool(number % 2)):
            taken[name].append(ways[name]())
    pairs = zip(taken["hidden"][1:], taken["all"][1:], strict=True)
    found = {
        "places": batch["places"].shape[1],
        "length": args.length,
        "seconds_hidden": statistics.median(taken["hidden"][1:]),
        "seconds_all": statistics.median(taken["all"][1:]),
        "ratio": statistics.median(one / other for one, other in pairs),
    }
    print(json.dumps(found, indent=1) if args.json else "\n".join(f"{k}: {v:.3g}" for k, v in found.items()))


if __name__ == "__main__":
    main()
