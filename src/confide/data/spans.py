"""Places in a text."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Mention:
    """Characters [start, end) of a document's text carry a secret; by its identifier, not by what it says."""

    secret: str
    start: int
    end: int
