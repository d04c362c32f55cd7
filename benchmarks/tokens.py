"""Time of the tokens of a file's texts, by fastokens and by the tokenizer itself, with equal ids.

python benchmarks/tokens.py FILE [--text body] [--model bundled] [--texts 4000] [--json]
"""

from __future__ import annotations

import argparse
import json
import time
from itertools import islice

import numpy as np
from transformers import AutoTokenizer

from confide.data.readers import records
from confide.data.token_ids import TokenIds
from confide.models.names import location

TOGETHER = 512


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("source")
    parser.add_argument("--text", default="text")
    parser.add_argument("--model", default="bundled")
    parser.add_argument("--texts", type=int, default=4000)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    texts = [str(record.fields[args.text]) for record in islice(records(args.source), args.texts)]
    quick = TokenIds(AutoTokenizer.from_pretrained(location(args.model)))
    if not quick.is_quick:
        print("fastokens is not installed, or does not serve this tokenizer")
        return 1
    figures = {"texts": len(texts), "characters": sum(map(len, texts))}
    found = {}
    for name, encode in (("fastokens", quick), ("tokenizer", quick._own)):
        began, processors = time.perf_counter(), time.process_time()
        found[name] = [
            ids for at in range(0, len(texts), TOGETHER) for ids in encode(texts[at : at + TOGETHER])
        ]
        figures[f"{name}_seconds"] = round(time.perf_counter() - began, 2)
        figures[f"{name}_processor_seconds"] = round(time.process_time() - processors, 2)
    if not all(map(np.array_equal, found["fastokens"], found["tokenizer"])):
        print("the ids differ")
        return 1
    print(
        json.dumps(figures) if args.json else "\n".join(f"{name}: {value}" for name, value in figures.items())
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
