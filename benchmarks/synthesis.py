"""Documents sampled together, against transformers' `generate` in a loop: python benchmarks/synthesis.py RUN [--json]

RUN is a run folder or its release. Both write as many documents of as many tokens, with the same settings.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from statistics import median

import torch

from confide.models.released import load_alone
from confide.runs.generate import Options, Prompter, Voice
from confide.synthesis.sampling import released_folder, seed_of


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", type=Path)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    model, tokenizer = load_alone(released_folder(args.run))
    voice = Voice("it", model, Prompter(tokenizer, Options(args.tokens, 1.0, 1.0, chat=False)))
    voice.ends = []  # every document then has all of its tokens
    ids = torch.tensor([voice.prompter("")])
    settings = voice._settings(args.tokens)
    ratios, rates = [], []
    for number in range(args.rounds):
        begun = time.perf_counter()
        voice.several("", args.batch, seed_of(0, number))
        together = time.perf_counter() - begun
        begun = time.perf_counter()
        with torch.inference_mode():
            for _ in range(args.batch):
                model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), generation_config=settings)
        ratios.append((time.perf_counter() - begun) / together)
        rates.append(args.batch * args.tokens / together)
    found = {"times_faster": median(ratios), "tokens_a_second": median(rates), "batch": args.batch}
    print(
        json.dumps(found)
        if args.json
        else f"{found['times_faster']:.1f} times as fast as a loop, {found['tokens_a_second']:.0f} tokens a second"
    )


if __name__ == "__main__":
    main()
