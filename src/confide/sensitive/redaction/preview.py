"""Collect the facts and examples that `confide redact` shows before training: how much is masked, how it reads."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from confide.randomness.streams import RunKey
from confide.sensitive.detectors.spans import Span
from confide.sensitive.redaction.counting import Counts, Places, Tally, by_kind
from confide.sensitive.redaction.masking import merged
from confide.sensitive.redaction.pieces import Piece, pieces
from confide.sensitive.redaction.policy import STATED
from confide.sensitive.redaction.searching import Searched, Searching
from confide.utils.errors import InputError
from confide.utils.workers import Crew

if TYPE_CHECKING:
    from confide.config.schema import Config
    from confide.data.part_work import Finished
    from confide.data.readers import Document
    from confide.utils.console import Track

_BATCH = 512
_AROUND = 40  # characters of context on each side of an example


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
        for kind, own in by_kind(annotated).items():
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
        self._words = np.empty(0, np.uint64)

    def add(self, document: Document, spans: Sequence[Span], missed: Iterable[Span]) -> None:
        if len(self.first) < self._most:
            self.first.append(_shown(document, spans, missed))
            return
        word = self._word() if self._most else 0
        self._seen += 1
        if len(self._drawn) < self._most:
            heapq.heappush(self._drawn, (word, document.number, _shown(document, spans, missed)))
        elif self._drawn and word > self._drawn[0][0]:
            heapq.heapreplace(self._drawn, (word, document.number, _shown(document, spans, missed)))

    def _word(self) -> int:
        """Return the random word of the document in hand; many are made at a time."""
        at = self._seen % _BATCH
        if at == 0:
            self._words = self._stream.uint64(_BATCH, self._seen)
        return int(self._words[at])

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
    read: Callable[[Searching], Generator[Finished, None, None]],
    key: RunKey,
    track: Track,
    most: int,
    against: str | None = None,
    cache: Path | None = None,
    tokenizer: Any = None,
    crew: Crew | None = None,
) -> Preview:
    """Find the sensitive spans of documents; keep counts, examples and at most `2 * most` masked documents.

    Args:
        config: the config.
        read: returns the documents, each with what the search found in it. They are read with the config that
            `with_annotations` returns.
        key: the run key.
        track: is called with a number of documents, to show progress.
        most: the number of first documents to keep, and of drawn ones.
        against: the field of annotated spans to compare with. The default is `detector.spans`, if there are other
            detectors.
        cache: the file that keeps findings, with entries hashed under `key`. Processes of this machine use it too;
            the nodes of a cluster do not.
        tokenizer: the tokenizer of the model; its tokens are counted. Without one, no tokens are counted.
        crew: who reads and searches; by default this process, and all processors run the detectors.

    Raises:
        InputError: the config names nothing to find, or there are annotations both in `against` and in the policy; or
            there is no document.
    """
    counts, gallery, examples = Counts(), _Gallery(most, key), dict[str, str]()
    with Searching(config, against, tokenizer, cache, key, crew) as search:
        comparison = Comparison() if search.compares else None
        counts.kinds = {kind: Tally() for kind in search.kinds if kind != STATED}
        waiting = 0
        with closing(read(search)) as documents:
            for each in documents:
                assert each.seen is not None
                found: Searched = each.seen.taken()
                spans = search.masked(found)
                counts.include(found.counts)
                if comparison is not None:
                    comparison.add(found.tested, found.annotated)
                missed = _uncovered(found.annotated, found.tested)
                readable = [span for span in spans if span not in missed]
                gallery.add(each.document, readable, missed)
                _add_examples(examples, each.document, readable, missed)
                waiting += 1
                if waiting == _BATCH:
                    track(waiting)
                    waiting = 0
        track(waiting)
    if not counts.whole.documents:
        raise InputError("no document is left to look at")
    facts = counts.facts()
    if comparison is not None:
        facts["against"] = {"field": against or config.detector.spans} | comparison.facts()
    return Preview(facts, examples, gallery.first, gallery.drawn)


def _uncovered(annotated: Sequence[Span], tested: Sequence[Span]) -> set[Span]:
    if not annotated:
        return set()
    covered = Places(merged(tested))
    return {span for span in annotated if covered.within(span.start, span.end) < span.end - span.start}


def _add_examples(
    examples: dict[str, str], document: Document, spans: Sequence[Span], missed: Iterable[Span]
) -> None:
    new = [kind for kind in by_kind(spans) if kind not in examples]
    if new:
        shown = pieces(document.text, spans, missed)
        examples |= {kind: _example(shown, kind) for kind in new}
