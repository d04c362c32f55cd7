"""Sorting out of core gives what sorting in memory gives, in bounded memory, and leaves no file."""

import itertools
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from confide.data import sorting
from confide.utils.errors import InputError


def in_blocks(records: np.ndarray, size: int) -> Iterator[np.ndarray]:
    return (records[first : first + size].copy() for first in range(0, len(records), size))


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    number=st.integers(0, 200),
    bits=st.sampled_from([0, 1, 3, 9, 30, 63, 64]),
    budget=st.integers(1, 40),
    block=st.integers(1, 50),
    values=st.booleans(),
)
def test_records_come_in_order_and_equal_keys_as_they_came(
    tmp_path_factory, seed, number, bits, budget, block, values
):
    generator = np.random.default_rng(seed)
    keys = generator.integers(0, 1 << bits, number, dtype=np.uint64)
    if number and seed % 3 == 0:  # many of one key, so that its file can never be parted
        keys[generator.random(number) < 0.7] = keys[0]
    records = sorting.records(keys, np.arange(number) if values else None)
    folder = tmp_path_factory.mktemp("sorting")
    found = list(sorting.sorted_blocks(in_blocks(records, block), 1 << bits, number, folder, budget))
    together = np.concatenate([np.empty((0, records.shape[1]), np.uint64), *found])
    assert together.tolist() == records[np.argsort(keys, kind="stable")].tolist()
    # A key lies in one block, unless it has more records than fit in memory.
    for before, after in itertools.pairwise(found):
        if before[-1, 0] == after[0, 0]:
            assert np.count_nonzero(keys == after[0, 0]) > budget
    assert list(folder.iterdir()) == []


def test_memory_is_that_of_the_budget_and_no_file_remains(tmp_path):
    number, budget = 1 << 18, 1 << 12
    generator = np.random.default_rng(0)
    blocks = (
        sorting.records(generator.integers(0, 1 << 40, 1 << 12, dtype=np.uint64), np.arange(1 << 12))
        for _ in range(number >> 12)
    )
    tracemalloc.start()
    last = done = 0
    for block in sorting.sorted_blocks(blocks, 1 << 40, number, tmp_path, budget):
        assert block[0, 0] >= last
        last, done = int(block[-1, 0]), done + len(block)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert done == number
    assert peak < 1_000_000  # all records take 4,194,304 bytes
    assert list(tmp_path.iterdir()) == []


def test_a_reader_that_stops_early_leaves_no_file(tmp_path):
    records = sorting.records(np.arange(100, dtype=np.uint64))
    found = sorting.sorted_blocks(in_blocks(records, 10), 100, 100, tmp_path, 10)
    next(found)
    assert len(list(tmp_path.iterdir())) == 1
    found.close()
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_one_sentence(tmp_path, monkeypatch):
    if not Path("/dev/full").exists():
        pytest.skip("this system has no /dev/full to stand for a full disk")

    def full(path, *rest, **more):
        return open("/dev/full", *rest, **more)

    monkeypatch.setattr(sorting, "open", full, raising=False)
    records = sorting.records(np.arange(100, dtype=np.uint64))
    with pytest.raises(InputError, match=r"100 records cannot be sorted there: no space left on device"):
        list(sorting.sorted_blocks(in_blocks(records, 10), 100, 100, tmp_path, 10))
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_is_not_sorted_in(tmp_path, monkeypatch):
    assert sorting.scratch(tmp_path) == tmp_path
    monkeypatch.setattr(sorting.os, "access", lambda path, mode: False)
    assert sorting.scratch(tmp_path) != tmp_path
    assert sorting.scratch(None).is_dir()
