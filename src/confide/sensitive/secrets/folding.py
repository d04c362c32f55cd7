"""Bring text into the form in which words are compared: lower case, composed accents, one apostrophe, one hyphen.

`fold` replaces single characters, so positions stay the same. Composition (Unicode normalisation form C) changes
positions; `Composed` maps them back. `split` finds the words of a text, which may be many documents in one string.
`Plain` is a text without invisible characters, which many tokenizers drop, and with plain letters in place of their
compatible forms.
"""

from __future__ import annotations

import functools
import re
import unicodedata
from bisect import bisect_right
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

_ALL = 0x110000
_LONE = "surrogatepass"  # so that a text with half a surrogate pair can be searched, too
# Characters that are equal here, although lower-casing keeps them apart. `İ` would become two characters; `ς` is the
# form of `σ` at the end of a word.
_SAME = {"İ": "i", "Σ": "σ", "ς": "σ", "‘": "'", "’": "'", "ʼ": "'", "‐": "-", "‑": "-"}
_DOTTED = "i\u0307"  # the result of lower-casing `İ` where the length may change
# Scripts written without spaces between words, or (Hangul) with particles attached: each character counts
# as a word, so that a name is found between its neighbours.
_UNSPACED = re.compile(
    "[\u0e00-\u0eff\u0f00-\u0fff\u1000-\u109f\u1100-\u11ff\u1780-\u17ff\u3005-\u3007\u3040-\u312f\u3130-\u318f"
    "\u31a0-\u31bf\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\ua000-\ua4cf\ua960-\ua97f\uac00-\ud7ff\uf900-\ufaff"
    "\uff66-\uffdc\U0001b000-\U0001b16f\U00020000-\U0003ffff]"
)
_CONTROLS = bytes(point for point in (*range(1, 32), 127) if not chr(point).isspace())
PIECE = (
    1 << 17
)  # characters handled at a time: so few that numpy's arrays stay in the caches of the processor
_PAD = 8
_LOW_BYTES = np.array([(1 << (8 * n)) - 1 for n in range(9)], np.uint64)
_MIX = [np.uint64(odd) for odd in (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9)]


@dataclass(frozen=True, slots=True, eq=False)
class _Tables:
    """Facts about every code point; each array has one entry for each.

    `code`, `alone` and `unstable` apply to folded characters, `fold` and `hidden` to characters of the original text.

    Attributes:
        fold: the code point that it is compared as.
        code: 0 if it is not part of words, else a byte for hashing.
        alone: whether it is a word by itself.
        unstable: whether composition may change or move it.
        hidden: whether `Plain` drops or replaces it.
    """

    fold: NDArray[np.uint32]
    code: NDArray[np.uint8]
    alone: NDArray[np.bool_]
    unstable: NDArray[np.bool_]
    hidden: NDArray[np.bool_]


@functools.cache
def _tables() -> _Tables:
    points = np.arange(_ALL, dtype="<u4")
    every = points.tobytes().decode("utf-32-le", _LONE)
    fold = np.frombuffer(every.replace("İ", "i").lower().encode("utf-32-le", _LONE), "<u4").copy()
    for character, same in _SAME.items():
        fold[ord(character)] = ord(same)
    word = np.strings.isalnum(points.view("<U1")) | (points == ord("_"))
    code = np.where(points < 128, points, 128 + (points * np.uint32(0x9E3779B1) >> np.uint32(20)) % 127)
    alone = np.zeros(_ALL, bool)
    alone[[ord(found.group()) for found in _UNSPACED.finditer(every)]] = True
    hidden = np.zeros(_ALL, bool)
    hidden[[place for place, character in enumerate(every) if _plain(character) != character]] = True
    hidden[0] = False  # NUL separates documents
    return _Tables(
        fold, np.where(word, code, 0).astype(np.uint8), alone & word, _unstable(every, fold), hidden
    )


def _plain(character: str) -> str:
    """Return the plain form of a character.

    It is empty for format and control characters, and plain letters for ligatures, full-width and small letters.
    """
    if unicodedata.category(character) in ("Cc", "Cf"):
        return character if character.isspace() else ""
    # A trade mark sign would become letters, which would join the word before it.
    if not character.isalnum():
        return character
    compatible = unicodedata.normalize("NFKC", character)
    return character if compatible == unicodedata.normalize("NFC", character) else compatible


def _unstable(every: str, fold: NDArray[np.uint32]) -> NDArray[np.bool_]:
    """Tell of each code point whether it is a mark, a later part of a composition, or replaced by composition."""
    unstable = np.fromiter((unicodedata.combining(character) != 0 for character in every), bool, _ALL)
    decomposed = unicodedata.normalize("NFD", "\n".join(every)).split("\n")
    for whole in decomposed:
        if len(whole) > 1:
            unstable[[ord(part) for part in whole[1:]]] = True
    folded = fold.tobytes().decode("utf-32-le", _LONE)
    composed = unicodedata.normalize("NFC", "\n".join(folded)).split("\n")
    if len(composed) == _ALL + 1:  # the line feed itself was split into two
        del composed[0x0A]
    unstable |= np.fromiter((a != b for a, b in zip(composed, folded, strict=True)), bool, _ALL)
    unstable[:128] = False
    return unstable


_ASCII_CODES = bytes(
    ord(chr(point).lower()) if chr(point).isalnum() or chr(point) == "_" else 0 for point in range(128)
).ljust(256, b"\0")


def fold(text: str) -> str:
    """Return the text in lower case with plain apostrophes and hyphens; its length stays the same."""
    return text.lower() if text.isascii() else _fold(text)[0]


def _fold(text: str) -> tuple[str, NDArray[np.uint32], NDArray[np.int64]]:
    """Return the folded text, its code points, and the places where the text is not ASCII.

    In most languages these places are few. The tables are read only for them.
    """
    points = np.frombuffer(text.encode("utf-32-le", _LONE), "<u4")
    places = np.flatnonzero(points > 127)
    folded = np.frombuffer(_low_bytes(points).lower(), np.uint8).astype("<u4")
    folded[places] = _tables().fold[points[places]]
    return folded.tobytes().decode("utf-32-le", _LONE), folded, places


def _low_bytes(points: NDArray[np.uint32]) -> bytes:
    return points.astype(np.uint8).tobytes()


def canonical(phrase: str) -> str:
    """Return the form of a phrase for comparison: folded, composed, with single spaces and none at the ends."""
    if phrase.isascii() and phrase.isprintable():
        return " ".join(phrase.lower().split())
    spaced = " ".join(Plain(phrase).text.split())
    return spaced.lower() if spaced.isascii() else Composed(spaced).text


def joins(left: str, right: str) -> bool:
    """Tell whether two neighbouring folded characters are in the same word."""
    return _joins(left) and _joins(right)


def _joins(character: str) -> bool:
    if character.isascii():
        return character.isalnum() or character == "_"
    return bool(_tables().code[ord(character)]) and not _tables().alone[ord(character)]


def starts_apart(phrase: str) -> bool:
    """Tell whether no text before a canonical phrase can combine with the first character of the phrase."""
    return phrase.isascii() or not _tables().unstable[ord(phrase[0])]


class Composed:
    """The canonical form of one text (with its white space unchanged), and a map back to the original places.

    Composition acts within clusters. A cluster begins with a character that nothing before it can absorb. The
    characters after it may be absorbed or reordered. Each cluster is composed by itself. A span that touches a cluster
    maps to the whole cluster.
    """

    def __init__(self, text: str) -> None:
        folded = fold(text)
        points = np.frombuffer(folded.encode("utf-32-le", _LONE), "<u4")
        unstable = np.concatenate([[False], _tables().unstable[points], [False]])
        edges = np.flatnonzero(unstable[1:] != unstable[:-1]).tolist()
        pieces: list[str] = []
        at = length = 0
        self._begins: list[int] = []  # of changed clusters, in the composed text
        self._clusters: list[tuple[int, int, int]] = []  # end in the composed text; begin and end in the text
        for first, end in zip(edges[::2], edges[1::2], strict=True):
            begin = max(first - 1, 0)
            cluster = unicodedata.normalize("NFC", folded[begin:end]).replace(_DOTTED, "i")
            if cluster == folded[begin:end]:
                continue
            pieces += folded[at:begin], cluster
            length += begin - at
            self._begins.append(length)
            length += len(cluster)
            self._clusters.append((length, begin, end))
            at = end
        self.text = "".join([*pieces, folded[at:]])

    def span(self, start: int, end: int) -> tuple[int, int]:
        """Return the characters of the original text that became the characters [start, end) of the composed one."""
        return self._where(start)[0], self._where(end - 1)[1]

    def _where(self, place: int) -> tuple[int, int]:
        number = bisect_right(self._begins, place) - 1
        if number < 0:
            return place, place + 1
        composed_end, begin, end = self._clusters[number]
        if place < composed_end:
            return begin, end
        return end + place - composed_end, end + place - composed_end + 1


class Plain:
    """A text without hidden characters, and a map back to the original places."""

    def __init__(self, text: str) -> None:
        points = np.frombuffer(text.encode("utf-32-le", _LONE), "<u4")
        pieces: list[str] = []
        origins: list[NDArray[np.int64]] = []
        at = 0
        for place in np.flatnonzero(_tables().hidden[points]).tolist():
            plain = _plain(text[place])
            pieces += text[at:place], plain
            origins += np.arange(at, place), np.full(len(plain), place)
            at = place + 1
        self.text = "".join([*pieces, text[at:]])
        self._origins = np.concatenate([*origins, np.arange(at, len(text))])

    def span(self, start: int, end: int) -> tuple[int, int]:
        """Return the characters of the original text that became the characters [start, end) of the plain one."""
        return int(self._origins[start]), int(self._origins[end - 1]) + 1


@dataclass(frozen=True, slots=True, eq=False)
class Tokens:
    """The words of a text.

    Attributes:
        folded: the folded text.
        starts, ends: the characters [start, end) of each word in `folded`, ascending.
        keys: a 64-bit key of each word. Equal words have equal keys; different words may share one.
        unstable: places in the text. A document with such a place must be composed before its words can be compared.
        hidden: places of characters that `Plain` drops or replaces.
    """

    folded: str
    starts: NDArray[np.int64]
    ends: NDArray[np.int64]
    keys: NDArray[np.uint64]
    unstable: NDArray[np.int64]
    hidden: NDArray[np.int64]


def split(text: str) -> Tokens:
    """Find the words of a text: longest runs of letters, digits and `_`, or single characters of unspaced scripts."""
    if len(text) <= 2 * PIECE:
        return _split(text)
    cuts = [0]
    while len(text) - cuts[-1] > 2 * PIECE and (cut := text.find(" ", cuts[-1] + PIECE)) > 0:
        cuts.append(cut)
    pieces = [(cut, _split(text[cut:end])) for cut, end in pairwise([*cuts, len(text)])]
    return Tokens(
        "".join(piece.folded for _, piece in pieces),
        np.concatenate([cut + piece.starts for cut, piece in pieces]),
        np.concatenate([cut + piece.ends for cut, piece in pieces]),
        np.concatenate([piece.keys for _, piece in pieces]),
        np.concatenate([cut + piece.unstable for cut, piece in pieces]),
        np.concatenate([cut + piece.hidden for cut, piece in pieces]),
    )


def _split(text: str) -> Tokens:
    unstable = np.empty(0, np.int64)
    alone = np.empty(0, np.int64)  # places
    codes = np.zeros(len(text) + 2 * _PAD, np.uint8)
    if text.isascii():
        folded, low = text.lower(), text.encode()
        codes[_PAD:-_PAD] = np.frombuffer(low.translate(_ASCII_CODES), np.uint8)
        hidden = _controls(low)
    else:
        folded, points, places = _fold(text)
        low = _low_bytes(points)
        codes[_PAD:-_PAD] = np.frombuffer(low.translate(_ASCII_CODES), np.uint8)
        others = points[places]
        controls = _controls(low)  # the low byte of other characters may look like a control character
        stood = np.frombuffer(text.encode("utf-32-le", _LONE), "<u4")[places]
        hidden = np.concatenate([controls[points[controls] < 128], places[_tables().hidden[stood]]])
        tables = _tables()
        codes[_PAD + places] = tables.code[others]
        unstable = places[tables.unstable[others]]
        alone = places[tables.alone[others]]
    word = codes != 0
    edge = word[1:] != word[:-1]
    if len(alone):
        apart = np.zeros(len(codes), bool)
        apart[_PAD + alone] = True
        edge |= word[1:] & word[:-1] & (apart[1:] | apart[:-1])
    edges = np.flatnonzero(edge) + 1
    starts, ends = edges[word[edges]], edges[word[edges - 1]]
    return Tokens(folded, starts - _PAD, ends - _PAD, _keys(codes, starts, ends), unstable, hidden)


def _controls(low: bytes) -> NDArray[np.int64]:
    """Return the places of control characters that are neither white space nor NUL."""
    if len(low.translate(None, _CONTROLS)) == len(low):
        return np.empty(0, np.int64)
    return np.flatnonzero(np.isin(np.frombuffer(low, np.uint8), np.frombuffer(_CONTROLS, np.uint8)))


def _keys(codes: NDArray[np.uint8], starts: NDArray[np.int64], ends: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Hash each word's first eight bytes, last eight bytes and length."""
    eights = np.ndarray(
        (len(codes) - 7,), "<u8", codes.data, 0, (1,)
    )  # the eight bytes that begin at each place
    lengths = ends - starts
    short = np.minimum(lengths, 8)
    first = eights[starts] & _LOW_BYTES[short]
    last = eights[ends - 8] & ~_LOW_BYTES[8 - short]
    keys = (first * _MIX[0]) ^ (last * _MIX[1]) ^ (lengths.astype(np.uint64) * _MIX[2])
    keys ^= keys >> np.uint64(29)
    mixed: NDArray[np.uint64] = keys * _MIX[0]
    return mixed


def pair_keys(keys: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return a key for each two neighbouring words: one fewer than `keys`."""
    return (keys[:-1] * _MIX[1]) ^ (keys[1:] * _MIX[2])
