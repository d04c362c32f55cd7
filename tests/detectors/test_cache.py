"""Findings on disk: private, by text and settings, shared by processes, and made anew if damaged."""

import sqlite3
import stat
import threading

import pytest

from confide.detectors import Span
from confide.detectors.cache import Cache
from confide.errors import InputError

KINDS = ("WORD", "DATE")


class Search:
    """Finds the first character; remembers what it was asked."""

    def __init__(self):
        self.asked = []

    def __call__(self, texts):
        self.asked += texts
        return [[Span(0, 1, KINDS[len(text) % 2]), Span(0, 2, "WORD")] if text else [] for text in texts]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run" / "spans.db"


def test_what_was_found_is_not_looked_for_again(path):
    search, texts = Search(), ["one", "", "three", "one", "\ud800"]
    first = Cache(path, "a", KINDS)
    found = first.find(texts, search)
    assert found == Search()(texts)
    assert sorted(search.asked) == sorted(set(texts))
    first.close()
    again = Cache(path, "a", KINDS)
    search.asked.clear()
    assert again.find([*texts, "new"], search) == Search()([*texts, "new"])
    assert search.asked == ["new"]
    other = Cache(path, "b", KINDS)
    other.find(texts, search)
    assert sorted(search.asked) == sorted(["new", *set(texts)])


def test_the_file_is_private_and_holds_no_text(path):
    Cache(path, "a", KINDS).find(["a secret sentence"], Search())
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert b"secret" not in path.read_bytes()


@pytest.mark.parametrize("damage", ["not a database", "cut", "pages", "entry"])
def test_a_damaged_file_is_made_anew(path, damage):
    texts = [f"text {number}" for number in range(2000)]
    Cache(path, "a", KINDS).find(texts, Search())
    if damage == "entry":
        with sqlite3.connect(path) as file:
            file.execute("UPDATE found SET spans = x'0102'")
    else:
        content = path.read_bytes()
        damaged = {
            "not a database": b"x" * 5000,
            "cut": content[: len(content) // 2],
            "pages": content[:8192] + b"\xff" * (len(content) - 8192),  # it opens, and fails when it is read
        }
        path.write_bytes(damaged[damage])
    search = Search()
    assert Cache(path, "a", KINDS).find(texts, search) == Search()(texts)
    assert search.asked
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    again = Search()
    assert Cache(path, "a", KINDS).find(texts, again) == Search()(texts)
    assert again.asked == []


def test_a_file_that_is_damaged_while_it_is_used_is_made_anew(path):
    cache = Cache(path, "a", KINDS)
    cache.find(["one"], Search())
    path.write_bytes(b"x" * 5000)
    assert cache.find(["one", "two"], Search()) == Search()(["one", "two"])


def test_many_may_use_it_at_a_time(path):
    faults = []

    def work(number):
        try:
            cache = Cache(path, "a", KINDS)
            for batch in range(20):
                texts = [f"text {(number * 7 + batch * 13 + n) % 200}" for n in range(20)]
                assert cache.find(texts, Search()) == Search()(texts)
            cache.close()
        except BaseException as fault:
            faults.append(fault)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert faults == []


def test_a_place_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "spans.db").mkdir()
    with pytest.raises(InputError, match="findings cannot be kept here"):
        Cache(tmp_path / "spans.db", "a", KINDS)
