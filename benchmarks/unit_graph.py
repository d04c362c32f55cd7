"""How long a large unit graph takes to build, and what a unit's rows then cost.

    python benchmarks/unit_graph.py --rows 10000000 --units 1000000 [--folder FOLDER] [--json]

The data are generated: rows of 4 to 8 tokens; every unit owns one row, and the others fall to units with a
long tail (the largest of 1,000,000 units owns about 90,000 of 10,000,000 rows).
"""

import argparse
import json
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from confide.data.unit_graph import GraphWriter, UnitGraph

VOCABULARY, BLOCK, PROBES = 8192, 250_000, 2000


def build(folder: Path, rows: int, units: int, vocabulary: int = VOCABULARY) -> UnitGraph:
    generator = np.random.default_rng(0)
    names = [f"user-{unit}" for unit in range(units)]
    with GraphWriter(folder, vocabulary) as writer:
        for first in range(0, rows, BLOCK):
            numbers = np.arange(first, min(first + BLOCK, rows))
            tail = (units * generator.random(len(numbers)) ** 3).astype(np.int64)
            owners = np.where(numbers < units, numbers, tail)
            lengths = generator.integers(4, 9, len(numbers))
            tokens = generator.integers(0, vocabulary, int(lengths.sum()), dtype=np.uint16)
            writer.add_many(tokens, lengths, [names[owner] for owner in owners.tolist()])
        return writer.close()


def milliseconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return 1e3 * (time.perf_counter() - began)


def measure(folder: Path, rows: int, units: int) -> dict[str, float]:
    began = time.perf_counter()
    build(folder, rows, units)
    build_seconds = time.perf_counter() - began
    opening = milliseconds(lambda: UnitGraph.open(folder))
    graph = UnitGraph.open(folder)
    drawn = np.random.default_rng(1).integers(0, graph.n_units, PROBES).tolist()
    fetching = [milliseconds(lambda unit=unit: graph.fetch(graph.rows_of(unit))) for unit in drawn]
    largest = int(np.argmax(graph.shape().rows_per_unit))
    kilobytes = 1 if sys.platform != "darwin" else 1 / 1024  # macOS counts bytes
    return {
        **{name: graph.statistics()[name] for name in ("rows", "units", "tokens")},
        "largest_unit_rows": len(graph.rows_of(largest)),
        "build_seconds": round(build_seconds, 2),
        "peak_memory_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * kilobytes / 1024),
        "disk_mb": round(sum(path.stat().st_size for path in folder.iterdir()) / 2**20),
        "open_ms": round(opening, 3),
        "fetch_unit_median_ms": round(float(np.median(fetching)), 4),
        "fetch_unit_max_ms": round(max(fetching), 4),
        "fetch_largest_unit_ms": round(milliseconds(lambda: graph.fetch(graph.rows_of(largest))), 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--units", type=int, default=1_000_000)
    parser.add_argument("--folder", type=Path, help="where to write; removed afterwards")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    if args.folder is not None:
        args.folder.mkdir(parents=True, exist_ok=True)
    parent = Path(tempfile.mkdtemp(prefix="unit-graph-", dir=args.folder))
    try:
        figures = measure(parent / "graph", args.rows, min(args.units, args.rows))
    finally:
        shutil.rmtree(parent)
    if args.json:
        print(json.dumps(figures))
        return
    for name, value in figures.items():
        print(f"{name.replace('_', ' '):24} {value:>14,}")


if __name__ == "__main__":
    main()
