"""A unit graph that is sorted out of core equals the one that is sorted in memory, and is there whole or not at all."""

import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from confide.data import sorting
from confide.data import unit_graph as graphs
from confide.data.by_unit import incidences, write_by_unit
from confide.data.unit_graph import GraphWriter, UnitGraph
from confide.utils.errors import InputError
from confide.utils.tally import Tally


def drawn(seed: int, rows: int, units: int, most: int, unowned: bool) -> list[list[str]]:
    """The owners of each row; low units have far more rows than high ones."""
    generator = np.random.default_rng(seed)
    owners = []
    for row in range(rows):
        number = int(generator.integers(0 if unowned and row else 1, most + 1))
        owners.append([f"u{unit}" for unit in (units * generator.random(number) ** 3).astype(int).tolist()])
    return owners


def write(folder: Path, owners: list[list[str]], together: int) -> dict[str, bytes]:
    """Write a graph; return the content of each of its files."""
    with GraphWriter(folder, 100, unowned=True) as writer:
        for first in range(0, len(owners), together):
            part = owners[first : first + together]
            writer.add_many((first + np.arange(len(part))) % 100, np.ones(len(part), np.int64), part)
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def in_memory(owners: list[list[str]]) -> dict[str, bytes]:
    """What the files hold that say which rows belong to which unit, by plain loops."""
    rows_of: dict[str, list[int]] = {}
    of_row = [list(dict.fromkeys(own)) for own in owners]
    for row, own in enumerate(of_row):
        for name in own:
            rows_of.setdefault(name, []).append(row)
    number = {name: place for place, name in enumerate(rows_of)}
    names = [name.encode() for name in rows_of]
    files = {
        "unit_rows": [row for rows in rows_of.values() for row in rows],
        "unit_offsets": np.cumsum([0, *map(len, rows_of.values())]),
        "owners": [number[name] for own in of_row for name in own],
        "name_offsets": np.cumsum([0, *map(len, names)]),
    }
    if any(len(own) != 1 for own in of_row):
        files["owner_offsets"] = np.cumsum([0, *map(len, of_row)])
    return {f"{name}.bin": np.array(values, "<i8").tobytes() for name, values in files.items()} | {
        "names.bin": b"".join(names)
    }


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    rows=st.integers(1, 80),
    units=st.integers(1, 40),
    most=st.integers(1, 7),
    unowned=st.booleans(),
    budget=st.integers(1, 20),
    block=st.integers(1, 9),
    names=st.integers(1, 9),
    together=st.integers(1, 30),
)
def test_chunks_of_any_size_give_the_graph_of_plain_loops(
    tmp_path_factory, seed, rows, units, most, unowned, budget, block, names, together
):
    place = tmp_path_factory.mktemp("graphs")
    owners = drawn(seed, rows, units, most, unowned)
    whole = write(place / "whole", owners, rows)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sorting, "BUDGET", budget)
        patch.setattr(sorting, "BLOCK", block)
        patch.setattr(graphs, "NAMES", names)
        tiny = write(place / "tiny", owners, together)
        graph = UnitGraph.open(place / "tiny")
        pairs = [
            (r, u) for rows_, units_, _ in graph.incidences() for r, u in zip(rows_, units_, strict=True)
        ]
        counts = [count for *_, counts_ in graph.incidences() for count in counts_]
    assert tiny == whole
    assert tiny.items() >= in_memory(owners).items()
    assert pairs == [(row, unit) for row in range(rows) for unit in graph.owners_of(row)]
    assert counts == [len(graph.owners_of(row)) for row, _ in pairs]
    assert graph.owned_rows() == sum(map(bool, owners))


def test_memory_does_not_grow_with_the_pairs(tmp_path, monkeypatch):
    monkeypatch.setattr(sorting, "BUDGET", 1 << 16)
    monkeypatch.setattr(sorting, "BLOCK", 1 << 14)
    pairs, units = 2_000_000, 200_000
    owners = np.concatenate([np.arange(units), np.random.default_rng(0).integers(0, units, pairs - units)])
    (tmp_path / "owners.bin").write_bytes(owners.astype("<i8").tobytes())
    tracemalloc.start()
    by_unit, offsets = write_by_unit(tmp_path, tmp_path / "owners.bin", None, pairs, pairs, units)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 3_000_000  # the pairs take 16,000,000 bytes, and their sort in memory several times that
    order = np.argsort(owners, kind="stable")
    assert np.array_equal(np.fromfile(by_unit, "<i8"), order)
    assert np.array_equal(np.fromfile(offsets, "<i8"), np.searchsorted(owners[order], np.arange(units + 1)))
    assert {path.name for path in tmp_path.iterdir()} == {"owners.bin", "unit_rows.bin", "unit_offsets.bin"}


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError, OSError(28, "No space left on device")])
def test_a_build_that_stops_while_it_sorts_leaves_nothing(tmp_path, monkeypatch, error):
    calls = []

    def stops(block: np.ndarray) -> np.ndarray:
        calls.append(len(list(tmp_path.rglob(".sorting-*/*.bin"))))
        if len(calls) == 3:
            raise error
        return np.sort(block, axis=0)

    monkeypatch.setattr(sorting, "_in_order", stops)
    monkeypatch.setattr(sorting, "BUDGET", 10)
    with pytest.raises(InputError if isinstance(error, OSError) else error):
        write(tmp_path / "graph", drawn(0, 100, 30, 1, False), 7)
    assert len(calls) == 3
    assert calls[0] > 3  # files of the sort were there
    assert list(tmp_path.iterdir()) == []


def test_numbers_that_do_not_fit_in_a_key_are_refused(tmp_path):
    with pytest.raises(InputError, match="more than a unit graph can hold"):
        write_by_unit(tmp_path, tmp_path / "owners.bin", None, 1 << 40, 1 << 40, 1 << 25)


def test_a_file_that_is_too_short_is_noticed(tmp_path):
    (tmp_path / "owners.bin").write_bytes(np.zeros(5, "<i8").tobytes())
    with pytest.raises(AssertionError, match="sorted 5 pairs"):
        write_by_unit(tmp_path, tmp_path / "owners.bin", None, 6, 6, 1)


def test_a_row_of_more_units_than_a_block_is_read_in_parts(tmp_path):
    (tmp_path / "owners.bin").write_bytes(np.arange(12).astype("<i8").tobytes())
    (tmp_path / "owner_offsets.bin").write_bytes(np.array([0, 1, 1, 11, 12], "<i8").tobytes())
    found = list(incidences(tmp_path / "owners.bin", tmp_path / "owner_offsets.bin", 4, block=3))
    assert max(len(rows) for rows, *_ in found) == 3
    rows, units, counts = (np.concatenate(column).tolist() for column in zip(*found, strict=True))
    assert rows == [0, *[2] * 10, 3]
    assert units == list(range(12))
    assert counts == [1, *[10] * 10, 1]


@settings(max_examples=100, deadline=None)
@given(
    numbers=st.lists(st.integers(0, 50) | st.integers(0, 10**12), min_size=1, max_size=80),
    block=st.integers(1, 80),
)
def test_a_tally_gives_what_the_numbers_give(numbers, block):
    array = np.array(numbers)
    tally = Tally.of(array[first : first + block] for first in range(0, len(array), block))
    assert tally.summary() == {
        "min": int(array.min()),
        "median": float(np.median(array)),
        "mean": float(array.mean()),
        "max": int(array.max()),
    }
    edges = [0, 1, 2, 4, 8, 1 << 20, 1 << 40]
    # In a histogram of NumPy's, unlike here, the last bin has both its ends.
    assert tally.in_bins(edges) == np.histogram(array[array < 1 << 40], bins=edges)[0].tolist()
    assert tally.number == len(numbers)
