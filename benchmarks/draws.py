"""Time and memory of one Poisson draw against the number of units.

    python benchmarks/draws.py --units 1e5 1e6 1e7 1e8 [--expected 1024] [--repeats 5] [--plot FILE.svg]

Each line of output is the figures of one number of units, as JSON: the median of the repeats in seconds, and what the
peak of memory rose by. Each number runs in a process of its own.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

from confide.privacy.sampling import Sampling
from confide.randomness.streams import RunKey
from confide.utils.chart import Panel, panels_svg
from out_of_core import MEGABYTE, peak_bytes


def measured(units: int, expected: float, repeats: int) -> dict[str, float]:
    """Draw some steps in this process."""
    sampling, key = Sampling("poisson", min(1.0, expected / units)), RunKey.from_text("draws")
    sampling.draw(1000, key, "main", 0)  # what is only done once
    before, _ = peak_bytes()
    seconds = []
    for step in range(repeats):
        began = time.perf_counter()
        drawn = sampling.draw(units, key, "main", step)
        seconds.append(time.perf_counter() - began)
        assert 0 < len(drawn) < 2 * expected
    return {
        "units": units,
        "expected": expected,
        "seconds": statistics.median(seconds),
        "slowest": max(seconds),
        "megabytes": (peak_bytes()[0] - before) / MEGABYTE,
    }


def picture(found: list[dict[str, float]]) -> str:
    """Draw time and memory by the number of units."""
    panels = [
        Panel(
            title,
            "units",
            unit,
            {title: [(own["units"], own[key]) for own in found]},
            log_x=True,
            decades=True,
        )
        for title, unit, key in (
            ("Time of a draw", "seconds", "seconds"),
            ("Memory of a draw", "MB", "megabytes"),
        )
    ]
    return panels_svg("One Poisson draw of 1,024 units or so", panels)


def main() -> None:
    parser = argparse.ArgumentParser(description="Time and memory of one Poisson draw.")
    parser.add_argument("--units", type=float, nargs="+", default=[1e5, 1e6, 1e7, 1e8])
    parser.add_argument("--expected", type=float, default=1024.0)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(measured(arguments.one, arguments.expected, arguments.repeats)))
        return
    found = []
    for units in arguments.units:
        done = subprocess.run(
            [
                *(sys.executable, __file__, "--one", str(int(units))),
                *("--expected", str(arguments.expected), "--repeats", str(arguments.repeats)),
            ],
            capture_output=True,
            text=True,
            check=True,
        )
        found.append(json.loads(done.stdout))
        print(done.stdout, end="", flush=True)
    if arguments.plot:
        arguments.plot.write_text(picture(found), "utf-8")


if __name__ == "__main__":
    main()
