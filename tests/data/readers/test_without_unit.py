"""Documents that nobody owns: refused with their number, dropped, or each a unit of its own; and counted."""

import json

import pytest

from confide.data.readers import Counts, Record, documents
from confide.data.readers.documents import DROPPED, OWN
from confide.utils.errors import InputError
from tests.command import World, confide, refused, tiny_model

ROWS = [("ann", "a"), ("", "b"), (None, "c"), ("bob", "d"), ("  ", "  "), ([], "e"), ("ann", "f")]


def read(without_unit="refuse", rows=ROWS, unit="user", counts=None):
    records = (
        Record({"user": user, "body": body}, f"t.csv line {n}") for n, (user, body) in enumerate(rows, 2)
    )
    return list(documents(records, "body", unit, counts=counts, without_unit=without_unit))


def test_refused_with_the_number_of_them_all_and_what_to_do():
    with pytest.raises(InputError) as caught:
        read()
    said = str(caught.value)
    assert said.startswith("t.csv line 3: no unit, since the field 'user' is empty (data.unit); ")
    assert "this is the first of 3 such documents in 7 records" in said
    assert "data.without_unit: drop (leave them out) or own (protect each by itself)" in said


def test_dropped_and_counted():
    counts = Counts()
    found = read("drop", counts=counts)
    assert [(d.text, d.units) for d in found] == [("a", ("ann",)), ("d", ("bob",)), ("f", ("ann",))]
    assert (counts[DROPPED], counts["documents"], counts["empty texts"]) == (3, 3, 1)


def test_units_of_their_own_that_no_name_in_the_data_can_be():
    counts = Counts()
    rows = [*ROWS, (" 1", "taken"), ("1", "taken")]  # blanks around a name are no part of it
    found = {d.text: d.units for d in read("own", rows, counts=counts)}
    own = [found[text] for text in "bce"]
    assert len({*own, found["taken"], found["a"], found["d"]}) == 6
    assert all(units[0].startswith(" ") for units in own)
    assert (counts[OWN], counts["documents"]) == (3, 8)


def test_nothing_is_left_when_all_are_dropped():
    with pytest.raises(InputError, match=r"no document up to t\.csv line 3 has one, so .*drop leaves none"):
        read("drop", [("", "a"), (None, "b")])


@pytest.fixture
def world(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    made = World(tmp_path, tiny_model(tmp_path))
    rows = [json.loads(line) for line in made.text.read_text().splitlines()]
    for row in rows[::4]:
        row["user"] = ""
    made.text.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return made


def test_as_a_command(world):
    lines = world.text.read_text().splitlines()
    nobody = len(lines[::4])
    said = f"line 1: no unit.* first of {nobody} such documents in {len(lines)} records"
    refused(confide("prepare", world.path), said)
    units = {}
    for choice, said in (("drop", "documents dropped: without a unit"), ("own", "each one of its own")):
        done = confide("prepare", world.path, f"data.without_unit={choice}")
        assert done.code == 0, done.err
        assert f"{nobody} " in done.out
        assert said in done.out
        facts = json.loads(confide("prepare", world.path, f"data.without_unit={choice}", "--json").out)
        units[choice] = facts["units"] + facts["eval"]["units"]
    assert units["own"] == units["drop"] + nobody


def test_it_is_a_choice_where_units_are_named_alone(world):
    refused(
        confide("plan", world.path, "data.unit=null", "privacy.mechanism=dp-sgd", "data.without_unit=drop"),
        r"data\.without_unit: is of documents whose unit is empty, and data\.unit names none",
    )


def of_fields(*rows: dict, unit="user", without_unit="drop"):
    records = (Record({"body": "text", **row}, f"t.jsonl line {n}") for n, row in enumerate(rows, 1))
    return [each.units for each in documents(records, "body", unit, without_unit=without_unit)]


def test_a_field_that_is_not_there_counts_as_empty():
    rows = {"user": "ann"}, {}, {"user": "bob"}
    assert of_fields(*rows) == [("ann",), ("bob",)]
    assert of_fields(*rows, without_unit="own") == [("ann",), (" 1",), ("bob",)]
    with pytest.raises(InputError, match=r"line 2: data\.unit names 'user', .*data\.without_unit says what"):
        of_fields(*rows, without_unit="refuse")


@pytest.mark.parametrize("without_unit", ["drop", "own"])
@pytest.mark.parametrize("unit", ["usr", ["user", "usr"]])
def test_a_field_that_no_record_has_is_refused(unit, without_unit):
    """Mistyped, it would make each document a unit, or protect one owner of two."""
    with pytest.raises(
        InputError,
        match=r"names 'usr', .*did you mean 'user'.* None of the [0-9]+ records that were read has it",
    ):
        of_fields({"user": "ann"}, {"user": "bob"}, unit=unit, without_unit=without_unit)


def test_a_field_that_none_of_the_documents_that_are_used_has_is_refused(tmp_path):
    world = World(tmp_path, tiny_model(tmp_path))
    keys = "data.unit=usr", "data.without_unit=own"
    for most in ("5", "null"):
        done = confide("prepare", world.path, *keys, f"data.max_documents={most}")
        refused(done, r"data\.unit names 'usr'.*None of the [0-9]+ records that were read has it")
