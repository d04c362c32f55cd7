"""Find the longest run of words that each text of a corpus shares with other texts, exactly and in bounded memory.

Runs grow by one word at a time. Two places hold the same run of n + 1 words if they hold the same run of n, and the
same word after it. So places get a number for their run of n words (Karp, Miller and Rosenberg 1972), and only those
whose run stands on both sides go on. Nothing is hashed: equal numbers are equal words.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

BLOCK = 1 << 20
"""Words of other texts that are held at a time."""


@dataclass(frozen=True, eq=False)
class Longest:
    """The longest runs in common, in words.

    Attributes:
        of_corpus: int64[corpus], of each text of the corpus with any of the others.
        at: int64[corpus], the word at which that run begins in the text; 0 where there is none.
        of_others: int64[others], of each other text with any of the corpus.
    """

    of_corpus: np.ndarray
    at: np.ndarray
    of_others: np.ndarray


class Corpus:
    """The words of a corpus, numbered. Words are what stands between blanks, as they stand.

    Args:
        texts: all of them are held, as numbers.
    """

    def __init__(self, texts: Iterable[str]) -> None:
        self._numbers: dict[str, int] = {}
        numbers = self._numbers
        rows = [[numbers.setdefault(word, len(numbers)) for word in text.split()] for text in texts]
        self._places = _Places.of(rows)

    def longest(self, others: Iterable[str], block: int = BLOCK) -> Longest:
        """Compare the corpus with other texts, which are taken one after the other and not kept."""
        size = self._places.texts
        found, at = np.zeros(size, dtype=np.int64), np.zeros(size, dtype=np.int64)
        of_others = []
        for rows in self._blocks(others, block):
            here = _compare(self._places, _Places.of(rows))
            longer = here.of_corpus > found
            found[longer], at[longer] = here.of_corpus[longer], here.at[longer]
            of_others.append(here.of_others)
        return Longest(found, at, np.concatenate(of_others) if of_others else np.zeros(0, dtype=np.int64))

    def _blocks(self, others: Iterable[str], block: int) -> Iterator[list[list[int]]]:
        rows: list[list[int]] = []
        held = 0
        for text in others:
            rows.append([self._numbers.get(word, -1) for word in text.split()])
            held += len(rows[-1])
            if held >= block:
                yield rows
                rows, held = [], 0
        if rows:
            yield rows


@dataclass(frozen=True, eq=False)
class _Places:
    """Words of texts, one after the other: word, int64[n], its text, int64[n]; and where each text begins."""

    word: np.ndarray
    text: np.ndarray
    begins: np.ndarray
    texts: int

    @classmethod
    def of(cls, rows: list[list[int]]) -> "_Places":
        lengths = np.array([len(row) for row in rows], dtype=np.int64)
        word = np.fromiter((word for row in rows for word in row), np.int64, int(lengths.sum()))
        return cls(word, np.repeat(np.arange(len(rows)), lengths), np.cumsum(lengths) - lengths, len(rows))

    def after(self, places: np.ndarray, words: int) -> np.ndarray:
        """Return which places have a known word so many words on, in the same text: bool[len(places)]."""
        ahead = places + words
        inside = ahead < len(self.word)
        ahead = np.minimum(ahead, max(0, len(self.word) - 1))
        known: np.ndarray = inside & (self.text[ahead] == self.text[places]) & (self.word[ahead] >= 0)
        return known


def _compare(corpus: _Places, others: _Places) -> Longest:
    sides = (corpus, others)
    best = [np.zeros(side.texts, dtype=np.int64) for side in sides]
    at = np.zeros(corpus.texts, dtype=np.int64)
    places = [np.flatnonzero(side.word >= 0) for side in sides]
    runs = [side.word[own] for side, own in zip(sides, places, strict=True)]
    words = 0
    while all(map(len, places)):
        words += 1
        _, numbers = np.unique(np.concatenate(runs), return_inverse=True)
        numbered = np.split(numbers, [len(runs[0])])
        seen = [np.bincount(own, minlength=numbers.max() + 1) > 0 for own in numbered]
        both = seen[0] & seen[1]
        stays = [both[own] for own in numbered]
        places = [own[keep] for own, keep in zip(places, stays, strict=True)]
        runs = [own[keep] for own, keep in zip(numbered, stays, strict=True)]
        for side, own, found in zip(sides, places, best, strict=True):
            found[side.text[own]] = words
        first = places[0][::-1]  # the last that is written stays, which is then the first of each text
        at[corpus.text[first]] = first - corpus.begins[corpus.text[first]]
        goes_on = [side.after(own, words) for side, own in zip(sides, places, strict=True)]
        places = [own[keep] for own, keep in zip(places, goes_on, strict=True)]
        largest = 1 + max(int(side.word.max(initial=0)) for side in sides)
        runs = [
            own[keep] * largest + side.word[here + words]
            for side, own, keep, here in zip(sides, runs, goes_on, places, strict=True)
        ]
    return Longest(best[0], at, best[1])
