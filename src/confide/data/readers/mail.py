"""Mail as records: RFC 822 messages from maildirs, trees of one-message files (CMU's Enron), and mbox files.

Fields: `from` (lower-case address, or the name if there is no address), `to`, `cc`, `bcc` (addresses),
`subject`, `date`, `message_id`, `body`, `path`, `mailbox` (whose mail it is) and `folder`.
"""

from __future__ import annotations

import contextlib
import email
import email.errors
import email.header
import email.policy
import re
from collections.abc import Iterator
from email.message import EmailMessage
from html.parser import HTMLParser
from pathlib import Path, PurePosixPath
from typing import Any

from confide.data.readers.base import Head, Reader, SmallFileReader
from confide.data.readers.documents import Record
from confide.data.readers.fields import addresses, clean_text
from confide.data.readers.files import SmallFile, linked
from confide.data.readers.opening import How, lines_of
from confide.utils.errors import InputError

_HEADER = re.compile(rb"(?:[!-9;-~]+:[^\n]*\n(?:[ \t][^\n]*\n)*)+")
_SEPARATOR = re.compile(rb"From .*\d{1,2}:\d{2}")
_ESCAPED = re.compile(rb">+From ")
_BLOCK = re.compile("br|p|div|tr|li|table|ul|ol|blockquote|pre|hr|title|h[1-6]")


def looks_like_mail(head: bytes) -> bool:
    """Tell whether a file that begins so is a message: a header with From and Date, To, Subject or Message-ID."""
    block = _HEADER.match(head.replace(b"\r\n", b"\n"))
    if block is None:
        return False
    names = {line.partition(b":")[0].lower() for line in block.group().split(b"\n") if line[:1] > b" "}
    return b"from" in names and bool(names & {b"date", b"to", b"subject", b"message-id"})


def looks_like_mbox(head: bytes) -> bool:
    """Tell whether a file that begins like this is an mbox: a "From " line with a time, then a message."""
    first, _, rest = head.partition(b"\n")
    return _SEPARATOR.match(first) is not None and _HEADER.match(rest.replace(b"\r\n", b"\n")) is not None


def parse_message(content: bytes) -> dict[str, Any]:
    """Return the fields of one message, however broken its headers are: unreadable fields are blank."""
    message = email.message_from_bytes(content, policy=email.policy.default)
    headers: dict[str, list[str]] = {}
    for name, value in message.raw_items():
        headers.setdefault(name.lower(), []).append(_decoded(str(value)))

    def header(name: str) -> str:
        return headers.get(name, [""])[0]

    def receivers(name: str) -> list[str]:
        return list(addresses(", ".join(headers.get(name, []))))

    sender = addresses(header("from"))
    return {
        "from": sender[0] if sender else header("from").lower(),
        "to": receivers("to"),
        "cc": receivers("cc"),
        "bcc": receivers("bcc"),
        "subject": header("subject"),
        "date": header("date"),
        "message_id": header("message-id"),
        "body": _body(message),
    }


def _decoded(value: str) -> str:
    """Unfold a header and decode encoded words (RFC 2047) and raw 8-bit bytes."""
    value = value.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    if "=?" in value:
        # An encoded word in an unknown charset, or one that is badly encoded, stays as it is written.
        with contextlib.suppress(ValueError, LookupError, email.errors.MessageError):
            value = str(email.header.make_header(email.header.decode_header(value)))
    return " ".join(clean_text(value).split())


def _body(message: EmailMessage) -> str:
    """Return the plain text part, else the HTML part without tags, else ""."""
    try:
        part = message.get_body(("plain", "html")) if message.is_multipart() else message
    except RecursionError:
        raise
    except Exception:  # the standard library's header parser fails in many ways on broken MIME
        part = _first_text(message)
    if part is None:
        return ""
    kind = _content_type(part)
    if not kind.startswith(("text/", "multipart/")):  # a multipart without its boundary is read as it stands
        return ""
    try:
        payload = part.get_payload(decode=True)
    except RecursionError:
        raise
    except Exception:  # as above
        payload = None
    if not isinstance(payload, bytes):
        return ""
    text = clean_text(_decode(payload, _charset(part)))
    return _without_tags(text) if kind == "text/html" else text


def _first_text(message: EmailMessage) -> Any:
    return next((part for part in message.walk() if _content_type(part) == "text/plain"), None)


def _content_type(part: Any) -> str:
    try:
        return str(part.get_content_type())
    except Exception:  # as above: unreadable, so the default of RFC 2045
        return "text/plain"


def _charset(part: Any) -> str:
    try:
        return part.get_content_charset() or "us-ascii"
    except Exception:
        return "us-ascii"


def _decode(payload: bytes, charset: str) -> str:
    """Decode by the stated charset; else UTF-8; else Windows-1252, which old mail without a charset usually is."""
    for name in (charset, "utf-8", "cp1252"):
        try:
            return payload.decode(name)
        except (UnicodeDecodeError, LookupError, ValueError):
            continue
    return payload.decode("latin-1")


class _Text(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.pieces: list[str] = []
        self.silent = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.silent += tag in ("script", "style")
        if _BLOCK.fullmatch(tag):
            self.pieces.append("\n")

    def handle_endtag(self, tag: str) -> None:
        self.silent -= tag in ("script", "style") and self.silent > 0
        if tag != "br" and _BLOCK.fullmatch(tag):
            self.pieces.append("\n")

    def handle_data(self, data: str) -> None:
        if not self.silent:
            self.pieces.append(re.sub(r"\s+", " ", data))


def _without_tags(html: str) -> str:
    parser = _Text()
    try:
        parser.feed(html)
        parser.close()
    except AssertionError:  # the standard library's error for some invalid declarations
        parser.pieces = [re.sub(r"<[^>]*>", " ", html)]
    lines = [line.strip() for line in "".join(parser.pieces).split("\n")]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip()


def mailbox_and_folder(path: str, source: Path) -> tuple[str, str]:
    """Return the mailbox that a message lies in, and its folder there, both read from its path.

    The mailbox is the folder below one named `maildir`, on the way to the source or below it; else the first
    folder below the source; else the source itself. `cur`, `new` and the dot of `.Sent` are not names.
    """
    inside = [part for part in PurePosixPath(path).parts[:-1] if part not in ("cur", "new", "/")]
    outside = [part for part in source.resolve().parts if part != "/"]
    inside_names = [part.lower() for part in inside]
    if "maildir" in inside_names[:-1]:
        inside = inside[inside_names.index("maildir") + 1 :]
        return inside[0], "/".join(part.lstrip(".") for part in inside[1:])
    below = [i + 1 for i, part in enumerate(outside[:-1]) if part.lower() == "maildir"]
    if below:
        box, rest = outside[below[0]], [*outside[below[0] + 1 :], *inside]
    elif inside and not inside[0].startswith("."):
        box, rest = inside[0], inside[1:]
    else:
        box, rest = outside[-1] if outside else "", inside
    return box, "/".join(part.lstrip(".") for part in rest)


class Maildir(SmallFileReader):
    """Messages, each in a file: a maildir, a tree of such files, or some of them."""

    name = "maildir"
    endings = (".eml",)
    finds_hidden = True

    def recognises(self, head: Head) -> bool:
        return looks_like_mail(head.content)

    def records(self, files: Iterator[SmallFile], source: Path, how: How) -> Iterator[Record]:
        empty = True
        for file in files:
            empty = False
            box, folder = mailbox_and_folder(file.path, source)
            fields = _parsed(file.content, file.where) | {
                "path": file.path,
                "mailbox": box,
                "folder": folder,
            }
            yield Record(fields, file.where)
        if empty:
            raise InputError(f"{source}: holds no messages{linked(how)}.")


class Mbox(Reader):
    """The messages of an mbox, one in memory at a time; the mailbox is named after its file."""

    name = "mbox"
    endings = (".mbox",)

    def recognises(self, head: Head) -> bool:
        return looks_like_mbox(head.content)

    def read(self, path: Path, how: How) -> Iterator[Record]:
        number = 0
        for number, content in enumerate(_mbox_messages(path, how), 1):
            name = path.name.partition(".")[0]
            where = f"{path} message {number}"
            fields = _parsed(content, where) | {
                "path": f"{path.name}#{number}",
                "mailbox": name,
                "folder": "",
            }
            yield Record(fields, where)
        if not number:
            raise InputError(f"{path}: is empty, where an mbox is wanted.")


def _parsed(content: bytes, where: str) -> dict[str, Any]:
    try:
        return parse_message(content)
    except RecursionError:
        raise InputError(f"{where}: a message whose parts are nested too deeply; remove it.") from None


def _mbox_messages(path: Path, how: How) -> Iterator[bytes]:
    """Cut before each "From " line with a time that follows a blank line; remove one ">" from ">From "."""
    lines: list[bytes] = []
    started, after_blank, size = False, True, 0
    for number, line in lines_of(path, how):
        if after_blank and _SEPARATOR.match(line):
            if started:
                yield b"".join(lines)
            lines, started, size = [], True, 0
        elif started:
            size += len(line)
            if size > how.largest:
                raise how.too_large(f"{path} line {number}")
            lines.append(line[1:] if _ESCAPED.match(line) else line)
        elif line.strip():
            raise InputError(f'{path} line {number}: an mbox begins with a "From " line.')
        after_blank = not line.strip()
    if started:
        yield b"".join(lines)
