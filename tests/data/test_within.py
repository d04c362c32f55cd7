"""Rows that are held out within units: the first of each, so many, and each row on one side."""

import numpy as np
import pytest

from confide.data import within
from confide.data.unit_graph import GraphWriter, UnitGraph
from confide.utils.errors import InputError


def graph(folder, units, labels=None):
    """Write a graph of rows that are told apart by their token; each row's units by name."""
    with GraphWriter(folder, 1000) as writer:
        for token, names in enumerate(units):
            writer.add([token, token], names, None if labels is None else labels[token])
    return UnitGraph.open(folder)


def parted(whole, folder, share, most):
    with GraphWriter(folder / "train", 1000) as train, GraphWriter(folder / "eval", 1000) as held:
        count = within.part(whole, share, most, train, held)
    found = UnitGraph.open(folder / "train"), UnitGraph.open(folder / "eval")
    assert found[1].n_rows == count
    return found


def tokens_of(found):
    return {
        found.unit_name(unit): [int(row[0]) for row in found.fetch(found.rows_of(unit))]
        for unit in range(found.n_units)
    }


def test_the_share_is_rounded_up_but_every_unit_keeps_a_row():
    counts = np.array([1, 2, 3, 9, 10, 11, 30, 319, 320, 321, 5000])
    assert within.first_rows(counts, 0.1, 32).tolist() == [0, 1, 1, 1, 1, 2, 3, 32, 32, 32, 32]
    assert within.first_rows(counts, 0.9, 10**6).tolist() == [0, 1, 2, 8, 9, 10, 27, 288, 288, 289, 4500]
    assert within.first_rows(np.array([100, 101]), 0.07, 32).tolist() == [7, 8]
    assert within.first_rows(counts, 0.1, 1).tolist() == [0] + [1] * 10


@pytest.mark.parametrize("block", [2, 1 << 16])
def test_each_row_is_on_one_side_and_the_first_of_a_unit_are_held_out(tmp_path, monkeypatch, block):
    monkeypatch.setattr(within, "_BLOCK", block)
    names = ["a", "b", "a", "c", "b", "a", "a", "b", "a"]  # a: 0 2 5 6 8, b: 1 4 7, c: 3
    train, held = parted(graph(tmp_path / "whole", names), tmp_path, 0.4, 32)
    assert tokens_of(held) == {"a": [0, 2], "b": [1, 4]}
    assert tokens_of(train) == {"a": [5, 6, 8], "b": [7], "c": [3]}
    assert train.shape().rows_per_unit.tolist() == [1, 3, 1]  # held-out rows do not count: c, a, b


def test_another_units_rows_do_not_move_the_line(tmp_path):
    one = parted(graph(tmp_path / "one", ["a"] * 10 + ["b"]), tmp_path / "1", 0.1, 32)
    other = parted(graph(tmp_path / "other", ["a"] * 10 + ["b"] * 50), tmp_path / "2", 0.1, 32)
    assert tokens_of(one[0])["a"] == tokens_of(other[0])["a"] == list(range(1, 10))


def test_classes_go_along_and_none_is_left_without_a_row(tmp_path):
    names = ["a", "a", "b", "b"]
    train, held = parted(graph(tmp_path / "whole", names, [0, 1, 1, 0]), tmp_path / "1", 0.1, 32)
    assert [*map(int, train.labels)] == [1, 0]
    assert [*map(int, held.labels)] == [0, 1]
    with pytest.raises(InputError, match="every row of 1 of the classes"):
        parted(graph(tmp_path / "other", names, [0, 1, 0, 1]), tmp_path / "2", 0.1, 32)


def test_what_cannot_be_parted_is_refused(tmp_path):
    with pytest.raises(InputError, match="one owner each"):
        parted(graph(tmp_path / "several", [["a", "b"], "a"]), tmp_path / "1", 0.1, 32)
    with pytest.raises(InputError, match="no unit has a second row"):
        parted(graph(tmp_path / "single", ["a", "b"]), tmp_path / "2", 0.1, 32)
