"""What does each rank of a split model hold and send in a step? python benchmarks/split_step.py [--layers 12]

Two gloo ranks on the CPU take steps on a Llama of random weights, with few tokens, so that weights are most of what is
held. Ways: `lora` and `full` compute in bf16 (train.precision) on a base in float32, with weights that are borrowed in
bf16 or in float32; `nf4` is LoRA beside a base in 4 bits, split or whole on each rank.

One JSON line for each way, of the first rank. `weights` is what it holds of the model between steps, `step` the
allocator's peak of a step on top of that, `gathered` what it gets from both ranks in a step to borrow weights. MB. The
peak is the least of four steps: gloo's threads let go of what was sent a little later, the more so on a busy machine.
"""

import argparse
import datetime
import gc
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from unittest import mock

import numpy as np
import torch
import torch.distributed as dist
from transformers import AutoModelForCausalLM, LlamaConfig

import _measure
from confide.config.loading import check
from confide.distributed.ranks import Ranks
from confide.distributed.sharding import part, shard
from confide.models import loading as models
from confide.models.quantised_split import make_splittable
from confide.privacy.mechanisms.values import Aggregation
from confide.privacy.sampling import Draw
from confide.randomness.streams import RunKey
from confide.training.optimisation import Optimisation
from confide.training.step import PrivateStep
from confide.training.tasks.causal_lm import CausalLM

ROWS, LENGTH, VOCABULARY, STEPS = 4, 16, 8192, 4
WAYS = {
    "lora": ("borrowed in float32", "borrowed in bf16"),
    "full": ("borrowed in float32", "borrowed in bf16"),
    "nf4": ("whole", "split"),
}


class Same:
    """A sampler that draws the same rows at every step, each a unit."""

    def __init__(self) -> None:
        rows = [np.random.default_rng(i).integers(2, VOCABULARY, LENGTH) for i in range(ROWS)]
        self.batch = Draw(rows, np.arange(ROWS), np.ones(ROWS, np.float32))

    def draw(self, step: int) -> Draw:
        return self.batch


def gathering(seen: list[int]):
    """Count the bytes that FSDP gathers; torch has renamed what does it."""
    name = "all_gather_single" if hasattr(dist, "all_gather_single") else "all_gather_into_tensor"
    honest = getattr(dist, name)

    def counted(output, *others, **more):
        seen.append(output.nbytes)
        return honest(output, *others, **more)

    return mock.patch.object(dist, name, counted)


def settings_of(folder: Path, what: str):
    section = {} if what == "full" else {"adapter": {"kind": "lora", "rank": 8}}
    section |= {"base": {"quantise": "nf4"}} if what == "nf4" else {}
    raw = {
        "model": str(folder),
        "tokenizer": "bundled",
        "data": {"train": "x", "unit": "u", "max_length": LENGTH},
        "privacy": {"epsilon": 4.0},
    }
    return check(raw | section)


def measure(model: torch.nn.Module, ranks: Ranks) -> dict[str, float]:
    extra = frozenset(models.accepted(model))
    task = CausalLM(0, None, VOCABULARY, (), extra, True, ranks.device, caches=True)
    step = PrivateStep(
        model,
        task,
        Same(),
        Aggregation(1.0, 1.0, 1.0),
        Optimisation(5, 1e-3, optimizer="sgd"),
        RunKey.from_text("benchmark"),
        micro_tokens=ROWS * LENGTH,
        ranks=ranks,
    )
    step(0)
    peaks: list[int] = []
    for number in range(1, 1 + STEPS):
        seen: list[int] = []
        with gathering(seen):
            peaks.append(_measure.peak(lambda number=number: step(number), ranks.device))
    weights = sum(part(p).nbytes for p in model.parameters())
    found = {"weights": weights, "step": min(peaks), "gathered": sum(seen)}
    return {name: round(value / 1e6, 1) for name, value in found.items()}


def rank(folder: Path, chosen: list[str]) -> None:
    torch.set_num_threads(1)
    with Ranks.joined() as ranks:
        for what in chosen:
            for way in WAYS[what]:
                model = models.load_model(settings_of(folder, what))
                if way != "whole":
                    make_splittable(model, ranks.device)
                    shard(model, ranks, None if way == "borrowed in float32" else torch.bfloat16)
                found = measure(model, ranks)
                del model
                gc.collect()
                if ranks.first:
                    when = {"date": datetime.date.today().isoformat(), "torch": torch.__version__}
                    print(json.dumps({"what": what, "way": way} | found | when), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--what", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--rank-of", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.rank_of:
        rank(args.rank_of, args.what)
        return
    with tempfile.TemporaryDirectory() as place:
        shape = LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=512,
            intermediate_size=2048,
            num_hidden_layers=args.layers,
            num_attention_heads=8,
            pad_token_id=0,
        )
        torch.manual_seed(0)
        AutoModelForCausalLM.from_config(shape).save_pretrained(place)
        launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
        subprocess.run([*launch, __file__, "--rank-of", place, "--what", *args.what], check=True)


if __name__ == "__main__":
    main()
