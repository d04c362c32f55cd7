"""Time of `confide prepare` by one process, by several and on Ray, on as much text as is asked for, with equal graphs.

python benchmarks/reading.py FILE [--text body] [--unit from] [--megabytes 100] [--processes 1 2] [--ray local] [--json]

The records of FILE are repeated in one JSONL file, in a folder that is removed, with other names of units each time. On
a machine that does something else the figures mean little.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import tempfile
import time
from itertools import count as numbers
from pathlib import Path

from confide.config.loading import check
from confide.data.readers import records
from confide.models import loading as models
from confide.runs.folder import Run
from confide.runs.preparation import prepare
from confide.utils.workers import Crew


def write(source: str, text: str, unit: str, size: int, path: Path) -> int:
    """Write records until the file has `size` bytes; return how many bytes it has."""
    written = 0
    with path.open("w", encoding="utf-8") as file:
        for again in numbers():
            for record in records(source):
                fields = record.fields
                written += file.write(
                    json.dumps({"text": fields[text], "unit": f"{fields[unit]} {again}"}) + "\n"
                )
                if written >= size:
                    return path.stat().st_size
    raise AssertionError


def digest(folder: Path) -> str:
    found = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.name != "prepared.json":
            found.update(path.relative_to(folder).as_posix().encode() + path.read_bytes())
    return found.hexdigest()


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("source")
    parser.add_argument("--text", default="text")
    parser.add_argument("--unit", default="unit")
    parser.add_argument("--megabytes", type=float, default=100)
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--ray", help="measure on this cluster too, its start included")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    figures, digests = [], set()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        size = write(args.source, args.text, args.unit, int(args.megabytes * 1e6), folder / "text.jsonl")
        crews = {f"{count} processes": Crew(count) for count in args.processes}
        if args.ray:
            crews[f"Ray {args.ray}"] = Crew(1, args.ray)
        for who, crew in crews.items():
            raw = {
                "data": {"train": str(folder / "text.jsonl"), "unit": "unit", "without_unit": "own"},
                "privacy": {"mechanism": "uls", "noise_multiplier": 1.0},
                "run": str(folder / f"run-{len(figures)}"),
            }
            run = Run(check(raw))
            run.root.mkdir()
            tokenizer = models.load_tokenizer(run.config)
            begun = time.perf_counter()
            prepare(run.config, tokenizer, run.data, key=run.data_key(), crew=crew)
            seconds = time.perf_counter() - begun
            digests.add(digest(run.data))
            figures.append({"who": who, "seconds": seconds, "megabytes_a_second": size / 1e6 / seconds})
    if args.json:
        print(json.dumps(figures))
    else:
        for each in figures:
            print(
                f"{each['who']}: {each['seconds']:.1f} s, "
                f"{each['megabytes_a_second']:.2f} MB of JSONL a second"
            )
    if len(digests) > 1:
        print("the graphs differ", file=sys.stderr)
    return len(digests) - 1


if __name__ == "__main__":
    raise SystemExit(main())
