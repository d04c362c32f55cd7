"""Time and memory of a unit graph against its size: building it, its statistics, and the choice of rows under a cap.

    python benchmarks/out_of_core.py --pairs 1e5 1e6 1e7 1e8 [--owners 1 3] [--units-per 10] [--folder FOLDER]
        [--plot FILE.svg] [--from FILE.jsonl]

Each line of output is the figures of one graph and one step, as JSON. A graph has so many pairs of a row and a unit,
and a tenth as many units; each row has `--owners` of them, the units drawn uniformly. Each step runs in a process of
its own, so its peak memory is that of the process alone: VmHWM of /proc, which counts mapped pages of files too. On a
system without /proc it is ru_maxrss. `nothing` is such a process that does no step; `select` imports torch besides.

Steps: `build` (names, tokens, sorting, fsync; `sorting_seconds` is the part after the last row was added),
`statistics`, `select` (rule `random`, cap 4; rows with one owner), `bound` (greedy bounding, cap 4; rows with several
owners).
"""

import argparse
import json
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from confide.data.unit_graph import GraphWriter, UnitGraph
from confide.privacy.bounding import bound_greedily
from confide.privacy.selection import select
from confide.utils.chart import Panel, panels_svg

ROWS, VOCABULARY, CAP, MEGABYTE = 100_000, 8192, 4, 2**20


def peak_bytes() -> tuple[int, str]:
    """Return the most memory that this process has had so far, and where the figure is from."""
    try:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return 1024 * int(line.split()[1]), "VmHWM"
    except OSError:
        pass
    kilobytes = 1024 if sys.platform != "darwin" else 1  # macOS counts bytes
    return kilobytes * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, "ru_maxrss"


def generated(pairs: int, owners: int, units: int) -> Iterator[tuple[np.ndarray, np.ndarray, list[Any]]]:
    """Yield tokens, lengths and owners of rows, so many at a time that memory is small."""
    generator, rows = np.random.default_rng(0), pairs // owners
    for first in range(0, rows, ROWS):
        number = min(ROWS, rows - first)
        lengths = generator.integers(1, 4, number)
        tokens = generator.integers(0, VOCABULARY, int(lengths.sum()), dtype=np.uint16)
        # Distinct within a row: a step of a fixed size from each owner to the next.
        drawn = generator.integers(0, units, (number, 1)) + (units // owners) * np.arange(owners)
        names = [f"user-{unit}" for unit in (drawn % units).ravel().tolist()]
        yield (
            tokens,
            lengths,
            names if owners == 1 else [*map(list, zip(*[iter(names)] * owners, strict=True))],
        )


def build(folder: Path, pairs: int, owners: int, units: int) -> dict[str, Any]:
    making = 0.0
    began = last = time.perf_counter()
    with GraphWriter(folder, VOCABULARY) as writer:
        for block in generated(pairs, owners, units):
            making += time.perf_counter() - last
            writer.add_many(*block)
            last = time.perf_counter()
        del block
        adding = last - began - making
        graph = writer.close()
    done = time.perf_counter()
    size = sum(path.stat().st_size for path in folder.iterdir())
    return {
        "rows": graph.n_rows,
        "units": graph.n_units,
        "seconds": round(done - began - making, 3),
        "adding_seconds": round(adding, 3),
        "sorting_seconds": round(done - last, 3),
        "disk_mb": round(size / MEGABYTE),
    }


def choose(folder: Path, step: str) -> dict[str, Any]:
    if step == "select":
        from confide.randomness.streams import RunKey  # only here, since it imports torch

        stream = RunKey(bytes(32)).stream("benchmark", "selection")
    began = time.perf_counter()
    graph = UnitGraph.open(folder)
    result: dict[str, Any] = {}
    if step == "statistics":
        result["rows_per_unit"] = graph.statistics()["rows_per_unit"]
    elif step == "select":
        result["chosen"] = len(select("random", graph, CAP, stream))
    else:
        shape = graph.shape()
        kept = bound_greedily(
            graph.incidences(), shape.incidences, graph.n_rows, graph.n_units, CAP, graph.folder
        )
        result["chosen"] = int(np.count_nonzero(kept))
    return result | {"seconds": round(time.perf_counter() - began, 3)}


def one_step(args: argparse.Namespace) -> dict[str, Any]:
    """Do one step in this process."""
    pairs, owners = int(args.pairs[0]), args.owners[0]
    figures: dict[str, Any] = {"step": args.step, "pairs": pairs, "owners": owners}
    if args.step == "build":
        figures |= build(args.folder, pairs, owners, max(1, int(pairs / args.units_per)))
    elif args.step != "nothing":
        figures |= choose(args.folder, args.step)
    peak, source = peak_bytes()
    return figures | {"peak_mb": round(peak / MEGABYTE, 1), "peak_from": source}


def apart(step: str, pairs: float, owners: int, folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    """Do one step in a process of its own."""
    command = [sys.executable, __file__, "--step", step, "--pairs", str(pairs), "--owners", str(owners)]
    command += ["--folder", str(folder), "--units-per", str(args.units_per)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def measured(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    yield apart("nothing", 1, 1, Path(), args)
    for owners in args.owners:
        for pairs in args.pairs:
            with tempfile.TemporaryDirectory(prefix="unit-graph-", dir=args.folder) as place:
                folder = Path(place) / "graph"
                for step in ("build", "statistics", "select" if owners == 1 else "bound"):
                    yield apart(step, pairs, owners, folder, args)
                shutil.rmtree(folder)


def plot(figures: list[dict[str, Any]]) -> str:
    """Draw time and peak memory of each step against the pairs, for each number of owners."""
    panels = []
    for owners in sorted({each["owners"] for each in figures if each["step"] != "nothing"}):
        own = [each for each in figures if each["owners"] == owners and each["step"] != "nothing"]
        steps = list(dict.fromkeys(each["step"] for each in own))
        of_row = "one owner a row" if owners == 1 else f"{owners} owners a row"
        for title, key in (("Seconds", "seconds"), ("Peak memory, MiB", "peak_mb")):
            lines = {
                step: [(each["pairs"] / 1e6, each[key]) for each in own if each["step"] == step]
                for step in steps
            }
            panels.append(
                Panel(f"{title}, {of_row}", "million pairs of a row and a unit", title, lines, True, True)
            )
    return panels_svg("A unit graph against its size", panels)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=float, nargs="+", default=[1e5, 1e6, 1e7, 1e8])
    parser.add_argument("--owners", type=int, nargs="+", default=[1, 3], help="owners of a row")
    parser.add_argument("--units-per", type=float, default=10, help="pairs for each unit")
    parser.add_argument("--folder", type=Path, help="where to write; removed afterwards")
    parser.add_argument("--plot", type=Path, help="write a picture here")
    parser.add_argument(
        "--from", dest="known", type=Path, help="draw figures of an earlier call, measure nothing"
    )
    parser.add_argument(
        "--step", choices=["nothing", "build", "statistics", "select", "bound"], help=argparse.SUPPRESS
    )
    args = parser.parse_args()
    if args.step is not None:
        print(json.dumps(one_step(args)))
        return
    figures = []
    if args.known is not None:
        figures = [json.loads(line) for line in args.known.read_text("utf-8").splitlines()]
    else:
        if args.folder is not None:
            args.folder.mkdir(parents=True, exist_ok=True)
        for found in measured(args):
            figures.append(found)
            print(json.dumps(found), flush=True)
    if args.plot is not None:
        args.plot.write_text(plot(figures), "utf-8")


if __name__ == "__main__":
    main()
