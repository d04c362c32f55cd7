"""Names get the numbers that a dictionary would give them."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from confide.data import names as module
from confide.data.names import NameNumbers

# Names that an array of bytes would take for each other, that are wide, and that UTF-8 cannot write.
HARD = [
    "a",
    "a\0",
    "\0",
    "a\0b",
    "\0a",
    "",
    "é",
    "日本",
    "\ud800",
    "\udfff",
    "a" * 8,
    "a" * 9,
    "b" * 64,
    "b" * 65,
]


def numbered(batches: list[list[str]]) -> tuple[list[int], list[str], int]:
    table, numbers, new = NameNumbers(), [], []
    for batch in batches:
        own, fresh = table.of(batch)
        assert own.dtype == np.int64
        numbers += own.tolist()
        new += fresh
    return numbers, new, len(table)


def expected(batches: list[list[str]]) -> tuple[list[int], list[str], int]:
    known: dict[str, int] = {}
    numbers = [known.setdefault(name, len(known)) for batch in batches for name in batch]
    return numbers, list(known), len(known)


NAMES = st.one_of(
    st.sampled_from(HARD),
    st.integers(0, 40).map(lambda number: f"user-{number}"),
    st.text(st.characters(exclude_categories=[]), max_size=80),
)


@settings(max_examples=200, deadline=None)
@given(batches=st.lists(st.lists(NAMES, max_size=60), max_size=6))
def test_numbers_are_those_of_a_dictionary(batches):
    assert numbered(batches) == expected(batches)


@settings(max_examples=50, deadline=None)
@given(batches=st.lists(st.lists(NAMES, max_size=60), max_size=6))
def test_names_that_all_meet_in_one_place_are_still_told_apart(batches):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module._Table, "_first_slots", lambda self, keys: np.zeros(len(keys), dtype=np.int64))
        assert numbered(batches) == expected(batches)


def test_a_table_that_grows_many_times(monkeypatch):
    monkeypatch.setattr(module, "_BLOCK", 1000)
    drawn = np.random.default_rng(0).integers(0, 30_000, (40, 2000)).tolist()
    batches = [[f"{number}" if number % 3 else f"somebody-{number}" for number in batch] for batch in drawn]
    assert numbered(batches) == expected(batches)
