"""What is known of a document's text beside its characters: where turns begin, and what is predicted."""

from dataclasses import dataclass

Place = tuple[int, int]
"""Characters [start, end) of a text."""


@dataclass(frozen=True)
class Layout:
    """What is known of a text beside its characters.

    Attributes:
        predicted: characters whose tokens are predicted; None for all of them.
        turns: where turns begin; a row may begin there.
        exchanges: those of `turns` that are no answer: better places, as an answer stays with its question.
        has_ends: the text has its own marks of beginning and end.
    """

    predicted: tuple[Place, ...] | None
    turns: tuple[int, ...] = ()
    exchanges: tuple[int, ...] = ()
    has_ends: bool = True
