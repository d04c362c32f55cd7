"""Which tests are `exhaustive`, `slow`, run in turn or start processes: conftest.py gives them these marks.

Four lists say the first three. `exhaustive.txt`, `slow.txt` and `in_turn.txt` have a test a line:
`tests/folder/test_file.py::test`, with `[case]` for one case alone. A file alone stands for all of its tests. The
name of a fixture stands for all tests that use it: else the first one that runs would pay for it. `sampled.txt` has
tests of many cases, each with a number n: each n-th of its cases stays in the default suite, and the others are
exhaustive. Lines that begin with # are comments.

The tests of `in_turn.txt` take most of the time. Each line there ends with the seconds that it takes. They are dealt to
TURNS parts that take equally long, and a run takes one of these. The number of commits says which, so that a commit has
the same tests everywhere, and runs of TURNS commits in a row have all.

Processes are seen in the code of a test, of its fixtures, and of what both call here in the tests. A test that starts
them otherwise is marked by hand: `@pytest.mark.subprocess`.
"""

import inspect
import subprocess
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

import pytest

HERE = Path(__file__).parent
EXHAUSTIVE, SLOW, SAMPLED = HERE / "exhaustive.txt", HERE / "slow.txt", HERE / "sampled.txt"
IN_TURN = HERE / "in_turn.txt"
TURNS = 12
# Names that only code that starts processes has.
STARTERS = {"subprocess", "Popen", "fork", "ProcessPoolExecutor", "get_context", "posix_spawn"}
COLLECTED = pytest.StashKey[set[str]]()


@cache
def listed(path: Path) -> frozenset[str]:
    """Return the tests that a list names."""
    lines = path.read_text("utf-8").splitlines()
    return frozenset(line for line in lines if line and not line.startswith("#"))


@cache
def numbered(path: Path) -> Mapping[str, int]:
    """Return the tests that a list names, each with the number at the end of its line."""
    return {test: int(number) for test, number in (line.rsplit(" ", 1) for line in listed(path))}


def sampled(items: Sequence[pytest.Item], path: Path = SAMPLED) -> set[pytest.Item]:
    """Return the cases that stay out of the default suite, of tests of which each n-th case stays in it."""
    every = numbered(path)
    met: Counter[str] = Counter()
    left_out = set()
    for item in items:
        test = test_of(item.nodeid)
        if test in every:
            if met[test] % every[test]:
                left_out.add(item)
            met[test] += 1
    return left_out


def turn_of(chosen: str | None) -> int | None:
    """Return whose turn it is, as asked for or by the number of commits; None if every test has its turn.

    In a clone that lacks the older commits, the last one's name decides in place of their number.

    Raises:
        pytest.UsageError: if what was asked for is neither `all` nor the number of a turn
    """
    if chosen is not None:
        turns = {"all": None} | {str(turn): turn for turn in range(TURNS)}
        if chosen not in turns:
            raise pytest.UsageError(f"--turn takes all or a number below {TURNS}, not {chosen}")
        return turns[chosen]
    if not (commit := asked_git("rev-parse", "HEAD")):
        return None
    if asked_git("rev-parse", "--is-shallow-repository") == "true":
        return int(commit, 16) % TURNS
    return int(asked_git("rev-list", "--count", "HEAD")) % TURNS


def asked_git(*arguments: str, folder: Path = HERE) -> str:
    """Return what git answers, or nothing if it does not."""
    command = ["git", *arguments]
    found = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    return found.stdout.strip() if found.returncode == 0 else ""


def waiting(items: Sequence[pytest.Item], turn: int | None) -> set[pytest.Item]:
    """Return those of the tests that run in turn of which it is not the turn."""
    if turn is None:
        return set()
    its = dealt(numbered(IN_TURN))

    def turn_of_item(item: pytest.Item) -> int:
        # A fixture that is listed decides: else it would be made in several turns.
        return next((its[name] for name in reversed(names_of(item)) if name in its), turn)

    return {item for item in items if turn_of_item(item) != turn}


def dealt(seconds: Mapping[str, int]) -> dict[str, int]:
    """Return the turn of each entry of a list: the dearest first, each to the turn that has least so far."""
    sums = [0] * TURNS
    found = {}
    for entry in sorted(seconds, key=lambda entry: (-seconds[entry], entry)):
        found[entry] = turn = sums.index(min(sums))
        sums[turn] += seconds[entry]
    return found


def is_listed(entries: Collection[str], item: pytest.Item) -> bool:
    """Say whether a list names a test, this case of it, its file, or a fixture of it."""
    return any(name in entries for name in names_of(item))


def names_of(item: pytest.Item) -> list[str]:
    """Return all names by which a list may mean a test."""
    fixtures = [f"{fixture.baseid}::{fixture.argname}" for fixture in _fixtures(item)]
    return [item.nodeid, test_of(item.nodeid), item.nodeid.partition("::")[0], *fixtures]


def test_of(nodeid: str) -> str:
    """Return the name of a test without its case."""
    return nodeid.partition("[")[0]


test_of.__test__ = False  # type: ignore[attr-defined]


def gone(entries: frozenset[str], collected: set[str]) -> set[str]:
    """Return the entries that no collected test has, of those tests of which some case was collected."""
    known = collected | {test_of(nodeid) for nodeid in collected}
    tests = {test_of(nodeid) for nodeid in collected}
    return {entry for entry in entries if test_of(entry) in tests and entry not in known}


def mark(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark all tests, and leave out the exhaustive ones and those that wait, unless one is asked for by its name."""
    config.stash[COLLECTED] = {item.nodeid for item in items}
    for item in items:
        if is_listed(listed(EXHAUSTIVE), item):
            item.add_marker(pytest.mark.exhaustive)
    for item in sampled([item for item in items if not item.get_closest_marker("exhaustive")]):
        item.add_marker(pytest.mark.exhaustive)
    for item in items:
        is_slow = is_listed(listed(SLOW), item) or is_listed(numbered(IN_TURN), item)
        if is_slow or item.get_closest_marker("exhaustive"):
            item.add_marker(pytest.mark.slow)
        if any(starts_processes(function) for function in _functions(item)):
            item.add_marker(pytest.mark.subprocess)
    if config.getoption("--all") or any("::" in name for name in config.args):
        return
    others = [item for item in items if not item.get_closest_marker("exhaustive")]
    waits = waiting(others, turn_of(config.getoption("--turn")))
    kept = [item for item in others if item not in waits]
    config.hook.pytest_deselected(
        items=[item for item in items if item in waits or item.get_closest_marker("exhaustive")]
    )
    items[:] = kept


def _fixtures(item: pytest.Item) -> Iterator[pytest.FixtureDef[Any]]:
    if isinstance(item, pytest.Function):
        for fixtures in item._fixtureinfo.name2fixturedefs.values():
            yield from fixtures


def _functions(item: pytest.Item) -> Iterator[Callable[..., Any]]:
    """Yield the functions of a test and of its fixtures."""
    if isinstance(item, pytest.Function):
        test = item.function
        yield getattr(getattr(test, "hypothesis", None), "inner_test", test)
        yield from (fixture.func for fixture in _fixtures(item))


@cache
def starts_processes(function: Callable[..., Any]) -> bool:
    """Say whether a function starts a process, by itself or by what it calls in the tests."""
    todo: list[Any] = [function]
    seen: set[Any] = set()
    while todo:
        plain = inspect.unwrap(todo.pop())
        if not isinstance(plain, FunctionType) or plain in seen:
            continue
        seen.add(plain)
        names = _names(plain.__code__)
        if names & STARTERS:
            return True
        used = [plain.__globals__.get(name) for name in names]
        modules = [value for value in used if isinstance(value, ModuleType) and _ours(value.__name__)]
        used += [getattr(module, name, None) for module in modules for name in names]
        for value in used:
            if inspect.isclass(value) and _ours(value.__module__):
                todo += vars(value).values()
            elif inspect.isfunction(value) and _ours(value.__module__):
                todo.append(value)
    return False


def _ours(module: str) -> bool:
    return module.partition(".")[0] == "tests"


def _names(code: CodeType) -> set[str]:
    """Return the names that code uses, of globals and attributes, in functions inside it too."""
    inner = (constant for constant in code.co_consts if isinstance(constant, CodeType))
    return set(code.co_names).union(*map(_names, inner))
