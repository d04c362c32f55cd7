"""Line by line out of JSONL, JSON, CSV, TSV and Parquet, compressed or not."""

from __future__ import annotations

import bz2
import codecs
import csv
import gzip
import json
import lzma
import zlib
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import IO, Any, cast

from confide.errors import InputError
from confide.text.documents import Record

_PIECE = 1 << 16
_LARGEST_ELEMENT = 1 << 26  # characters of one array element or one CSV cell
# What the decompressors raise on a file that is cut short or altered.
DAMAGE = (EOFError, lzma.LZMAError, zlib.error, gzip.BadGzipFile)


def open_bytes(path: Path) -> IO[bytes]:
    """The file's content, decompressed if its first bytes say gzip, xz or bzip2."""
    try:
        with path.open("rb") as file:
            magic = file.read(6)
        if magic.startswith(b"\x1f\x8b"):
            return cast(IO[bytes], gzip.open(path, "rb"))
        if magic == b"\xfd7zXZ\x00":
            return lzma.open(path, "rb")
        if magic.startswith(b"BZh"):
            return bz2.open(path, "rb")
        return path.open("rb")
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror or error}).") from None


def lines_of(path: Path) -> Iterator[tuple[int, bytes]]:
    """Line numbers from 1 and raw lines. Raises InputError for a damaged or unreadable file."""
    number = 0
    try:
        with open_bytes(path) as file:
            for number, line in enumerate(file, 1):
                yield number, line
    except DAMAGE as error:
        raise InputError(f"{path}: the compressed file is damaged after line {number} ({error}).") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read after line {number} ({error.strerror or error}).") from None


def text_lines(path: Path) -> Iterator[tuple[int, str]]:
    """The same, decoded as UTF-8 (a byte order mark is dropped). Raises InputError with the line number."""
    for number, line in lines_of(path):
        try:
            yield number, line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            raise InputError(
                f"{path} line {number}: not valid UTF-8 (byte {error.start + 1} of the line); "
                "save the file as UTF-8."
            ) from None


def jsonl(path: Path) -> Iterator[Record]:
    """One JSON object a line; blank lines are passed over."""
    empty = True
    for number, line in text_lines(path):
        if line.isspace():
            continue
        where = f"{path} line {number}"
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise InputError(f"{where}: not valid JSON ({_reason(error)}).") from None
        empty = False
        yield _object(value, where)
    if empty:
        raise InputError(f"{path}: is empty, where one JSON object a line is wanted.")


def json_array(path: Path) -> Iterator[Record]:
    """One JSON array of objects, element by element: memory is bounded by the largest element."""
    decoder = json.JSONDecoder()
    pieces = _text_pieces(path)
    buffer, wanted, number, ended = "", 0, 0, False
    opened = False
    while True:
        buffer, ended = _refill(buffer, pieces, wanted)
        if not opened:
            if not buffer.startswith("["):
                fault = "is empty" if not buffer else "does not begin with ["
                raise InputError(f"{path}: {fault}, where a JSON array of objects is wanted.")
            opened, buffer, wanted = True, buffer[1:].lstrip(), 0
            continue
        if buffer.startswith("]"):
            break
        try:
            value, end = decoder.raw_decode(buffer)
            rest, ended = _refill(buffer[end:], pieces, 1)
            if not rest.startswith((",", "]")):
                raise InputError(f"{path} element {number + 1}: no comma or ] after it.")
        except (ValueError, RecursionError) as error:
            wanted = 2 * max(len(buffer), _PIECE)
            if ended or wanted > _LARGEST_ELEMENT:
                raise InputError(f"{path} element {number + 1}: not valid JSON ({_reason(error)}).") from None
            continue
        number += 1
        yield _object(value, f"{path} element {number}")
        buffer, wanted = rest.removeprefix(","), 0
    if not number:
        raise InputError(f"{path}: the JSON array is empty.")


def _text_pieces(path: Path) -> Iterator[str]:
    """The text in pieces of a fixed size, since an array may stand on one endless line."""
    decoder = codecs.getincrementaldecoder("utf-8-sig")()
    read = 0
    try:
        with open_bytes(path) as file:
            while piece := file.read(_PIECE):
                read += len(piece)
                yield decoder.decode(piece)
            decoder.decode(b"", final=True)
    except UnicodeDecodeError:
        raise InputError(f"{path}: not valid UTF-8 (up to byte {read}); save the file as UTF-8.") from None
    except (*DAMAGE, OSError) as error:
        raise InputError(f"{path}: cannot be read after byte {read} ({error}).") from None


def _refill(buffer: str, pieces: Iterator[str], wanted: int) -> tuple[str, bool]:
    """At least `wanted` characters (one, if 0) without leading blanks; and whether that was the end."""
    parts = [buffer.lstrip()]
    length = len(parts[0])
    while length < max(wanted, 1):
        piece = next(pieces, None)
        if piece is None:
            return "".join(parts), True
        parts.append(piece if length else piece.lstrip())
        length += len(parts[-1])
    return "".join(parts), False


def _reason(error: Exception) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"{error.msg} at character {error.colno}"
    return "nested too deeply" if isinstance(error, RecursionError) else "a number is too long"


def _object(value: Any, where: str) -> Record:
    if not isinstance(value, dict):
        raise InputError(
            f"{where}: a JSON {type(value).__name__}, where an object with named fields is wanted."
        )
    return Record(value, where)


def delimited(path: Path, *, tabs: bool) -> Iterator[Record]:
    """CSV with a header line and quotes; or TSV with a header line and none, as its media type has it."""
    csv.field_size_limit(_LARGEST_ELEMENT)
    lines = (line for _, line in text_lines(path))
    kind = "TSV" if tabs else "CSV"
    reader = csv.reader(
        lines,
        delimiter="\t" if tabs else ",",
        quoting=csv.QUOTE_NONE if tabs else csv.QUOTE_MINIMAL,
        strict=True,
    )
    header: list[str] = []
    empty = True
    start = 1
    try:
        for cells in reader:
            where, start = f"{path} line {start}", reader.line_num + 1
            if not cells:
                continue
            if not header:
                header = _header([cell.strip() for cell in cells], where, kind)
                continue
            if len(cells) != len(header):
                hint = "; fields of a TSV are never quoted" if tabs else ""
                raise InputError(f"{where}: {len(cells)} fields, where the header has {len(header)}{hint}.")
            empty = False
            yield Record(dict(zip(header, cells, strict=True)), where)
    except csv.Error as error:
        raise InputError(f"{path} line {start}: not valid {kind} ({error}).") from None
    if empty:
        raise InputError(f"{path}: {'has a header and no rows' if header else 'is empty'}.")


def _header(names: list[str], where: str, kind: str) -> list[str]:
    if not all(names):
        raise InputError(
            f"{where}: column {names.index('') + 1} has no name; a {kind} begins with a header line."
        )
    if any(len(name) > 100 for name in names):
        raise InputError(
            f"{where}: does not look like a header; a {kind} begins with a line of column names."
        )
    if len(set(names)) < len(names):
        twice = next(i for i, name in enumerate(names) if name in names[:i])
        raise InputError(
            f"{where}: columns {names.index(names[twice]) + 1} and {twice + 1} have the same name."
        )
    return names


def parquet(path: Path, fields: Collection[str] | None = None) -> Iterator[Record]:
    """Rows in batches. With `fields`, only those columns are read, if all of them are there."""
    import pyarrow
    from pyarrow.parquet import ParquetFile

    number = 0
    try:
        with ParquetFile(path) as file:
            chosen = sorted(fields) if fields and set(fields) <= set(file.schema_arrow.names) else None
            for batch in file.iter_batches(batch_size=256, columns=chosen):
                for row in batch.to_pylist():
                    number += 1
                    yield Record(row, f"{path} row {number}")
    except (pyarrow.ArrowException, OSError) as error:
        reason = str(error).partition("\n")[0].rstrip(".")
        raise InputError(f"{path}: not a readable Parquet file after row {number} ({reason}).") from None
    if not number:
        raise InputError(f"{path}: has no rows.")
