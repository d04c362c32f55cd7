"""Which tests the fast half, the default suite and `--all` hold."""

import ast
import functools
import subprocess

import pytest

import slow_tests
import tests_in_turn
from tests import command, tiers
from tests.places import ROOT


@functools.cache
def defined(file: str) -> set[str]:
    """Return the names of a file's tests."""
    tree = ast.parse((ROOT / file).read_text("utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("path", [tiers.EXHAUSTIVE, tiers.SLOW, tiers.IN_TURN], ids=lambda path: path.stem)
def test_each_test_that_a_list_names_is_there(path, request):
    """Its cases are looked for among those that this session collected: among all of them where all tests run."""
    entries = frozenset(tiers.numbered(path)) if path == tiers.IN_TURN else tiers.listed(path)
    assert entries
    tests = [tiers.test_of(entry).partition("::") for entry in entries]
    assert [(file, name) for file, _, name in tests if not (ROOT / file).is_file()] == []
    assert [(file, name) for file, _, name in tests if name and name not in defined(file)] == []
    if not any("::" in argument for argument in request.config.args):
        assert tiers.gone(entries, request.config.stash[tiers.COLLECTED]) == set()


def test_a_name_that_no_test_has_is_noticed():
    collected = {"tests/a.py::test_one", "tests/a.py::test_two[x]", "tests/a.py::test_two[y]"}
    there = {"tests/a.py::test_one", "tests/a.py::test_two", "tests/a.py::test_two[y]", "tests/b.py::test[z]"}
    there.add("tests/a.py::fixture")
    assert tiers.gone(frozenset(there), collected) == set()
    assert tiers.gone(frozenset({"tests/a.py::test_two[z]"}), collected) == {"tests/a.py::test_two[z]"}


def test_an_exhaustive_test_is_in_no_list_twice():
    assert tiers.listed(tiers.EXHAUSTIVE) & tiers.listed(tiers.SLOW) == set()


def directly():
    subprocess.run(["true"], check=True)


def by_a_helper():
    return directly()


def by_a_module():
    return command.confide_apart("--help")


class Launcher:
    def launch(self):
        directly()


def by_a_class():
    Launcher().launch()


def inside():
    return [lambda: directly() for _ in range(2)]


def in_this_process():
    return command.confide("--help")


@pytest.mark.parametrize("function", [directly, by_a_helper, by_a_module, by_a_class, inside])
def test_what_starts_processes_is_seen(function):
    assert tiers.starts_processes(function)


def test_what_starts_none_is_not():
    assert not tiers.starts_processes(in_this_process)


@pytest.fixture
def launched():
    return directly


def test_a_fixture_that_starts_processes_marks_its_tests(launched, request):
    assert request.node.get_closest_marker("subprocess")


LOG = """
bringing up nodes...
3.00s setup    tests/a.py::test_one
0.10s call     tests/a.py::test_one
0.90s call     tests/a.py::test_two[a b]
0.90s call     tests/a.py::test_two[::]
0.30s teardown tests/a.py::test_two[c]
0.90s call     tests/a.py::test_three[x]
0.30s call     tests/a.py::test_three[y]
0.30s call     tests/a.py::test_four
(7 durations < 0.05s hidden.)
"""


def test_a_log_of_durations_says_which_tests_are_slow():
    seconds = slow_tests.durations(LOG, slower_by=2)
    assert seconds["tests/a.py::test_one"] == pytest.approx(1.55)
    assert seconds["tests/a.py::test_two[a b]"] == pytest.approx(0.45)
    found = {"tests/a.py::test_one", "tests/a.py::test_two", "tests/a.py::test_three[x]"}
    assert slow_tests.slow(seconds, limit=0.2) == found
    cases = {f"tests/a.py::test[{number}]": 0.1 + 0.2 * (number < 3) for number in range(9)}
    assert slow_tests.slow(cases, limit=0.2) == {"tests/a.py::test"}
    assert slow_tests.without_repeats(found | {"tests/a.py::test_two[c]"}) == found


def test_a_log_of_durations_says_which_tests_run_in_turn():
    seconds = {
        "tests/a.py::test_one": 2.2,
        "tests/a.py::test_short[x]": 3.0,
        "tests/a.py::test_short[y]": 4.1,
    }
    seconds |= {
        "tests/a.py::test_long[x]": 30.0,
        "tests/a.py::test_long[y]": 0.9,
        "tests/b.py::test_left_out": 9.0,
    }
    seconds |= {tests_in_turn.ALWAYS: 70.0, "tests/a.py::test_cheap": 0.1}
    new = {"tests/a.py::test_one": 3, "tests/a.py::test_short": 8, "tests/a.py::test_long[x]": 30}
    assert tests_in_turn.updated({}, seconds, frozenset({"tests/b.py"})) == new
    old = {"tests/a.py::test_cheap": 5, "tests/c.py::test_not_measured[z]": 6, "tests/a.py::fixture": 40}
    del seconds["tests/b.py::test_left_out"]
    kept = {"tests/c.py::test_not_measured[z]": 6, "tests/a.py::fixture": 40}
    assert tests_in_turn.updated(old, seconds, frozenset()) == new | kept


def test_a_file_of_slow_tests_is_listed_as_a_whole(tmp_path):
    (tmp_path / "a.py").write_text("def test_one(): ...\n\n\ndef test_two(): ...\n")
    tests = {"a.py::test_one", "a.py::test_two[x]", "a.py::fixture", "b.py::test_one"}
    assert slow_tests.whole_files(tests, tmp_path) == tests
    both = tests | {"a.py::test_two"}
    assert slow_tests.without_repeats(slow_tests.whole_files(both, tmp_path)) == {"a.py", "b.py::test_one"}


def test_a_list_may_name_a_fixture(launched, request):
    names = frozenset({"tests/test_tiers.py::launched"})
    assert slow_tests.is_fixture(*names)
    assert not slow_tests.is_fixture(request.node.nodeid)
    assert tiers.is_listed(names, request.node)
    assert tiers.is_listed({"tests/test_tiers.py"}, request.node)
    assert not tiers.is_listed({"tests/test_other.py::launched"}, request.node)


class Item:
    def __init__(self, nodeid):
        self.nodeid = nodeid


def test_each_nth_case_of_a_sampled_test_stays(tmp_path):
    (tmp_path / "sampled.txt").write_text("# words\n\ntests/a.py::test_many 3\n")
    items = [Item(f"tests/a.py::test_many[{case} 1]") for case in range(5)]
    others = [Item("tests/a.py::test_other[x]"), Item("tests/a.py::test_one")]
    left_out = tiers.sampled([*items, *others], tmp_path / "sampled.txt")
    assert left_out == {items[1], items[2], items[4]}


def test_each_test_has_one_turn_whatever_runs_beside_it(monkeypatch):
    dear = {f"tests/a.py::test_dear[{case} x]": 3 for case in range(20)} | {"tests/b.py::test_dear": 9}
    monkeypatch.setattr(tiers, "numbered", lambda path: dear)
    in_turn = [Item(name) for name in dear if "[" in name] + [Item("tests/b.py::test_dear[y]")]
    items = [Item("tests/a.py::test_cheap"), *in_turn, Item("tests/b.py::test_cheap[y]")]
    waits = [tiers.waiting(items, turn) for turn in range(tiers.TURNS)]
    assert [sum(item not in each for each in waits) for item in in_turn] == [1] * len(in_turn)
    assert not set().union(*waits) - set(in_turn)
    assert tiers.waiting(items[5:], 1) == waits[1] & set(items[5:])
    assert tiers.waiting(items, tiers.turn_of("all")) == set()


def test_turns_take_about_as_long():
    seconds = {f"tests/a.py::test[{n}]": n for n in range(1, 80)} | {"tests/b.py": 100}
    dealt = tiers.dealt(seconds)
    sums = [sum(seconds[entry] for entry in dealt if dealt[entry] == turn) for turn in range(tiers.TURNS)]
    assert max(sums) <= 1.05 * min(sums)
    assert tiers.dealt(dict(reversed(seconds.items()))) == dealt


def test_the_turns_of_the_list_take_about_as_long():
    seconds = tiers.numbered(tiers.IN_TURN)
    dealt = tiers.dealt(seconds)
    sums = [sum(seconds[entry] for entry in dealt if dealt[entry] == turn) for turn in range(tiers.TURNS)]
    assert max(sums) <= 1.05 * min(sums)


def test_a_turn_is_asked_for_or_follows_from_the_commits(tmp_path, monkeypatch):
    assert tiers.turn_of("2") == 2
    with pytest.raises(pytest.UsageError, match=f"all or a number below {tiers.TURNS}, not 99"):
        tiers.turn_of("99")
    asked = tiers.asked_git

    def turn_in(folder):
        monkeypatch.setattr(tiers, "asked_git", functools.partial(asked, folder=folder))
        return tiers.turn_of(None)

    def git(*arguments):
        own = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
        subprocess.run(["git", *own, *arguments], cwd=tmp_path, check=True, capture_output=True)

    git("init", "--quiet")
    turns = []
    for _ in range(tiers.TURNS):
        git("commit", "--quiet", "--allow-empty", "-m", "a commit")
        turns.append(turn_in(tmp_path))
    assert turns == [*range(1, tiers.TURNS), 0]
    git("clone", "--quiet", "--depth", "1", tmp_path.as_uri(), "shallow")
    assert turn_in(tmp_path / "shallow") == int(asked("rev-parse", "HEAD", folder=tmp_path), 16) % tiers.TURNS
    (nothing := tmp_path.parent / "nothing").mkdir()
    assert turn_in(nothing) is None


def test_sampled_tests_are_there_and_keep_a_case_and_leave_one_out():
    for test, n in tiers.numbered(tiers.SAMPLED).items():
        file, _, name = test.partition("::")
        assert name in defined(file), test
        assert n > 1, test
