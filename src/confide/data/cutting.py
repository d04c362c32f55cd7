"""Cutting of a text into rows of tokens, with the characters that each row stands for."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from confide.data.pieces import PIECE, beginning, encoded
from confide.data.spans import Mention
from confide.data.token_ids import TokenIds

_AT_ONCE = 1 << 20  # characters of short texts that are tokenised in one call


@dataclass(frozen=True)
class Row:
    """Tokens, and the characters of the document, [start, end), that they stand for."""

    tokens: np.ndarray
    start: int
    end: int

    def secrets(self, mentions: Sequence[Mention]) -> list[str]:
        """Return the secrets of which the row holds a character, or a neighbouring one, each once.

        The first and last token of a row may depend on the character beyond: `##7` within a word is `7` at its start.
        """
        return list(dict.fromkeys(m.secret for m in mentions if m.start <= self.end and m.end >= self.start))


class Cutter:
    """Cuts texts into rows of at most `length` tokens.

    Args:
        in_rows: whether a text becomes consecutive rows, as the task says (`cuts_documents`); otherwise it becomes one
            row, cut off at `length`.
        places: whether to find each row's characters; without, or with a tokenizer that cannot, a row stands for all
            characters.
        piece: number of characters beyond which a text counts as long and is tokenised in pieces.
    """

    def __init__(
        self, tokenizer: Any, in_rows: bool, length: int, places: bool = False, piece: int = PIECE
    ) -> None:
        self._tokenizer, self._length = tokenizer, length
        self._in_rows = in_rows
        self._places, self._piece = places and tokenizer.is_fast, piece
        self._ids = TokenIds(tokenizer)
        start, end = tokenizer.bos_token_id, tokenizer.eos_token_id
        self._before = [start if start is not None else end] if (start, end) != (None, None) else []
        self._after = [end] if end is not None else []

    def rows(self, texts: Sequence[str], names: Sequence[str] | None = None) -> list[Iterable[Row]]:
        """Cut each text into rows; those of a long text are made as they are taken, once.

        Args:
            names: the beginning of an error sentence about each text.

        Raises:
            InputError: see `pieces.encoded`; for a long text it is raised as its rows are taken.
        """
        if not self._in_rows:
            return list(self._beginnings(texts))
        names = names or ["a text"] * len(texts)
        # A slow tokenizer does not report the characters of its tokens.
        long = [self._tokenizer.is_fast and len(text) > self._piece for text in texts]
        short = iter(self._short([text for text, is_long in zip(texts, long, strict=True) if not is_long]))
        return [
            self._streamed(text, encoded(self._tokenizer, text, name, self._piece))
            if is_long
            else next(short)
            for text, name, is_long in zip(texts, names, long, strict=True)
        ]

    def rows_of_tokens(self, tokens: Sequence[int]) -> list[Row]:
        """Cut tokens that came instead of a text, which stand for no characters; nothing is put around them."""
        ids = np.asarray(tokens, dtype=np.int64)
        if not self._in_rows:
            return [Row(ids[: self._length], 0, 0)]
        return [row for row in self._cut("", ids, None, 0, 0) if len(row.tokens) > 1]

    def _beginnings(self, texts: Sequence[str]) -> Iterator[list[Row]]:
        """Yield the one row of each text."""
        if self._tokenizer.is_fast:
            texts = [beginning(self._tokenizer, text, self._length, self._piece) for text in texts]
        for ids, own, text in self._encoded(texts, truncation=True, max_length=self._length):
            yield self._cut(text, np.asarray(ids), own, 0, len(text) if own is None else _end(own))

    def _short(self, texts: Sequence[str]) -> Iterator[list[Row]]:
        for ids, own, text in self._encoded(texts):
            whole = np.concatenate([self._before, ids, self._after]).astype(np.int64)
            if own is not None:
                own = [(0, 0)] * len(self._before) + own + [(0, 0)] * len(self._after)
            cut = self._cut(text, whole, own, 0, len(text))
            yield [row for row in cut if len(row.tokens) > 1]  # a row of one token predicts nothing

    def _streamed(self, text: str, pieces: Iterable[tuple[np.ndarray, np.ndarray]]) -> Iterator[Row]:
        """Yield the same rows for a text whose tokens come in pieces."""
        none = np.zeros((1, 2), dtype=np.int64)
        ids = np.array(self._before, dtype=np.int64)
        places = none.repeat(len(ids), 0)
        reached = 0
        for more, where in pieces:
            ids, places = np.concatenate([ids, more]), np.concatenate([places, where])
            following = np.flatnonzero(places[:, 1] > places[:, 0])
            # A row is cut off once it is followed by a token that shows where it ends.
            ready = (int(following[-1]) if len(following) else 0) // self._length * self._length
            if ready:
                later = places[ready:]
                end = int(later[later[:, 1] > later[:, 0], 0].min())
                cut = self._cut(text, ids[:ready], places[:ready] if self._places else None, reached, end)
                yield from (row for row in cut if len(row.tokens) > 1)
                reached = max(reached, int(places[:ready, 1].max()))
                ids, places = ids[ready:], later
        ids = np.concatenate([ids, np.array(self._after, dtype=np.int64)])
        places = np.concatenate([places, none.repeat(len(self._after), 0)])
        cut = self._cut(text, ids, places if self._places else None, reached, len(text))
        yield from (row for row in cut if len(row.tokens) > 1)

    def _encoded(
        self, texts: Sequence[str], **options: Any
    ) -> Iterator[tuple[Sequence[int] | np.ndarray, list[tuple[int, int]] | None, str]]:
        """Yield each text's token ids, the characters of each token if they are known, and the text.

        Without options there are no special tokens.
        """
        for some in _together(texts):
            if not self._places and not options:
                yield from ((ids, None, text) for ids, text in zip(self._ids(some), some, strict=True))
                continue
            options = options or {"add_special_tokens": False}
            found = self._tokenizer(some, return_offsets_mapping=self._places, **options)
            offsets = found["offset_mapping"] if self._places else [None] * len(some)
            yield from zip(found["input_ids"], offsets, some, strict=True)

    def _cut(self, text: str, ids: np.ndarray, offsets: Any, before: int, end: int) -> list[Row]:
        """Cut the tokens into rows; they stand for characters from the one that `before` had reached up to `end`."""
        length = self._length
        firsts = range(0, len(ids), length)
        if offsets is None:
            return [Row(ids[i : i + length], 0, len(text)) for i in firsts]
        starts, stops = np.array(offsets, dtype=np.int64).reshape(-1, 2).T
        starts = np.where(stops > starts, starts, end)  # a token without characters has no position
        # Characters that the tokenizer dropped between two tokens count on both sides of a cut.
        reached = np.maximum.accumulate(np.concatenate([[before], stops]))
        ahead = np.concatenate([np.minimum.accumulate(starts[::-1])[::-1], [end]])
        rows = []
        for first in firsts:
            last = min(first + length, len(ids))
            begin = min(int(reached[first]), int(ahead[first]))
            rows.append(Row(ids[first:last], begin, max(int(ahead[last]), int(reached[last]))))
        return rows


def _together(texts: Sequence[str]) -> Iterator[list[str]]:
    """Group texts in order into batches small enough to tokenise at once; tokenizers do not accept an empty batch."""
    some: list[str] = []
    characters = 0
    for text in texts:
        if some and characters + len(text) > _AT_ONCE:
            yield some
            some, characters = [], 0
        some.append(text)
        characters += len(text)
    if some:
        yield some


def _end(offsets: Sequence[tuple[int, int]]) -> int:
    return max((stop for _, stop in offsets), default=0)
