"""Count the words and characters of a text that lie in given places, and what is masked of many texts."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import numpy as np

from confide.sensitive.detectors.spans import Span
from confide.sensitive.redaction.masking import Place, covered, merged

_WORD = re.compile(r"\S+")


class Words:
    """The words of a text, separated by white space; so every other character belongs to a word."""

    def __init__(self, text: str) -> None:
        bounds = [match.span() for match in _WORD.finditer(text)]
        self._starts = [start for start, _ in bounds]
        self._ends = [end for _, end in bounds]

    def __len__(self) -> int:
        return len(self._starts)

    def within(self, places: Sequence[Place]) -> set[int]:
        """Return the numbers of the words that have at least one character in a place [start, end)."""
        return {
            number
            for start, end in places
            for number in range(bisect_right(self._ends, start), bisect_left(self._starts, end))
        }


class Places:
    """Places of a text, sorted and without overlaps, as `masking.merged` returns them."""

    def __init__(self, places: Sequence[Place]) -> None:
        self._starts = [start for start, _ in places]
        self._lengths = [end - start for start, end in places]
        self._before = [0, *accumulate(self._lengths)]

    @property
    def characters(self) -> int:
        return self._before[-1]

    def within(self, start: int, end: int) -> int:
        """Count the characters of [start, end) that lie in a place."""
        return self._below(end) - self._below(start)

    def _below(self, position: int) -> int:
        number = bisect_right(self._starts, position) - 1
        if number < 0:
            return 0
        return self._before[number] + min(self._lengths[number], position - self._starts[number])


@dataclass
class Tally:
    """Counts of masked text: spans, and the documents, characters, words and tokens that they touch."""

    spans: int = 0
    documents: int = 0
    characters: int = 0
    words: int = 0
    tokens: int = 0

    def add(self, spans: int, places: Sequence[Place], words: Words, tokens: int) -> None:
        self.spans += spans
        self.documents += bool(places)
        self.characters += sum(end - start for start, end in places)
        self.words += len(words.within(places))
        self.tokens += tokens

    def include(self, other: Tally) -> None:
        """Add the counts of other text."""
        self.spans += other.spans
        self.documents += other.documents
        self.characters += other.characters
        self.words += other.words
        self.tokens += other.tokens


@dataclass
class Counts:
    """Counts of everything in the documents, of the masked part, and of the part that each kind of finding masks."""

    whole: Tally = field(default_factory=Tally)
    masked: Tally = field(default_factory=Tally)
    kinds: dict[str, Tally] = field(default_factory=dict)

    def add(self, text: str, spans: Sequence[Span], offsets: Sequence[Place] = ()) -> None:
        """Add a document and its findings; `offsets` are the places of its tokens, as the tokenizer returns them."""

        def tokens(places: Sequence[Place]) -> int:
            return int(np.count_nonzero(covered(text, offsets, places))) if offsets else 0

        words = Words(text)
        self.whole.tokens += len(offsets)
        self.whole.documents += 1
        self.whole.characters += len(text)
        self.whole.words += len(words)
        places = merged(spans)
        self.masked.add(len(places), places, words, tokens(places))
        for kind, own in by_kind(spans).items():
            alike = merged(own)
            self.kinds.setdefault(kind, Tally()).add(len(own), alike, words, tokens(alike))

    def include(self, other: Counts) -> None:
        """Add the counts of other documents."""
        self.whole.include(other.whole)
        self.masked.include(other.masked)
        for kind, tally in other.kinds.items():
            self.kinds.setdefault(kind, Tally()).include(tally)

    def facts(self) -> dict[str, Any]:
        return vars(self.whole) | {
            "spans": sum(tally.spans for tally in self.kinds.values()),
            "masked": self._shares(self.masked),
            "kinds": {kind: self._shares(tally) for kind, tally in self.kinds.items()},
        }

    def _shares(self, tally: Tally) -> dict[str, float]:
        return vars(tally) | {
            "share_of_tokens": tally.tokens / max(1, self.whole.tokens),
            "share_of_words": tally.words / max(1, self.whole.words),
            "share_of_characters": tally.characters / max(1, self.whole.characters),
        }


def by_kind(spans: Iterable[Span]) -> dict[str, list[Span]]:
    """Return the spans of each kind, in the order in which kinds appear."""
    found: dict[str, list[Span]] = {}
    for span in spans:
        found.setdefault(span.kind, []).append(span)
    return found
