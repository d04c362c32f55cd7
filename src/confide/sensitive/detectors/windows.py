"""Where in a text an expensive search can find anything at all, and the search in these places only.

A window is a longest run of characters that may stand in a match, if it holds an anchor: something that every
match holds. So a match lies in one window, whole. A window shows one more character on either side, which is in
no match; none of the expressions looks further. So searching windows loses nothing and adds nothing.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from confide.sensitive.detectors.spans import Span

Places = Iterable[tuple[int, int]]

_JOINED = 1 << 15  # characters that are searched at once
_BLOCK = 1 << 20
_APART = "\n"  # in no match of what is searched for so


class Windows:
    """The runs of characters of the class `inside` that hold a match of `anchor`, and a character beside them.

    What the class and the anchor match must be told by the module (`re` or `regex`) and the flags of the search
    itself, where they differ. The anchor must match within one run.
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
    """What `find` finds in each text. It reads many at a time, joined by line feeds, which no match may cross: many
    texts are short, and each search of a text has its price."""
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
    """Where the run of `inside` that ends before `place` begins, `first` or later."""
    while place > first and inside.match(text, place - 1):
        place -= 1
    return place


def search(
    texts: Sequence[str], windows: Callable[[str], Places], find: Callable[[str], Places]
) -> Iterator[tuple[int, int, int]]:
    """What `find` finds in the windows of each text, in no order: the text's number, start and end.

    Windows are searched many at once, joined by line feeds.
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
