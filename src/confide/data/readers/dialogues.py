"""Dialogues: a list of turns as one text, at least one line per turn, and the turns' spans as spans of that text."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

from confide.data.readers.fields import clean_text
from confide.utils.errors import InputError
from confide.utils.sentences import kind_of

_SPEAKERS = ("speaker", "role", "from")
_TEXTS = ("text", "content", "value")


def is_dialogue(value: Any) -> TypeGuard[Sequence[Any]]:
    """Tell whether a field holds turns: a list of mappings, of plain strings, or of both."""
    return isinstance(value, list | tuple) and all(isinstance(turn, Mapping | str) for turn in value)


@dataclass(frozen=True)
class Dialogue:
    """Turns with their speakers' prompts. Build it with `of`.

    Attributes:
        turns: the raw text of each turn, and the prompt before it.
        text: all turns, cleaned, one per line; "" if no turn says anything.
    """

    turns: tuple[tuple[str, str], ...]
    text: str

    @classmethod
    def of(cls, value: Sequence[Any], speakers: Mapping[str, str], where: str) -> Dialogue:
        """Build a dialogue from turns.

        A turn is a mapping with `speaker`, `role` or `from` and `text`, `content` or `value`; or a plain string
        without a speaker.

        Args:
            value: the turns.
            speakers: the prompt of each speaker; if it is empty, prompts are the speakers' names and a colon.
            where: the record, for errors.

        Raises:
            InputError: a turn lacks its text or speaker, or the speaker is not among `speakers`; names record and
                turn.
        """
        turns = tuple(
            (_prompt(turn, speakers, f"{where}: turn {number}"), said_in(turn, f"{where}: turn {number}"))
            for number, turn in enumerate(value, 1)
        )
        if not any(said.strip() for _, said in turns):
            return cls(turns, "")
        return cls(turns, "\n".join(prompt + clean_text(said) for prompt, said in turns))

    def prompts(self) -> tuple[tuple[int, int], ...]:
        """Return the positions of prompts in the text."""
        found, position = [], 0
        for prompt, said in self.turns:
            found.append((position, position + len(prompt)))
            position += len(prompt) + len(clean_text(said)) + 1
        return tuple(found) if self.text else ()

    def shifted(self, value: Sequence[Any], field: str, where: str) -> list[list[Any]]:
        """Return the spans that a field of each turn lists, [start, end] or [start, end, kind], counted in `text`.

        Raises:
            InputError: a turn has no such list, or a span outside its text: a secret without a mark, or with a
                misplaced one, would not be protected.
        """
        found: list[list[Any]] = []
        position = 0
        for number, (turn, (prompt, said)) in enumerate(zip(value, self.turns, strict=True), 1):
            position += len(prompt)
            for start, end, *kind in spans_in(turn, field, len(said), f"{where}: turn {number}"):
                # One character is left of a two-character line end; it is sensitive if either of the two was.
                begin = start - (said[start - 1 : start + 1] == "\r\n" and start > 0)
                found.append([position + len(clean_text(said[:place])) for place in (begin, end)] + kind)
            position += len(clean_text(said)) + 1
        return found


def speaker_of(turn: Any) -> str | None:
    """Return the speaker of a turn; None if it names nobody."""
    named = [turn[key] for key in _SPEAKERS if key in turn] if isinstance(turn, Mapping) else []
    return (named[0].strip() or None) if named and isinstance(named[0], str) else None


def _prompt(turn: Any, speakers: Mapping[str, str], where: str) -> str:
    """Return the prompt of a turn, with the space that separates it from the text."""
    speaker = speaker_of(turn)
    if speaker is None:
        if isinstance(turn, str) and not speakers:
            return ""
        raise InputError(f"{where}: names no speaker (in a field {', '.join(_SPEAKERS)})")
    if speakers and speaker not in speakers:
        # The speaker's name is a person's, often.
        raise InputError(
            f"{where}: its speaker is not in data.speakers ({', '.join(speakers)}): add the speaker there, or leave "
            "data.speakers out: then each turn begins with its speaker's name"
        )
    prompt = clean_text(speakers[speaker] if speakers else f"{speaker}:")
    return prompt if not prompt or prompt[-1].isspace() else f"{prompt} "


def _no_text(part: Any) -> str:
    """Say what a turn holds in place of text, by the part's type if that is the name of one, and no other value."""
    stated = part.get("type") if isinstance(part, Mapping) else None
    if stated == "text":
        return "a part of type 'text' without a text"
    if isinstance(stated, str) and re.fullmatch(r"[a-z_]{1,20}", stated):
        return f"a part of type {stated!r}, not text"
    return f"{kind_of(part)}, not text"


def said_in(turn: Any, where: str) -> str:
    """Return what a turn says, "" for null. Text that comes in parts is put together.

    Raises:
        InputError: the turn has no text, or holds something else.
    """
    if isinstance(turn, str):
        return turn
    said = [turn[key] for key in _TEXTS if key in turn]
    if not said:
        fields = ", ".join(str(key) for key in turn if len(str(key)) <= 40) or "none"
        raise InputError(f"{where}: has no field {', '.join(_TEXTS)}; its fields are {fields}")
    if said[0] is None:
        return ""
    parts = said[0] if isinstance(said[0], list | tuple) else [said[0]]
    texts = [
        part.get("text") if isinstance(part, Mapping) and part.get("type") == "text" else part
        for part in parts
    ]
    if not all(isinstance(text, str) for text in texts):
        what = next(part for part, text in zip(parts, texts, strict=True) if not isinstance(text, str))
        raise InputError(f"{where}: holds {_no_text(what)}")
    return "".join(map(str, texts))


def spans_in(turn: Any, field: str, length: int, where: str) -> Iterator[Sequence[Any]]:
    """Yield the spans that a field of a turn lists: [start, end] or [start, end, kind], within its `length` characters.

    Raises:
        InputError: it lists none, or one outside its text.
    """
    listed = turn.get(field) if isinstance(turn, Mapping) else None
    if not isinstance(listed, list | tuple):
        raise InputError(
            f"{where}: detector.spans names {field!r}, where each turn is to list its spans; an empty list says that "
            "nothing is sensitive"
        )
    for span in listed:
        if not (
            isinstance(span, list | tuple)
            and len(span) in (2, 3)
            and all(isinstance(place, int) and not isinstance(place, bool) for place in span[:2])
            and 0 <= span[0] <= span[1] <= length
            and all(isinstance(kind, str) for kind in span[2:])
        ):
            raise InputError(
                f"{where}: detector.spans: an entry of {field!r} is no [start, end] or [start, end, kind] within the "
                f"turn's {length} characters"
            )
        yield span
