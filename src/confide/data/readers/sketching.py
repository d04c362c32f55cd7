"""Sketches of texts: hashes from which texts in common are found, and from which no text can be read.

Many short texts are sketched together, as one array of words, since numpy takes longer to be called than to count a few
hundred words. A text of very many words is sketched in pieces, so that its memory is bounded. Both give the same.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_SHINGLE = 5  # words in one element of the sets whose Jaccard similarity is estimated
_GRAM = 16  # words in one fingerprint ...
_WINDOW = 15  # ... of which each run of 15 keeps one: a shared passage of 30 words is always found

_BLANK = re.compile(r"\s")
_PART = 1 << 20  # characters of a text whose words are held at a time, at least
_PIECE = 1 << 18  # hashes that are held at a time
_BATCH = 1 << 12  # hashes that are permuted at a time, each by all permutations
FACTOR = np.uint64(0x9E3779B97F4A7C15)
_PUNCTUATION = {code: " " for code in range(128) if not chr(code).isalnum()}
_KNOWN = 1 << 18  # words whose numbers are kept
_LONGEST = 32  # letters of a word whose number is kept

Hashes = NDArray[np.uint64]
Words = NDArray[np.uint32]


@dataclass(frozen=True, slots=True)
class Sketch:
    """The hashes that are kept of a text; the text cannot be read from them.

    Attributes:
        digest: of all its words, uint64[1].
        signature: MinHash of its shingles, uint32[permutations].
        prints: fingerprints of passages, uint64[F].
    """

    digest: Hashes
    signature: NDArray[np.uint32]
    prints: Hashes


class Sketcher:
    """Makes the sketches of texts; None of a text of fewer than `shortest` words.

    Args:
        shortest: of words.
        permutations: of a signature. They are those of datasketch with a fixed seed: nothing secret depends on them.
    """

    def __init__(self, shortest: int = 20, permutations: int = 64) -> None:
        from datasketch import MinHash

        self._shortest = max(shortest, 1)
        self._permutations = MinHash(num_perm=permutations, seed=1, scheme="affine32").permutations

    def __call__(self, texts: Sequence[str]) -> list[Sketch | None]:
        """Sketch each text."""
        found: list[Sketch | None] = [None] * len(texts)
        together: dict[int, Words] = {}
        held = 0
        for index, text in enumerate(texts):
            words = _words(text)
            if len(words) < self._shortest:
                continue
            if len(words) > _PIECE or len(words) < _SHINGLE:
                found[index] = self._alone(words)
                continue
            if held + len(words) > _PIECE:
                self._fill(found, together)
                together, held = {}, 0
            together[index] = words
            held += len(words)
        self._fill(found, together)
        return found

    def _fill(self, found: list[Sketch | None], together: dict[int, Words]) -> None:
        if together:
            for index, sketch in zip(together, self._together(list(together.values())), strict=True):
                found[index] = sketch

    def _together(self, texts: Sequence[Words]) -> Iterator[Sketch]:
        """Yield the sketch of each text, which has `_SHINGLE` words or more."""
        counts = np.array([len(words) for words in texts])
        ends = np.cumsum(counts)
        mixed = mix(np.concatenate(texts).astype(np.uint64))
        powers = np.cumprod(np.full(counts.max(), FACTOR, np.uint64))
        left = np.repeat(ends, counts) - np.arange(len(mixed))  # words from each one to the end of its text
        digests = mix(np.add.reduceat(mixed * powers[left - 1], ends - counts))
        shingles = _polynomials(mixed, _SHINGLE)[left[: len(mixed) - _SHINGLE + 1] >= _SHINGLE]
        signatures = self._signed(shingles, counts - _SHINGLE + 1)
        prints = iter(_winnowed_together(mixed, left, counts[counts >= _GRAM]))
        for count, digest, signature in zip(counts, digests, signatures, strict=True):
            own = next(prints) if count >= _GRAM else np.empty(0, np.uint64)
            yield Sketch(digest[None], signature, own)

    def _signed(self, shingles: Hashes, counts: NDArray[np.int64]) -> NDArray[np.uint32]:
        """Return the least hash of each text by each permutation: uint32[texts, permutations]."""
        values, starts = (shingles >> np.uint64(32)).astype(np.uint32), np.cumsum(counts) - counts
        least = [
            np.minimum.reduceat(a * values + b, starts) for a, b in zip(*self._permutations, strict=True)
        ]
        return np.stack(least, axis=1)

    def _alone(self, words: Words) -> Sketch:
        a, b = self._permutations
        signature = np.full(len(a), np.iinfo(np.uint32).max, np.uint32)
        for piece in _grams(words, min(_SHINGLE, len(words))):
            for first in range(0, len(piece), _BATCH):
                values = (piece[first : first + _BATCH, None] >> np.uint64(32)).astype(np.uint32)
                signature = np.minimum(signature, (a * values + b).min(axis=0))
        prints = _winnowed(words) if len(words) >= _GRAM else np.empty(0, np.uint64)
        return Sketch(_digest(words), signature, prints)


def mix(values: Hashes) -> Hashes:
    """Mix by the finaliser of SplitMix64 (Steele, Lea & Flood 2014), which spreads every bit over all 64."""
    values = values ^ (values >> np.uint64(30))
    values *= np.uint64(0xBF58476D1CE4E5B9)
    values ^= values >> np.uint64(27)
    values *= np.uint64(0x94D049BB133111EB)
    values ^= values >> np.uint64(31)
    return values


def _words(text: str) -> Words:
    """Return one number for each word, the same for the same word in any text of any run."""
    found = [_numbers(part) for part in _parts(text)]
    return np.concatenate(found) if found else np.empty(0, np.uint32)


def _parts(text: str) -> Iterator[str]:
    """Cut the text between words: a list of words takes ten times the memory of their text."""
    start = 0
    while start < len(text):
        cut = _BLANK.search(text, start + _PART)
        end = cut.start() if cut else len(text)
        yield text[start:end]
        start = end


class _Numbers(dict[str, int]):
    """The number of each word. Those of short words are kept, since few words make most of a text."""

    def __missing__(self, word: str) -> int:
        number = zlib.crc32(word.encode("utf-8", "replace"))
        if len(word) <= _LONGEST:
            self[word] = number
        return number


_NUMBERS = _Numbers()


def _numbers(text: str) -> Words:
    words = ("".join(c if c.isalnum() else " " for c in text.lower()) if not text.isascii() else
             text.lower().translate(_PUNCTUATION)).split()  # fmt: skip
    if len(_NUMBERS) > _KNOWN:
        _NUMBERS.clear()
    return np.fromiter(map(_NUMBERS.__getitem__, words), np.uint32, len(words))


def _polynomials(mixed: Hashes, length: int) -> Hashes:
    """Compute one hash of each run of `length` words, of which each is mixed: a polynomial modulo 2^64, mixed."""
    total = np.zeros(max(len(mixed) - length + 1, 0), np.uint64)
    for offset in range(length):
        total *= FACTOR
        total += mixed[offset : offset + len(total)]
    total *= FACTOR
    return mix(total)


def _winnowed_together(mixed: Hashes, left: NDArray[np.int64], counts: NDArray[np.int64]) -> list[Hashes]:
    """Select the fingerprints of each text as `_winnowed` does; `counts` are of those that have some."""
    if not len(counts):
        return []
    has = left[: len(mixed) - _GRAM + 1] >= _GRAM
    hashes, after = _polynomials(mixed, _GRAM)[has], (left[: len(has)] - _GRAM + 1)[has]
    counts = counts - _GRAM + 1  # hashes of each text; `after` are those from each one to its text's end
    text = np.repeat(np.arange(len(counts)), counts)
    # A text of few hashes keeps the least of them, which the window of its first hash must not look beyond.
    last = np.minimum(np.arange(len(hashes)) + _WINDOW, np.repeat(np.cumsum(counts), counts)) - 1
    least = hashes.copy()
    for offset in range(1, _WINDOW):
        least = np.minimum(least, hashes[np.minimum(np.arange(len(hashes)) + offset, last)])
    is_whole = (after >= _WINDOW) | (after == np.repeat(counts, counts))
    least, text = least[is_whole], text[is_whole]
    order = np.lexsort((least, text))
    least, text = least[order], text[order]
    is_new = np.ones(len(least), bool)
    is_new[1:] = (np.diff(text) != 0) | (least[1:] != least[:-1])
    ends = np.searchsorted(text[is_new], np.arange(1, len(counts)))
    return np.split(least[is_new], ends)


def _digest(words: Words) -> Hashes:
    """Compute one hash of all words in their order, as `_polynomials` does."""
    total = np.zeros(1, np.uint64)
    for first in range(0, len(words), _PIECE):
        piece = mix(words[first : first + _PIECE].astype(np.uint64))
        powers = np.cumprod(np.full(len(piece), FACTOR, np.uint64))
        total = total * powers[-1] + (piece * powers[::-1]).sum(dtype=np.uint64)
    return mix(total)


def _grams(words: Words, length: int, shared: int = 0) -> Iterator[Hashes]:
    """Yield hashes of all runs of `length` words, as `_digest` makes them, in pieces that share `shared` hashes."""
    count, start, end = len(words) - length + 1, 0, 0
    while end < count:
        end = min(start + _PIECE, count)
        yield _polynomials(mix(words[start : end + length - 1].astype(np.uint64)), length)
        start = end - shared


def _winnowed(words: Words) -> Hashes:
    """Select fingerprints of passages: the least of each `_WINDOW` consecutive hashes, each once."""
    return np.unique(np.concatenate([_least(found) for found in _grams(words, _GRAM, _WINDOW - 1)]))


def _least(hashes: Hashes) -> Hashes:
    if len(hashes) <= _WINDOW:
        least: Hashes = hashes.min(keepdims=True)
        return least
    return np.unique(np.lib.stride_tricks.sliding_window_view(hashes, _WINDOW).min(axis=1))
