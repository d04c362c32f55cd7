"""Cut texts with a layout into rows: between turns where that is possible, with a mark on what is not predicted."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from confide.data.cutting import Row
from confide.data.layout import Layout, Place
from confide.data.loss_mask import marked
from confide.data.pieces import PIECE, whole
from confide.utils.errors import InputError

ANSWERS_CUT = "answers cut: longer than data.max_length"
TURNS_CUT = "turns cut: longer than data.max_length"
NOTHING_LEARNT = "rows left out: nothing in them is learnt"


class TurnCutter:
    """Cuts texts with a layout into rows of at most `length` tokens.

    A row holds as many whole exchanges as fit. If one exchange does not fit, the row ends between two of its turns,
    and only if one turn does not fit, within it; that is counted. Rows of which nothing is predicted are left out and
    counted.

    Args:
        tokenizer: a fast one, which reports characters.
        counts: gets the counts of this module.

    Raises:
        InputError: the tokenizer is a slow one.
    """

    def __init__(
        self, tokenizer: Any, length: int, counts: Counter[str] | None = None, piece: int = PIECE
    ) -> None:
        if not tokenizer.is_fast:
            raise InputError(
                "tokenizer: it is a slow one, which does not tell where in a text its tokens stand; chats and "
                "completions need a fast one (a tokenizer.json)"
            )
        self._tokenizer, self._length, self._piece = tokenizer, length, piece
        self._counts = Counter() if counts is None else counts
        start, end = tokenizer.bos_token_id, tokenizer.eos_token_id
        first = end if start is None else start
        self._before = [] if first is None else [first]
        self._after = [] if end is None else [end]

    def rows(self, text: str, layout: Layout, what: str = "a text") -> list[Row]:
        """Return the rows of one text. See `pieces.encoded` for errors."""
        ids, places = whole(self._tokenizer, text, what, self._piece)
        predicted = predicted_tokens(places, layout.predicted)
        if not layout.has_ends:
            b, a = len(self._before), len(self._after)
            ids = np.concatenate([self._before, ids, self._after]).astype(np.int64)
            places = np.concatenate([np.zeros((b, 2)), places, np.full((a, 2), len(text))]).astype(np.int64)
            # The end is predicted: a completion is to stop. The beginning never is, as nothing stands before it.
            predicted = np.concatenate([np.zeros(b, bool), predicted, np.ones(a, bool)])
        rows = []
        for first, last in self._cuts(places, predicted, layout):
            own = predicted[first:last]
            if not own[1:].any():
                self._counts[NOTHING_LEARNT] += 1
                continue
            tokens = ids[first:last] if layout.predicted is None else marked(ids[first:last], own)
            begin = int(places[first - 1, 1]) if first else 0
            end = int(places[last, 0]) if last < len(ids) else len(text)
            rows.append(Row(tokens, min(begin, int(places[first, 0])), max(end, int(places[last - 1, 1]))))
        return rows

    def _cuts(self, places: np.ndarray, predicted: np.ndarray, layout: Layout) -> list[Place]:
        """Return the tokens [first, last) of each row."""
        starts = places[:, 0]
        exchanges, turns = (
            np.searchsorted(starts, np.asarray(characters, np.int64))
            for characters in (layout.exchanges, layout.turns)
        )
        rows, first = [], 0
        while first < len(places):
            last = min(first + self._length, len(places))
            if last < len(places):
                last = last_of(exchanges, first, last) or last_of(turns, first, last) or last
                if last == first + self._length and last not in turns:
                    in_answer = layout.predicted is not None and predicted[last - 1 : last + 1].all()
                    self._counts[ANSWERS_CUT if in_answer else TURNS_CUT] += 1
            rows.append((first, last))
            first = last
        return rows


def predicted_tokens(places: np.ndarray, predicted: Sequence[Place] | None) -> np.ndarray:
    """Tell which tokens hold a character that is predicted: int64[n, 2] -> bool[n]; all of them for None."""
    if predicted is None:
        return np.ones(len(places), dtype=bool)
    found = np.zeros(len(places), dtype=bool)
    for start, end in predicted:
        found |= (places[:, 0] < end) & (places[:, 1] > start)
    return found


def last_of(places: np.ndarray, first: int, last: int) -> int | None:
    """Return the last of these places in (first, last], if there is one."""
    fitting = places[(places > first) & (places <= last)]
    return int(fitting[-1]) if len(fitting) else None
