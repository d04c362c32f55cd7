"""Removal of other people's words from a message: quoted replies, attribution lines, forwarded originals.

A reply carries the text that it answers. Training on it as the replier's own leaves the quoted person's words in rows
that they do not own, which their guarantee does not cover. Quotes are found by their form; a quote without any mark
stays.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from confide.data.readers.fields import clean_text

# A pattern of lines is looked for in a whole text at once: most lines match none, and a call for each takes long.
_I = re.IGNORECASE | re.MULTILINE
# "> ", "|> ", "JS> ": always a quote. Other marks are quotes only below an attribution line.
_QUOTED = re.compile(r"^[ \t]{0,3}(?:[|:}#]?[ ]?>|[A-Za-z]{1,4}[>|](?![A-Za-z/]))", re.MULTILINE)
_MARKS = "|:}#]%~{+=*!"
_BANNER = re.compile(
    r"^(?:[ \t]*[-_=*]{2,}[ \t]*(?:original[ \t]+(?:message|appointment)|forwarded[ \t]+(?:by|message)"
    r"|forwarded[ \t]+with|begin[ \t]+forwarded|message[ \t]+from|reply[ \t]+(?:message|separator))\b"
    r"|[ \t]*begin[ \t]+forwarded[ \t]+message)",
    _I,
)
_SAID = re.compile(
    r"(?:writes|wrote|says|said|schrieb|a écrit)[ \t]*(?:(?:in message .*)?[:;,]|\.{2,})?[ \t]*$", _I
)
_ENDS = frozenset(":;,.sedbtSEDBT")  # the last character of a line that it finds
_OPENING = re.compile(
    r"(?:-+[ \t]*)?(?:in[ \t]+(?:a[ \t]+previous[ \t]+|a[ \t]+recent[ \t]+)?(?:article|message|<|\S+@)"
    r"|on[ \t].*\d|from[ \t]+article|\d{1,2}[ \t]+\w{3}[ \t]+\d{2,4})",
    _I,
)
_HEADER = re.compile(r"[ \t]*(from|sent|date|to|cc|bcc|subject|please respond to)\b[ \t]*:?", _I)
_HEADER_COLON = re.compile(r"^[ \t]*(from|sent|date|to|cc|bcc|subject)[ \t]*:", _I)
_STAMP = re.compile(
    r"\b\d{1,4}[/.-]\d{1,2}[/.-]\d{2,4}\b.*\b\d{1,2}:\d{2}|\b\d{1,2}:\d{2}(?::\d{2})?[ \t]*[ap]m\b", _I
)
_DATED = re.compile(r"[ \t]*(?:sent|date)[ \t]*:.*\d", _I)


def strip_quotes(body: str) -> str:
    """Remove the quotes from a message; return it unchanged, to the character, if it quotes nothing.

    Removed are: lines marked as quotes, with their attribution ("On ... wrote:", "In article <...> ... writes:"); and
    all that follows a banner ("-----Original Message-----", "---- Forwarded by ...") or the header that Lotus and
    Outlook put above a quoted original (To:, cc:, Subject: by a line with date and time). A signature stays.
    """
    text = clean_text(body)
    lines = text.split("\n")
    end = _original_begins(text, lines)
    drop = [index >= end for index in range(len(lines))]
    marks = _attributions(lines[:end], drop)
    for index in _lines_with(_QUOTED, text):
        drop[index] = True
    if marks:
        for index, line in enumerate(lines[:end]):
            if line.lstrip(" \t")[:1] in marks:
                drop[index] = True
    return "\n".join(_rest(lines, drop)) if any(drop) else body


def _lines_with(pattern: re.Pattern[str], text: str) -> Iterator[int]:
    """Yield the numbers of the lines in which a pattern matches, in order."""
    line = reached = 0
    for match in pattern.finditer(text):
        line += text.count("\n", reached, match.start())
        reached = match.start()
        yield line


def _original_begins(text: str, lines: list[str]) -> int:
    """Return the line from which on all is a quoted original, or the number of lines."""
    end = next(_lines_with(_BANNER, text), len(lines))
    for index in _lines_with(_HEADER_COLON, text):
        if index >= end:
            break
        start = _quoted_header(lines, index)
        if start is not None:
            return start
    return end


def _quoted_header(lines: list[str], first: int) -> int | None:
    """Return where a quoted header with its first `Name:` line at `first` begins, or None if it is none.

    It must name two of its fields within a few lines, one of them the sender or a receiver, and bear a date
    with the time: in a Sent: or Date: line, on the From: line, or in the lines above, where Lotus writes the
    sender. Without a date it must be the whole of To:, cc:, Subject:, below some text: a memo may begin so.
    """
    names: set[str] = set()
    dated = False
    blank = 0
    for line in lines[first : first + 40]:
        header = _HEADER.match(line)
        if header:
            names.add(header.group(1).lower())
            dated = dated or _DATED.match(line) is not None or _STAMP.search(line) is not None
            blank = 0
        elif not line.strip():
            blank += 1
            if blank > 2 or "subject" in names:
                break
        elif "subject" in names or not (
            "@" in line or line.rstrip().endswith((",", ";")) or _STAMP.search(line)
        ):
            break
    if len(names) < 2 or not names & {"from", "to"}:
        return None
    above = [index for index in range(max(0, first - 5), first) if lines[index].strip()][-3:]
    stamped = [index for index in above if _STAMP.search(lines[index])]
    if not stamped:
        whole = names >= {"to", "cc", "subject"} and any(line.strip() for line in lines[:first])
        return first if dated or whole else None
    start = stamped[0]
    # Lotus writes the sender on the line of the date, or on the one above it.
    alone = _STAMP.match(lines[start].strip()) is not None
    return start - 1 if alone and start > 0 and lines[start - 1].strip() else start


def _attributions(lines: list[str], drop: list[bool]) -> str:
    """Mark attribution lines in `drop`; return the quote marks used below them."""
    marks = ""
    for index, line in enumerate(lines):
        if line.rstrip(" \t")[-1:] not in _ENDS or not _SAID.search(line):
            continue
        start = next(
            (
                begin
                for begin in range(index, max(-1, index - 3), -1)
                if _OPENING.match(lines[begin].strip()) and all(row.strip() for row in lines[begin:index])
            ),
            None,
        )
        below = next((row for row in lines[index + 1 : index + 4] if row.strip()), "")
        mark = below.lstrip(" \t")[:1]
        quoted = bool(_QUOTED.match(below)) or (bool(mark) and mark in _MARKS)
        if start is None and not quoted:
            continue  # "as I wrote:" in the writer's own words
        begin = index if start is None else start
        drop[begin : index + 1] = [True] * (index + 1 - begin)
        if quoted and not _QUOTED.match(below):
            marks += mark
    return marks


def _rest(lines: list[str], drop: list[bool]) -> list[str]:
    """Return the remaining lines, blank lines around a removed block reduced to one and none at the ends."""
    kept: list[str] = []
    gap = True
    for line, dropped in zip(lines, drop, strict=True):
        if dropped:
            gap = True
        elif line.strip():
            if gap:
                while kept and not kept[-1].strip():
                    kept.pop()
                if kept:
                    kept.append("")
            kept.append(line)
            gap = False
        else:
            kept.append(line)
    while kept and not kept[-1].strip():
        kept.pop()
    while kept and not kept[0].strip():
        kept.pop(0)
    return kept
