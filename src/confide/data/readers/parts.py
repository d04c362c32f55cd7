"""Parts of a source that can be read by themselves: files, lines between two bytes of a file, groups of rows.

How a source is parted depends on the source alone, never on who reads it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from confide.data.readers.remote import File, RemoteFile

if TYPE_CHECKING:
    from confide.data.readers.base import Reader
    from confide.data.readers.documents import Record
    from confide.data.readers.opening import How

SMALLEST, LARGEST = 1 << 22, 1 << 26
"""Bytes of a part, as far as files can be cut. Between the two a part is a thousandth of the source."""

_PARTS = 1000
_FILES = 1000  # of a part: each of them may be empty


@dataclass(frozen=True)
class Piece:
    """A file, or a stretch of it.

    Attributes:
        start, stop: bytes or groups of rows, as the reader counts them; None for the whole file.
        before: lines or rows of the file that come before it.
        size: bytes of it, as stored.
    """

    path: File
    start: int | None = None
    stop: int = 0
    before: int = 0
    size: int = 0


@dataclass(frozen=True)
class Part:
    """Pieces that one process reads one after the other."""

    number: int
    reader: Reader
    pieces: tuple[Piece, ...]

    def records(self, how: How) -> Iterator[Record]:
        for piece in self.pieces:
            yield from self.reader.read_piece(piece, how)

    @property
    def size(self) -> int:
        return sum(piece.size for piece in self.pieces)


def parts_of(reader: Reader, paths: Sequence[File], how: How) -> list[Part]:
    """Return the parts of files of one format, in order.

    Raises:
        InputError: a file is missing or cannot be reached.
    """
    sizes = [size_of(path) for path in paths]
    size = min(LARGEST, max(SMALLEST, sum(sizes) // _PARTS))
    parts: list[Part] = []
    pieces: list[Piece] = []
    held = 0
    for path, own in zip(paths, sizes, strict=True):
        for piece in reader.pieces(path, how, size) if own > size else [Piece(path, size=own)]:
            if pieces and (held + piece.size > size or len(pieces) == _FILES):
                parts.append(Part(len(parts), reader, tuple(pieces)))
                pieces, held = [], 0
            pieces.append(piece)
            held += piece.size
    return [*parts, Part(len(parts), reader, tuple(pieces))]


def size_of(path: File) -> int:
    """Return the bytes of a file, as stored; 0 if they are not known: whoever reads it reports the fault."""
    if isinstance(path, RemoteFile):
        return path.size
    try:
        return path.stat().st_size
    except OSError:
        return 0
