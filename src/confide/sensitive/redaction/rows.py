"""Cut a document into rows in two forms, redacted and original; the redacted form alone decides where to cut.

Neighbours differ in the sensitive characters of one row and have the same redacted text. The number of rows, their
boundaries and their redacted tokens are public. So they are computed from the redacted text. An original row is a
function of its own characters.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from confide.config import registry
from confide.data.layout import Layout
from confide.data.loss_mask import marked
from confide.data.pieces import PIECE, beginning, whole
from confide.data.turn_cutting import last_of, predicted_tokens
from confide.sensitive.redaction.masking import Origin, Place, masked
from confide.utils.errors import InputError


@dataclass(frozen=True)
class RedactedRow:
    """One row in both forms.

    Attributes:
        tokens: the tokens of the original characters, int64[n].
        masked: the tokens of the redacted characters, int64[m]; each sensitive place is one token.
        has_finding: whether the row contains a sensitive place. If not, both forms are the same.
        lost: the number of original tokens that did not fit into the row.
    """

    tokens: np.ndarray
    masked: np.ndarray
    has_finding: bool
    lost: int = 0


@dataclass(frozen=True)
class _Cut:
    """A row whose original is not tokenised yet: redacted tokens, original text, special tokens before and after it.

    Attributes:
        begin: where the original text begins in its document, in characters.
        layout: that of the document.
    """

    masked: np.ndarray
    text: str
    has_finding: bool
    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()
    begin: int = 0
    layout: Layout | None = None

    def marked(self, ids: np.ndarray, offsets: np.ndarray) -> np.ndarray:
        """Mark which tokens of the original row are predicted; `offsets` are those without special tokens."""
        if self.layout is None or self.layout.predicted is None:
            return ids
        own = predicted_tokens(offsets + self.begin, self.layout.predicted)
        known = np.concatenate([np.zeros(len(self.before), bool), own, np.ones(len(self.after), bool)])
        return marked(ids, known[: len(ids)])


class Redactor:
    """Cuts documents into rows of at most `max_length` tokens in both forms.

    If the task cuts documents, a document becomes several rows in sequence. Otherwise it is one row, and the rest is
    cut off.

    Args:
        tokenizer: a fast tokenizer with a mask token.
        task: the name of the task.
        max_length: the most tokens of a row.
        span_tokens: the number of tokens that a mask counts for when rows are cut. It makes room for the original
            tokens; those that still do not fit are cut off.
        piece: the most characters that are tokenised at once. A longer text is tokenised in pieces.

    Raises:
        InputError: the tokenizer does not report the places of tokens in the text, or has no mask token.
    """

    def __init__(
        self, tokenizer: Any, task: str, max_length: int, span_tokens: int, piece: int = PIECE
    ) -> None:
        if not tokenizer.is_fast:
            raise InputError(
                "tokenizer: it is a slow one, which does not tell where in a text its tokens stand; redaction needs "
                "a fast one (a tokenizer.json)"
            )
        if tokenizer.mask_token is None:
            raise InputError(
                "tokenizer: it has no mask token, which redaction needs; special_tokens can add <mask>"
            )
        self._tokenizer, self._length, self._span = tokenizer, max_length, span_tokens
        self._in_rows, self._piece = registry.task_facts(task).cuts_documents, piece
        start, end = tokenizer.bos_token_id, tokenizer.eos_token_id
        first = end if start is None else start
        self._before = () if first is None else (first,)
        self._after = () if end is None else (end,)

    def rows(self, text: str, places: Sequence[Place]) -> list[RedactedRow]:
        """Return the rows of one document.

        If the task cuts documents, rows whose redacted form is a single token are left out.
        """
        return self.many([text], [places])[0]

    def many(
        self,
        texts: Sequence[str],
        places: Sequence[Sequence[Place]],
        layouts: Sequence[Layout | None] | None = None,
        masks: Sequence[Sequence[str]] | None = None,
    ) -> list[list[RedactedRow]]:
        """Return the rows of each document; `places` are as `merged` returns them.

        Each place becomes one token: the mask token, or that of `masks`, which are tokens by place.

        A document with a layout is cut between turns if they fit, and its rows mark what is not predicted. Rows of
        whose redacted form nothing is predicted are left out.

        Raises:
            InputError: the tokenizer splits the text of a mask into several tokens.
        """
        if not texts:
            return []
        if masks is None:
            masks = [[self._tokenizer.mask_token] * len(own) for own in places]
        redacted = [masked(*each) for each in zip(texts, places, masks, strict=True)]
        cuts = [
            self._cut(text, short, origin, self._ids(own), ids, offsets, layout)
            for text, (short, origin), own, (ids, offsets), layout in zip(
                texts,
                redacted,
                masks,
                self._encoded([short for short, _ in redacted]),
                layouts or [None] * len(texts),
                strict=True,
            )
        ]
        originals = iter(self._originals([cut for found in cuts for cut in found if cut.has_finding]))
        return [
            [
                next(originals) if cut.has_finding else RedactedRow(cut.masked, cut.masked, False)
                for cut in found
            ]
            for found in cuts
        ]

    def _ids(self, masks: Sequence[str]) -> np.ndarray:
        return np.asarray(self._tokenizer.convert_tokens_to_ids(list(masks)), dtype=np.int64)

    def _encoded(self, texts: Sequence[str]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield the tokens of each redacted text, and the characters that they stand for."""
        if self._in_rows:
            is_long = [len(text) > self._piece for text in texts]
            short = iter(self._together([t for t, long in zip(texts, is_long, strict=True) if not long]))
            for text, long in zip(texts, is_long, strict=True):
                yield self._whole(text) if long else next(short)
        else:
            starts = [self._beginning(text) for text in texts]
            yield from self._together(starts, **self._truncated)

    def _together(self, texts: Sequence[str], **options: Any) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        if not texts:  # tokenizers do not accept an empty list
            return
        options = options or {"add_special_tokens": False}
        encoded = self._tokenizer(texts, return_offsets_mapping=True, **options)
        for ids, offsets in zip(encoded["input_ids"], encoded["offset_mapping"], strict=True):
            yield np.asarray(ids, dtype=np.int64), _offsets(offsets)

    def _whole(self, text: str) -> tuple[np.ndarray, np.ndarray]:
        return whole(self._tokenizer, text, "a document", self._piece)

    def _beginning(self, text: str) -> str:
        return beginning(self._tokenizer, text, self._length, self._piece)

    @property
    def _truncated(self) -> dict[str, Any]:
        return {"truncation": True, "max_length": self._length}

    def _cut(
        self,
        text: str,
        redacted: str,
        origin: Origin,
        standing: np.ndarray,
        ids: np.ndarray,
        offsets: np.ndarray,
        layout: Layout | None = None,
    ) -> list[_Cut]:
        if not self._in_rows:
            own = offsets[offsets[:, 0] < offsets[:, 1]]
            low, high = own.min(initial=len(redacted)), own.max(initial=0)
            kept = (origin.masks[:, 1] > low) & (origin.masks[:, 0] < high)
            self._tokens_of(origin.masks[kept], standing[kept], ids, offsets)
            return [_Cut(ids, text, bool(kept.any()))]
        stands = self._tokens_of(origin.masks, standing, ids, offsets)
        ends = layout is None or not layout.has_ends
        before, after = (self._before, self._after) if ends else ((), ())
        b, a = len(before), len(after)
        ids = np.concatenate([before, ids, after]).astype(np.int64)
        offsets = np.pad(offsets, ((b, a), (0, 0)))
        stands = np.pad(stands, (b, a))
        starts, stops = offsets.T
        reached = np.concatenate([[0], np.maximum.accumulate(stops)])
        # Rows may be cut where one token ends and another begins, but not within a character that several tokens share.
        ahead = np.where(stops > starts, starts, len(redacted))
        ahead = np.append(np.minimum.accumulate(ahead[::-1])[::-1], len(redacted))
        places = np.flatnonzero(reached <= ahead)
        weights = np.concatenate([[0], np.cumsum(1 + (self._span - 1) * stands)])
        reaches = weights[places]
        cuts, first = [], 0
        better: list[np.ndarray] = []
        predicted = None
        if layout is not None:
            characters = offsets[b : len(ids) - a].tolist()
            own = np.array([(origin.of(start), origin.of(stop)) for start, stop in characters]).reshape(-1, 2)
            predicted = np.pad(predicted_tokens(own, layout.predicted), (b, 0))
            predicted = np.pad(predicted, (0, a), constant_values=True)
            better = [
                np.intersect1d(places, b + np.searchsorted(own[:, 0], np.asarray(begins, np.int64)))
                for begins in (layout.exchanges, layout.turns)
            ]
        while first < len(ids):
            following = int(np.searchsorted(places, first, side="right"))
            fitting = int(np.searchsorted(reaches, weights[first] + self._length, side="right")) - 1
            last = int(places[max(following, fitting)])
            if last < len(ids):
                last = next(filter(None, (last_of(each, first, last) for each in better)), last)
            begin = 0 if first == 0 else int(reached[first])
            end = len(redacted) if last == len(ids) else int(reached[last])
            row = ids[first:last][: self._length]
            learnt = len(row) > 1  # one token predicts nothing
            if predicted is not None:
                known = predicted[first:last][: self._length]
                learnt = bool(known[1:].any())
                row = row if layout is None or layout.predicted is None else marked(row, known)
            if learnt:
                cuts.append(
                    _Cut(
                        row,
                        text[origin.of(begin) : origin.of(end)],
                        bool(stands[first:last].any()),
                        before if first == 0 else (),
                        after if last == len(ids) else (),
                        origin.of(begin),
                        layout,
                    )
                )
            first = last
        return cuts

    def _tokens_of(
        self, masks: np.ndarray, standing: np.ndarray, ids: np.ndarray, offsets: np.ndarray
    ) -> np.ndarray:
        """Tell of each token whether it stands for one of these masks, whose ids are `standing`: bool[T].

        Raises:
            InputError: a mask has no token of its own.
        """
        own = np.flatnonzero(np.isin(ids, standing))
        starts, stops = offsets[own].T
        index = np.searchsorted(stops, masks[:, 0], side="right")
        inside = index < len(own)
        inside[inside] &= (starts[index[inside]] <= masks[inside, 0]) & (
            stops[index[inside]] >= masks[inside, 1]
        )
        inside[inside] &= ids[own[index[inside]]] == standing[inside]
        if not inside.all() or len(np.unique(index)) < len(index):
            raise InputError(
                f"tokenizer: it takes the text of a mask, such as {self._tokenizer.mask_token!r}, apart, so it cannot "
                "read a redacted text"
            )
        stands = np.zeros(len(ids), dtype=bool)
        stands[own[index]] = True
        return stands

    def _originals(self, cuts: Sequence[_Cut]) -> list[RedactedRow]:
        """Return the same rows; the original characters of each row are tokenised by themselves."""
        if not cuts:
            return []
        short = [cut.text for cut in cuts if len(cut.text) <= self._piece]
        encoded = iter(self._together(short, add_special_tokens=not self._in_rows))
        rows = []
        for cut in cuts:
            is_long = len(cut.text) > self._piece
            found, offsets = self._whole(cut.text) if is_long else next(encoded)
            ids = [*cut.before, *found.tolist(), *cut.after]
            ends = self._tokenizer.num_special_tokens_to_add() if is_long and not self._in_rows else 0
            lost = max(0, len(ids) + ends - self._length)
            if self._in_rows:
                ids = ids[: self._length]
            elif lost or is_long:  # the tokenizer knows which end to cut, and the special tokens there
                ids = self._tokenizer(self._beginning(cut.text), **self._truncated)["input_ids"]
            # Even if the tokenizer drops the whole text, there is a row: the number of rows is public.
            tokens = np.asarray(ids or [self._tokenizer.mask_token_id], dtype=np.int64)
            if ids:
                tokens = cut.marked(tokens, offsets)
            rows.append(RedactedRow(tokens, cut.masked, True, lost))
        return rows


def _offsets(offsets: Sequence[Place]) -> np.ndarray:
    return np.asarray(offsets, dtype=np.int64).reshape(-1, 2)
