"""Write tests/slow.txt from what pytest said of durations: python scripts/slow_tests.py LOG [--slower-by 2.35] [--add]

The log is the output of `python -m pytest -n 2 --dist worksteal --durations 0` on the tests of which the list is to be
made. A test is slow if its setup, call and teardown take more than LIMIT seconds together. A fixture of a module counts
for the test that happens to run first, so slow ones are put into the list by hand, as `tests/test_file.py::fixture`:
they stay there. `--add` keeps all that is in the list.
"""

import argparse
import re
from collections import Counter, defaultdict
from pathlib import Path

LIMIT = 0.2  # seconds, on a machine that does nothing else
MOST = 0.65  # of the tests of a file: then it is listed as a whole
FEW = 3  # slow cases of one test that are listed one by one would make the list long
ROOT = Path(__file__).resolve().parents[1]
LIST = ROOT / "tests" / "slow.txt"
HEAD = """\
# Tests that take more than {limit} seconds on a quiet machine. scripts/slow_tests.py writes this list.
"""
_TEST = re.compile(r"^def test_", re.MULTILINE)
_LINE = re.compile(r"(\d+\.\d+)s (?:setup|call|teardown) +(tests/\S+?\.py::.+)")


def durations(log: str, slower_by: float = 1.0) -> dict[str, float]:
    """Return the seconds of each test in a log; pytest leaves out what took less than 5 ms."""
    seconds: dict[str, float] = defaultdict(float)
    for line in log.splitlines():
        if found := _LINE.fullmatch(line.rstrip()):
            seconds[found[2]] += float(found[1]) / slower_by
    return dict(seconds)


def slow(seconds: dict[str, float], limit: float = LIMIT) -> set[str]:
    """Return the tests above the limit: each by its name where most or FEW of its cases are, else case by case."""
    cases: dict[str, list[str]] = defaultdict(list)
    for nodeid in seconds:
        cases[nodeid.partition("[")[0]].append(nodeid)
    found: set[str] = set()
    for test, of_test in cases.items():
        above = {nodeid for nodeid in of_test if seconds[nodeid] > limit}
        found |= {test} if 2 * len(above) > len(of_test) or len(above) >= FEW else above
    return found


def whole_files(tests: set[str], root: Path = ROOT) -> set[str]:
    """Name each file of which most tests are slow instead of its tests, so that the list stays short."""
    named = Counter(
        nodeid.partition("::")[0] for nodeid in tests if "[" not in nodeid and not is_fixture(nodeid)
    )
    return {
        file
        for file, count in named.items()
        if (root / file).is_file() and count >= MOST * len(_TEST.findall((root / file).read_text("utf-8")))
    } | tests


def without_repeats(tests: set[str]) -> set[str]:
    """Drop the cases of a test that is in the list as a whole, and the tests of a file that is."""
    return {
        nodeid
        for nodeid in tests
        if not ({nodeid.partition("[")[0], nodeid.partition("::")[0]} - {nodeid}) & tests
    }


def is_fixture(line: str) -> bool:
    """Say whether a line of the list names a fixture."""
    return "::" in line and not line.partition("::")[2].startswith("test_")


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Write tests/slow.txt from the durations that pytest printed."
    )
    parser.add_argument("log", type=Path)
    parser.add_argument(
        "--slower-by", type=float, default=1.0, help="how much slower the machine was than when quiet"
    )
    parser.add_argument("--add", action="store_true", help="keep what is in the list")
    arguments = parser.parse_args()
    seconds = durations(arguments.log.read_text("utf-8", "replace"), arguments.slower_by)
    if not seconds:
        parser.error(f"{arguments.log} has no durations: run pytest with --durations 0")
    found = slow(seconds)
    found |= {line for line in LIST.read_text("utf-8").splitlines() if arguments.add or is_fixture(line)}
    lines = sorted(line for line in without_repeats(whole_files(found)) if not line.startswith("#"))
    LIST.write_text(HEAD.format(limit=LIMIT) + "".join(f"{line}\n" for line in lines), "utf-8")
    print(f"{len(lines)} entries in {LIST.name}")


if __name__ == "__main__":
    main()
