"""What all membership attacks take of memory and time, and how often a model reads a row.

    python benchmarks/membership.py [--rows 100000 1000000] [--json]

Generated rows of 4 to 8 tokens, a third each members, others and a population, and models of one layer with random
weights and a small vocabulary, so that what grows with rows shows and not what a model takes; a process for each size.
All seven attacks are run, with one reference model, from the columns of both models.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from transformers import AutoTokenizer, GPT2Config, GPT2LMHeadModel

from confide.auditing import membership
from confide.data.unit_graph import UnitGraph
from confide.models.names import BUNDLED, location
from confide.training.tasks import Task
from confide.training.tasks.causal_lm import CausalLM
from unit_graph import build

MICRO_TOKENS, VOCABULARY = 8192, 256


def model(seed: int) -> GPT2LMHeadModel:
    torch.manual_seed(seed)
    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=VOCABULARY,
            n_positions=16,
            n_embd=16,
            n_layer=1,
            n_head=1,
            bos_token_id=0,
            eos_token_id=0,
        )
    ).eval()


def measure(rows: int) -> dict[str, float]:
    torch.set_num_threads(1)
    tokenizer = AutoTokenizer.from_pretrained(location(BUNDLED))
    extra = frozenset({"position_ids"})
    task = CausalLM(0, None, VOCABULARY, (), extra, False, torch.device("cpu"))
    read = [0]

    def counted(module: object, args: object, given: dict[str, torch.Tensor]) -> None:
        read[0] += len(given["input_ids"])

    audited, reference = model(0), model(1)
    for each in (audited, reference):
        each.register_forward_pre_hook(counted, with_kwargs=True)
    with tempfile.TemporaryDirectory() as folder:
        graph = build(Path(folder), rows, rows // 4, VOCABULARY)
        before, began = _peak(), time.perf_counter()
        third = rows // 3
        sides = [
            _side(audited, reference, task, graph, tokenizer, np.arange(first, first + third))
            for first in (0, third, 2 * third)
        ]
        found = membership.attack(*sides)
    return {
        "rows": 3 * third,
        "attacks": len(found.attacks),
        "readings_of_a_row": read[0] / (3 * third) / 2,
        "seconds": round(time.perf_counter() - began, 1),
        "before_mb": before,
        "peak_mb": _peak(),
    }


def _side(
    audited: GPT2LMHeadModel,
    reference: GPT2LMHeadModel,
    task: Task,
    graph: UnitGraph,
    tokenizer: object,
    rows: np.ndarray,
) -> membership.Side:
    own = membership.columns(audited, task, graph, rows, MICRO_TOKENS)
    base = membership.columns(reference, task, graph, rows, MICRO_TOKENS, tokenwise=False)
    compressed = membership.compressed_lengths(graph, own.rows, tokenizer)
    return membership.Side(own, (base,), compressed, membership.unit_of(graph, own.rows))


def _peak() -> int:
    kilobytes = 1 if sys.platform != "darwin" else 1 / 1024  # macOS counts bytes
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * kilobytes / 1024)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[100_000, 1_000_000])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--alone", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.alone:
        print(json.dumps(measure(given.rows[0])))
        return
    found = []
    for rows in given.rows:
        command = [sys.executable, __file__, "--rows", str(rows), "--alone"]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        found.append(json.loads(done.stdout.splitlines()[-1]))
    if given.json:
        print(json.dumps(found, indent=2))
        return
    print(
        "| rows | attacks | each row read by a model | seconds | MB before | MB at the peak |\n"
        + "|---" * 6
        + "|"
    )
    for row in found:
        print(
            f"| {row['rows']:,} | {row['attacks']} | {row['readings_of_a_row']:g} times | {row['seconds']} | "
            f"{row['before_mb']:,} | {row['peak_mb']:,} |"
        )


if __name__ == "__main__":
    main()
