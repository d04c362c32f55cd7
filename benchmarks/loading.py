"""How much memory do the ranks of a split model take while they load it? python benchmarks/loading.py [--gigabytes 3]

The checkpoint is a Llama of random weights in bf16, in files of 1 GB with an index. Gloo ranks load it on the CPU, with
LoRA beside a frozen base in bf16, or to train all weights in float32: by parts as under train.distributed: fsdp, or
whole on each rank before it is split. This process reads the ranks' memory from /proc every few milliseconds.

One JSON line for each way, in GB, of all ranks together. `anonymous` is what the ranks hold as their own, at the peak
and on top of what they held before they began to load; `file` is pages of files at the peak (libraries, and the
checkpoint's, which the kernel gives up when it needs them), shared ones counted once; `resident` adds up each rank's
own peak of resident memory, which counts shared pages once a rank.
"""

import argparse
import datetime
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, LlamaConfig

from confide.config.loading import check
from confide.distributed.ranks import Ranks
from confide.distributed.sharding import is_sharded, shard
from confide.models import loading as models
from confide.models import sharded
from confide.runs import fingerprints

VOCABULARY, FILE = 32_000, 1e9
WAYS = ("parts", "whole")


def shape(gigabytes: float) -> LlamaConfig:
    """A Llama of about as many bytes in bf16: 2048 wide, or narrower where two layers would be too much."""
    width = 2048 if gigabytes >= 1 else 1024
    layer = 2 * (4 * width * width + 3 * width * 4 * width)
    layers = max(1, round((gigabytes * 1e9 - 4 * width * VOCABULARY) / layer))
    return LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=width,
        intermediate_size=4 * width,
        num_hidden_layers=layers,
        num_attention_heads=width // 64,
        max_position_embeddings=2048,
        pad_token_id=0,
    )


def write(folder: Path, gigabytes: float) -> float:
    """Write the checkpoint, and return its GB."""
    settings = shape(gigabytes)
    settings.save_pretrained(folder)
    with torch.device("meta"):
        empty = AutoModelForCausalLM.from_config(settings).state_dict()
    torch.manual_seed(0)
    files: dict[str, str] = {}
    waiting: dict[str, torch.Tensor] = {}
    names = list(empty)
    for name in names:
        waiting[name] = torch.randn(empty[name].shape, dtype=torch.bfloat16) * 0.02
        if sum(2 * values.numel() for values in waiting.values()) >= FILE or name == names[-1]:
            file = f"model-{len(set(files.values())) + 1:05}.safetensors"
            save_file(waiting, folder / file, metadata={"format": "pt"})
            files |= dict.fromkeys(waiting, file)
            waiting = {}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": files}))
    return sum(path.stat().st_size for path in folder.glob("*.safetensors")) / 1e9


def settings_of(folder: Path, train: str):
    lora = {"adapter": {"kind": "lora", "rank": 16}, "base": {"precision": "bf16"}}
    return check(
        {
            "model": str(folder),
            "tokenizer": "bundled",
            "data": {"train": "x", "unit": "u", "max_length": 64},
            "privacy": {"epsilon": 4.0},
        }
        | (lora if train == "lora" else {})
    )


def rank(folder: Path, train: str, way: str, marks: Path) -> None:
    """Load as a run does up to its first pass, and leave a file when each stage begins."""
    settings = settings_of(folder, train)
    import peft  # noqa: F401 - what a run has imported by then
    import torch.distributed.fsdp  # noqa: F401

    with Ranks.joined() as ranks:
        (marks / f"{ranks.number}-{os.getpid()}").touch()
        ranks.wait()
        time.sleep(0.5)
        (marks / "begins").touch()
        began = time.perf_counter()
        model, stored = (
            models.load_to_split(settings) if way == "parts" else (models.load_model(settings), {})
        )
        assert bool(stored) == (way == "parts")
        digest = fingerprints.of_weights(model, stored, ranks)
        shard(model, ranks)
        sharded.fill(model, stored, settings.model, ranks)
        ranks.wait()
        assert is_sharded(model)
        if ranks.first:
            seconds = round(time.perf_counter() - began, 1)
            (marks / "ends").write_text(json.dumps({"seconds": seconds, "digest": digest.hex()[:16]}))
        time.sleep(0.5)


def memory_of(processes: list[str]) -> dict[str, int]:
    """Bytes of the processes together, by kind."""
    found = dict.fromkeys(("Pss_Anon", "Pss_Shmem", "Pss_File"), 0)
    for process in processes:
        for line in Path(f"/proc/{process}/smaps_rollup").read_text().splitlines():
            name = line.split(":")[0]
            if name in found:
                found[name] += int(line.split()[1]) * 1024
    return found


def measure(folder: Path, size: float, args: argparse.Namespace, train: str, way: str) -> dict[str, object]:
    with tempfile.TemporaryDirectory() as place:
        marks = Path(place)
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        command += ["--nproc-per-node", str(args.ranks), __file__, "--rank-of", str(folder)]
        command += ["--marks", place, "--train", train, "--way", way]
        process = subprocess.Popen(command, env=os.environ | {"OMP_NUM_THREADS": "1"})
        before: dict[str, int] = {}
        most = {"anonymous": 0, "file": 0}
        resident: dict[str, int] = {}
        while process.poll() is None:
            time.sleep(0.01)
            ids = [path.name.split("-")[1] for path in marks.glob("*-*")]
            if len(ids) < args.ranks:
                continue
            try:
                now = memory_of(ids)
                peaks = {own: Path(f"/proc/{own}/status").read_text().split("VmHWM:")[1] for own in ids}
            except (OSError, IndexError):
                continue  # a rank has ended
            if not (marks / "begins").exists():
                before = now
                continue
            most["anonymous"] = max(most["anonymous"], now["Pss_Anon"] + now["Pss_Shmem"])
            most["file"] = max(most["file"], now["Pss_File"])
            for own, status in peaks.items():
                resident[own] = int(status.split()[0]) * 1024
        assert process.returncode == 0, "a rank failed"
        own = before["Pss_Anon"] + before["Pss_Shmem"]
        return {
            "train": train,
            "way": way,
            "ranks": args.ranks,
            "checkpoint": round(size, 2),
            "anonymous": round(most["anonymous"] / 1e9, 2),
            "on_top": round((most["anonymous"] - own) / 1e9, 2),
            "on_top_over_checkpoint": round((most["anonymous"] - own) / 1e9 / size, 2),
            "anonymous_over_checkpoint": round(most["anonymous"] / 1e9 / size, 2),
            "file": round(most["file"] / 1e9, 2),
            "resident": round(sum(resident.values()) / 1e9, 2),
            **json.loads((marks / "ends").read_text()),
            "date": datetime.date.today().isoformat(),
            "torch": torch.__version__,
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=3.0, help="of the checkpoint, in bf16")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--train", choices=("lora", "full"), nargs="+", default=["lora", "full"])
    parser.add_argument("--way", choices=WAYS, nargs="+", default=list(WAYS))
    parser.add_argument("--rank-of", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--marks", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.rank_of is not None:
        rank(args.rank_of, args.train[0], args.way[0], args.marks)
        return
    with tempfile.TemporaryDirectory() as folder:
        size = write(Path(folder), args.gigabytes)
        for train in args.train:
            for way in args.way:
                print(json.dumps(measure(Path(folder), size, args, train, way)), flush=True)


if __name__ == "__main__":
    main()
