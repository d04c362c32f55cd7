"""Write tests/in_turn.txt from what pytest said of durations: python scripts/tests_in_turn.py LOG... [--slower-by 1.3]

A log is the output of `python -m pytest -n 2 --dist worksteal --turn all --durations 0`, or of a part of it. A test of
the default suite runs in turn if it takes DEAR seconds or more. Entries that no log has keep their seconds; one that
became cheap leaves the list. A fixture that many tests share counts for the test that happens to run first, so a dear
one is put into the list by hand, as `tests/test_file.py::fixture 40`: it stays there. Then take out the test to which
its time was counted.
"""

import argparse
import math
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

from slow_tests import ROOT, durations, is_fixture

DEAR = 1.0  # seconds, where two run side by side on a machine that does nothing else
SHORT = 20.0  # a test of which all cases together take no longer has one line
ALWAYS = "tests/test_front_door.py::test_every_command_of_the_page_works[README]"
LIST, EXHAUSTIVE = (ROOT / "tests" / name for name in ("in_turn.txt", "exhaustive.txt"))
HEAD = """\
# The dearest tests of the default suite, and the seconds that each takes where two run side by side: {dear:g} and more.
# A run takes a part of them, `--turn all` takes all. The commands of the README are not here: they run each time.
# scripts/tests_in_turn.py writes this list.
"""


def dear(seconds: Mapping[str, float]) -> dict[str, int]:
    """Return what runs in turn, and its seconds: a test by its name where all its cases are dear and SHORT."""
    cases: dict[str, list[str]] = defaultdict(list)
    for nodeid in seconds:
        cases[nodeid.partition("[")[0]].append(nodeid)
    found: dict[str, float] = {}
    for test, of_test in cases.items():
        above = {
            nodeid: seconds[nodeid] for nodeid in of_test if seconds[nodeid] >= DEAR and nodeid != ALWAYS
        }
        is_whole = len(above) == len(of_test) and sum(above.values()) <= SHORT
        found |= {test: sum(above.values())} if is_whole else above
    return {entry: math.ceil(each) for entry, each in found.items()}


def updated(
    old: Mapping[str, int], seconds: Mapping[str, float], exhaustive: frozenset[str]
) -> dict[str, int]:
    """Return the list after a measurement of some tests.

    Args:
        old: what the list has: fixtures, and tests that were not measured, keep their seconds.
        seconds: of each test that was measured, case by case.
        exhaustive: tests that the default suite lacks.
    """
    measured = set(seconds) | {nodeid.partition("[")[0] for nodeid in seconds}
    kept = {entry: each for entry, each in old.items() if is_fixture(entry) or entry not in measured}
    new = {entry: each for entry, each in dear(seconds).items() if entry.partition("[")[0] not in kept}
    in_suite = {
        entry: each
        for entry, each in new.items()
        if exhaustive.isdisjoint({entry, entry.partition("[")[0], entry.partition("::")[0]})
    }
    return kept | in_suite


def read(path: Path) -> list[str]:
    """Return the entries of a list."""
    return [line for line in path.read_text("utf-8").splitlines() if line and not line.startswith("#")]


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Write tests/in_turn.txt from durations that pytest printed."
    )
    parser.add_argument("logs", type=Path, nargs="+")
    parser.add_argument(
        "--slower-by", type=float, default=1.0, help="how much slower the machine was than when quiet"
    )
    arguments = parser.parse_args()
    seconds: dict[str, float] = {}
    for log in arguments.logs:
        if not (found := durations(log.read_text("utf-8", "replace"), arguments.slower_by)):
            parser.error(f"{log} has no durations: run pytest with --durations 0")
        seconds |= found
    old = {entry: int(each) for entry, each in (line.rsplit(" ", 1) for line in read(LIST))}
    entries = updated(old, seconds, frozenset(read(EXHAUSTIVE)))
    lines = "".join(f"{entry} {each}\n" for entry, each in sorted(entries.items()))
    LIST.write_text(HEAD.format(dear=DEAR) + lines, "utf-8")
    print(f"{len(entries)} entries of {sum(entries.values())} seconds in {LIST.name}")


if __name__ == "__main__":
    main()
