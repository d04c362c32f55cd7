"""What a LoRA step takes, beside what `confide plan` says of it, with the base held in float32, bf16, 8 or 4 bits.

    python benchmarks/memory.py --shape llama-1b --quantise nf4 --precision bf16 --rows 8 --length 32

The model has random weights. Weights and the optimiser's states are counted; what a step takes on top of them is the
allocator's peak, as in `step.py`.
"""

from __future__ import annotations

import argparse
import datetime
import gc
import json
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
import transformers

import _measure
from confide.config.loading import check
from confide.models import loading as models
from confide.planning.cost import Size
from confide.planning.memory import kept, memory
from confide.privacy.mechanisms.values import Aggregation
from confide.privacy.sampling import Draw
from confide.randomness.streams import RunKey
from confide.training.optimisation import Optimisation
from confide.training.step import PrivateStep
from confide.training.tasks.causal_lm import CausalLM
from step import SHAPES


class Same:
    """A sampler that draws the same rows at every step."""

    def __init__(self, rows: list[np.ndarray]):
        group = np.arange(len(rows))
        self.batch = Draw(rows, group, np.ones(len(rows), np.float32))

    def draw(self, step: int) -> Draw:
        return self.batch


def measure(args: argparse.Namespace, folder: Path) -> dict[str, object]:
    torch.manual_seed(0)
    shape = SHAPES[args.shape]()
    with torch.device(args.device):
        held = transformers.AutoModelForCausalLM.from_config(shape, dtype=torch.bfloat16)
    held.save_pretrained(folder)
    del held
    gc.collect()
    tokens = args.rows * args.length
    settings = check(
        {
            "model": str(folder),
            "tokenizer": "bundled",
            "data": {"train": "x", "unit": "u", "max_length": args.length},
            "privacy": {"epsilon": 4.0},
            "adapter": {"kind": "lora", "rank": args.rank},
            "base": {"precision": args.precision, "quantise": args.quantise, "quantiser": args.quantiser},
            "train": {"micro_tokens": tokens, "optimizer": "adamw"},
        }
    )
    device = torch.device(args.device)
    model = models.load_model(settings).to(device)
    extra = frozenset(models.accepted(model))
    task = CausalLM(0, None, shape.vocab_size, (), extra, args.autocast, device, caches=True)
    size = Size.of(model)
    planned = memory(settings, size, kept(model, task, args.length))
    rows = [np.random.default_rng(i).integers(2, shape.vocab_size, args.length) for i in range(args.rows)]
    step = PrivateStep(
        model,
        task,
        Same(rows),
        Aggregation(1.0, 1.0, 1.0),
        Optimisation(5, 1e-3, optimizer="adamw"),
        RunKey.from_text("benchmark"),
        micro_tokens=tokens,
    )
    step(0)
    gc.collect()
    began = time.perf_counter()
    peak = _measure.peak(lambda: step(1), device)
    seconds = time.perf_counter() - began
    # What stays between steps besides the weights: the optimiser's states.
    found = size.weights_bytes + 8 * size.trainable + peak
    return {
        "shape": args.shape,
        "base": settings.base.model_dump(),
        "rows": f"{args.rows} of {args.length}",
        "measured_GB": round(found / 1e9, 3),
        "planned_GB": round(planned.whole / 1e9, 3),
        "planned_over_measured": round(planned.whole / found, 3),
        "seconds": round(seconds, 3),
        "device": str(device) if device.type == "cpu" else torch.cuda.get_device_name(device),
        "parts_GB": {name: round(value / 1e9, 3) for name, value in vars(planned).items()},
        "date": datetime.date.today().isoformat(),
        "torch": torch.__version__,
    }


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, default="small")
    parser.add_argument("--precision", choices=("float32", "bf16", "fp16"), default="float32")
    parser.add_argument("--quantise", choices=("none", "int8", "nf4"), default="none")
    parser.add_argument("--quantiser", choices=("bitsandbytes", "torchao"), default="bitsandbytes")
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--autocast", action="store_true", help="run the model in bf16: train.precision")
    return parser.parse_args()


def main() -> None:
    args = arguments()
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps(measure(args, Path(folder) / "model"), indent=1))


if __name__ == "__main__":
    main()
