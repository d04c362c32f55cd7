"""Many small files, one after the other: out of a folder, a list, or a tar archive that is never unpacked."""

from __future__ import annotations

import os
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from confide.errors import InputError
from confide.text.documents import Record
from confide.text.tables import DAMAGE, lines_of


@dataclass(frozen=True, slots=True)
class SmallFile:
    """A file's content, its path below the source (with /) and where it is, for errors."""

    content: bytes = field(repr=False)
    path: str
    where: str


def walk(folder: Path, mail: bool = False) -> Iterator[Path]:
    """The files of a tree in a fixed order, one folder's names in memory at a time; no hidden files.

    With `mail`, a folder with `cur` and `new` is a maildir: only these two are read, and hidden subfolders
    (`.Sent`) are folders like others. Links to folders are not followed. Raises InputError for an unreadable
    one.
    """
    try:
        with os.scandir(folder) as entries:
            listed = sorted(entries, key=lambda entry: _order(entry.name))
    except OSError as error:
        raise InputError(f"{folder}: the folder cannot be read ({error.strerror or error}).") from None
    folders = [entry.name for entry in listed if entry.is_dir(follow_symlinks=False)]
    maildir = mail and {"cur", "new"} <= set(folders)
    if not maildir:
        for entry in listed:
            if not entry.name.startswith(".") and entry.is_file():
                yield folder / entry.name
    for name in folders:
        hidden = name == ".git" or (name.startswith(".") and not mail)
        if not hidden and not (maildir and name == "tmp"):
            yield from walk(folder / name, mail)


def _order(name: str) -> tuple[int, str]:
    """Numbers as numbers (2. before 10.), then names."""
    digits = name.rstrip(".")
    return (int(digits), name) if digits.isdecimal() and len(digits) < 19 else (1 << 62, name)


def small_files(source: Path, paths: Sequence[Path] | None = None, mail: bool = False) -> Iterator[SmallFile]:
    """The files of a folder, of a tar archive, or the `paths` given. Each is read whole, one at a time."""
    if paths is None and source.is_dir():
        for path in walk(source, mail):
            yield SmallFile(read_bytes(path), path.relative_to(source).as_posix(), str(path))
    elif paths is None and is_tar(source):
        yield from _members(source)
    else:
        for path in paths or [source]:
            yield SmallFile(read_bytes(path), path.as_posix(), str(path))


def read_bytes(path: Path) -> bytes:
    """The whole content, decompressed. Raises InputError if it cannot be read."""
    return b"".join(line for _, line in lines_of(path))


def is_tar(path: Path) -> bool:
    """Whether the name says tar, compressed or not."""
    suffixes = [suffix.lower() for suffix in path.suffixes[-2:]]
    return suffixes[-1:] in ([".tar"], [".tgz"], [".txz"], [".tbz2"]) or suffixes[:1] == [".tar"]


def _members(archive: Path) -> Iterator[SmallFile]:
    try:
        with tarfile.open(archive, "r|*") as tar:
            for member in tar:
                # tarfile remembers every member it has passed; a stream never goes back to them.
                tar.members.clear()  # type: ignore[attr-defined]
                if not member.isfile() or os.path.basename(member.name).startswith("."):
                    continue
                file = tar.extractfile(member)
                content = b"" if file is None else file.read()
                yield SmallFile(content, member.name.removeprefix("./"), f"{archive} {member.name}")
    except (tarfile.TarError, *DAMAGE, OSError) as error:
        raise InputError(f"{archive}: not a readable tar archive ({error}).") from None


def text_records(files: Iterator[SmallFile], source: Path) -> Iterator[Record]:
    """Each file one record: `text`, `path`, `folder` (the path's folder, or the source's name) and `file`."""
    empty = True
    for file in files:
        empty = False
        try:
            text = file.content.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            line = file.content.count(b"\n", 0, error.start) + 1
            raise InputError(f"{file.where} line {line}: not valid UTF-8; save the file as UTF-8.") from None
        folder, _, name = file.path.rpartition("/")
        fields = {"text": text, "path": file.path, "folder": folder or source.resolve().name, "file": name}
        yield Record(fields, file.where)
    if empty:
        raise InputError(f"{source}: holds no files.")
