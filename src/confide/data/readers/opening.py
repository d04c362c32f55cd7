"""Files as bytes: only regular files, decompressed, to their true end, never more at a time than is allowed."""

from __future__ import annotations

import bz2
import contextlib
import gzip
import io
import lzma
import stat
import zlib
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import IO, Any, cast

from confide.data.readers.documents import LARGEST, Counts
from confide.data.readers.parts import Piece
from confide.data.readers.remote import File, RemoteFile
from confide.utils.errors import InputError

# The errors of decompressors for a file that is cut short or altered.
DAMAGE = (EOFError, lzma.LZMAError, zlib.error, gzip.BadGzipFile)
_PIECE = 1 << 16
_BLOCK = 1 << 20
_ZSTD = b"\x28\xb5\x2f\xfd"
_DICTIONARY = 1 << 28  # bytes that an xz file may ask for: `xz -9` asks for a quarter of them


@dataclass(frozen=True)
class How:
    """The way in which files are read.

    Attributes:
        delimiter: between the fields of a table; None: detected from the content.
        encoding: of text; None: UTF-8, or the one detected from the content.
        largest: bytes of one document, decompressed; memory never holds more of it.
        counts: the number of skipped items, and remarks on what was detected.
        split: the split of a data set that has several.
        fields: the only fields needed, where that saves work; None: all.
    """

    delimiter: str | None = None
    encoding: str | None = None
    largest: int = LARGEST
    counts: Counts = field(default_factory=Counts)
    split: str = "train"
    fields: Collection[str] | None = None

    def too_large(self, where: str) -> InputError:
        """Build the error for a document that is larger than allowed."""
        return InputError(
            f"{where}: a document of more than {self.largest:,} bytes; split it, or raise data.max_document_bytes."
        )


def check_regular(path: File, key: str | None = None) -> None:
    """Raise InputError for anything but a plain file: a pipe or a device may never end, and can be read only once.

    `key` is the config key that names the path. Other faults are reported by whoever reads the file.
    """
    if isinstance(path, RemoteFile):
        return
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError) as error:
        if key is not None:
            return
        raise InputError(f"{path}: cannot be read ({_reason(error)}).") from None
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        kind = "a named pipe" if stat.S_ISFIFO(mode) else "a socket" if stat.S_ISSOCK(mode) else "a device"
        named = "" if key is None else f"{key}: "
        raise InputError(f"{named}{path}: is {kind}, not a file; write its content to a file first.")


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)


def open_bytes(path: File) -> IO[bytes]:
    """Open the file's content, decompressed if its first bytes say gzip, xz, bzip2 or zstd. Raises InputError."""
    check_regular(path)
    try:
        with path.open("rb") as file:
            magic = file.read(6)
        if magic.startswith(b"\x1f\x8b"):
            file_or_name = path if isinstance(path, Path) else path.open("rb")
            return cast(IO[bytes], gzip.open(file_or_name, "rb"))
        if magic == b"\xfd7zXZ\x00":
            return _Streams.of(path, partial(lzma.LZMADecompressor, memlimit=_DICTIONARY), padded=True)
        if magic.startswith(b"BZh"):
            return _Streams.of(path, bz2.BZ2Decompressor)
        if magic.startswith(_ZSTD):
            return cast(IO[bytes], io.BufferedReader(_Zstd(path), _PIECE))
        return path.open("rb")
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({_reason(error)}).") from None


class _Streams(io.RawIOBase):
    """The content of compressed streams, one after the other.

    The standard library ends the file if a stream is not followed by another stream. For a file that is damaged there,
    it would return the first part as the whole.
    """

    def __init__(self, path: File, decompressor: Callable[[], Any], padded: bool) -> None:
        self._file, self._new, self._padded = path.open("rb"), decompressor, padded
        self._decompressor: Any = decompressor()
        self._begun = False

    @classmethod
    def of(cls, path: File, decompressor: Callable[[], Any], padded: bool = False) -> IO[bytes]:
        return cast(IO[bytes], io.BufferedReader(cls(path, decompressor, padded), _PIECE))

    def readable(self) -> bool:
        return True

    def close(self) -> None:
        self._file.close()
        super().close()

    def readinto(self, buffer: Any) -> int:
        found = self._read(len(buffer))
        buffer[: len(found)] = found
        return len(found)

    def _read(self, size: int) -> bytes:
        while True:
            if self._decompressor.eof:
                rest = self._decompressor.unused_data
                if self._padded:
                    rest = rest.lstrip(b"\0")
                rest = rest or self._file.read(_PIECE)
                while rest and self._padded and not rest.strip(b"\0"):
                    rest = self._file.read(_PIECE)
                if not rest:
                    return b""
                self._decompressor = self._new()
                piece = rest.lstrip(b"\0") if self._padded else rest
            elif self._decompressor.needs_input:
                piece = self._file.read(_PIECE)
                if not piece:
                    raise EOFError("the compressed data end too early")
            else:
                piece = b""
            try:
                found = self._decompressor.decompress(piece, size)
            except OSError as error:  # bzip2's error for damaged data, which is no fault of the disk
                raise EOFError(str(error)) from None
            if found:
                return cast(bytes, found)


class _Zstd(io.RawIOBase):
    """The content of zstd streams. Arrow brings the decompressor, and asks for no larger window than 128 MiB."""

    def __init__(self, path: File) -> None:
        import pyarrow

        self._file = path.open("rb")
        self._content = pyarrow.CompressedInputStream(pyarrow.PythonFile(self._file, "r"), "zstd")

    def readable(self) -> bool:
        return True

    def close(self) -> None:
        if not self.closed:
            self._content.close()
            self._file.close()
        super().close()

    def readinto(self, buffer: Any) -> int:
        try:
            found = self._content.read(len(buffer))
        except OSError as error:
            if error.errno is not None:  # of the disk; Arrow's own errors have no number
                raise
            raise EOFError(str(error).partition("\n")[0]) from None
        buffer[: len(found)] = found
        return len(found)


def lines_of(path: File, how: How, piece: Piece | None = None) -> Iterator[tuple[int, bytes]]:
    """Yield line numbers from 1 and raw lines, of the file or of a piece of it, which begins and ends with a line.

    Raises InputError for an unreadable file or too long a line.
    """
    start, left = (
        (0, None) if piece is None or piece.start is None else (piece.start, piece.stop - piece.start)
    )
    number = 0 if piece is None else piece.before
    try:
        with open_bytes(path) as file:
            if start:
                file.seek(start)
            while (left is None or left > 0) and (line := file.readline(how.largest + 1)):
                number += 1
                left = None if left is None else left - len(line)
                if len(line) > how.largest:
                    raise how.too_large(f"{path} line {number}")
                yield number, line
    except DAMAGE as error:
        raise InputError(f"{path}: the compressed file is damaged after line {number} ({error}).") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read after line {number} ({_reason(error)}).") from None


def is_plain(path: File) -> bool:
    """Tell whether the content is the file as it is, not compressed. Raises InputError if it cannot be read."""
    with open_bytes(path) as file:
        return isinstance(file, io.BufferedReader) and not isinstance(file.raw, _Streams | _Zstd)


def line_pieces(path: Path, size: int) -> list[Piece]:
    """Cut a file that is not compressed at ends of lines; it is one piece if all its lines are blank."""
    pieces: list[Piece] = []
    start = position = before = lines = 0
    blank = True
    try:
        with path.open("rb") as file:
            while block := file.read(min(_BLOCK, size)):
                blank = blank and block.isspace()
                at = block.rfind(b"\n") + 1 if position + len(block) - start >= size else 0
                if at:
                    pieces.append(Piece(path, start, position + at, before, position + at - start))
                    start, before = position + at, lines + block.count(b"\n", 0, at)
                lines += block.count(b"\n")
                position += len(block)
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({_reason(error)}).") from None
    if start < position:
        pieces.append(Piece(path, start, position, before, position - start))
    return [Piece(path, size=position)] if blank else pieces


def pieces_of(path: File) -> Iterator[bytes]:
    """Yield the content in pieces of a fixed size. Raises InputError for a damaged or unreadable file."""
    read = 0
    try:
        with open_bytes(path) as file:
            while piece := file.read(_PIECE):
                read += len(piece)
                yield piece
    except DAMAGE as error:
        raise InputError(f"{path}: the compressed file is damaged after byte {read} ({error}).") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read after byte {read} ({_reason(error)}).") from None


def content_of(path: File, how: How) -> bytes:
    """Return the whole content, decompressed. Raises InputError if it cannot be read or is larger than allowed."""
    pieces, length = [], 0
    for piece in pieces_of(path):
        pieces.append(piece)
        length += len(piece)
        if length > how.largest:
            raise how.too_large(str(path))
    return b"".join(pieces)


def head_of(path: File, size: int = 4096) -> bytes:
    """Return the first bytes of the content. Raises InputError if they cannot be read."""
    try:
        with open_bytes(path) as file:
            return file.read(size)
    except (*DAMAGE, OSError) as error:
        raise InputError(f"{path}: cannot be read ({error}).") from None


def sample_of(path: File, size: int) -> bytes:
    """Return the first bytes of the content, as far as they can be read: later reading reports the fault."""
    found = b""
    with contextlib.suppress(*DAMAGE, OSError), open_bytes(path) as file:
        while len(found) < size and (piece := file.read(min(_PIECE, size - len(found)))):
            found += piece
    return found
