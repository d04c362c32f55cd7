"""What a private step costs beside an ordinary one: time and peak memory, measured side by side.

    python benchmarks/step.py --shape small --train full --k 1 8 [--peers] [--compile] [--profile] [--json]

Every method has its own copy of one model with random weights and trains it on the same rows of random
tokens. In each round each takes one step, in an order that rotates; a time ratio is the median over rounds
of a method's time by that of ordinary training in the same round. `least_ratio` is the least time by the
least time: what others on the machine disturb is left out of it. Memory is what lies there between steps
(weights, optimiser state) and the peak of one step on top of it.

Ordinary training, "plain", computes activations, linear layers and losses as transformers' own trainer does; "plain,
by confide" does so by confide's faster ways, so that what is left beside it is the price of privacy alone.

`--peers` adds Opacus, by row. For full fine-tuning it runs, as does confide beside it, on a copy of the
model whose output layer is not tied and whose Conv1D layers are linear ones ("untied"). `confide_ratio` is
the median over rounds of a peer's time by confide's.

Where a GPU's memory does not suffice, all methods get half as many rows at a time, and the tables say how many.

On a CPU confide's runs ask glibc to keep freed memory in the process. Here every method has that, which is hard on
confide; with `--memory own` each has about what it would have alone.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import gc
import importlib.metadata
import importlib.util
import json
import re
import statistics
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

import _measure
import _report
from _methods import (
    Confide,
    Ghost,
    Hooks,
    Method,
    Peer,
    Plain,
    Setting,
    clipped_sum,
    for_peers,
    median_norm,
)
from confide.config.model_sections import Adapter
from confide.models import adapters
from confide.models import loading as models
from confide.training.tasks.causal_lm import CausalLM
from confide.utils.allocator import keep_freed_memory
from confide.utils.memory import OutOfMemory, give_back, ran_out

WRONG = 0.01  # of the norm: float32 alone makes Opacus' norms of wide layers wrong by 3e-3


def _gpt2(layers: int, width: int, heads: int, vocabulary: int, positions: int) -> transformers.GPT2Config:
    return transformers.GPT2Config(
        n_layer=layers,
        n_embd=width,
        n_head=heads,
        vocab_size=vocabulary,
        n_positions=positions,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=0,
        eos_token_id=0,
    )


def _llama() -> transformers.LlamaConfig:
    return transformers.LlamaConfig(
        hidden_size=2048,
        intermediate_size=8192,
        num_hidden_layers=16,
        num_attention_heads=32,
        num_key_value_heads=8,
        vocab_size=128256,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
    )


SHAPES = {
    "tiny": lambda: _gpt2(1, 32, 2, 128, 64),
    "small": lambda: _gpt2(4, 256, 4, 8192, 256),
    "gpt2": lambda: _gpt2(12, 768, 12, 50257, 1024),
    "gpt2-medium": lambda: _gpt2(24, 1024, 16, 50257, 1024),
    "gpt2-large": lambda: _gpt2(36, 1280, 20, 50257, 1024),
    "llama-1b": _llama,
}


def setting(args: argparse.Namespace) -> Setting:
    """The model with its adapter, and rows of random tokens, frequent ones more often, as in text."""
    torch.manual_seed(0)
    config = SHAPES[args.shape]()
    with torch.device(args.device):  # a billion weights take a CPU most of a minute to draw
        model = transformers.AutoModelForCausalLM.from_config(config)
    model = adapters.adapt(model, Adapter(kind=args.train, rank=32), "causal-lm").to(args.device)
    vocabulary = config.vocab_size
    extra = frozenset(models.accepted(model))
    bf16 = args.precision == "bf16"
    task = CausalLM(0, None, vocabulary, (), extra, bf16, torch.device(args.device), caches=True)
    share = 1 / np.arange(10, vocabulary + 10)
    tokens = np.random.default_rng(0).choice(vocabulary, (args.batch, args.length), p=share / share.sum())
    return Setting(model.train(), task, list(tokens), args.rows * args.length)


def fitting(
    own: Setting, args: argparse.Namespace, find: Callable[[Setting], list[dict[str, Any]]]
) -> list[dict[str, Any]]:
    """What `find` says of a setting whose micro-batches fit in memory, which all methods share."""
    while True:
        try:
            return [row | {"micro_rows": own.micro_tokens // args.length} for row in find(own)]
        except (RuntimeError, MemoryError, OutOfMemory) as error:
            if not ran_out(error) or own.micro_tokens // args.length <= max(args.k):
                raise
        gc.collect()  # what the error held is free by now
        give_back(torch.device(args.device))
        own = dataclasses.replace(own, micro_tokens=own.micro_tokens // 2)
        print(f"memory ran out: {own.micro_tokens // args.length} rows at a time", file=sys.stderr)


def compare(case: str, methods: Sequence[Method], args: argparse.Namespace) -> list[dict[str, Any]]:
    """Rows of figures, one for each method; the first is ordinary training."""
    device = torch.device(args.device)
    clock = _measure.Clock(device, args.clock == "cpu")
    times = _measure.interleaved(methods, args.rounds, clock, args.memory == "own")
    private = next(own for method, own in zip(methods, times, strict=True) if isinstance(method, Confide))
    memory = []
    for method in methods:
        gc.collect()
        memory.append(method.optimizer_copies() + _measure.peak(method.step, device))
    rows: list[dict[str, Any]] = []
    for method, own, used in zip(methods, times, memory, strict=True):
        middle, low, high = _measure.ratio(own, times[0])
        rows.append(
            {
                "case": case,
                "k": method.k,
                "method": method.name,
                "time_ratio": middle,
                "time_quartiles": [low, high],
                "least_ratio": min(own) / min(times[0]),
                "confide_ratio": _measure.ratio(own, private)[0] if isinstance(method, Peer) else None,
                "memory_ratio": used / memory[0],
                "memory_bytes": used,
                "seconds": statistics.median(own),
                "rounds": args.rounds,
            }
        )
    if args.profile:
        ours = [place for place, method in enumerate(methods) if isinstance(method, Plain | Confide)]
        found = _measure.parts([methods[place] for place in ours], args.profiled, clock)
        for place, parts in zip(ours, found, strict=True):
            rows[place]["parts"] = parts
    return rows


def sum_error(peer: Peer, right: dict[str, torch.Tensor]) -> float:
    """Distance of a peer's clipped sum from confide's, by the norm of the latter."""
    sums = peer.clipped_sum()
    off = sum(float((sums[name] - value).double().square().sum()) for name, value in right.items())
    return (off / sum(float(value.double().square().sum()) for value in right.values())) ** 0.5


def measure(args: argparse.Namespace) -> list[dict[str, Any]]:
    own = setting(args)
    size = f"{args.batch} rows of {args.length}, {args.precision}"
    found: list[dict[str, Any]] = []
    # With several micro-batches their borders depend on k, and ordinary training is to have the same ones.
    for ks in [args.k] if args.batch <= args.rows else [[k] for k in args.k]:

        def ours(own: Setting, ks: Sequence[int] = ks) -> list[dict[str, Any]]:
            methods = [Plain(own, ks[0]), Plain(own, ks[0], own_task=True), *(Confide(own, k) for k in ks)]
            if args.compile:
                methods.append(Plain(own, ks[0], compiled=True))
            return compare(f"{args.shape} {args.train}, {size}", methods, args)

        found += fitting(own, args, ours)
    if args.peers:
        case = f"{args.shape} {args.train}, {size}"
        if args.train == "full":
            own, case = for_peers(own), f"{args.shape} untied {args.train}, {size}"
        own = dataclasses.replace(own, clip_norm=median_norm(own, 1))

        def peers(own: Setting) -> list[dict[str, Any]]:
            return beside_peers(case, own, args)

        found += fitting(own, args, peers)
    return found


def beside_peers(case: str, own: Setting, args: argparse.Namespace) -> list[dict[str, Any]]:
    right = clipped_sum(own, 1)
    peers = [Hooks(own), Ghost(own)]
    errors = {peer.name: sum_error(peer, right) for peer in peers}
    right.clear()  # as large as the model
    rows = compare(case, [Plain(own, 1), Confide(own, 1), *peers], args)
    return [
        row if error is None else row | {"sum_error": error, "sum_wrong": error > WRONG}
        for row in rows
        for error in [errors.get(row["method"])]
    ]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, default="small", help="tiny is for a test of the command")
    parser.add_argument("--train", choices=("lora", "full"), default="full")
    parser.add_argument("--k", type=int, nargs="+", default=[1, 8], help="rows that are clipped together")
    parser.add_argument("--peers", action="store_true", help="compare with Opacus, which must be installed")
    parser.add_argument(
        "--compile", action="store_true", help="compare with ordinary training of a model that torch compiled"
    )
    parser.add_argument("--profile", action="store_true", help="also where the time of a step goes")
    parser.add_argument("--profiled", type=int, default=7, help="steps of --profile")
    parser.add_argument("--device", default="cpu")
    parser.add_argument(
        "--clock",
        choices=("wall", "cpu"),
        default="wall",
        help="cpu: processor time, for a busy machine; with OMP_NUM_THREADS=1, as waiting threads count",
    )
    parser.add_argument(
        "--memory",
        choices=("kept", "own"),
        default="kept",
        help="of a CPU. kept: freed memory stays in the process, for every method; own: for confide alone,\n"
        "which asks for it. Each method then takes two steps before the one that counts",
    )
    parser.add_argument("--precision", choices=("float32", "bf16"), default="float32")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument(
        "--rows", type=int, help="of a physical micro-batch; default: 16, on a GPU 256 or all of a step"
    )
    parser.add_argument("--length", type=int, default=128, help="tokens of a row")
    parser.add_argument("--batch", type=int, help="rows of a step; default: as many as --rows, or 16")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    args = parser.parse_args()
    on_gpu = args.device.startswith("cuda")
    args.batch = args.batch or args.rows or 16
    args.rows = args.rows or (min(256, args.batch) if on_gpu else 16)
    if args.memory == "own" and not (args.device == "cpu" and _measure.glibc_as_it_is()):
        parser.error("--memory own is about glibc's memory on a CPU, which is not what is used here")
    if args.peers and importlib.util.find_spec("opacus") is None:
        parser.error("--peers compares with Opacus, which is not installed: pip install opacus==1.6.0")
    return args


def versions(args: argparse.Namespace) -> dict[str, str]:
    """Of what is measured."""
    packages = ["torch", "transformers", *(["opacus"] if args.peers else [])]
    return {name: importlib.metadata.version(name) for name in packages}


def main() -> None:
    args = arguments()
    keep_freed_memory()
    rows = measure(args)
    on_gpu = args.device.startswith("cuda")
    device = torch.cuda.get_device_name(args.device) if on_gpu else f"CPU, {torch.get_num_threads()} threads"
    about = {"device": device, "date": datetime.date.today().isoformat()} | versions(args)
    about |= {"clock": args.clock, "memory": args.memory}
    rows = [row | about for row in rows]
    title = f"{args.shape}, {args.train} fine-tuning, {args.batch} rows of {args.length}, {args.precision}"
    at_once = "/".join(map(str, sorted({row["micro_rows"] for row in rows})))
    with_what = ", ".join(f"{name} {version}" for name, version in versions(args).items())
    how = f"{device}, {with_what}, {about['date']}, {args.rounds} rounds, {args.clock} clock, {at_once} rows at a time"
    if args.memory == "own":
        how += ", memory about as each method has it alone"
    text = f"{title}\n\n{how}\n\n"
    text += _report.table(rows) + "\n"
    if args.profile:
        text += "\n" + _report.parts_table(rows) + "\n"
    args.out.mkdir(parents=True, exist_ok=True)
    where = re.sub("[^a-z0-9]+", "-", device.lower()) if on_gpu else args.device
    parts = [args.shape, args.train, f"{args.batch}x{args.length}", args.precision, where]
    name = "-".join(
        parts + ["peers"] * args.peers + ["compiled"] * args.compile + ["own-memory"] * (args.memory == "own")
    )
    (args.out / f"{name}.md").write_text(text)
    (args.out / f"{name}.svg").write_text(_report.chart(title, rows))
    sys.stdout.write(json.dumps(rows, indent=1) + "\n" if args.json else text)


if __name__ == "__main__":
    main()
