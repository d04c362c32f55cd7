"""What a detector says of a text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True, order=True)
class Span:
    """Characters [start, end) of a text, and what kind of thing stands there (`PERSON`, `EMAIL_ADDRESS`)."""

    start: int
    end: int
    kind: str


class SpanFinder(Protocol):
    def find(self, texts: Sequence[str]) -> list[list[Span]]:
        """One list a text, sorted by start."""
