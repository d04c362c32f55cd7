"""Sentences that are made of parts."""

from confide.utils.sentences import many


def test_one_stands_without_an_s():
    assert [many(number, "unit") for number in (0, 1, 2000)] == ["0 units", "1 unit", "2,000 units"]
