"""Count the words and characters of a text that lie in given places."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import accumulate

from confide.sensitive.redaction.masking import Place

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
