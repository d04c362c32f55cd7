"""The findings of detectors: spans of a text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True, order=True)
class Span:
    """Characters [start, end) of a text, and the kind of thing that stands there (`PERSON`, `EMAIL_ADDRESS`)."""

    start: int
    end: int
    kind: str


class SpanFinder(Protocol):
    """Anything that finds spans in texts."""

    def find(self, texts: Sequence[str]) -> list[list[Span]]:
        """Return one list of spans for each text, sorted by start."""
