"""The list of `scripts/mutations.py` follows the sources: each fault can still be put in, and its tests are there.

Whether those tests notice it takes an hour, and is what the script itself finds out.
"""

import ast
from collections import Counter
from functools import cache

import pytest

import mutations
from fault import SOURCES, CannotBePutIn, Fault, put_in
from known_faults import FAULTS

ROOT = SOURCES.parents[1]
PITFALLS = 41  # rows of what broke elsewhere, each of which has two faults at least


@cache
def dumped(text):
    return ast.dump(ast.parse(text))


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.what)
def test_each_fault_can_be_put_in(fault):
    path, text = put_in(fault)
    assert ast.dump(ast.parse(text)) != dumped(path.read_text("utf-8"))
    assert fault.files()
    for test in fault.tests.split():
        if test.startswith("tests/"):
            file, _, name = test.partition("::")
            assert (ROOT / file).exists(), test
            named = name.partition("[")[0].rpartition("::")[2]
            assert not name or f"def {named}(" in (ROOT / file).read_text("utf-8"), test


def test_every_pitfall_has_two_faults_and_the_list_has_forty_of_its_own():
    counts = Counter(fault.row for fault in FAULTS)
    numbers = {str(number) for number in range(1, PITFALLS + 1)}
    assert not {row for row in counts if row.isdecimal()} - numbers
    assert {number: counts[number] for number in numbers if counts[number] < 2} == {}
    assert sum(count for row, count in counts.items() if row not in numbers) >= 40
    assert len(FAULTS) >= 120


def test_no_fault_is_listed_twice():
    for what in (lambda fault: fault.what, lambda fault: (fault.place, fault.old, fault.new)):
        assert [each for each, count in Counter(map(what, FAULTS)).items() if count > 1] == []


def test_writing_a_file_from_its_tree_alone_changes_nothing():
    """What a fault's tests notice is then the fault."""
    ends = tuple({f"/{fault.place.partition('::')[0]}" for fault in FAULTS})
    for path in [path for path in SOURCES.rglob("*.py") if str(path).endswith(ends)]:
        tree = ast.parse(path.read_text("utf-8"))
        assert ast.dump(ast.parse(ast.unparse(tree))) == ast.dump(tree), path


# how faults go in ---------------------------------------------------------------------------------------------
SOURCE = '''
"""A file."""

LIMIT = 3  # of something


class Box:
    size = LIMIT

    def area(self, width):
        # a comment
        side = (width +
                self.size)
        if side > LIMIT:
            print("large")
            side = LIMIT
        return side * side

    def loud(self):
        def say(word):
            return word + "!"

        return say("a") + say('b')


def area(width):
    return width * width
'''


def changed(tmp_path, place, old, new, source=SOURCE):
    """What becomes of the file, by its tree; the class is still called by its name."""
    folder = tmp_path / "deep"
    folder.mkdir(exist_ok=True)
    (folder / "box.py").write_text(source)
    path, text = put_in(Fault("own", "a fault", place, old, new, "tests/x.py"), tmp_path)
    assert path == folder / "box.py"
    assert path.read_text() == source  # it is for whoever asks to write it
    return text


@pytest.mark.parametrize(
    ("place", "old", "new", "there"),
    [
        ("box.py::Box.area", "side * side", "side", "return side"),
        ("deep/box.py::area", "width * width", "0", "return 0"),
        ("box.py::Box.area", "width + self.size", "width - self.size", "side = width - self.size"),
        ("box.py::Box.area", "if side > LIMIT:\n    ...", "...", "side = LIMIT\n        return side * side"),
        ("box.py::Box.area", "side > ...", "side >= ...", "side >= LIMIT"),
        ("box.py::Box.area", "print(...)", "", "pass"),
        ("box.py::Box.loud.say", "word + '!'", "word", "return word"),
        ("box.py::Box.loud", 'say("b")', 'say("c")', "say('a') + say('c')"),
        ("box.py::Box.loud", "say('a') + ...", "...", "return say('b')"),
        ("box.py", "LIMIT = 3", "LIMIT = 4", "LIMIT = 4"),
    ],
)
def test_a_fault_goes_in_where_the_code_is_what_it_says(tmp_path, place, old, new, there):
    if new == "":
        old = f"{old}\nside = LIMIT"
    assert there in changed(tmp_path, place, old, new)


def test_layout_comments_and_quotes_do_not_matter(tmp_path):
    """Reformatted, it is the same place."""
    old, new = 'print("large")\nside = LIMIT', "side = LIMIT"
    before = changed(tmp_path, "box.py::Box.area", old, new)
    other = SOURCE.replace("# a comment", "").replace(
        'print("large")', "print(\n                'large',\n            )"
    )
    other = other.replace("side > LIMIT", "(side > LIMIT)")
    assert other != SOURCE
    assert changed(tmp_path, "box.py::Box.area", old, new, other) == before


def test_a_place_may_move_within_its_file_and_to_another_folder(tmp_path):
    moved = SOURCE.replace("class Box", "def more():\n    return 1\n\n\nclass Box")
    assert "return side\n" in changed(tmp_path, "box.py::Box.area", "side * side", "side", moved)
    with pytest.raises(CannotBePutIn, match=r"no file below .* ends with other/box\.py"):
        changed(tmp_path, "other/box.py::Box.area", "side * side", "side")
    with pytest.raises(CannotBePutIn, match=r"no file below .* ends with ox\.py"):
        changed(tmp_path, "ox.py::Box.area", "side * side", "side")


@pytest.mark.parametrize(
    ("place", "old", "new", "why"),
    [
        ("box.py::Box.area", "side + side", "side", r"has no places that read\nside \+ side"),
        ("box.py::Box.area", "width * width", "0", "has no places"),  # the other function's
        ("box.py::Box.area", "LIMIT", "4", "has 2 places"),
        ("box.py::Box.perimeter", "side", "0", r"box\.py has nothing that is called Box\.perimeter"),
        ("box.py::Box.area", "side * side", "(side * side)", "it changes nothing"),
        ("box.py::Box.area", "", "side", "it says of nothing that it changes"),
    ],
)
def test_what_cannot_be_put_in_is_said(tmp_path, place, old, new, why):
    with pytest.raises(CannotBePutIn, match=why):
        changed(tmp_path, place, old, new)


# what the script makes of it -----------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("code", "said", "what"),
    [
        (1, "..F\nFAILED tests/x.py::test_a - assert 1 == 2\n1 failed", "noticed"),
        (2, "ERROR tests/x.py\n!!! Interrupted: 1 error during collection !!!", "noticed"),
        (0, "3 passed", "SURVIVED"),
        (5, "no tests ran", "SURVIVED"),  # no test of that name: nothing was looked at
        (4, "ERROR: file or directory not found: tests/y.py", "SURVIVED"),
        (98, "not the copy was tested", "SURVIVED"),
        (-9, "", "SURVIVED"),
        (None, "", "SURVIVED"),
    ],
)
def test_a_fault_is_noticed_by_a_test_that_fails_and_by_nothing_else(code, said, what):
    assert mutations.judged(code, said).what == what


def test_what_was_noticed_is_not_tried_again_until_something_changes(tmp_path):
    (tmp_path / "src/confide").mkdir(parents=True)
    (tmp_path / "src/confide/box.py").write_text(SOURCE)
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests/x.py").write_text("def test(): pass\n")
    fault = Fault("own", "a fault", "box.py::area", "width * width", "0", "tests/x.py")
    first = mutations.name(fault, tmp_path)
    assert mutations.name(fault, tmp_path) == first
    kept = mutations.Kept(tmp_path / "kept", again=False)
    kept.add(first, fault, mutations.Outcome(mutations.NOTICED, "why"), 1.0)
    kept.add("other", fault, mutations.Outcome(mutations.SURVIVED, "why"), 1.0)
    read = mutations.Kept(tmp_path / "kept", again=False)
    assert read.get(first) == mutations.Outcome(mutations.NOTICED, "why")
    assert read.get("other") is None
    assert mutations.Kept(tmp_path / "kept", again=True).get(first) is None
    names = {first}
    for path, text in (("tests/x.py", "def test(): assert 1\n"), ("src/confide/box.py", SOURCE + "x = 1\n")):
        (tmp_path / path).write_text(text)
        names.add(mutations.name(fault, tmp_path))
    assert len(names) == 3


def test_faults_are_chosen_by_row_or_words():
    assert {fault.row for fault in mutations.chosen(["3"])} == {"3"}
    assert [fault.what for fault in mutations.chosen(["int(N q)"])] == [
        "the divisor of user sampling is int(N q)",
        "the divisor of row sampling is int(N q)",
    ]
    assert len(mutations.chosen([])) == len(FAULTS)
