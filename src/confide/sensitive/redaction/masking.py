"""Replace sensitive characters by a mask before the text is tokenised, and find the tokens that reveal them.

Places are characters [start, end) of a text, sorted and disjoint. `merged` makes them from spans.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from confide.sensitive.detectors.spans import Span

Place = tuple[int, int]


def merged(spans: Iterable[Span]) -> list[Place]:
    """Merge spans into places: spans that overlap or touch become one place, and empty spans are left out."""
    places: list[Place] = []
    for start, end in sorted((span.start, span.end) for span in spans if span.start < span.end):
        if places and start <= places[-1][1]:
            places[-1] = (places[-1][0], max(end, places[-1][1]))
        else:
            places.append((start, end))
    return places


@dataclass(frozen=True)
class Origin:
    """The map from a redacted text to its original.

    Attributes:
        masks: the places of the masks in the redacted text, int64[K, 2].
        places: the places that they stand for in the original text, int64[K, 2].
    """

    masks: np.ndarray
    places: np.ndarray

    def of(self, position: int) -> int:
        """Return the position in the original that corresponds to `position` of the redacted text.

        Raises:
            ValueError: the position is inside a mask; only the whole mask corresponds to a place.
        """
        passed = int(np.searchsorted(self.masks[:, 1], position, side="right"))
        if passed < len(self.masks) and self.masks[passed, 0] < position:
            raise ValueError(f"position {position} is inside a mask")
        return position + int(self.places[passed - 1, 1] - self.masks[passed - 1, 1] if passed else 0)


def outside(spans: Iterable[Span], places: Sequence[Place]) -> list[Span]:
    """Return the parts of spans that are outside all `places`; these are sorted and do not overlap."""
    parts = []
    for span in spans:
        start = span.start
        for first, last in places:
            if last <= start or first >= span.end:
                continue
            if first > start:
                parts.append(Span(start, first, span.kind))
            start = last
        if start < span.end:
            parts.append(Span(start, span.end, span.kind))
    return parts


def masks_of(
    spans: Iterable[Span], places: Sequence[Place], of_kind: Mapping[str, str], otherwise: str
) -> list[str]:
    """Return the mask of each place: that of the kind of the spans in it if they share one, else `otherwise`.

    Args:
        spans: what the places were merged from.
        of_kind: masks by kind; other kinds have `otherwise`.
    """
    if not of_kind:
        return [otherwise] * len(places)
    ends, found = [end for _, end in places], [set[str]() for _ in places]
    for span in spans:
        if span.start < span.end:
            found[bisect_left(ends, span.end)].add(of_kind.get(span.kind, otherwise))
    return [next(iter(own)) if len(own) == 1 else otherwise for own in found]


def masked(text: str, places: Sequence[Place], masks: Sequence[str]) -> tuple[str, Origin]:
    """Return the text with every place replaced by its mask, and the map back to the original.

    Raises:
        ValueError: a place is empty, out of order, touches another one, or lies outside the text.
    """
    pieces: list[str] = []
    stand: list[Place] = []
    done = length = 0
    for (start, end), mask in zip(places, masks, strict=True):
        if not (done < start or done == start == 0) or not start < end <= len(text):
            raise ValueError(
                f"place [{start}, {end}) of a text of {len(text)} characters; merge places first"
            )
        length += start - done + len(mask)
        pieces += (text[done:start], mask)
        stand.append((length - len(mask), length))
        done = end
    pieces.append(text[done:])
    return "".join(pieces), Origin(_pairs(stand), _pairs(places))


def covered(text: str, offsets: Sequence[Place] | np.ndarray, places: Sequence[Place]) -> np.ndarray:
    """Tell of each token whether it stands for a character in a place, or may reveal one: bool[T].

    A tokenizer may drop a character (a control character, an accent, a space at the edge of a token). Such a character
    still influences how the text next to it is split into tokens. So it counts as part of both its neighbours. A
    character that several tokens share counts as part of each.

    Args:
        text: the text.
        offsets: the characters of each token, in order, as `return_offsets_mapping` gives them, or int64[T, 2]. A
            token without characters stands for the characters dropped around it.
        places: the places to look for.
    """
    found = _pairs(offsets)
    starts, stops = found.T
    own = stops > starts
    before = np.concatenate([[0], np.maximum.accumulate(stops)[:-1]]) if len(found) else starts
    first = np.where(own, starts, len(text))
    after = np.append(np.minimum.accumulate(first[::-1])[::-1][1:], len(text)) if len(found) else stops
    begins = np.where(own, np.minimum(starts, before), before)
    ends = np.where(own, np.maximum(stops, after), after)
    sensitive = _pairs(places)
    following = np.searchsorted(
        sensitive[:, 1], begins, side="right"
    )  # the first place that ends after the token begins
    reach = np.append(sensitive[:, 0], len(text))
    return (following < len(sensitive)) & (reach[following] < ends)


def _pairs(pairs: Sequence[Place] | np.ndarray) -> np.ndarray:
    return np.asarray(pairs, dtype=np.int64).reshape(-1, 2)
