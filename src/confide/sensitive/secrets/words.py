"""A list of words and phrases, and every place where they stand in a text.

What a theorem rests on is that no place is missed. Words are matched whole, whatever the case; letters,
digits and `_` make words, so quotes, hyphens and a possessive 's end one, and where a phrase begins or ends
with something else (`C++`) nothing is asked of its neighbour there. Any run of white space in the text
stands for a space in a phrase. Composed and decomposed accents, curly and straight apostrophes match; so do
full-width letters and ligatures, and characters that nobody sees (soft hyphens, zero-width spaces) part no
word. In scripts written without spaces each character is a word. Other spellings and inflections are other
words, and so are `apollo_launch`, `Jose` for `José`, and what a hyphen breaks at a line's end: list them.
"""

from __future__ import annotations

import csv
import gc
import io
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from confide.data.readers.documents import Document
from confide.data.readers.opening import check_regular
from confide.data.spans import Mention
from confide.sensitive.secrets.folding import (
    PIECE,
    Composed,
    Plain,
    Tokens,
    canonical,
    joins,
    pair_keys,
    split,
    starts_apart,
)
from confide.utils.errors import InputError

if TYPE_CHECKING:
    from numpy.typing import NDArray

_SPARSE = 32  # places of the filter for each word


@dataclass(frozen=True, slots=True)
class Entry:
    """A line of the list. The word is left out of `repr`; `columns` are a CSV's others, by name."""

    id: str
    line: int
    word: str = field(repr=False)
    columns: Mapping[str, str] = field(default_factory=dict, repr=False)


def read_words(path: str | Path, key: str = "secrets.words") -> list[Entry]:
    """The entries of a list: UTF-8, a word or phrase a line, blank lines and those that start with # skipped;
    or, where the name ends in .csv, a table with a column `word` and perhaps `id`.

    The id is `words:LINE`, counted from 1, or the table's own; entries with one id are one secret.

    Raises InputError, naming `key` and the line, never the word, for what cannot be read or matched.
    """
    path = Path(path).expanduser()
    text = read_text(path, key)
    if not is_table(path) and text.lstrip().lower().startswith(("word,", "id,")):
        raise InputError(f"{key}: {path} looks like a table: give it a name that ends in .csv")
    lines = _table(path, text, key) if is_table(path) else _lines(text)
    entries = []
    for entry in lines:
        word = canonical(entry.word)
        if not word or "\0" in entry.word or not starts_apart(word):
            raise InputError(f"{key}: {path} line {entry.line} holds no word that can be matched")
        if entry.id != f"words:{entry.line}" and word in canonical(entry.id):
            raise InputError(
                f"{key}: {path} line {entry.line} has the word itself in its id, and ids are published"
            )
        entries.append(entry)
    if not entries:
        raise InputError(f"{key}: {path} lists no word")
    return entries


def is_table(path: str | Path) -> bool:
    """Whether a list of words is a CSV, by its name."""
    return Path(path).suffix.lower() == ".csv"


def read_text(path: Path, key: str) -> str:
    """A file's text, without a byte order mark. Raises InputError that names `key`, the file and the line."""
    check_regular(path, key)
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InputError(f"{key}: {path}: {error.strerror}") from None
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise InputError(f"{key}: {path} line {line} is not UTF-8 text") from None


def read_table(
    path: Path, text: str, key: str, required: Sequence[str]
) -> Iterator[tuple[int, dict[str, str]]]:
    """Rows of a CSV with a header, blank ones skipped, and the lines where they begin.

    Raises InputError for a column that is not there, a row that is longer than the header, and bad quotes.
    """
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    line = 1
    header: list[str] | None = None
    try:
        for cells in reader:
            if any(cell.strip() for cell in cells):
                if header is None:
                    header = [cell.strip() for cell in cells]
                    _check_header(header, required, path, key)
                elif len(cells) > len(header):
                    raise InputError(f"{key}: {path} line {line} has more cells than the header")
                else:
                    cells += [""] * (len(header) - len(cells))
                    yield line, {name: cell.strip() for name, cell in zip(header, cells, strict=True)}
            line = reader.line_num + 1
    except csv.Error as error:
        raise InputError(f"{key}: {path} line {line}: not valid CSV: {error}") from None
    if header is None:
        raise InputError(f"{key}: {path} is empty")


def _check_header(header: list[str], required: Sequence[str], path: Path, key: str) -> None:
    if len(header) == 1 and ";" in header[0]:
        raise InputError(f"{key}: {path} has semicolons between its columns: use commas")
    for name in required:
        if name not in header:  # without a header the first line may hold a secret: it is not shown
            raise InputError(f"{key}: {path} has no column {name!r} in its header (the first line)")
    if len(set(header)) < len(header):
        raise InputError(f"{key}: {path} has two columns of one name in its header")


def _lines(text: str) -> Iterator[Entry]:
    for number, line in enumerate(text.split("\n"), 1):
        word = line.strip()
        if word and not word.startswith("#"):
            yield Entry(f"words:{number}", number, word)


def _table(path: Path, text: str, key: str) -> Iterator[Entry]:
    for line, row in read_table(path, text, key, ["word"]):
        word = row.pop("word")
        yield Entry(row.pop("id", "") or f"words:{line}", line, word, row)


@dataclass(frozen=True, slots=True)
class _Phrase:
    """Words in a row, or not words alone. `anchor`: which part holds the word it is looked up by, and the
    character of that part where it starts."""

    secret: str
    parts: tuple[str, ...] = field(repr=False)
    anchor: tuple[int, int]

    def at(self, text: str, place: int) -> tuple[int, int] | None:
        """The span of the phrase whose anchor stands at `place` of a folded text, if it does stand there."""
        part, offset = self.anchor
        start = place - offset
        if start < 0 or not text.startswith(self.parts[part], start):
            return None
        end = start + len(self.parts[part])
        for piece in self.parts[part + 1 :]:
            begin = _after_space(text, end)
            if begin == end or not text.startswith(piece, begin):
                return None
            end = begin + len(piece)
        for piece in reversed(self.parts[:part]):
            stop = _before_space(text, start)
            if stop == start or not text.endswith(piece, 0, stop):
                return None
            start = stop - len(piece)
        inside = (start and joins(text[start - 1], text[start])) or (
            end < len(text) and joins(text[end - 1], text[end])
        )
        return None if inside else (start, end)


def _after_space(text: str, place: int) -> int:
    while place < len(text) and text[place].isspace():
        place += 1
    return place


def _before_space(text: str, place: int) -> int:
    while place and text[place - 1].isspace():
        place -= 1
    return place


class _Filter:
    """Which keys may be listed: all that are, and hardly another (a Bloom filter with two places a key)."""

    def __init__(self, keys: NDArray[np.uint64]) -> None:
        bits = max(16, (_SPARSE * len(keys)).bit_length())
        self._first = np.uint64(64 - bits)
        self._second = np.uint64((1 << bits) - 1)
        self._set = np.zeros(1 << bits, bool)
        self._set[keys >> self._first] = True
        self._set[keys & self._second] = True

    def passed(self, keys: NDArray[np.uint64]) -> NDArray[np.int64]:
        """The numbers of the keys that may be listed, ascending."""
        likely = np.flatnonzero(self._set[(keys >> self._first).view(np.int64)])
        return likely[self._set[(keys[likely] & self._second).view(np.int64)]]


class Words:
    """Finds the words of a list; see the module for what counts as a mention.

    Every word of the text, and every two neighbours, are hashed (numpy, many documents at a time) and looked
    up in a filter; the few that pass are compared exactly. A phrase is looked up by two neighbours in it that
    fewest others hold. Time beyond that grows with the mentions, some 0.7 microseconds each.
    """

    def __init__(self, path: str | Path, key: str = "secrets.words") -> None:
        entries = read_words(path, key)
        self.ids: tuple[str, ...] = tuple(dict.fromkeys(entry.id for entry in entries))
        self._words: dict[str, str] = {}  # by word: the first secret that is this word
        self._phrases: dict[
            str, list[_Phrase]
        ] = {}  # by the only word; further secrets that are one word too
        self._long: dict[tuple[str, str], list[_Phrase]] = {}  # by two neighbouring words
        self._wordless: list[_Phrase] = []
        self._index(entries)

    def _index(self, entries: Sequence[Entry]) -> None:
        """File every entry under a word, or two neighbouring ones, that a mention of it must hold."""
        phrases = [canonical(entry.word) for entry in entries]
        tokens = split("\0".join(phrases))
        begins = _begins(phrases)
        starts = tokens.starts.tolist()
        words = [tokens.folded[a:b] for a, b in zip(starts, tokens.ends.tolist(), strict=True)]
        common = Counter(pairwise(words))
        bounds = np.searchsorted(tokens.starts, [*begins, len(tokens.folded) + 1]).tolist()
        alone, pairs = [], []
        for number, (entry, phrase) in enumerate(zip(entries, phrases, strict=True)):
            first, last = bounds[number], bounds[number + 1]
            anchor = min(range(first, last - 1), key=lambda n: common[words[n], words[n + 1]], default=first)
            before = phrase[: starts[anchor] - begins[number]] if last > first else ""
            parts = tuple(phrase.split(" "))
            filed = _Phrase(entry.id, parts, (before.count(" "), len(before) - (before.rfind(" ") + 1)))
            if last == first:
                self._wordless.append(filed)
            elif last > first + 1:
                pairs.append(anchor)
                self._long.setdefault((words[anchor], words[anchor + 1]), []).append(filed)
            else:
                alone.append(anchor)
                if words[anchor] == phrase and phrase not in self._words:
                    self._words[phrase] = entry.id
                else:
                    self._phrases.setdefault(words[anchor], []).append(filed)
        self._filter = _Filter(tokens.keys[alone])
        self._pair_filter = _Filter(pair_keys(tokens.keys)[pairs])

    def find(self, documents: Sequence[Document]) -> list[list[Mention]]:
        """All mentions, by document, sorted by start and end; characters of `document.text`."""
        found: list[list[Mention]] = []
        with _no_collection():
            for texts in _blocks(document.text for document in documents):
                found += self._find_in(texts)
        return found

    def _find_in(self, texts: list[str]) -> list[list[Mention]]:
        tokens = split("\0".join(texts))  # NUL is part of no phrase
        plain = {number: Plain(texts[number]) for number in _documents_at(tokens.hidden, texts)}
        found = self._find_as_they_stand(texts, tokens)
        for number, text in plain.items():  # a hidden character may stand inside a word, or between two
            (more,) = self._find_as_they_stand([text.text], split(text.text))
            spans = {Mention(each.secret, *text.span(each.start, each.end)) for each in more}
            found[number] = sorted({*found[number], *spans}, key=_place)
        return found

    def _find_as_they_stand(self, texts: list[str], tokens: Tokens) -> list[list[Mention]]:
        composed: dict[int, Composed] = {}
        if len(tokens.unstable):
            for number in _documents_at(tokens.unstable, texts):
                composed[number] = Composed(texts[number])
                texts[number] = composed[number].text
            tokens = split("\0".join(texts))
        found = self._look_up(tokens, _begins(texts))
        for number, text in composed.items():
            found[number] = [
                Mention(mention.secret, *text.span(mention.start, mention.end)) for mention in found[number]
            ]
        return found

    def _look_up(self, tokens: Tokens, begins: list[int]) -> list[list[Mention]]:
        passed = self._filter.passed(tokens.keys)
        starts, ends = tokens.starts[passed], tokens.ends[passed]
        numbers = np.searchsorted(begins, starts, "right") - 1
        origins = np.array(begins, np.int64)[numbers]
        words = [tokens.folded[a:b] for a, b in zip(starts.tolist(), ends.tolist(), strict=True)]
        secrets = list(map(self._words.get, words))
        listed = np.array([secret is not None for secret in secrets], bool)
        columns = (places[listed].tolist() for places in (starts - origins, ends - origins))
        mentions = list(map(Mention, filter(None, secrets), *columns))
        bounds = np.searchsorted(numbers[listed], np.arange(len(begins) + 1)).tolist()
        found = [mentions[a:b] for a, b in pairwise(bounds)]
        _merge(found, self._find_phrases(tokens, words, starts), begins)
        return found

    def _find_phrases(
        self, tokens: Tokens, words: list[str], starts: NDArray[np.int64]
    ) -> list[tuple[int, int, str]]:
        """`words` and `starts`: of those that passed the filter of words."""
        text = tokens.folded
        spans: list[tuple[int, int, str]] = []
        if self._phrases:
            for word, start in zip(words, starts.tolist(), strict=True):
                spans += _spans(self._phrases.get(word, ()), text, start)
        if self._long:
            passed = self._pair_filter.passed(pair_keys(tokens.keys))
            four = (bounds[passed + n].tolist() for n in (0, 1) for bounds in (tokens.starts, tokens.ends))
            for start, end, second, last in zip(*four, strict=True):
                spans += _spans(self._long.get((text[start:end], text[second:last]), ()), text, start)
        for phrase in self._wordless:
            place = text.find(phrase.parts[0])
            while place >= 0:
                spans += _spans([phrase], text, place)
                place = text.find(phrase.parts[0], place + 1)
        return spans


def _documents_at(places: NDArray[np.int64], texts: list[str]) -> list[int]:
    """Which of the texts, joined by NUL, hold these places."""
    if not len(places):
        return []
    numbers: list[int] = np.unique(np.searchsorted(_begins(texts), places, "right") - 1).tolist()
    return numbers


def _place(mention: Mention) -> tuple[int, int, str]:
    return mention.start, mention.end, mention.secret


@contextmanager
def _no_collection() -> Iterator[None]:
    """Mentions hold no cycles; walks through all of them in search of some took a third of the time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _spans(phrases: Iterable[_Phrase], text: str, place: int) -> Iterator[tuple[int, int, str]]:
    for phrase in phrases:
        span = phrase.at(text, place)
        if span is not None:
            yield *span, phrase.secret


def _merge(found: list[list[Mention]], phrases: list[tuple[int, int, str]], begins: list[int]) -> None:
    changed = set()
    for start, end, secret in phrases:
        number = bisect_right(begins, start) - 1
        found[number].append(Mention(secret, start - begins[number], end - begins[number]))
        changed.add(number)
    for number in changed:
        # An entry that is listed twice under one id is one mention.
        unique = dict.fromkeys(found[number])
        found[number] = sorted(unique, key=lambda mention: (mention.start, mention.end))


def _begins(texts: Sequence[str]) -> list[int]:
    """Where each text begins in all of them joined by one character."""
    lengths = np.fromiter(map(len, texts), np.int64, len(texts))
    return (np.cumsum(lengths + 1) - lengths - 1).tolist()


def _blocks(texts: Iterable[str]) -> Iterator[list[str]]:
    block: list[str] = []
    size = 0
    for text in texts:
        block.append(text)
        size += len(text)
        if size >= PIECE:
            yield block
            block, size = [], 0
    if block:
        yield block
