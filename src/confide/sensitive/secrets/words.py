"""Find every place in a text where a word or phrase of a list occurs.

A theorem rests on the fact that no place is missed. Only whole words match; case does not matter. Words consist of
letters, digits and `_`. So quotes, hyphens and a possessive 's end a word. Where a phrase begins or ends with another
character (`C++`), the neighbour in the text may be anything. A space in a phrase matches any run of white space.
Composed and decomposed accents match each other. So do curly and straight apostrophes, and full-width letters and
ligatures match plain letters. Invisible characters (soft hyphens, zero-width spaces) do not split words. In scripts
without spaces, each character is a word. Other spellings and inflections are different words. So are `apollo_launch`,
`Jose` for `José`, and words that a hyphen splits at the end of a line: list them, too.
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

_SPARSE = 32  # places in the filter for each word


@dataclass(frozen=True, slots=True)
class Entry:
    """A line of the list.

    `columns` has the other columns of a CSV, by name. `repr` leaves out the word and the columns.
    """

    id: str
    line: int
    word: str = field(repr=False)
    columns: Mapping[str, str] = field(default_factory=dict, repr=False)


def read_words(path: str | Path, key: str = "secrets.words") -> list[Entry]:
    """Read the entries of a list of words.

    The file is UTF-8 text with one word or phrase on each line. Blank lines and lines that start with # are skipped.
    If the file's name ends in .csv, it is a table with a column `word` and perhaps a column `id`. The id of an entry
    is the one in the table, or else `words:LINE`, with lines counted from 1. Entries with the same id are one secret.

    Raises:
        InputError: an entry cannot be read or matched; the message names `key` and the line, but never the word.
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
    """Tell whether a list of words is a CSV, by the name of the file."""
    return Path(path).suffix.lower() == ".csv"


def read_text(path: Path, key: str) -> str:
    """Read the text of a file, without a byte order mark.

    Raises:
        InputError: the file cannot be read or is not UTF-8; the message names `key`, the file and, if known, the line.
    """
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
    """Yield the rows of a CSV with a header, each with the line where it begins; blank rows are skipped.

    Raises:
        InputError: a required column is missing, two columns have the same name, a row is longer than the header, the
            quotes are invalid, or the file is empty.
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
        if name not in header:  # do not show the first line: without a header it may contain a secret
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
    """An entry that is compared as a phrase, such as several words or `C++`.

    Attributes:
        secret: the id of the entry.
        parts: the parts of the phrase between spaces.
        anchor: the number of the part with the word that the phrase is looked up by, and the place in that part where
            the word starts.
    """

    secret: str
    parts: tuple[str, ...] = field(repr=False)
    anchor: tuple[int, int]

    def at(self, text: str, place: int) -> tuple[int, int] | None:
        """Return the span of the phrase if its anchor is at `place` of a folded text; None if it is not there."""
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
    """A Bloom filter with two places for each key: it passes all listed keys and very few others."""

    def __init__(self, keys: NDArray[np.uint64]) -> None:
        bits = max(16, (_SPARSE * len(keys)).bit_length())
        self._first = np.uint64(64 - bits)
        self._second = np.uint64((1 << bits) - 1)
        self._set = np.zeros(1 << bits, bool)
        self._set[keys >> self._first] = True
        self._set[keys & self._second] = True

    def passed(self, keys: NDArray[np.uint64]) -> NDArray[np.int64]:
        """Return the indices of the keys that may be listed, ascending."""
        likely = np.flatnonzero(self._set[(keys >> self._first).view(np.int64)])
        return likely[self._set[(keys[likely] & self._second).view(np.int64)]]


class Words:
    """Finds the words of a list; the docstring of the module says what counts as a mention.

    Every word of the text and every pair of neighbouring words is hashed (numpy, many documents at a time) and looked
    up in a filter. The few that pass are compared exactly. A phrase is looked up by the pair of its neighbouring words
    that is rarest in the list. Further time grows with the number of mentions: about 0.7 microseconds each.
    """

    def __init__(self, path: str | Path, key: str = "secrets.words") -> None:
        entries = read_words(path, key)
        self.ids: tuple[str, ...] = tuple(dict.fromkeys(entry.id for entry in entries))
        self._words: dict[str, str] = {}  # word -> the first secret that is this word
        # By the only word in them: single words with other characters, and further secrets that are the same word.
        self._phrases: dict[str, list[_Phrase]] = {}
        self._long: dict[tuple[str, str], list[_Phrase]] = {}  # by a pair of neighbouring words
        self._wordless: list[_Phrase] = []
        self._index(entries)

    def _index(self, entries: Sequence[Entry]) -> None:
        """File every entry under a word or a pair of neighbouring words that each of its mentions must contain."""
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
        """Return the mentions in each document, as characters of `document.text`, sorted by start and end."""
        found: list[list[Mention]] = []
        with _no_collection():
            for texts in _blocks(document.text for document in documents):
                found += self._find_in(texts)
        return found

    def _find_in(self, texts: list[str]) -> list[list[Mention]]:
        tokens = split("\0".join(texts))  # no phrase contains NUL
        plain = {number: Plain(texts[number]) for number in _documents_at(tokens.hidden, texts)}
        found = self._find_as_they_stand(texts, tokens)
        for number, text in plain.items():  # a hidden character may be inside a word or between two
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
        """Return start, end and secret of each phrase; `words` and `starts` are the words that passed the filter."""
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
    """Return the numbers of the texts that contain these places, after all texts are joined by NUL."""
    if not len(places):
        return []
    numbers: list[int] = np.unique(np.searchsorted(_begins(texts), places, "right") - 1).tolist()
    return numbers


def _place(mention: Mention) -> tuple[int, int, str]:
    return mention.start, mention.end, mention.secret


@contextmanager
def _no_collection() -> Iterator[None]:
    """Pause the garbage collector: mentions form no cycles, and scanning them took a third of the run time."""
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
        # If an entry is listed twice under the same id, a place where it occurs is still one mention.
        unique = dict.fromkeys(found[number])
        found[number] = sorted(unique, key=lambda mention: (mention.start, mention.end))


def _begins(texts: Sequence[str]) -> list[int]:
    """Return the place where each text begins after all of them are joined by one character."""
    lengths = np.fromiter(map(len, texts), np.int64, len(texts))
    begins: list[int] = (np.cumsum(lengths + 1) - lengths - 1).tolist()
    return begins


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
