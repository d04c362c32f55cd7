"""Which units of held-out text train as well, by the names of two graphs."""

import pytest

from confide.config.data_section import Data
from confide.data import unit_graph
from confide.data.both_sides import units_that_train, whose_rows
from confide.data.unit_graph import GraphWriter, UnitGraph


@pytest.fixture
def graph(tmp_path):
    def made(*names):
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        with GraphWriter(folder, vocabulary=10) as writer:
            for name in names:
                writer.add([1, 2], [name] if isinstance(name, str) else list(name))
        return UnitGraph.open(folder)

    return made


def data(**settings) -> Data:
    return Data(**({"train": "t.jsonl", "eval": "e.jsonl", "unit": "from"} | settings))


def test_names_are_compared_as_they_are_spelt(graph):
    held, train = graph("anna", "bob", "bob", "Carl", "dora"), graph("bob", "carl", "dora", "emil", "bob")
    assert units_that_train(data(), held, [train]) == 2
    assert units_that_train(data(), held, [graph("Anna", "carl")]) == 0


def test_every_owner_of_a_row_is_compared(graph):
    held, train = graph(("anna", "bob"), "carl"), graph(("bob", "dora"), "emil")
    assert units_that_train(data(unit=["from", "to"]), held, [train]) == 1


def test_rows_that_train_in_another_graph_count(graph):
    held = graph("anna", "bob")
    assert units_that_train(data(), held, [graph("bob"), graph("anna", "bob")]) == 2


def test_documents_of_nobody_have_one_name_by_chance(graph):
    held, train = graph(" 0", " 1", "anna"), graph(" 0", " 1", "bob")
    assert units_that_train(data(), held, [train]) == 0
    held, train = graph("row:0", "row:1"), graph("row:0")
    assert units_that_train(data(unit=None), held, [train]) == 0
    assert units_that_train(data(), held, [train]) == 1  # a field may hold such a name


def test_one_file_for_both_holds_the_same_documents(graph):
    held = graph("row:0", "row:1")
    assert units_that_train(data(unit=None, eval="t.jsonl"), held, [graph("row:0", "row:1")]) == 2


def test_a_share_of_the_units_is_apart(graph):
    assert units_that_train(data(eval=0.1), graph("anna"), [graph("anna")]) == 0  # made up: no name is read


def test_the_rows_are_described(graph):
    held, train = graph("anna", "bob"), graph("bob", "carl")
    assert whose_rows(data(), held, [train]) == "in part those of 1 units in training (data.eval)"
    assert whose_rows(data(), held, [graph("carl")]) is None
    assert whose_rows(data(eval=None), None, [train]) is None
    assert "data.eval_within" in whose_rows(data(eval=None, eval_within=0.1), held, [train])


def test_names_are_read_in_blocks(graph, monkeypatch):
    names = ["anna", "björn", " ", "\udc80", "emil", "日本", "g"]
    monkeypatch.setattr(unit_graph, "NAMES", 3)
    found = graph(*names)
    assert list(found.each_name()) == found.unit_names() == names
    assert [found.unit_name(unit) for unit in range(found.n_units)] == names
