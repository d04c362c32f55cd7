"""Records from JSONL, JSON, CSV, TSV and Parquet files, compressed or not."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from confide.data.readers.base import Head, Reader
from confide.data.readers.documents import Counts, Record
from confide.data.readers.encodings import delimiter_for, is_utf8, text_lines, text_pieces
from confide.data.readers.files import OUTSIDE, walk
from confide.data.readers.hub import hub_records, is_saved
from confide.data.readers.opening import How, check_regular, is_plain, line_pieces
from confide.data.readers.parts import Piece
from confide.data.readers.remote import File, RemoteFile
from confide.utils.errors import InputError
from confide.utils.sentences import kind_of

_PIECE = 1 << 16
_ROWS = 256  # of a Parquet file at a time
_BATCH_BYTES = 1 << 26  # of a Parquet file at a time, as far as its pages allow


class JSONLines(Reader):
    """JSON lines: one JSON object per line; blank lines are skipped."""

    name = "jsonl"
    endings = (".jsonl", ".ndjson")
    takes_urls = True

    def recognises(self, head: Head) -> bool:
        return head.start.startswith(b"{") and _is_object(head.start.partition(b"\n")[0])

    def pieces(self, path: File, how: How, size: int) -> list[Piece]:
        if isinstance(path, Path) and is_plain(path) and is_utf8(path, how):
            return line_pieces(path, size)
        return super().pieces(path, how, size)

    def read(self, path: File, how: How) -> Iterator[Record]:
        return self.read_piece(Piece(path), how)

    def read_piece(self, piece: Piece, how: How) -> Iterator[Record]:
        path, empty = piece.path, piece.start is None
        for number, line in text_lines(path, how, piece):
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


class JSONArray(Reader):
    """One JSON array of objects, read element by element: memory is bounded by the largest element."""

    name = "json"
    endings = (".json",)
    takes_urls = True

    def recognises(self, head: Head) -> bool:
        return re.match(rb"\[\s*\{", head.start) is not None

    def told(self, head: Head) -> str:
        """Tell the contents of a file named .json, which is as often JSON lines as an array."""
        return self.name if head.start.startswith(b"[") else JSONLines.name

    def read(self, path: File, how: How) -> Iterator[Record]:
        decoder = json.JSONDecoder()
        pieces = text_pieces(path, how)
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
                _check_rest(buffer[1:], pieces, path)
                break
            try:
                value, end = decoder.raw_decode(buffer)
                rest, ended = _refill(buffer[end:], pieces, 1)
                if not rest.startswith((",", "]")):
                    raise InputError(f"{path} element {number + 1}: no comma or ] after it.")
            except (ValueError, RecursionError) as error:
                if not ended and len(buffer) >= how.largest:
                    raise how.too_large(f"{path} element {number + 1}") from None
                wanted = min(2 * max(len(buffer), _PIECE), how.largest + 1)
                if ended:
                    raise InputError(
                        f"{path} element {number + 1}: not valid JSON ({_reason(error)})."
                    ) from None
                continue
            number += 1
            yield _object(value, f"{path} element {number}")
            buffer, wanted = rest.removeprefix(","), 0
        if not number:
            raise InputError(f"{path}: the JSON array is empty.")


def _is_object(line: bytes) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


def _check_rest(rest: str, pieces: Iterator[str], path: File) -> None:
    """Check that nothing follows an array; read to the end, where a compressed file has its checksum."""
    while not rest or rest.isspace():
        piece = next(pieces, None)
        if piece is None:
            return
        rest = piece
    raise InputError(f"{path}: text follows the end of the JSON array.")


def _refill(buffer: str, pieces: Iterator[str], wanted: int) -> tuple[str, bool]:
    """Read at least `wanted` characters (one, if 0) without leading blanks; return whether that was the end, too."""
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
        end = len(error.doc.rstrip())
        if error.pos < end and not error.msg.startswith("Unterminated"):
            return f"{error.msg} at character {error.colno}"
        return f"it ends at character {end}, before its JSON does: is the file cut off?"
    return "nested too deeply" if isinstance(error, RecursionError) else "a number is too long"


def _object(value: Any, where: str) -> Record:
    if not isinstance(value, dict):
        hint = "; a file that is one list of objects has data.format: json" if isinstance(value, list) else ""
        raise InputError(f"{where}: {kind_of(value)}, where an object with named fields is wanted{hint}.")
    return Record(value, where)


class CSV(Reader):
    """A header line, then rows; fields may be quoted."""

    name = "csv"
    endings = (".csv",)
    takes_urls = True

    def read(self, path: File, how: How) -> Iterator[Record]:
        return _delimited(path, how, tabs=False)


class TSV(Reader):
    """A header line, then rows; fields are never quoted, as the media type says."""

    name = "tsv"
    endings = (".tsv",)
    takes_urls = True

    def read(self, path: File, how: How) -> Iterator[Record]:
        return _delimited(path, how, tabs=True)


def _delimited(path: File, how: How, *, tabs: bool) -> Iterator[Record]:
    csv.field_size_limit(how.largest)
    kind = "TSV" if tabs else "CSV"
    delimiter = (how.delimiter or "\t") if tabs else delimiter_for(path, how)
    lines = (line for _, line in text_lines(path, how))
    reader = csv.reader(
        lines,
        delimiter=delimiter,
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
                hint = (
                    "; fields of a TSV are never quoted"
                    if tabs
                    else "; put a field in quotes if it holds a separator"
                )
                raise InputError(f"{where}: {len(cells)} fields, where the header has {len(header)}{hint}.")
            empty = False
            yield Record(dict(zip(header, cells, strict=True)), where)
    except csv.Error as error:
        if "field limit" in str(error):
            raise how.too_large(f"{path} line {start}") from None
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


class Parquet(Reader):
    """Rows in batches. With `how.fields`, only those columns are read, if all of them are there."""

    name = "parquet"
    endings = (".parquet",)
    takes_urls = True

    def recognises(self, head: Head) -> bool:
        return head.content.startswith(b"PAR1")

    def read_folder(self, folder: Path, how: How) -> Iterator[Record]:
        if not is_saved(folder):
            _check_links(folder)
        return hub_records(str(folder), how.split, how.fields)

    def pieces(self, path: File, how: How, size: int) -> list[Piece]:
        from pyarrow.parquet import ParquetFile

        try:
            with ExitStack() as stack:
                source = stack.enter_context(path.open("rb")) if isinstance(path, RemoteFile) else path
                facts = stack.enter_context(ParquetFile(source, memory_map=False)).metadata
                groups = [facts.row_group(index) for index in range(facts.num_row_groups)]
                rows = [group.num_rows for group in groups]
                sizes = [group.total_byte_size for group in groups]
        except Exception:  # whoever reads the file reports the fault
            return super().pieces(path, how, size)
        found: list[Piece] = []
        first = 0
        for last in range(1, len(rows) + 1):
            if last == len(rows) or sum(sizes[first : last + 1]) > size:
                found.append(Piece(path, first, last, sum(rows[:first]), sum(sizes[first:last])))
                first = last
        return found if sum(rows) else super().pieces(path, how, size)

    def read(self, path: File, how: How) -> Iterator[Record]:
        return self.read_piece(Piece(path), how)

    def read_piece(self, piece: Piece, how: How) -> Iterator[Record]:
        from pyarrow.parquet import ParquetFile

        path, number = piece.path, piece.before
        check_regular(path)
        # A damaged file makes pyarrow, and its conversion to Python values, fail in ways that have no common type.
        try:
            with ExitStack() as stack:
                source = stack.enter_context(path.open("rb")) if isinstance(path, RemoteFile) else path
                file = stack.enter_context(ParquetFile(source, memory_map=False))
                fields = how.fields
                chosen = sorted(fields) if fields and set(fields) <= set(file.schema_arrow.names) else None
                groups = None if piece.start is None else range(piece.start, piece.stop)
                for batch in file.iter_batches(_rows_at_a_time(file), groups, chosen):
                    for first in range(0, batch.num_rows, step := _rows_of(batch, path, number, how)):
                        for row in batch.slice(first, step).to_pylist():
                            number += 1
                            yield Record(row, f"{path} row {number}")
        except InputError:
            raise
        except Exception as error:
            # For a value that cannot be read, pyarrow's message may hold the value.
            reason = "bytes that are no UTF-8" if isinstance(error, UnicodeError) else _first_line(error)
            raise InputError(f"{path}: not a readable Parquet file after row {number} ({reason}).") from None
        if not number and piece.start is None:
            raise InputError(f"{path}: has no rows.")


def _rows_at_a_time(file: Any) -> int:
    """Return a number of rows that is sure to be small, by the file's facts about its row groups."""
    groups = (file.metadata.row_group(index) for index in range(file.metadata.num_row_groups))
    heaviest = max((group.total_byte_size / max(1, group.num_rows) for group in groups), default=0)
    return int(min(_ROWS, max(1, _BATCH_BYTES // max(1, heaviest))))


def _rows_of(batch: Any, path: File, before: int, how: How) -> int:
    """Return how many rows of a batch to convert to Python values at a time. Raises InputError for too large a row."""
    import pyarrow
    from pyarrow import compute

    longest = 1
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        kind = column.type
        if (
            pyarrow.types.is_string(kind)
            or pyarrow.types.is_large_string(kind)
            or pyarrow.types.is_binary(kind)
        ):
            longest = max(longest, compute.max(compute.binary_length(column)).as_py() or 0)
            if longest > how.largest:
                raise how.too_large(f"{path} rows {before + 1} to {before + batch.num_rows}, {name!r}")
    return max(1, min(_ROWS, _BATCH_BYTES // longest))


def _check_links(folder: Path) -> None:
    """Check that no link leads out of the folder: the library that reads data sets follows all links."""
    passed_over = Counts()
    for _ in walk(folder, counts=passed_over):
        pass
    if passed_over:
        raise InputError(
            f"{folder}: {passed_over[OUTSIDE]:,} of its files are links out of it or to nothing; copy the files there, "
            "or give them as a pattern (*.parquet)."
        )


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0].rstrip(".")[:200] or type(error).__name__
