"""Named entities by a spaCy pipeline (paper 004, section 4.1: low-entity and high-entity policies)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from confide.detectors.spans import Span
from confide.errors import InputError

if TYPE_CHECKING:
    from spacy.language import Language

Level = Literal["low-entity", "high-entity"]

# The 18 types of OntoNotes 5.
_ALL = (
    *("PERSON", "NORP", "FAC", "ORG", "GPE", "LOC", "PRODUCT", "EVENT", "WORK_OF_ART", "LAW", "LANGUAGE"),
    *("DATE", "TIME", "PERCENT", "MONEY", "QUANTITY", "ORDINAL", "CARDINAL"),
)
LEVELS: dict[Level, tuple[str, ...]] = {
    "low-entity": ("PERSON", "ORG", "DATE", "GPE", "LOC"),
    "high-entity": _ALL,
}
_BATCH = 64
# What entities do not rest on, and most of the time.
_UNUSED = ("tagger", "parser", "attribute_ruler", "lemmatizer", "morphologizer", "senter")


class Entities:
    """The entities that a pipeline finds, of the kinds of a level.

    `pipeline` is the name of an installed spaCy package or a folder. A text longer than the pipeline takes at
    once is cut at white space, so an entity across such a cut (a million characters in) is found in part.

    Raises InputError if spaCy or the pipeline is not there, or knows none of these kinds.
    """

    def __init__(self, pipeline: str, level: Level, key: str = "secrets.detector.pipeline") -> None:
        self._language = _load(pipeline, key)
        self._kinds = frozenset(LEVELS[level])
        known = {label for labels in self._language.pipe_labels.values() for label in labels}
        missing = sorted(self._kinds - known)
        if missing:
            raise InputError(f"{key}: {pipeline} does not find {', '.join(missing)}, which {level} asks for")

    def find(self, texts: Sequence[str]) -> list[list[Span]]:
        """One list a text, sorted by start."""
        found: list[list[Span]] = [[] for _ in texts]
        pieces = (
            (piece, (number, origin))
            for number, text in enumerate(texts)
            for origin, piece in _pieces(text, self._language.max_length)
        )
        for document, (number, origin) in self._language.pipe(pieces, as_tuples=True, batch_size=_BATCH):
            found[number] += [
                Span(origin + entity.start_char, origin + entity.end_char, entity.label_)
                for entity in document.ents
                if entity.label_ in self._kinds
            ]
        return found


def _pieces(text: str, longest: int) -> list[tuple[int, str]]:
    pieces = []
    start = 0
    while len(text) - start > longest:
        cut = max(text.rfind(" ", start, start + longest), text.rfind("\n", start, start + longest)) + 1
        end = cut if cut > start else start + longest
        pieces.append((start, text[start:end]))
        start = end
    return [*pieces, (start, text[start:])]


def _load(pipeline: str, key: str) -> Language:
    try:
        import spacy
    except ImportError:
        raise InputError(f"{key}: spaCy is not installed: pip install 'confide[detectors]'") from None
    try:
        language: Any = spacy.load(pipeline)
    except (OSError, ValueError, ImportError) as error:
        if isinstance(error, OSError) and "E050" in str(error):
            raise InputError(
                f"{key}: no spaCy pipeline {pipeline!r}: python -m spacy download {pipeline}, or name a folder"
            ) from None
        raise InputError(f"{key}: {pipeline} cannot be loaded: {str(error).splitlines()[0]}") from None
    if "ner" not in language.pipe_names:
        raise InputError(f"{key}: {pipeline} has no component `ner`, so it finds no entities")
    language.select_pipes(disable=[name for name in _UNUSED if name in language.pipe_names])
    return language
