"""Find named entities and parts of speech with a spaCy pipeline: the four levels of Shi et al. 2022, section 4.1.

low-entity       persons, organisations, dates, places
high-entity      all 18 kinds of entities
low-contextual   also proper nouns, pronouns, and the subjects and objects of sentences
high-contextual  also verbs

The paper names these parts of speech, but not the labels that count. Here a token is
- a proper noun or a pronoun if its part of speech (PROPN, PRON) or its tag (NNP, NNPS; PRP, PRP$, WP, WP$) says
  so. Possessives and relative pronouns count;
- a subject if its dependency is nsubj, nsubjpass, csubj or csubjpass; an object if it is dobj, obj, iobj, pobj or
  dative (a preposition with dative is none). Predicate nouns (attr, oprd) are neither. A token that `and` joins to a
  subject or an object is one as well. Only the token itself counts, not the tokens that depend on it;
- a verb if its part of speech or tag (VERB, AUX; VB..., MD) says so. Auxiliaries and modals are verbs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from confide.config.fields import Section
from confide.config.schema import Detector as DetectorSection
from confide.sensitive.detectors.base import Detector
from confide.sensitive.detectors.spans import Span
from confide.utils.errors import InputError

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from spacy.language import Language
    from spacy.tokens import Doc

Level = Literal["low-entity", "high-entity", "low-contextual", "high-contextual"]

# The 18 types of OntoNotes 5.
_ALL = (
    *("PERSON", "NORP", "FAC", "ORG", "GPE", "LOC", "PRODUCT", "EVENT", "WORK_OF_ART", "LAW", "LANGUAGE"),
    *("DATE", "TIME", "PERCENT", "MONEY", "QUANTITY", "ORDINAL", "CARDINAL"),
)
_CONTEXT = ("PROPER_NOUN", "PRONOUN", "SUBJECT", "OBJECT")
LEVELS: dict[Level, tuple[str, ...]] = {
    "low-entity": ("PERSON", "ORG", "DATE", "GPE", "LOC"),
    "high-entity": _ALL,
    "low-contextual": (*_ALL, *_CONTEXT),
    "high-contextual": (*_ALL, *_CONTEXT, "VERB"),
}
# Kind -> parts of speech and tags.
_WORDS = {
    "PROPER_NOUN": (("PROPN",), ("NNP", "NNPS")),
    "PRONOUN": (("PRON",), ("PRP", "PRP$", "WP", "WP$")),
    "VERB": (("VERB", "AUX"), ("VB", "VBD", "VBG", "VBN", "VBP", "VBZ", "MD")),
}
# Kind -> dependencies, by their names in ClearNLP and in Universal Dependencies.
_PLACES = {
    "SUBJECT": ("nsubj", "nsubjpass", "csubj", "csubjpass", "nsubj:pass", "csubj:pass"),
    "OBJECT": ("dobj", "obj", "iobj", "pobj", "dative"),
}
_BATCH = 64
_PIECE = 100_000  # the most characters that the pipeline reads at once: memory grows with them
# Components that no level needs, and components that entities do not need. The latter take most of the time.
_UNUSED = ("lemmatizer", "senter", "textcat", "textcat_multilabel", "entity_linker")
_NOT_FOR_ENTITIES = ("tagger", "parser", "attribute_ruler", "morphologizer")


class LevelSettings(Section):
    """The settings of `Entities`; the keys stand in `detector` itself."""

    level: Level
    pipeline: str


class Entities(Detector):
    """Finds the kinds of a level with a spaCy pipeline.

    `pipeline` is the name of an installed spaCy package, or a folder. A text is cut at white space if it is longer
    than the pipeline accepts, or than 100,000 characters. A span that stands across a cut is found only in part.

    Raises:
        InputError: spaCy or the pipeline is missing, or the pipeline lacks a component or a kind that the level needs.
    """

    name = "entities"
    Settings = LevelSettings
    is_slow = True
    has_section = False

    @classmethod
    def of(cls, settings: LevelSettings, key: str) -> Entities:
        return cls(settings.pipeline, settings.level, f"{key}.pipeline")

    @classmethod
    def asked(cls, section: DetectorSection) -> LevelSettings | None:
        if section.level is None:
            return None
        return LevelSettings(level=section.level, pipeline=section.pipeline)

    @classmethod
    def kinds(cls, settings: LevelSettings) -> tuple[str, ...]:
        return LEVELS[settings.level]

    @classmethod
    def describe(cls, settings: LevelSettings) -> str:
        return f"level {settings.level} of the spaCy pipeline {Path(settings.pipeline).name}"

    @classmethod
    def files(cls, settings: LevelSettings) -> tuple[str, ...]:
        return (settings.pipeline,)

    @classmethod
    def check_secrets(cls, settings: LevelSettings, key: str) -> None:
        if is_contextual(settings.level):
            raise InputError(
                f"{key}.level: {settings.level} marks nearly every word, and a word that stands everywhere is nobody's "
                "secret; choose low-entity or high-entity, or mechanism selective"
            )

    def __init__(self, pipeline: str, level: Level, key: str = "secrets.detector.pipeline") -> None:
        self._language = _load(pipeline, key)
        kinds = LEVELS[level]
        _check(self._language, f"{key}: {pipeline}", level)
        self._entities = frozenset(kinds) & frozenset(_ALL)
        contextual = is_contextual(level)
        unused = _UNUSED if contextual else (*_UNUSED, *_NOT_FOR_ENTITIES)
        self._language.select_pipes(disable=[name for name in unused if name in self._language.pipe_names])
        self._roles = _Roles(self._language, kinds) if contextual else None

    @property
    def meta(self) -> dict[str, Any]:
        """The metadata of the pipeline: name, version, components, labels."""
        return dict(self._language.meta)

    def find(self, texts: Sequence[str]) -> list[list[Span]]:
        """Return one list of spans for each text, sorted by start."""
        found: list[list[Span]] = [[] for _ in texts]
        pieces = (
            (piece, (number, origin))
            for number, text in enumerate(texts)
            for origin, piece in _pieces(text, min(self._language.max_length, _PIECE))
        )
        for document, (number, origin) in self._language.pipe(pieces, as_tuples=True, batch_size=_BATCH):
            found[number] += [
                Span(origin + entity.start_char, origin + entity.end_char, entity.label_)
                for entity in document.ents
                if entity.label_ in self._entities
            ]
            if self._roles is not None:
                found[number] += self._roles.spans(document, origin)
        return found if self._roles is None else [sorted(spans) for spans in found]


def is_contextual(level: Level) -> bool:
    """Tell whether a level needs parts of speech and the syntax."""
    return set(_CONTEXT) <= set(LEVELS[level])


class _Roles:
    """Finds tokens by part of speech and by role in the sentence, all tokens of a document at once."""

    def __init__(self, language: Language, kinds: Sequence[str]) -> None:
        from spacy.attrs import DEP, HEAD, IDX, LENGTH, POS, TAG
        from spacy.symbols import IDS

        self._columns = [IDX, LENGTH, HEAD, POS, TAG, DEP]

        def ids(names: Sequence[str]) -> NDArray[np.uint64]:
            return np.array([language.vocab.strings.add(name) for name in names], np.uint64)

        self._words = {
            kind: (np.array([IDS[part] for part in parts], np.uint64), ids(tags))
            for kind, (parts, tags) in _WORDS.items()
            if kind in kinds
        }
        self._places = {kind: ids(names) for kind, names in _PLACES.items()}
        self._joined, self._dative = ids(["conj"]), ids(["dative"])
        self._preposition = np.uint64(IDS["ADP"])

    def spans(self, document: Doc, origin: int) -> Iterator[Span]:
        starts, lengths, heads, parts, tags, dependencies = document.to_array(self._columns).T
        found = {
            kind: np.isin(parts, of_kind) | np.isin(tags, tagged)
            for kind, (of_kind, tagged) in self._words.items()
        }
        heads = np.arange(len(starts)) + heads.astype(np.int64)
        joined = np.flatnonzero(np.isin(dependencies, self._joined)).tolist()
        for kind, places in self._places.items():
            stands = np.isin(dependencies, places)
            stands &= ~(np.isin(dependencies, self._dative) & (parts == self._preposition))
            for token in joined:
                stands[token] |= stands[heads[token]]
            found[kind] = stands
        places = starts.astype(np.int64) + origin
        ends = places + lengths.astype(np.int64)
        for kind, marked in found.items():
            for start, end in zip(places[marked].tolist(), ends[marked].tolist(), strict=True):
                yield Span(start, end, kind)


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
        language = spacy.load(pipeline)
    except (OSError, ValueError, ImportError) as error:
        if isinstance(error, OSError) and "E050" in str(error):
            raise InputError(
                f"{key}: no spaCy pipeline {pipeline!r}: python -m spacy download {pipeline}, or name a folder"
            ) from None
        raise InputError(f"{key}: {pipeline} cannot be loaded: {str(error).splitlines()[0]}") from None
    return language


def _check(language: Language, what: str, level: Level) -> None:
    """Raise InputError if the pipeline lacks a component or a label that a level needs."""
    if lack := _lack(language, level):
        raise InputError(
            f"{what} {lack}, which {level} asks for: take a pipeline that does, such as en_core_web_sm for English"
        )


def _lack(language: Language, level: Level) -> str | None:
    """Say what a level needs and the pipeline lacks; None: nothing."""
    if "ner" not in language.pipe_names:
        return "finds no entities (it has no component `ner`)"
    labels = {label for labels in language.pipe_labels.values() for label in labels}
    if missing := sorted(set(LEVELS[level]) & set(_ALL) - labels):
        return f"does not find {', '.join(missing)}"
    if not is_contextual(level):
        return None
    if not {"tagger", "morphologizer"} & set(language.pipe_names):
        return "does not tell pronouns and verbs (it has no component `tagger`)"
    if "parser" not in language.pipe_names:
        return "does not tell subjects and objects (it has no component `parser`)"
    tags = {tag for _, tagged in _WORDS.values() for tag in tagged}
    if not tags & labels and not any("POS=" in label for label in labels):
        return "tells neither parts of speech nor the tags NNP, PRP and VB"
    for kind, names in _PLACES.items():
        if not set(names) & labels:
            return f"does not tell {kind.lower()}s ({', '.join(names[:2])})"
    return None
