"""Split a text into the pieces that a person may see: readable text, and labels in place of masked text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from confide.sensitive.detectors.spans import Span
from confide.sensitive.redaction.masking import merged

BLOCK = "█"


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of readable text, or a masked place without its text.

    Attributes:
        text: the readable text; empty for a masked place.
        kinds: the kinds of the findings that overlap the masked place, in order; empty for readable text.
        missed: the kinds of the annotations there that no detector covers completely; empty for readable text.
    """

    text: str = ""
    kinds: tuple[str, ...] = ()
    missed: tuple[str, ...] = ()

    @property
    def masked(self) -> bool:
        return bool(self.kinds or self.missed)

    @property
    def plain(self) -> str:
        """The readable text, or the kinds between blocks: `█ORG/PERSON█`."""
        return f"{BLOCK}{'/'.join((*self.kinds, *self.missed))}{BLOCK}" if self.masked else self.text


def pieces(text: str, spans: Iterable[Span], missed: Iterable[Span] = ()) -> list[Piece]:
    """Return the pieces of a text in reading order, without any character of a span."""
    return list(_pieces(text, spans, missed))


def _pieces(text: str, spans: Iterable[Span], missed: Iterable[Span]) -> Iterator[Piece]:
    last, found, unfound = 0, _Queue(spans), _Queue(missed)
    for start, end in merged([*spans, *missed]):
        if start > last:
            yield Piece(text[last:start])
        yield Piece("", found.before(end), unfound.before(end))
        last = end
    if last < len(text):
        yield Piece(text[last:])


class _Queue:
    """Hands out the kinds of spans in the order of their places."""

    def __init__(self, spans: Iterable[Span]) -> None:
        self._spans = sorted(span for span in spans if span.start < span.end)
        self._next = 0

    def before(self, end: int) -> tuple[str, ...]:
        """Return the kinds of the remaining spans that start before `end`, each kind once."""
        first = self._next
        while self._next < len(self._spans) and self._spans[self._next].start < end:
            self._next += 1
        return tuple(dict.fromkeys(span.kind for span in self._spans[first : self._next]))
