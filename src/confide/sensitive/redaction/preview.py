"""Collect the facts and examples that `confide redact` shows before training: how much is masked, how it reads."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from confide.config.schema import Policy as Settings
from confide.randomness.streams import RunKey
from confide.sensitive.detectors import asked
from confide.sensitive.detectors.spans import Span
from confide.sensitive.redaction.counting import Places, Words
from confide.sensitive.redaction.masking import Place, covered, merged
from confide.sensitive.redaction.pieces import Piece, pieces
from confide.sensitive.redaction.policy import STATED, Policy
from confide.utils.errors import InputError
from confide.utils.workers import Crew

if TYPE_CHECKING:
    from confide.config.schema import Config
    from confide.data.readers import Document
    from confide.utils.console import Track

_BATCH = 512
_AROUND = 40  # characters of context on each side of an example


# counts -------------------------------------------------------------------------------------------------------
@dataclass
class Tally:
    """Counts of masked text: spans, and the documents, characters, words and tokens that they touch."""

    spans: int = 0
    documents: int = 0
    characters: int = 0
    words: int = 0
    tokens: int = 0

    def add(self, spans: int, places: Sequence[Place], words: Words, tokens: int) -> None:
        self.spans += spans
        self.documents += bool(places)
        self.characters += sum(end - start for start, end in places)
        self.words += len(words.within(places))
        self.tokens += tokens


@dataclass
class Counts:
    """Counts of everything in the documents, of the masked part, and of the part that each kind of finding masks."""

    whole: Tally = field(default_factory=Tally)
    masked: Tally = field(default_factory=Tally)
    kinds: dict[str, Tally] = field(default_factory=dict)

    def add(self, text: str, spans: Sequence[Span], offsets: Sequence[Place] = ()) -> None:
        """Add a document and its findings; `offsets` are the places of its tokens, as the tokenizer returns them."""

        def tokens(places: Sequence[Place]) -> int:
            return int(np.count_nonzero(covered(text, offsets, places))) if offsets else 0

        words = Words(text)
        self.whole.tokens += len(offsets)
        self.whole.documents += 1
        self.whole.characters += len(text)
        self.whole.words += len(words)
        places = merged(spans)
        self.masked.add(len(places), places, words, tokens(places))
        for kind, own in _by_kind(spans).items():
            alike = merged(own)
            self.kinds.setdefault(kind, Tally()).add(len(own), alike, words, tokens(alike))

    def facts(self) -> dict[str, Any]:
        return vars(self.whole) | {
            "spans": sum(tally.spans for tally in self.kinds.values()),
            "masked": self._shares(self.masked),
            "kinds": {kind: self._shares(tally) for kind, tally in self.kinds.items()},
        }

    def _shares(self, tally: Tally) -> dict[str, float]:
        return vars(tally) | {
            "share_of_tokens": tally.tokens / max(1, self.whole.tokens),
            "share_of_words": tally.words / max(1, self.whole.words),
            "share_of_characters": tally.characters / max(1, self.whole.characters),
        }


def _by_kind(spans: Iterable[Span]) -> dict[str, list[Span]]:
    found: dict[str, list[Span]] = {}
    for span in spans:
        found.setdefault(span.kind, []).append(span)
    return found


# against annotations ------------------------------------------------------------------------------------------
@dataclass
class _Annotated:
    """Counts of annotated spans: all, those that a finding overlaps, those found completely, and their characters."""

    spans: int = 0
    overlapped: int = 0
    whole: int = 0
    characters: int = 0
    found: int = 0

    def add(self, spans: Sequence[Span], tested: Places) -> None:
        for start, end in {(span.start, span.end) for span in spans}:
            covered = tested.within(start, end)
            self.spans += 1
            self.overlapped += covered > 0
            self.whole += covered == end - start
        for start, end in merged(spans):
            self.characters += end - start
            self.found += tested.within(start, end)

    def facts(self) -> dict[str, Any]:
        return {
            "spans": self.spans,
            "recall_of_spans": _share(self.overlapped, self.spans),
            "recall_of_whole_spans": _share(self.whole, self.spans),
            "recall_of_characters": _share(self.found, self.characters),
        }


@dataclass
class Comparison:
    """Recall and precision of findings against annotated spans."""

    all: _Annotated = field(default_factory=_Annotated)
    kinds: dict[str, _Annotated] = field(default_factory=dict)
    places: int = 0
    right: int = 0  # places that overlap an annotated span
    characters: int = 0

    def add(self, tested: Sequence[Span], annotated: Sequence[Span]) -> None:
        places = merged(tested)
        found, truth = Places(places), Places(merged(annotated))
        self.all.add(annotated, found)
        for kind, own in _by_kind(annotated).items():
            self.kinds.setdefault(kind, _Annotated()).add(own, found)
        self.places += len(places)
        self.right += sum(truth.within(start, end) > 0 for start, end in places)
        self.characters += found.characters

    def facts(self) -> dict[str, Any]:
        return self.all.facts() | {
            "places": self.places,
            "precision_of_places": _share(self.right, self.places),
            "precision_of_characters": _share(self.all.found, self.characters),
            "kinds": {kind: counts.facts() for kind, counts in sorted(self.kinds.items())},
        }


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None


# what is shown ------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Shown:
    """A document as the page shows it."""

    number: int
    where: str
    pieces: tuple[Piece, ...] = field(repr=False)


class _Gallery:
    """The first documents, and as many that are drawn at random from the others."""

    def __init__(self, most: int, key: RunKey) -> None:
        self.first: list[Shown] = []
        self._most, self._stream = most, key.stream("preview", "documents")
        self._drawn: list[tuple[int, int, Shown]] = []  # the documents with the largest random words
        self._seen = 0

    def add(self, document: Document, spans: Sequence[Span], missed: Iterable[Span]) -> None:
        if len(self.first) < self._most:
            self.first.append(_shown(document, spans, missed))
            return
        word = int(self._stream.uint64(1, self._seen)[0]) if self._most else 0
        self._seen += 1
        if len(self._drawn) < self._most:
            heapq.heappush(self._drawn, (word, document.number, _shown(document, spans, missed)))
        elif self._drawn and word > self._drawn[0][0]:
            heapq.heapreplace(self._drawn, (word, document.number, _shown(document, spans, missed)))

    @property
    def drawn(self) -> list[Shown]:
        """The drawn documents, in reading order."""
        return [shown for _, _, shown in sorted(self._drawn, key=lambda entry: entry[1])]


def _shown(document: Document, spans: Sequence[Span], missed: Iterable[Span]) -> Shown:
    return Shown(document.number, document.where, tuple(pieces(document.text, spans, missed)))


def _example(shown: Sequence[Piece], kind: str) -> str:
    """Return the text around the first finding of a kind, with every finding masked."""
    place = next(number for number, piece in enumerate(shown) if kind in piece.kinds)
    before = "".join(piece.plain for piece in shown[:place])[-_AROUND:]
    after = "".join(piece.plain for piece in shown[place + 1 :])[:_AROUND]
    return " ".join(f"{before}{shown[place].plain}{after}".split())


def with_annotations(config: Config, against: str | None) -> Config:
    """Return the config for reading documents whose annotated spans are compared with the findings.

    `against` is the field of the annotated spans. The reader needs it for dialogues: there it moves the spans of each
    turn along with the text of the turn.
    """
    if against is None:
        return config
    return config.model_copy(update={"detector": config.detector.model_copy(update={"spans": against})})


# the survey ---------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Preview:
    """The findings of a config's detectors in its training documents.

    Attributes:
        facts: counts and shares by kind, and the comparison; this is the output of `confide redact --json`.
        examples: kind -> masked text around a finding.
        first: the first documents, for the page.
        drawn: documents drawn at random from the others, for the page.
    """

    facts: dict[str, Any]
    examples: dict[str, str]
    first: list[Shown]
    drawn: list[Shown]


def survey(
    config: Config,
    documents: Iterable[Document],
    key: RunKey,
    track: Track,
    most: int,
    against: str | None = None,
    cache: Path | None = None,
    tokenizer: Any = None,
    crew: Crew | None = None,
) -> Preview:
    """Find the sensitive spans of the documents; keep counts, examples and at most `2 * most` masked documents.

    Args:
        config: the config.
        documents: the documents, read with the config that `with_annotations` returns.
        key: the run key.
        track: is called with the number of documents of each batch, to show progress.
        most: the number of first documents to keep, and of drawn ones.
        against: the field of annotated spans to compare with. The default is `detector.spans`, if there are other
            detectors.
        cache: the file that keeps findings, with entries hashed under `key`.
        tokenizer: the tokenizer of the model; its tokens are counted. Without one, no tokens are counted.
        crew: who runs the detectors; by default all processors do.

    Raises:
        InputError: the config names nothing to find, or there are annotations both in `against` and in the policy; or
            there is no document.
    """
    counts, gallery, examples = Counts(), _Gallery(most, key), dict[str, str]()
    with _detectors(config, against, cache, key, crew) as found:
        comparison = Comparison() if found.annotations is not None else None
        counts.kinds = {kind: Tally() for kind in found.kinds if kind != STATED}
        stream = iter(documents)
        while batch := list(islice(stream, _BATCH)):
            offsets = _offsets(tokenizer, batch)
            for number, (document, tested, annotated) in enumerate(found.of(batch)):
                spans = sorted({*tested, *annotated}) if found.masks_annotated else tested
                counts.add(document.text, spans, offsets[number])
                if comparison is not None:
                    comparison.add(tested, annotated)
                missed = _uncovered(annotated, tested)
                readable = [span for span in spans if span not in missed]
                gallery.add(document, readable, missed)
                _add_examples(examples, document, readable, missed)
            track(len(batch))
    if not counts.whole.documents:
        raise InputError("no document is left to look at")
    facts = counts.facts()
    if comparison is not None:
        facts["against"] = {"field": against or config.detector.spans} | comparison.facts()
    return Preview(facts, examples, gallery.first, gallery.drawn)


def _offsets(tokenizer: Any, batch: Sequence[Document]) -> Sequence[Sequence[Place]]:
    if tokenizer is None:
        return [()] * len(batch)
    texts = [document.text for document in batch]
    found = tokenizer(texts, add_special_tokens=False, return_offsets_mapping=True)
    places: Sequence[Sequence[Place]] = found["offset_mapping"]
    return places


def _uncovered(annotated: Sequence[Span], tested: Sequence[Span]) -> set[Span]:
    covered = Places(merged(tested))
    return {span for span in annotated if covered.within(span.start, span.end) < span.end - span.start}


def _add_examples(
    examples: dict[str, str], document: Document, spans: Sequence[Span], missed: Iterable[Span]
) -> None:
    new = [kind for kind in _by_kind(spans) if kind not in examples]
    if new:
        shown = pieces(document.text, spans, missed)
        examples |= {kind: _example(shown, kind) for kind in new}


@dataclass(frozen=True)
class _Detectors:
    """The detectors under test, and the annotations that they are compared with, if any."""

    tested: Policy
    annotations: Policy | None
    masks_annotated: bool  # whether the annotations are part of the policy

    @property
    def kinds(self) -> tuple[str, ...]:
        annotated = self.annotations.kinds if self.annotations is not None and self.masks_annotated else ()
        return (*self.tested.kinds, *annotated)

    def of(self, batch: Sequence[Document]) -> Iterator[tuple[Document, list[Span], list[Span]]]:
        """Return (document, found spans, annotated spans) for each document."""
        tested = self.tested.find(batch)
        annotated = self.annotations.find(batch) if self.annotations is not None else [[] for _ in batch]
        return zip(batch, tested, annotated, strict=True)


@contextmanager
def _detectors(
    config: Config, against: str | None, cache: Path | None, key: RunKey, crew: Crew | None
) -> Iterator[_Detectors]:
    """Open the policies that a preview needs, and close them at the end."""
    detector = config.detector
    others = bool(asked(detector) or detector.words or detector.expressions)
    if against is not None and detector.spans is not None:
        raise InputError(
            f"--against {against}: detector.spans names {detector.spans}, which the other detectors are compared "
            "with already; leave one of the two out"
        )
    field = against or (detector.spans if others else None)
    with ExitStack() as stack:
        if field is None:
            yield _Detectors(stack.enter_context(Policy.of(config, cache, key, crew)), None, False)
            return
        tested = config.model_copy(update={"detector": detector.model_copy(update={"spans": None})})
        annotated = config.model_copy(update={"detector": Settings(spans=field)})
        yield _Detectors(
            stack.enter_context(Policy.of(tested, cache, key, crew)),
            stack.enter_context(Policy.of(annotated)),
            against is None,
        )
