"""A text as rows of tokens, and which of its characters each row stands for."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from confide.secrets.finders import Mention


@dataclass(frozen=True)
class Row:
    """Tokens, and the characters of the document, [start, end), that they stand for."""

    tokens: np.ndarray
    start: int
    end: int

    def secrets(self, mentions: Sequence[Mention]) -> list[str]:
        """The secrets of which the row holds a character, or a neighbour of one, each once.

        How a row begins or ends may depend on the character beyond: `##7` within a word is `7` at its start.
        """
        return list(dict.fromkeys(m.secret for m in mentions if m.start <= self.end and m.end >= self.start))


class Cutter:
    """Cuts texts into rows of at most `length` tokens.

    A causal LM reads a text as its rows, one after the other; of any other task a text is one row, cut off.

    Args:
        places: whether to tell characters; without, or with a tokenizer that cannot tell, a row stands for all.
    """

    def __init__(self, tokenizer: Any, task: str, length: int, places: bool = False) -> None:
        self._tokenizer, self._in_rows, self._length = tokenizer, task == "causal-lm", length
        self._places = places and tokenizer.is_fast
        start, end = tokenizer.bos_token_id, tokenizer.eos_token_id
        self._before = [start if start is not None else end] if (start, end) != (None, None) else []
        self._after = [end] if end is not None else []

    def rows(self, texts: Sequence[str]) -> list[list[Row]]:
        """Each text's rows."""
        if not texts:  # which tokenizers do not take
            return []
        if not self._in_rows:
            found = self._encoded(texts, truncation=True, max_length=self._length)
            return [
                self._cut(text, np.asarray(ids), own, len(text) if own is None else _end(own))
                for text, (ids, own) in zip(texts, found, strict=True)
            ]
        rows = []
        for text, (ids, own) in zip(texts, self._encoded(texts, add_special_tokens=False), strict=True):
            whole = np.asarray(self._before + ids + self._after, dtype=np.int64)
            if own is not None:
                own = [(0, 0)] * len(self._before) + own + [(0, 0)] * len(self._after)
            cut = self._cut(text, whole, own, len(text))
            rows.append([row for row in cut if len(row.tokens) > 1])  # a row of one token predicts nothing
        return rows

    def _encoded(
        self, texts: Sequence[str], **options: Any
    ) -> list[tuple[list[int], list[tuple[int, int]] | None]]:
        """Token ids of each text, and the characters of each token if they are told."""
        found = self._tokenizer(list(texts), return_offsets_mapping=self._places, **options)
        offsets = found["offset_mapping"] if self._places else [None] * len(texts)
        return list(zip(found["input_ids"], offsets, strict=True))

    def _cut(self, text: str, ids: np.ndarray, offsets: list[tuple[int, int]] | None, end: int) -> list[Row]:
        """Rows of the tokens; `end` is where the characters end that they stand for."""
        length = self._length
        firsts = range(0, len(ids), length)
        if offsets is None:
            return [Row(ids[i : i + length], 0, len(text)) for i in firsts]
        starts, stops = np.array(offsets, dtype=np.int64).reshape(-1, 2).T
        starts = np.where(stops > starts, starts, end)  # a token without characters tells of none
        # Characters that the tokenizer dropped between two tokens count on both sides of a cut.
        reached = np.concatenate([[0], np.maximum.accumulate(stops)])
        ahead = np.concatenate([np.minimum.accumulate(starts[::-1])[::-1], [end]])
        rows = []
        for first in firsts:
            last = min(first + length, len(ids))
            begin = min(int(reached[first]), int(ahead[first]))
            rows.append(Row(ids[first:last], begin, max(int(ahead[last]), int(reached[last]))))
        return rows


def _end(offsets: Sequence[tuple[int, int]]) -> int:
    return max((stop for _, stop in offsets), default=0)
