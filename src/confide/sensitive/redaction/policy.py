"""Decide which characters of a document are sensitive: by detectors, words, expressions and spans of the data.

The union counts: a finding of any of them is sensitive, whatever the others find.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from confide.data.readers.dialogues import is_dialogue
from confide.data.readers.documents import Document
from confide.data.readers.fields import Template, clean_text, lookup
from confide.sensitive.detectors import SharedDetector, Span, asked, kinds
from confide.sensitive.detectors.cache import Cache
from confide.sensitive.redaction.masking import outside
from confide.sensitive.secrets.finders import Finder, Patterns
from confide.sensitive.secrets.words import Words
from confide.utils.errors import InputError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from confide.config.data_section import Data
    from confide.config.schema import Config
    from confide.randomness.streams import RunKey
    from confide.utils.workers import Crew

WORD = "WORD"  # the kind of a listed word
STATED = "STATED"  # the kind of a span of the data that states no kind


class Policy:
    """Everything that marks sensitive characters. Make it with `of`. Close it, or use it in a `with` statement.

    Attributes:
        kinds: the kinds that findings may have, except those that the spans of the data state.
        fingerprint: a hex digest of everything that the findings depend on besides the documents. It covers the word
            list. So someone who has it can test guesses of words: keep it only in places where the list may lie.
    """

    def __init__(
        self,
        detector: SharedDetector | None,
        found_before: Cache | None,
        finders: Sequence[tuple[str | None, Finder]],
        stated: _Stated | None,
        known: Sequence[str],
        fingerprint: str,
    ) -> None:
        self.kinds = tuple(dict.fromkeys(known))
        self.fingerprint = fingerprint
        self._detector, self._cache = detector, found_before
        self._finders, self._stated = tuple(finders), stated

    @classmethod
    def of(
        cls, config: Config, cache: Path | None = None, key: RunKey | None = None, crew: Crew | None = None
    ) -> Policy:
        """Make the policy of `config.detector`.

        Args:
            config: the config.
            cache: the file that keeps the findings of the detector.
            key: the run key, which protects the entries of the cache. Without a key nothing is kept.
            crew: who runs the detector; by default all processors do.

        Raises:
            InputError: the config asks for nothing, or for something that is not available; the message names the key.
        """
        settings = config.detector
        detects = bool(asked(settings))
        if not (detects or settings.words is not None or settings.expressions or settings.spans is not None):
            raise InputError(
                "detector: says nothing of what is sensitive; give level, patterns, words, expressions or spans"
            )
        finders: list[tuple[str | None, Finder]] = []
        known: list[str] = []
        if settings.words is not None:
            finders.append((WORD, Words(settings.words, "detector.words")))
            known.append(WORD)
        if settings.expressions:
            for name in settings.expressions:
                if not name.strip():
                    raise InputError("detector.expressions: a name is blank")
            finders.append((None, Patterns(settings.expressions, "detector.expressions")))
            known += settings.expressions
        stated = None
        if settings.spans is not None:
            stated = _Stated(settings.spans, config.data)
            known.append(STATED)
        detector = SharedDetector(settings, "detector", crew) if detects else None
        parts = [
            None if detector is None else detector.fingerprint,
            None if settings.words is None else _digest(Path(settings.words).expanduser().read_bytes()),
            settings.expressions,
            settings.spans,
        ]
        found_before = None
        if detector is not None and cache is not None and key is not None:
            found_before = Cache(cache, detector.fingerprint, kinds(settings), key)
        may_be = {*kinds(settings), *known}
        if stated is None and (unknown := sorted(settings.masks.keys() - may_be)):
            raise InputError(
                f"detector.masks: nothing finds {unknown[0]!r}; the kinds are {', '.join(sorted(may_be))}"
            )
        identity = _digest(json.dumps(parts, sort_keys=True).encode())
        return cls(detector, found_before, finders, stated, (*kinds(settings), *known), identity)

    def find(self, documents: Sequence[Document]) -> list[list[Span]]:
        """Return the sensitive spans of each document, sorted by start; they may overlap.

        Raises:
            InputError: a record states its spans in a wrong form.
        """
        found = self._detected([document.text for document in documents])
        for kind, finder in self._finders:
            for spans, mentions in zip(found, finder.find(documents), strict=True):
                spans += (
                    Span(each.start, each.end, kind or each.secret.rpartition(":")[0]) for each in mentions
                )
        if self._stated is not None:
            for spans, document in zip(found, documents, strict=True):
                spans += self._stated.spans(document)
        return [
            sorted(set(outside(spans, document.given)))
            for spans, document in zip(found, documents, strict=True)
        ]

    def _detected(self, texts: list[str]) -> list[list[Span]]:
        if self._detector is None:
            return [[] for _ in texts]
        if self._cache is None:
            return self._detector.find(texts)
        return self._cache.find(texts, self._detector.find)

    def close(self) -> None:
        """End the processes of the detector, and close the cache."""
        if self._detector is not None:
            self._detector.close()
        if self._cache is not None:
            self._cache.close()

    def __enter__(self) -> Policy:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _digest(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=16).hexdigest()


class _Stated:
    """The spans that a field of each record lists: [start, end] or [start, end, kind], in the record's own text.

    If nothing in a record is sensitive, its list is empty.

    Raises:
        InputError: the documents are not the text of the records, or the field contains no such list; the message
            names detector.spans.
    """

    def __init__(self, name: str, data: Data) -> None:
        if data.completion is not None:
            raise InputError(
                "detector.spans: positions count in the text of one field, and a completion has two"
            )
        field = None if data.messages is not None else Template(data.text).field
        if field is None and data.messages is None:
            raise InputError(
                f"detector.spans: positions count in the text of one field, and data.text is the template {data.text!r}"
            )
        for key, changed in (("strip_quotes", data.strip_quotes), ("clean", data.clean != "none")):
            if changed:
                raise InputError(f"detector.spans: data.{key} changes the text that the positions count in")
        self._name, self._field = name, field

    def spans(self, document: Document) -> list[Span]:
        where = f"{document.where}: detector.spans field {self._name!r}"
        listed = lookup(document.fields, self._name, document.where, "detector.spans")
        if isinstance(listed, str):  # a table has it as JSON text
            try:
                listed = json.loads(listed)
            except ValueError:
                listed = None
        if not isinstance(listed, list | tuple | np.ndarray):
            raise InputError(
                f"{where} holds no list, nor JSON of one; an empty one says that nothing is sensitive"
            )
        own = [] if self._field is None else lookup(document.fields, self._field, document.where, "data.text")
        # When the text of a conversation was made, the spans of its turns were moved to their places in it.
        original = document.text if is_dialogue(own) else own
        if not isinstance(original, str):
            raise InputError(
                f"{where}: data.text field {self._field!r} holds no text that positions count in"
            )
        spans = [_span(each, len(original), where) for each in listed]
        if clean_text(original) != document.text:
            raise InputError(f"{where}: the text is not that of the record, so positions do not count in it")
        if spans and len(original) != len(document.text):
            first, last = _moved(original)
            moved = [Span(int(first[each.start]), int(last[each.end]), each.kind) for each in spans]
            if any(
                now.start == now.end and each.start < each.end for now, each in zip(moved, spans, strict=True)
            ):
                raise InputError(f"{where}: a span holds nothing but characters that no text may have (NUL)")
            spans = moved
        return [each for each in spans if each.start < each.end]


def _span(value: Any, length: int, where: str) -> Span:
    parts = list(value) if isinstance(value, list | tuple | np.ndarray) else []
    if isinstance(value, Mapping):
        parts = [value.get("start"), value.get("end"), *([value["kind"]] if "kind" in value else [])]
    if not (
        len(parts) in (2, 3)
        and all(isinstance(place, int | np.integer) and not isinstance(place, bool) for place in parts[:2])
        and 0 <= parts[0] <= parts[1] <= length
        and all(isinstance(kind, str) and kind.strip() for kind in parts[2:])
    ):
        raise InputError(
            f"{where}: an entry is no [start, end] or [start, end, kind] within the text's {length:,} characters"
        )
    return Span(int(parts[0]), int(parts[1]), parts[2] if len(parts) == 3 else STATED)


def _moved(text: str) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Map the places where spans begin and end in `text` to the places after `clean_text`.

    A line end of two characters becomes one character, which is sensitive if one of the two was.
    """
    codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), "<u4")
    returns = np.append(codes[:-1] == 13, False) & np.append(codes[1:] == 10, False)
    feeds = np.append(False, returns[:-1])
    kept = codes != 0
    begins = np.append(0, np.cumsum(kept & ~returns))
    ends = np.append(0, np.cumsum(kept & ~feeds))
    return begins, ends
