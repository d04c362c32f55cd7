"""What the exact rank of a planted number costs: seconds, and token positions against reading every candidate.

    python benchmarks/exposure.py [--digits 6] [--threads 2] [--json]

The bundled base model ranks a number among all of so many digits, in a template that ends with the number and in one
that goes on behind it. The number stands at the best hundredth of the candidates, as one that was learnt would, or in
their middle (by a sample of a thousand); of that one it is also asked only whether its exposure is above 3 bits.
"""

import argparse
import json
import time

import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from confide.auditing.candidates import Candidates
from confide.auditing.exposure import exact
from confide.auditing.likelihood import totals
from confide.auditing.trie import Trie
from confide.models.names import BUNDLED, location

TEMPLATES = ("My ID is {}", "My ID is {}.")
ASKED = (
    ("at the best 1%", 0.99, 0.0),
    ("in the middle", 0.5, 0.0),
    ("in the middle, above 3 bits?", 0.5, 3.0),
)
SAMPLE = 1000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--digits", type=int, default=6)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    model = AutoModelForCausalLM.from_pretrained(location(BUNDLED)).eval()
    tokenizer = AutoTokenizer.from_pretrained(location(BUNDLED))
    rows = []
    for template in TEMPLATES:
        trie = Trie.of(Candidates.digits(template, given.digits), tokenizer)
        size = min(SAMPLE, len(trie))
        sample = np.random.default_rng(0).choice(len(trie), size, replace=False)
        order = sample[np.argsort(totals(model, trie.rows(sample)))]
        for place, quantile, least in ASKED:
            began = time.perf_counter()
            (found,) = exact(model, trie, [int(order[int(quantile * (size - 1))])], least)
            rows.append(
                {
                    "template": template,
                    "number": place,
                    "exposure": round(found.exposure, 2),
                    "method": found.method,
                    "seconds": round(time.perf_counter() - began, 1),
                    "positions": found.positions,
                    "fewer": round(found.plain_positions / found.positions, 1),
                }
            )
    if given.json:
        print(json.dumps(rows, indent=2))
        return
    print(
        "| template | number | exposure | seconds | positions | times fewer than all texts |\n"
        + "|---" * 6
        + "|"
    )
    for row in rows:
        bits = f"{'at most ' if row['method'] == 'bounded' else ''}{row['exposure']:.2f}"
        print(
            f"| {row['template']} | {row['number']} | {bits} | {row['seconds']:.1f} | {row['positions']:,} | "
            f"{row['fewer']:.1f} |"
        )


if __name__ == "__main__":
    main()
