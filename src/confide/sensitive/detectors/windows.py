"""Speed up expensive searches: search only the windows of a text that can hold a match.

An anchor is something that every match contains. A window is a longest run of characters that may occur in a match,
and it contains an anchor. So each match lies within one window. A window also shows one more character on either
side. This character is in no match, and no expression looks further than it. So a search of the windows finds exactly
the matches that a search of the whole text finds.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from confide.sensitive.detectors.spans import Span

Places = Iterable[tuple[int, int]]

_JOINED = 1 << 15  # characters of windows that one search reads
_BLOCK = 1 << 20
_APART = "\n"  # separates texts and windows; no match contains it


class Windows:
    """The runs of characters of class `inside` that contain a match of `anchor`, and one more character on each side.

    The modules `re` and `regex` and their flags differ in what a class matches. Pass the module and the flags that the
    search itself uses. The anchor must match within one run.
    """

    def __init__(self, anchor: str, inside: str, flags: int = 0, module: Any = re) -> None:
        outside = f"[{inside[2:]}" if inside.startswith("[^") else f"[^{inside[1:]}"
        self._anchor = module.compile(anchor, flags)
        self._inside = module.compile(inside, flags)
        self._outside = module.compile(outside, flags)

    def __call__(self, text: str) -> Iterator[tuple[int, int]]:
        done = 0
        for match in self._anchor.finditer(text):
            if match.start() >= done:
                start = run_start(self._inside, text, match.start(), done)
                after = self._outside.search(text, match.end())
                done = len(text) if after is None else after.start()
                yield max(start - 1, 0), min(done + 1, len(text))


def find_joined(texts: Sequence[str], find: Callable[[str], Iterable[Span]]) -> list[set[Span]]:
    """Return the spans that `find` finds in each text.

    `find` reads many texts at once, joined by line feeds. So no match may cross a line feed. Joining saves time, since
    every search has a fixed cost and many texts are short.
    """
    found: list[set[Span]] = [set() for _ in texts]
    first = 0
    while first < len(texts):
        begins, size, last = [], 0, first
        while last < len(texts) and (size < _BLOCK or last == first):
            begins.append(size)
            size += len(texts[last]) + len(_APART)
            last += 1
        for span in find(_APART.join(texts[first:last])):
            place = bisect_right(begins, span.start) - 1
            shift = begins[place]
            found[first + place].add(Span(span.start - shift, span.end - shift, span.kind))
        first = last
    return found


def run_start(inside: Any, text: str, place: int, first: int = 0) -> int:
    """Return the start of the run of `inside` that ends before `place`; the result is at least `first`."""
    while place > first and inside.match(text, place - 1):
        place -= 1
    return place


def search(
    texts: Sequence[str], windows: Callable[[str], Places], find: Callable[[str], Places]
) -> Iterator[tuple[int, int, int]]:
    """Yield a text's number, start and end for each match of `find` in the windows of the texts, in any order.

    `find` reads many windows at once, joined by line feeds.
    """
    pieces: list[str] = []
    begins: list[int] = []
    origins: list[tuple[int, int]] = []
    size = 0
    for number, text in enumerate(texts):
        for start, end in windows(text):
            pieces.append(text[start:end])
            begins.append(size)
            origins.append((number, start))
            size += end - start + len(_APART)
            if size >= _JOINED:
                yield from _search_joined(pieces, begins, origins, find)
                pieces, begins, origins, size = [], [], [], 0
    if pieces:
        yield from _search_joined(pieces, begins, origins, find)


def _search_joined(
    pieces: list[str], begins: list[int], origins: list[tuple[int, int]], find: Callable[[str], Places]
) -> Iterator[tuple[int, int, int]]:
    for start, end in find(_APART.join(pieces)):
        place = bisect_right(begins, start) - 1
        number, origin = origins[place]
        shift = origin - begins[place]
        yield number, start + shift, end + shift
