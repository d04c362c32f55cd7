"""What a source is, and its records: files, globs, folders, mail, archives, data sets. Everything streams."""

from __future__ import annotations

import contextlib
import glob
import json
import re
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path

from confide.data.readers.code import code_records, is_code
from confide.data.readers.documents import LARGEST, Counts, Document, Record, documents
from confide.data.readers.encodings import check_delimiter, check_encoding, encoding_of
from confide.data.readers.fields import Template, nearest
from confide.data.readers.files import OUTSIDE, is_tar, linked, small_files, text_records, walk
from confide.data.readers.hub import hub_records, is_saved, looks_like_name
from confide.data.readers.mail import looks_like_mail, looks_like_mbox, mbox_records, message_records
from confide.data.readers.opening import How, check_regular, head_of
from confide.data.readers.patterns import check_path, matching
from confide.data.readers.tables import delimited, json_array, jsonl, parquet
from confide.utils.errors import InputError

FORMATS = ("jsonl", "json", "csv", "tsv", "parquet", "text", "maildir", "mbox", "hub", "code")

_BY_EXTENSION = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "json",
    ".csv": "csv",
    ".tsv": "tsv",
    ".parquet": "parquet",
    ".txt": "text",
    ".text": "text",
    ".md": "text",
    ".mbox": "mbox",
    ".eml": "maildir",
}
_UNREAD = (
    (b"PK\x03\x04", "a zip archive (or a document of an office program)"),
    (b"\x28\xb5\x2f\xfd", "compressed with zstd"),
    (b"7z\xbc\xaf\x27\x1c", "a 7z archive"),
    (b"Rar!", "a rar archive"),
    (b"%PDF-", "a PDF"),
)
_COMPRESSED = (".gz", ".xz", ".bz2")
_SPLITS = {"train": "train", "training": "train", "test": "test"} | dict.fromkeys(
    ("dev", "val", "valid", "validation", "eval"), "validation"
)
_ABOUT = re.compile(r"(readme|licen[cs]e|notice|changelog)([._-].*)?", re.IGNORECASE)


def read(
    source: str | Path,
    *,
    text: str,
    unit: str | Sequence[str] | None,
    label: str | None = None,
    format: str = "auto",
    split: str = "train",
    counts: Counts | None = None,
) -> Iterator[Document]:
    """The documents of a source, one at a time: `records`, then `documents`; see there for the arguments.

    A source that is missing or of no known format and a bad template raise InputError at once; the rest as it
    is met. Memory holds one record (a Parquet batch of 256, a mail message), whatever the size of the source.
    """
    template = Template(text)
    names = [unit] if isinstance(unit, str) else list(unit or [])
    wanted = {*template.names, *names, *([label] if label else [])}
    found = records(source, format, split, fields=wanted, counts=counts)
    return documents(found, text, unit, label, counts)


def records(
    source: str | Path,
    format: str = "auto",
    split: str = "train",
    *,
    fields: Collection[str] | None = None,
    counts: Counts | None = None,
    delimiter: str | None = None,
    encoding: str | None = None,
    largest: int = LARGEST,
) -> Iterator[Record]:
    """The records of a source, one at a time.

    `source` is a file, a glob, a folder, a tree of messages, a tar archive of small files, a code base, or a
    Hugging Face data set (a folder or `org/name`; only there `split` matters). `format` is one of FORMATS;
    `auto` tells it by extension, then by content; a git work tree that tracks programs is `code`. jsonl, json,
    csv, tsv, text and mbox may be compressed with gzip, xz or bzip2.
    `fields` are the only ones needed: a hint that saves work on Parquet and on data sets. `counts` takes what
    is passed over, and notes of what was detected. `delimiter` (of csv and tsv) and `encoding` (of jsonl, json, csv,
    tsv and text) are told by the content where they are None. No document is larger than `largest` bytes.

    A text file is one record; a folder must hold files of one format (README and licence files beside data
    are passed over) and of one split. Links in a folder are followed only where they stay in it.

    Raises InputError for a source that is missing, unreadable, empty, ambiguous or not of its format.
    """
    if format != "auto" and format not in FORMATS:
        raise InputError(
            f"data.format: {format!r} is not known{nearest(format, FORMATS)}; "
            f"choose auto, {', '.join(FORMATS)}."
        )
    check_encoding(encoding)
    delimiter = "\t" if delimiter == "\\t" else delimiter
    check_delimiter(delimiter)
    how = How(delimiter, encoding, largest, Counts() if counts is None else counts)
    name = str(source)
    check_path(name)
    if format == "hub":
        return hub_records(name, split, fields)
    path = Path(name).expanduser()
    try:
        exists, is_folder = path.exists(), path.is_dir()
    except OSError as error:
        raise InputError(f"{name}: cannot be read ({error.strerror or error}).") from None
    if is_folder:
        return _folder(path, format, split, fields, how)
    if exists:
        check_regular(path)
        return _files([path], path, format, fields, how)
    if glob.has_magic(name):
        paths = [found for found in matching(str(path)) if found.is_file()]
        if not paths:
            raise InputError(f"{name}: no file matches the pattern.")
        return _files(paths, path, format, fields, how)
    if path.is_symlink():
        raise InputError(f"{name}: a link that leads to nothing, or round in a circle.")
    # Only what can hardly be a mistyped path is asked of the network.
    mistyped = "/" not in name or path.parent.exists() or _extension(path) in _BY_EXTENSION or is_tar(path)
    if format == "auto" and looks_like_name(name) and not mistyped:
        return hub_records(name, split, fields)
    hint = "; for a data set on the hub state data.format: hub" if looks_like_name(name) else ""
    raise InputError(f"{name}: no such file or folder{_near_path(path)}{hint}.")


def format_of(path: Path) -> str:
    """The format of a file by its extension, else by its first 4 KiB. Raises InputError for a binary."""
    known = _BY_EXTENSION.get(_extension(path))
    if known and known != "json":
        return known
    head = head_of(path)
    if known == "json" and (encoding := encoding_of(head)) != "utf-8":
        head = head.decode(encoding, "ignore").encode()
    if known == "json":  # as often JSON lines as an array
        return "json" if head.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"[") else "jsonl"
    if head.startswith(b"PAR1"):
        return "parquet"
    if looks_like_mbox(head):
        return "mbox"
    if looks_like_mail(head):
        return "maildir"
    for magic, kind in _UNREAD:
        if head.startswith(magic):
            raise InputError(f"{path}: is {kind}, which is not read as it is; unpack it first.")
    if b"\x00" in head:
        encoding = encoding_of(head)
        if encoding == "utf-8":
            raise InputError(
                f"{path}: is neither text nor a known format; state data.format if it is one of {', '.join(FORMATS)}."
            )
        head = head.decode(encoding, "ignore").encode()
    start = head.lstrip(b"\xef\xbb\xbf \t\r\n")
    if start.startswith(b"{") and _is_object(start.partition(b"\n")[0]):
        return "jsonl"
    return "json" if re.match(rb"\[\s*\{", start) else "text"


def _is_object(line: bytes) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


def _extension(path: Path) -> str:
    name = path.name.lower()
    for suffix in _COMPRESSED:
        name = name.removesuffix(suffix)
    return Path(name).suffix


def _near_path(path: Path) -> str:
    if not path.parent.is_dir():
        return f" (nor is there a folder {path.parent})"
    with contextlib.suppress(OSError):  # a folder that cannot be listed has no suggestion to make
        return nearest(path.name, [entry.name for entry in path.parent.iterdir()])
    return ""


def _files(
    paths: Sequence[Path], source: Path, format: str, fields: Collection[str] | None, how: How
) -> Iterator[Record]:
    """Files of one format, which is the stated one or that of all of them."""
    if format == "code":
        raise InputError(f"{source}: data.format code reads a folder of source files; give the folder.")
    archives = [path for path in paths if is_tar(path)]
    if archives:
        if len(archives) < len(paths):
            raise InputError(f"{source}: matches archives and other files; give them one at a time.")
        return chain.from_iterable(_archive(path, format, how) for path in archives)
    if format == "auto":
        formats = Counter(map(format_of, paths))
        if len(formats) > 1:
            raise InputError(
                f"{source}: matches files of several formats ({_listed(formats)}); give a narrower pattern."
            )
        format = next(iter(formats))
    if format == "maildir":
        return message_records(small_files(source, how, paths), paths[0].parent, how)
    if format == "text":
        return text_records(small_files(source, how, paths), paths[0].parent, how)
    if format == "mbox":
        return mbox_records(paths, how)
    return chain.from_iterable(_table(path, format, fields, how) for path in paths)


def _table(path: Path, format: str, fields: Collection[str] | None, how: How) -> Iterator[Record]:
    if format == "jsonl":
        return jsonl(path, how)
    if format == "json":
        return json_array(path, how)
    if format == "parquet":
        return parquet(path, how, fields)
    return delimited(path, how, tabs=format == "tsv")


def _archive(path: Path, format: str, how: How) -> Iterator[Record]:
    members = small_files(path, how)
    first = next(members, None)
    if first is None:
        raise InputError(f"{path}: the archive holds no files.")
    if format == "auto":
        format = "maildir" if looks_like_mail(first.content[:4096]) else "text"
    # Inside an archive the paths begin at its root: where the archive itself lies says nothing of a mailbox.
    root = Path("/") / path.name.partition(".")[0]
    if format == "maildir":
        return message_records(chain([first], members), root, how)
    if format == "text":
        return text_records(chain([first], members), root, how)
    raise InputError(f"{path}: a tar archive may hold messages or text files, not {format}; unpack it.")


def _folder(
    folder: Path, format: str, split: str, fields: Collection[str] | None, how: How
) -> Iterator[Record]:
    if format in ("auto", "parquet") and is_saved(folder):
        return hub_records(str(folder), split, fields)
    if format == "code" or (format == "auto" and is_code(folder)):
        return code_records(folder, how.counts)
    if format == "auto":
        format = _folder_format(folder, how)
    if format == "parquet":
        _check_links(folder)
        return hub_records(str(folder), split, fields)
    if format == "maildir":
        return message_records(small_files(folder, how, mail=True), folder, how)
    if format == "text":
        return text_records(small_files(folder, how), folder, how)
    # The files of a folder of tables are few; those of a tree of texts or messages are never listed.
    paths = [
        path for path in walk(folder, counts=how.counts) if _BY_EXTENSION.get(_extension(path)) == format
    ]
    paths = paths or [path for path in walk(folder) if not _ABOUT.fullmatch(path.name)]
    if not paths:
        raise InputError(f"{folder}: the folder holds no {format} files{linked(how)}.")
    found = {
        _SPLITS[word] for path in paths for word in re.split(r"[-_.]", path.name.lower()) if word in _SPLITS
    }
    if len(found) > 1:
        raise InputError(
            f"{folder}: holds files of several splits ({', '.join(sorted(found))}); "
            "give one file or a pattern."
        )
    return _files(paths, folder, format, fields, how)


def _folder_format(folder: Path, how: How) -> str:
    """By the extensions of all its files, and where these say nothing by the content of the first."""
    formats: Counter[str] = Counter()
    first: Path | None = None
    about = 0
    passed_over = Counts()
    for path in walk(folder, mail=True, counts=passed_over):
        if _ABOUT.fullmatch(path.name):
            about += 1
            continue
        first = first or path
        formats[_BY_EXTENSION.get(_extension(path), "text")] += 1
    if not formats and not about:
        if passed_over:
            raise InputError(f"{folder}: the folder holds nothing{linked(replace(how, counts=passed_over))}.")
        raise InputError(f"{folder}: the folder is empty.")
    if len(formats) > 1:
        raise InputError(
            f"{folder}: holds files of several formats ({_listed(formats)}); "
            "state data.format or give a pattern."
        )
    format = next(iter(formats), "text")
    if format == "text" and first is not None and looks_like_mail(head_of(first)):
        return "maildir"
    if format == "json" and first is not None:
        return format_of(first)
    return format


def _check_links(folder: Path) -> None:
    """The library that reads data sets follows all links: none may lead out of the folder."""
    passed_over = Counts()
    for _ in walk(folder, counts=passed_over):
        pass
    if passed_over:
        raise InputError(
            f"{folder}: {passed_over[OUTSIDE]:,} of its files are links out of it or to nothing; copy the files there, "
            "or give them as a pattern (*.parquet)."
        )


def _listed(formats: Counter[str]) -> str:
    return ", ".join(f"{number} {name}" for name, number in formats.most_common())
