"""Places in a text."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Mention:
    """Characters [start, end) of a document's text that carry a secret, named by an identifier instead of its text."""

    secret: str
    start: int
    end: int
