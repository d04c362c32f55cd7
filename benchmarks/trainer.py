"""What PrivateTrainer costs beside `confide train`: the same model, text, config and key, in turns in one process.

    python benchmarks/trainer.py [--steps 20] [--batch 64] [--rounds 3] [--width 256] [--layers 4] [--json]

Both begin with a model in a folder and end with the saved model: they read and tokenise the text, take the steps, write
a checkpoint and the guarantee. Text is made up. A ratio is the median over rounds of PrivateTrainer's time by the
command's, by the wall and by the processor's clock, which other processes do not move.
`steps` are the seconds within the steps alone, as the private folder's metrics.jsonl has them. The weights that both
end with are compared.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from transformers import AutoTokenizer, GPT2Config, GPT2LMHeadModel, TrainingArguments

import confide
from confide.integrations import PrivateTrainer
from confide.models.names import location

WORDS = "the printer on floor three is out of paper again and nobody has a key to the store room".split()
PRIVACY = {
    "mechanism": "uls",
    "epsilon": 8,
    "unit": "author",
    "max_length": 128,
    "published_key": "for a benchmark",
}


def rows(authors: int) -> list[dict[str, str]]:
    draws = np.random.default_rng(0)
    return [
        {"text": " ".join(draws.choice(WORDS, 90)), "author": f"a{at % authors}"} for at in range(4 * authors)
    ]


def by_trainer(base: Path, data: Dataset, folder: Path, options: argparse.Namespace) -> PrivateTrainer:
    args = TrainingArguments(
        str(folder),
        max_steps=options.steps,
        per_device_train_batch_size=options.batch,
        learning_rate=1e-3,
        logging_steps=5,
        save_steps=options.steps,
        disable_tqdm=True,
        use_cpu=not torch.cuda.is_available(),
    )
    trainer = PrivateTrainer(
        model=GPT2LMHeadModel.from_pretrained(base),
        args=args,
        train_dataset=data,
        processing_class=AutoTokenizer.from_pretrained(base),
        privacy=PRIVACY,
    )
    trainer.train()
    trainer.save_model()
    return trainer


def by_command(config: confide.Config, text: Path, folder: Path) -> None:
    raw = config.model_dump(mode="json")
    raw["data"]["train"], raw["run"] = str(text), str(folder)
    raw["train"]["checkpoint_every"] = raw["train"]["steps"]
    confide.train(confide.load_config(raw))


def in_steps(private: Path) -> float:
    lines = map(json.loads, (private / "metrics.jsonl").read_text().splitlines())
    return sum(line["seconds"] for line in lines if "seconds" in line)


def measured(options: argparse.Namespace) -> dict[str, Any]:
    found: dict[str, list[float]] = defaultdict(list)
    furthest = 0.0
    with tempfile.TemporaryDirectory() as made:
        place = Path(made)
        base, text = place / "base", place / "text.jsonl"
        tokenizer = AutoTokenizer.from_pretrained(location("bundled"))
        tokenizer.save_pretrained(base)
        torch.manual_seed(0)
        sizes = {"n_embd": options.width, "n_layer": options.layers, "n_head": 4, "n_positions": 128}
        special = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 1}
        GPT2LMHeadModel(GPT2Config(vocab_size=len(tokenizer), **sizes, **special)).save_pretrained(base)
        written = rows(8 * options.batch)
        text.write_text("".join(json.dumps(row) + "\n" for row in written))
        data = Dataset.from_list(written)
        config = by_trainer(base, data, place / "warm", options).confide_config
        for number in range(options.rounds):
            ours, theirs = place / f"trainer-{number}", place / f"command-{number}"
            turns = [
                ("trainer", lambda ours=ours: by_trainer(base, data, ours, options)),
                ("command", lambda theirs=theirs: by_command(config, text, theirs)),
            ]
            for name, work in turns if number % 2 else turns[::-1]:
                began, used = time.perf_counter(), time.process_time()
                work()
                found[name].append(time.perf_counter() - began)
                found[f"{name} processor"].append(time.process_time() - used)
            found["trainer steps"].append(in_steps(ours.with_name(f"{ours.name}.private")))
            found["command steps"].append(in_steps(theirs))
            one, other = (
                GPT2LMHeadModel.from_pretrained(folder).state_dict() for folder in (ours, theirs / "release")
            )
            furthest = max(furthest, *(float((one[name] - other[name]).abs().max()) for name in one))
    by_clock, by_processor = (
        [a / b for a, b in zip(found[f"trainer{kind}"], found[f"command{kind}"], strict=True)]
        for kind in ("", " processor")
    )
    return {
        "seconds": {name: [round(value, 2) for value in values] for name, values in found.items()},
        "ratio": round(statistics.median(by_clock), 3),
        "ratio of the processor's time": round(statistics.median(by_processor), 3),
        "ratio of the least": round(min(found["trainer"]) / min(found["command"]), 3),
        "ratio of the least within steps": round(
            min(found["trainer steps"]) / min(found["command steps"]), 3
        ),
        "furthest apart": furthest,
        "steps": options.steps,
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU",
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, default in (("steps", 20), ("batch", 64), ("rounds", 3), ("width", 256), ("layers", 4)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--json", action="store_true", help="print nothing but one JSON object")
    options = parser.parse_args()
    found = measured(options)
    if options.json:
        print(json.dumps(found))
        return
    for name, value in found.items():
        print(f"{name}: {value}")


if __name__ == "__main__":
    main()
