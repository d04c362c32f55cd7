"""Sources and their records: files, globs, folders, mail, archives, data sets. Everything streams.

The registry lists the formats, and each format is defined by its reader (`base`): nothing here asks for a format by
name.
"""

from __future__ import annotations

import contextlib
import glob
import re
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import cast

from confide.config import registry
from confide.data.readers.base import Head, Reader, SmallFileReader
from confide.data.readers.documents import LARGEST, Counts, Document, Record, documents
from confide.data.readers.encodings import check_delimiter, check_encoding
from confide.data.readers.fields import Template, nearest
from confide.data.readers.files import is_tar, linked, small_files, walk
from confide.data.readers.opening import How, check_regular
from confide.data.readers.patterns import check_path, matching
from confide.data.readers.remote import File, check_url, remote_files
from confide.utils.errors import InputError
from confide.utils.urls import is_url, path_of

_UNREAD = (
    (b"PK\x03\x04", "a zip archive", "unpack it first"),
    (b"7z\xbc\xaf\x27\x1c", "a 7z archive", "unpack it first"),
    (b"Rar!", "a rar archive", "unpack it first"),
    (b"%PDF-", "a PDF", "save its text first"),
)
_OFFICE = {
    (".xlsx", ".xls", ".ods"): ("a spreadsheet", "save it as CSV first"),
    (".docx", ".doc", ".odt"): ("a document of an office program", "save it as text first"),
}
AUTO = registry.AUTO
_COMPRESSED = (".gz", ".xz", ".bz2", ".zst")
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
    """Yield the documents of a source: `records`, then `documents`; see there for the arguments.

    A source that is missing or of no known format and a bad template raise InputError at once; other errors are raised
    as they are met. Memory holds one record (a Parquet batch of 256, a mail message), whatever the size of the source.
    """
    template = Template(text)
    names = [unit] if isinstance(unit, str) else list(unit or [])
    wanted = {*template.names, *names, *([label] if label else [])}
    made = records(source, format, split, fields=wanted, counts=counts)
    return documents(made, text, unit, label, counts)


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
    """Yield the records of a source, one at a time.

    `source` is a file, a glob, a folder, a tree of messages, a tar archive of small files, a code base, or a
    Hugging Face data set (a folder or `org/name`; only there `split` matters). `format` is one
    of the registry's; `auto` tells it by extension, then by content; a git work tree that tracks programs is `code`.
    jsonl, json, csv, tsv, text and mbox may be compressed with gzip, xz, bzip2 or zstd.
    Those of them that are tables, and parquet, are also read from a URL or a pattern of URLs.
    `fields` are the only ones needed: a hint that saves work on Parquet and on data sets. `counts` counts skipped
    items, and takes notes of what was detected. `delimiter` (of csv and tsv) and `encoding` (of jsonl, json, csv, tsv
    and text) are detected from the content where they are None. No document is larger than `largest` bytes.

    A text file is one record; a folder must hold files of one format (README and licence files beside data
    are passed over) and of one split. Links in a folder are followed only where they stay in it.

    Raises InputError for a source that is missing, unreadable, empty, ambiguous or not of its format.
    """
    how = How(delimiter, encoding, largest, Counts() if counts is None else counts, split, fields)
    return iter(found(source, format, how))


@dataclass(frozen=True)
class Files:
    """Files of one format. Iterate over it for their records, one file after the other.

    Attributes:
        source: what names them.
        is_everywhere: whether every machine has them, at the same path, as a `file://` URL says.
    """

    reader: Reader
    paths: Sequence[File]
    source: Path
    how: How
    is_everywhere: bool = False

    def __iter__(self) -> Iterator[Record]:
        return self.reader.read_files(cast(Sequence[Path], self.paths), self.source, self.how)


def found(source: str | Path, format: str, how: How) -> Files | Iterator[Record]:
    """Return the files of a source, or the records of one that does not consist of files that are read one by one.

    Raises InputError as `records` does.
    """
    made = _found(source, format, how)
    if isinstance(made, Files) and path_of(str(source)) != str(source):
        return replace(made, is_everywhere=True)
    return made


def _found(source: str | Path, format: str, how: How) -> Files | Iterator[Record]:
    formats = Formats()
    reader = None if format == AUTO else formats.named(format)
    check_encoding(how.encoding)
    how = replace(how, delimiter="\t" if how.delimiter == "\\t" else how.delimiter)
    check_delimiter(how.delimiter)
    check_url(str(source))
    name = path_of(str(source))
    check_path(name)
    if reader is not None and reader.takes_names:
        return reader.read_name(name, how)
    if is_url(name):
        return _remote(name, reader, formats, how)
    path = Path(name).expanduser()
    try:
        exists, is_folder = path.exists(), path.is_dir()
    except OSError as error:
        raise InputError(f"{name}: cannot be read ({error.strerror or error}).") from None
    if is_folder:
        return _folder(path, reader, formats, how)
    if exists:
        check_regular(path)
        return _files([path], path, reader, formats, how)
    if glob.has_magic(name):
        paths = [each for each in matching(str(path)) if each.is_file()]
        if not paths:
            raise InputError(f"{name}: no file matches the pattern.")
        return _files(paths, path, reader, formats, how)
    if path.is_symlink():
        raise InputError(f"{name}: a link that leads to nothing, or round in a circle.")
    named = next((each for each in formats.own if each.recognises_name(name)), None)
    # The network is asked only about names that can hardly be a mistyped path.
    mistyped = "/" not in name or path.parent.exists() or is_tar(path) or formats.by_ending(path) is not None
    if reader is None and named is not None and not mistyped:
        return named.read_name(name, how)
    hint = f"; for a data set on the hub state data.format: {named.name}" if named is not None else ""
    raise InputError(f"{name}: no such file or folder{_near_path(path)}{hint}.")


class Formats:
    """The readers of all formats: the built-in ones, and those of other packages for all other files."""

    @cached_property
    def own(self) -> list[Reader]:
        return [registry.readers.get(name, Reader)() for name in registry.READERS]

    @cached_property
    def plugged(self) -> list[Reader]:
        """The readers of other packages. Raises InputError, naming the package, for one that cannot be imported."""
        return [registry.readers.get(name, Reader)() for name in registry.readers.plugins()]

    @cached_property
    def any_text(self) -> Reader:
        return next(reader for reader in self.own if reader.takes_any_text)

    def named(self, name: str) -> Reader:
        """Return the reader of a format. Raises InputError, naming the key, if there is none."""
        if not registry.readers.knows(name):
            known = registry.readers.names()
            raise InputError(
                f"data.format: {name!r} is not known{nearest(name, known)}; choose {AUTO}, {', '.join(known)}."
            )
        made: Reader = registry.readers.get(name, Reader)()
        return made

    def by_ending(self, path: File) -> Reader | None:
        """Return the reader that a file's ending belongs to."""
        ending = _ending(path)
        if ending in self._own_endings:
            return self._own_endings[ending]
        return self._plugged_endings.get(ending) if ending else None

    @cached_property
    def _own_endings(self) -> dict[str, Reader]:
        return {ending: reader for reader in self.own for ending in reader.endings}

    @cached_property
    def _plugged_endings(self) -> dict[str, Reader]:
        found: dict[str, Reader] = {}
        for reader in self.plugged:
            for ending in reader.endings:
                if ending in found:
                    raise InputError(
                        f"files that end in {ending} are read by {found[ending].name} and by {reader.name}, which "
                        "packages bring: state data.format"
                    )
                found[ending] = reader
        return found

    def of_file(self, path: File) -> Reader:
        """Return the reader of a file by its ending, else by its first 4 KiB. Raises InputError for a binary."""
        head = Head.of(path)
        known = self.by_ending(path)
        if known is not None:
            return self._told(known, head)
        for reader in chain(self.own, self.plugged):
            if reader.recognises(head):
                return reader
        office = [found for endings, found in _OFFICE.items() if str(path).lower().endswith(endings)]
        for kind, first in (*office, *(found for magic, *found in _UNREAD if head.content.startswith(magic))):
            raise InputError(f"{path}: is {kind}, which is not read as it is; {first}.")
        if head.is_binary:
            raise InputError(
                f"{path}: is neither text nor a known format; state data.format if it is one of "
                f"{', '.join(registry.readers.names())}."
            )
        return self.any_text

    def of_small_file(self, head: Head) -> Reader:
        """Return the reader of files that are a document each and of which the first begins with `head`."""
        small = (reader for reader in chain(self.own, self.plugged) if isinstance(reader, SmallFileReader))
        return next((reader for reader in small if reader.recognises(head)), self.any_text)

    def of_folder(self, folder: Path, how: How) -> Reader:
        """Return the reader of a folder.

        The folder as a whole decides, else the endings of all its files, or the content of the first.
        """
        for reader in self.own:
            if reader.recognises_folder(folder):
                return reader
        readers: Counter[Reader] = Counter()
        first: Path | None = None
        about = 0
        passed_over = Counts()
        for path in walk(folder, mail=True, counts=passed_over):
            if _ABOUT.fullmatch(path.name):
                about += 1
                continue
            first = first or path
            readers[self.by_ending(path) or self.any_text] += 1
        if not readers and not about:
            if passed_over:
                raise InputError(
                    f"{folder}: the folder holds nothing{linked(replace(how, counts=passed_over))}."
                )
            raise InputError(f"{folder}: the folder is empty.")
        if len(readers) > 1:
            raise InputError(
                f"{folder}: holds files of several formats ({_listed(readers)}); "
                "state data.format or give a pattern."
            )
        reader = next(iter(readers), self.any_text)
        if first is None:
            return reader
        head = Head.of(first)
        return self.of_small_file(head) if reader.takes_any_text else self._told(reader, head)

    def _told(self, reader: Reader, head: Head) -> Reader:
        name = reader.told(head)
        return reader if name == reader.name else next(each for each in self.own if each.name == name)


def _ending(path: File) -> str:
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


def _remote(url: str, reader: Reader | None, formats: Formats, how: How) -> Files:
    paths = remote_files(url)
    reader = _common(paths, url, formats) if reader is None else reader
    if not reader.takes_urls:
        raise InputError(
            f"{url}: {reader.name} is read from local files alone; copy it, or state another data.format."
        )
    return Files(reader, paths, Path(url), how)


def _files(
    paths: Sequence[Path], source: Path, reader: Reader | None, formats: Formats, how: How
) -> Files | Iterator[Record]:
    """Return files of one format, the stated one or the common format of all; or the records of archives."""
    if reader is not None:
        reader.check_files(source)
    archives = [path for path in paths if is_tar(path)]
    if archives:
        if len(archives) < len(paths):
            raise InputError(f"{source}: matches archives and other files; give them one at a time.")
        return chain.from_iterable(_archive(path, reader, formats, how) for path in archives)
    return Files(_common(paths, source, formats) if reader is None else reader, paths, source, how)


def _common(paths: Sequence[File], source: Path | str, formats: Formats) -> Reader:
    """Return the reader of the common format of files. Raises InputError if they have several."""
    readers = Counter(map(formats.of_file, paths))
    if len(readers) > 1:
        raise InputError(
            f"{source}: matches files of several formats ({_listed(readers)}); give a narrower pattern."
        )
    return next(iter(readers))


def _archive(path: Path, reader: Reader | None, formats: Formats, how: How) -> Iterator[Record]:
    members = small_files(path, how)
    first = next(members, None)
    if first is None:
        raise InputError(f"{path}: the archive holds no files.")
    if reader is None:
        begins = first.content[:4096]
        reader = formats.of_small_file(Head(lambda: begins))
    return reader.read_archive(chain([first], members), path, how)


def _folder(folder: Path, reader: Reader | None, formats: Formats, how: How) -> Files | Iterator[Record]:
    reader = formats.of_folder(folder, how) if reader is None else reader
    whole = reader.read_folder(folder, how)
    if whole is not None:
        return whole
    # The files of a folder of tables are few; those of a tree of texts or messages are never listed.
    paths = [path for path in walk(folder, counts=how.counts) if _ending(path) in reader.endings]
    paths = paths or [path for path in walk(folder) if not _ABOUT.fullmatch(path.name)]
    if not paths:
        raise InputError(f"{folder}: the folder holds no {reader.name} files{linked(how)}.")
    splits = {
        _SPLITS[word] for path in paths for word in re.split(r"[-_.]", path.name.lower()) if word in _SPLITS
    }
    if len(splits) > 1:
        raise InputError(
            f"{folder}: holds files of several splits ({', '.join(sorted(splits))}); "
            "give one file or a pattern."
        )
    return _files(paths, folder, reader, formats, how)


def _listed(readers: Counter[Reader]) -> str:
    return ", ".join(f"{number} {reader.name}" for reader, number in readers.most_common())
