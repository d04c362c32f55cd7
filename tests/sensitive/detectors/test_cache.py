"""Findings on disk: private, by text and settings, shared by processes, and made anew if damaged."""

import hashlib
import sqlite3
import stat
import threading

import pytest

from confide.randomness.streams import RunKey
from confide.sensitive.detectors import Span
from confide.sensitive.detectors.cache import Cache
from confide.utils.errors import InputError

KINDS = ("WORD", "DATE")

KEY = RunKey(bytes(range(32)))


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
    first = Cache(path, "a", KINDS, KEY)
    found = first.find(texts, search)
    assert found == Search()(texts)
    assert sorted(search.asked) == sorted(set(texts))
    first.close()
    again = Cache(path, "a", KINDS, KEY)
    search.asked.clear()
    assert again.find([*texts, "new"], search) == Search()([*texts, "new"])
    assert search.asked == ["new"]
    other = Cache(path, "b", KINDS, KEY)
    other.find(texts, search)
    assert sorted(search.asked) == sorted(["new", *set(texts)])


def test_the_file_is_private_and_holds_no_text(path):
    Cache(path, "a", KINDS, KEY).find(["a secret sentence"], Search())
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert b"secret" not in path.read_bytes()


def names(path):
    with sqlite3.connect(path) as file:
        return {name for (name,) in file.execute("SELECT name FROM found")}


def test_entries_are_hashed_under_the_run_key(tmp_path):
    """Settings are public: a hash under them alone would let whoever has the file test guesses of a text."""
    text, found = "a secret sentence", []
    for name, key in (("one", KEY), ("same", RunKey(bytes(range(32)))), ("other", RunKey(bytes(32)))):
        Cache(tmp_path / name, "a", KINDS, key).find([text], Search())
        found.append(names(tmp_path / name))
    assert found[0] == found[1] != found[2]
    public = hashlib.blake2b(b"a", digest_size=32).digest()
    assert hashlib.blake2b(text.encode(), digest_size=16, key=public).digest() not in found[0]
    search = Search()
    Cache(tmp_path / "one", "a", KINDS, RunKey(bytes(32))).find([text], search)
    assert search.asked == [text]


@pytest.mark.parametrize("damage", ["not a database", "cut", "pages", "entry"])
def test_a_damaged_file_is_made_anew(path, damage):
    texts = [f"text {number}" for number in range(2000)]
    Cache(path, "a", KINDS, KEY).find(texts, Search())
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
    assert Cache(path, "a", KINDS, KEY).find(texts, search) == Search()(texts)
    assert search.asked
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    again = Search()
    assert Cache(path, "a", KINDS, KEY).find(texts, again) == Search()(texts)
    assert again.asked == []


def test_a_file_that_is_damaged_while_it_is_used_is_made_anew(path):
    cache = Cache(path, "a", KINDS, KEY)
    cache.find(["one"], Search())
    path.write_bytes(b"x" * 5000)
    assert cache.find(["one", "two"], Search()) == Search()(["one", "two"])


def test_many_may_use_it_at_a_time(path):
    faults = []

    def work(number):
        try:
            cache = Cache(path, "a", KINDS, KEY)
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
        Cache(tmp_path / "spans.db", "a", KINDS, KEY)
