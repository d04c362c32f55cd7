"""Work on each text by itself: strip quotes, cut rows, make the sketch that shows what texts have in common.

It is most of the time that reading takes, and it needs no other text. So several processes may share it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from confide.data.cutting import Cutter, Row
from confide.data.layout import Layout
from confide.data.readers.quotes import strip_quotes
from confide.data.readers.sketching import Sketch, Sketcher
from confide.data.turn_cutting import TurnCutter
from confide.utils.errors import InputError


@dataclass(frozen=True, slots=True)
class Text:
    """A text before the work; see `Document` for the fields.

    Attributes:
        is_cut: whether its rows are wanted.
    """

    text: str
    where: str
    layout: Layout | None = None
    tokens: Sequence[int] | None = None
    is_cut: bool = True


@dataclass(frozen=True, slots=True)
class Worked:
    """A text after the work.

    Attributes:
        text: without quotes; None if it is as it was.
        rows: none if they were not wanted.
        sketch: None if none was wanted, or the text is too short for one.
        stripped: characters of quotes that were taken away.
        counts: what was cut or left out as rows were made.
    """

    text: str | None
    rows: Rows
    sketch: Sketch | None
    stripped: int = 0
    counts: Mapping[str, int] | None = None

    @property
    def is_only_quotes(self) -> bool:
        """True if nothing was left of a text that said something."""
        return self.text is not None and not self.text.strip()


class Rows:
    """Rows of a text, to be taken once: those of a long text are made as they are taken, or when they are sent.

    Args:
        fault: raised when rows are taken, in their place.
    """

    def __init__(self, rows: Iterable[Row] = (), fault: InputError | None = None) -> None:
        self._rows, self._fault = rows, fault

    def __iter__(self) -> Iterator[Row]:
        if self._fault is not None:
            raise self._fault
        return iter(self._rows)

    def __reduce__(self) -> tuple[Any, ...]:
        try:
            rows = list(self)
        except InputError as fault:
            return Rows, ((), fault)
        tokens = np.concatenate([row.tokens for row in rows], dtype=np.int32) if rows else _NONE
        places = np.array([(len(row.tokens), row.start, row.end) for row in rows], np.int64).reshape(-1, 3)
        return _unpacked, (tokens, places)


_NONE = np.empty(0, np.int32)


def _unpacked(tokens: np.ndarray, places: np.ndarray) -> Rows:
    ends = np.cumsum(places[:, 0])
    parts = np.split(tokens, ends[:-1]) if len(ends) else []
    return Rows(Row(part, start, end) for part, (_, start, end) in zip(parts, places.tolist(), strict=True))


@dataclass(frozen=True)
class TextWork:
    """The work, as a job of `Workers` on lists of texts.

    Args:
        tokenizer: that of the model.
        in_rows, length: as of `Cutter`.
        places: whether to find each row's characters.
        without_quotes: whether quotes are stripped.
        sketched: whether to sketch each text.
    """

    tokenizer: Any
    in_rows: bool
    length: int
    places: bool = False
    without_quotes: bool = False
    sketched: bool = False

    def ready(self) -> Callable[[Sequence[Text]], list[Worked]]:
        """Return a function from texts to what became of each. A fault of a text is raised by its rows."""
        cutter = Cutter(self.tokenizer, self.in_rows, self.length, self.places)
        sketcher = Sketcher() if self.sketched else None

        def do(texts: Sequence[Text]) -> list[Worked]:
            left = [strip_quotes(each.text) if self.without_quotes else each.text for each in texts]
            plain = [
                (text, each.where)
                for each, text in zip(texts, left, strict=True)
                if each.is_cut and each.layout is None and each.tokens is None and text.strip()
            ]
            cut = iter(cutter.rows([text for text, _ in plain], [where for _, where in plain]))
            sketches = [None] * len(left) if sketcher is None else sketcher(left)
            done = []
            for each, text, sketch in zip(texts, left, sketches, strict=True):
                rows: Iterable[Row] = ()
                counts: Counter[str] = Counter()
                if not each.is_cut or not text.strip():
                    pass
                elif each.tokens is not None:
                    rows = cutter.rows_of_tokens(each.tokens)
                elif each.layout is not None:
                    turns = TurnCutter(self.tokenizer, self.length, counts)
                    rows = turns.rows(text, each.layout, each.where)
                else:
                    rows = next(cut)
                changed = None if text == each.text else text
                done.append(Worked(changed, Rows(rows), sketch, len(each.text) - len(text), counts or None))
            return done

        def one_by_one(texts: Sequence[Text]) -> list[Worked]:
            try:
                return do(texts)
            except InputError as fault:
                if len(texts) > 1:
                    return [worked for each in texts for worked in one_by_one([each])]
                return [Worked(None, Rows(fault=fault), None)]

        return one_by_one
