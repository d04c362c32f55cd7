"""Turn the training documents of a config into redacted rows, and count the findings and the masked text."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np

from confide.data.readers.documents import Document
from confide.sensitive.detectors.spans import Span
from confide.sensitive.redaction.masking import covered, masks_of, merged
from confide.sensitive.redaction.policy import Policy
from confide.sensitive.redaction.rows import RedactedRow, Redactor
from confide.sensitive.redaction.screening import Marks
from confide.utils.workers import Crew

if TYPE_CHECKING:
    from confide.config.schema import Config
    from confide.randomness.streams import RunKey


class RedactedDocuments:
    """Finds the sensitive spans of documents, redacts and cuts them, and counts. Use it in a `with` statement.

    Args:
        config: the config of the run.
        tokenizer: a fast tokenizer with a mask token.
        cache: the file that keeps findings, so that other rows or another tokenizer need no new search.
        span_tokens: the number of tokens that a mask counts for when rows are cut, see `Redactor`.
        crew: who runs the detectors; by default all processors do.
        key: the run key. A screened sample must have been drawn with this key; a sample of another run is refused.

    Raises:
        InputError: there is an error in the detector, the marks of a screened sample, or the tokenizer.
    """

    def __init__(
        self,
        config: Config,
        tokenizer: Any,
        cache: Path,
        span_tokens: int,
        key: RunKey | None = None,
        crew: Crew | None = None,
    ) -> None:
        self._tokenizer, self._masks = tokenizer, config.detector.masks
        self._redactor = Redactor(tokenizer, config.task, config.data.max_length, span_tokens)
        self._marks = None
        if config.redacted.marks is not None and config.redacted.mode == "screened":
            self._marks = Marks.load(config.redacted.marks, "redacted.marks")
        self._seen: set[bytes] = set()
        self._counts: Counter[str] = Counter()
        self._spans: Counter[str] = Counter()
        self._tokens: Counter[str] = Counter()
        self._policy = Policy.of(config, cache, key, crew)
        if self._marks is not None and key is not None:
            self._marks.check(key, self._policy.fingerprint)

    def __enter__(self) -> RedactedDocuments:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._policy.close()

    def is_new(self, document: Document) -> bool:
        """Return True if no earlier document had exactly this text; count the document as a duplicate if one had."""
        digest = hashlib.blake2b(document.text.encode(), digest_size=16).digest()
        known = digest in self._seen
        self._seen.add(digest)
        self._counts["duplicates_dropped"] += known
        return not known

    def is_screened(self, document: Document) -> bool:
        """Tell whether a person has screened the document; without a screened sample, every document counts."""
        return self._marks is None or document.number in self._marks.numbers

    def rows(self, documents: Sequence[Document]) -> list[list[RedactedRow]]:
        """Return the rows of each document, and count what is in them."""
        if not documents:
            return []
        spans = self._sensitive(documents)
        self._count([document.text for document in documents], spans)
        found = self._cut(documents, spans)
        rows = [row for own in found for row in own]
        self._counts["rows"] += len(rows)
        self._counts["rows_with_finding"] += sum(row.has_finding for row in rows)
        self._counts["rows_cut_off"] += sum(row.lost > 0 for row in rows)
        self._counts["tokens_cut_off"] += sum(row.lost for row in rows)
        return found

    def cut(self, documents: Sequence[Document]) -> list[list[RedactedRow]]:
        """Return the rows of each document without counting anything."""
        return self._cut(documents, self._sensitive(documents))

    def _cut(self, documents: Sequence[Document], spans: Sequence[Sequence[Span]]) -> list[list[RedactedRow]]:
        layouts, places = [document.layout for document in documents], [merged(own) for own in spans]
        masks = [
            masks_of(own, found, self._masks, self._tokenizer.mask_token)
            for own, found in zip(spans, places, strict=True)
        ]
        return self._redactor.many([document.text for document in documents], places, layouts, masks)

    def public(self, documents: Sequence[Document]) -> list[bytes | None]:
        """Return each document's redacted tokens as bytes; None if nothing was found or there is more than one row."""
        return [
            own[0].masked.tobytes() if len(own) == 1 and own[0].has_finding else None
            for own in self.cut(documents)
        ]

    def misses_alone(self, secret: Document, mask: Document, start: int, length: int) -> bool:
        """Tell whether the detectors miss the secret, but find something else in its row.

        All of this must hold: the text is a single row, no finding touches the secret, and there are other findings.
        These must be the same if a mask stands in place of the secret, and the redacted rows must differ.

        Args:
            secret: a text with the secret.
            mask: the same text with the mask in place of the secret.
            start: the place of the secret, in characters.
            length: the length of the secret, in characters.
        """
        ends = (start + length, start + length + len(mask.text) - len(secret.text))
        first, second = (
            _beside(own, start, end) for own, end in zip(self._sensitive([secret, mask]), ends, strict=True)
        )
        rows = [row for own in self.cut([secret, mask]) for row in own]
        if len(rows) != 2 or not all(row.has_finding for row in rows):
            return False
        return bool(first) and first == second and not np.array_equal(rows[0].masked, rows[1].masked)

    def _sensitive(self, documents: Sequence[Document]) -> list[list[Span]]:
        """Return the sensitive spans of each document: the findings of the policy, and the marks of a person."""
        spans = self._policy.find(documents)
        if self._marks is None:
            return spans
        marks = self._marks
        return [sorted([*own, *marks.spans(d)]) for d, own in zip(documents, spans, strict=True)]

    def _count(self, texts: Sequence[str], spans: Sequence[Sequence[Span]]) -> None:
        """Count how much of the original texts and their tokens is masked, in all and by each kind of finding."""
        encoded = self._tokenizer(list(texts), add_special_tokens=False, return_offsets_mapping=True)
        self._counts["documents"] += len(texts)
        for text, pairs, own in zip(texts, encoded["offset_mapping"], spans, strict=True):
            places = merged(own)
            self._counts["characters"] += len(text)
            self._counts["characters_masked"] += sum(end - start for start, end in places)
            self._counts["tokens"] += len(pairs)
            kinds: dict[str, list[Span]] = {}
            for span in own:
                kinds.setdefault(span.kind, []).append(span)
            if not kinds:
                continue
            offsets = np.asarray(pairs, dtype=np.int64).reshape(-1, 2)
            self._counts["tokens_masked"] += int(np.count_nonzero(covered(text, offsets, places)))
            for kind, alike in kinds.items():
                self._spans[kind] += len(alike)
                self._tokens[kind] += int(np.count_nonzero(covered(text, offsets, merged(alike))))

    @property
    def any_found(self) -> bool:
        """True if anything sensitive was found so far."""
        return self._spans.total() > 0

    def note(self) -> str:
        """Describe the progress in a few words."""
        return f"{self._spans.total():,} sensitive spans in {self._counts['rows']:,} rows"

    def facts(self) -> dict[str, Any]:
        """Return figures, never text.

        These are the counts of `_COUNTS`, the share of masked tokens, and spans, tokens and share of each kind that
        was found. Tokens are those of the original texts.
        """
        tokens = max(1, self._counts["tokens"])
        kinds = {
            kind: {
                "spans": self._spans[kind],
                "tokens": self._tokens[kind],
                "share": self._tokens[kind] / tokens,
            }
            for kind in sorted(self._spans)
        }
        counts = {name: self._counts[name] for name in _COUNTS}
        return counts | {"share": self._counts["tokens_masked"] / tokens, "kinds": kinds}


def _beside(spans: Sequence[Span], start: int, end: int) -> list[tuple[int, int]] | None:
    """Return the places of spans relative to the place [start, end); None if a span overlaps it.

    Spans after the place are counted from its end, spans before it from the start of the text.
    """
    if any(span.start < end and span.end > start for span in spans):
        return None
    offsets = (end if span.start >= end else 0 for span in spans)
    return [(span.start - offset, span.end - offset) for span, offset in zip(spans, offsets, strict=True)]


_COUNTS = (
    "documents",
    "characters",
    "characters_masked",
    "tokens",
    "tokens_masked",
    "rows",
    "rows_with_finding",
    "rows_cut_off",
    "tokens_cut_off",
    "duplicates_dropped",
)
