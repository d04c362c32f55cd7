"""Tokens of texts of any length in bounded memory: a tokenizer's answer takes a hundred times its text's memory.

A long text is tokenised in windows that overlap. Two neighbours are joined where both have the same run of tokens over
the same characters, in the middle of their overlap: there, neither the end of the one nor the beginning of the other
has an effect any more. So the tokens are those of the whole text.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from confide.utils.errors import InputError

PIECE = 1 << 18  # characters of a window; a text that is no longer is tokenised whole
_SHARED = 1 << 11  # characters that neighbours share at first
_RUN = 16  # tokens before and after the joint that must be the same


def encoded(
    tokenizer: Any, text: str, what: str = "a text", piece: int = PIECE
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Tokenise a text without special tokens, in pieces: int64[n] ids and int64[n, 2] of their characters.

    Args:
        tokenizer: a fast one, which reports characters.

    Raises:
        InputError: a passage of `piece` characters has no place where the text may be cut, for example a single letter
            repeated; the sentence begins with `what`.
    """
    start, first = 0, 0  # of the window; its first token that is taken
    ids, places = _window(tokenizer, text, 0, piece)
    while start + piece < len(text):
        end = start + piece
        shared = min(_SHARED, piece // 4)
        while True:
            following = _window(tokenizer, text, end - shared, piece)
            found = _meeting(ids, places, *following, end - shared, first)
            if found is not None:
                break
            if shared >= piece // 2:
                raise InputError(
                    f"{what}: characters {end - shared:,} to {end:,} have no place where the tokenizer can begin anew, "
                    "as words have; put blanks or line ends there, or split the text"
                )
            shared = min(4 * shared, piece // 2)
        last, begin = found
        yield ids[first:last], places[first:last]
        start, first = end - shared, begin
        ids, places = following
    yield ids[first:], places[first:]


def whole(
    tokenizer: Any, text: str, what: str = "a text", piece: int = PIECE
) -> tuple[np.ndarray, np.ndarray]:
    """Tokenise a text of any length as `encoded` does, and return all tokens at once."""
    pieces = list(encoded(tokenizer, text, what, piece))
    return np.concatenate([ids for ids, _ in pieces]), np.concatenate([places for _, places in pieces])


def beginning(tokenizer: Any, text: str, length: int, piece: int = PIECE) -> str:
    """Return a beginning of the text whose first `length` tokens are those of the whole text."""
    size = piece
    while size < len(text):
        _, places = _window(tokenizer, text, 0, size)
        # The tokens in the last part of the window may differ if the text goes on.
        if int(np.searchsorted(places[:, 1], size - piece // 4)) > length:
            return text[:size]
        size *= 2
    return text


def _window(tokenizer: Any, text: str, start: int, piece: int) -> tuple[np.ndarray, np.ndarray]:
    found = tokenizer(text[start : start + piece], add_special_tokens=False, return_offsets_mapping=True)
    places = np.array(found["offset_mapping"], dtype=np.int64).reshape(-1, 2) + start
    return np.array(found["input_ids"], dtype=np.int64), places


def _meeting(
    ids: np.ndarray,
    places: np.ndarray,
    next_ids: np.ndarray,
    next_places: np.ndarray,
    start: int,
    first: int,
) -> tuple[int, int] | None:
    """Find the token of each window at which the second window takes over, or None.

    It is in the middle of the longest run that both share.
    """
    begin = max(first, int(np.searchsorted(places[:, 0], start)))
    known = {key: at for at, key in enumerate(_keys(ids[begin:], places[begin:]), begin)}
    limit = int(np.searchsorted(next_places[:, 0], places[-1, 1])) if len(places) else 0
    best = (0, 0, 0)  # length of the run in tokens; its end in each window
    length, before = 0, -2
    for at, key in enumerate(_keys(next_ids[:limit], next_places[:limit])):
        place = known.get(key, -2)
        length = length + 1 if place == before + 1 and length else int(place >= 0)
        before = place
        best = max(best, (length, place + 1, at + 1))
    length, last, taken = best
    if length < 2 * _RUN:
        return None
    back = length // 2
    # Do not cut within a character that several tokens share.
    while back < length - _RUN and places[last - back, 0] < places[last - back - 1, 1]:
        back += 1
    return last - back, taken - back


def _keys(ids: np.ndarray, places: np.ndarray) -> list[tuple[int, int, int]]:
    return list(zip(ids.tolist(), places[:, 0].tolist(), places[:, 1].tolist(), strict=True))
