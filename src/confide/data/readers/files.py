"""Many small files, one after the other: from a folder, a list, or a tar archive that is never unpacked."""

from __future__ import annotations

import os
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from confide.data.readers.documents import Counts
from confide.data.readers.opening import DAMAGE, How, content_of, open_bytes
from confide.utils.errors import InputError

OUTSIDE = "links not followed: out of the folder, or to nothing"
_HEADERS = 1 << 20  # bytes of a member's headers and padding, besides its content
_PIECE = 1 << 16


@dataclass(frozen=True, slots=True)
class SmallFile:
    """A file's content, its path below the source (with /), and its place for errors."""

    content: bytes = field(repr=False)
    path: str
    where: str


def walk(
    folder: Path, mail: bool = False, counts: Counts | None = None, root: Path | None = None
) -> Iterator[Path]:
    """Yield the files of a tree in a fixed order, one folder's names in memory at a time; no hidden files.

    With `mail`, a folder with `cur` and `new` is a maildir: only these two are read, and hidden subfolders
    (`.Sent`) are folders like others. Links to folders are not followed, and of links to files only those that stay
    in the folder; `counts` takes the others. Raises InputError for an unreadable one.
    """
    root = folder.resolve() if root is None else root
    try:
        with os.scandir(folder) as entries:
            listed = sorted(entries, key=lambda entry: _order(entry.name))
    except OSError as error:
        raise InputError(f"{folder}: the folder cannot be read ({error.strerror or error}).") from None
    folders = [entry.name for entry in listed if entry.is_dir(follow_symlinks=False)]
    maildir = mail and {"cur", "new"} <= set(folders)
    if not maildir:
        for entry in listed:
            if entry.name.startswith("."):
                continue
            if entry.is_symlink() and not _stays(Path(entry.path), root):
                if counts is not None:
                    counts[OUTSIDE] += 1
            elif entry.is_file():
                yield folder / entry.name
    for name in folders:
        hidden = name == ".git" or (name.startswith(".") and not mail)
        if not hidden and not (maildir and name == "tmp"):
            yield from walk(folder / name, mail, counts, root)


def _stays(link: Path, root: Path) -> bool:
    """Tell whether a link leads to something within the folder; a broken or circular link does not."""
    try:
        return link.resolve(strict=True).is_relative_to(root)
    except (OSError, RuntimeError):
        return False


def _order(name: str) -> tuple[int, str]:
    """Return a sort key that orders numbers as numbers (2. before 10.), then names."""
    digits = name.rstrip(".")
    return (int(digits), name) if digits.isdecimal() and len(digits) < 19 else (1 << 62, name)


def small_files(
    source: Path, how: How, paths: Sequence[Path] | None = None, mail: bool = False
) -> Iterator[SmallFile]:
    """Yield the files of a folder, of a tar archive, or the `paths` given. Each is read whole, one at a time."""
    if paths is None and source.is_dir():
        for path in walk(source, mail, how.counts):
            yield SmallFile(content_of(path, how), path.relative_to(source).as_posix(), str(path))
    elif paths is None and is_tar(source):
        yield from _members(source, how)
    else:
        for path in paths or [source]:
            yield SmallFile(content_of(path, how), path.as_posix(), str(path))


def is_tar(path: Path) -> bool:
    """Tell whether the name says tar, compressed or not."""
    suffixes = [suffix.lower() for suffix in path.suffixes[-2:]]
    return suffixes[-1:] in ([".tar"], [".tgz"], [".txz"], [".tbz2"]) or suffixes[:1] == [".tar"]


class _Member(tarfile.TarInfo):
    """A member's header. The standard library takes an unreadable or missing one for the end of the archive."""

    @classmethod
    def fromtarfile(cls, tarfile_: tarfile.TarFile) -> _Member:
        try:
            return super().fromtarfile(tarfile_)
        except tarfile.EOFHeaderError:  # type: ignore[attr-defined]  # a block of zeros
            raise
        except tarfile.HeaderError as error:
            raise tarfile.ReadError(f"{str(error) or 'damaged'}; it was cut short or altered") from None


class _Bounded:
    """A stream that limits how much is read before a member is done: names may be as long as a bomb's."""

    def __init__(self, stream: IO[bytes], how: How, where: str) -> None:
        self._stream, self._how, self._where = stream, how, where
        self.allow()

    def allow(self) -> None:
        self._left = self._how.largest + _HEADERS

    def read(self, size: int) -> bytes:
        self._left -= size
        if self._left < 0:
            raise self._how.too_large(self._where)
        return self._stream.read(size)


def _members(archive: Path, how: How) -> Iterator[SmallFile]:
    try:
        with open_bytes(archive) as stream:
            bounded = _Bounded(stream, how, str(archive))
            with tarfile.open(fileobj=bounded, mode="r|", tarinfo=_Member, bufsize=tarfile.BLOCKSIZE) as tar:  # type: ignore[call-overload]
                for member in tar:
                    bounded.allow()
                    # tarfile remembers every member it has passed; a stream never goes back to them.
                    tar.members.clear()
                    if not member.isfile() or os.path.basename(member.name).startswith("."):
                        continue
                    where = f"{archive} {member.name}"
                    if member.size > how.largest:
                        raise how.too_large(where)
                    file = tar.extractfile(member)
                    content = b"" if file is None else file.read()
                    if len(content) != member.size:
                        raise tarfile.ReadError("unexpected end of data")
                    yield SmallFile(content, member.name.removeprefix("./"), where)
            _check_end(stream)
    except (tarfile.TarError, *DAMAGE, OSError, ValueError, OverflowError) as error:
        raise InputError(f"{archive}: not a readable tar archive ({error}).") from None


def _check_end(stream: IO[bytes]) -> None:
    """Check the end of an archive: two blocks of zeros, of which one was read, and only zeros after them.

    The stream is read to its end, so that the checksum of a compressed archive is verified.
    """
    rest = stream.read(tarfile.BLOCKSIZE)
    if len(rest) < tarfile.BLOCKSIZE:
        raise tarfile.ReadError("its end is missing; it was cut short")
    while rest:
        if rest.strip(b"\0"):
            raise tarfile.ReadError("data follow its end; unpack an archive that was put together of several")
        rest = stream.read(_PIECE)


def linked(how: How) -> str:
    """Return the addition to an error if a folder holds nothing but links that are not followed."""
    number = how.counts.get(OUTSIDE, 0)
    return f" but {number:,} links out of it or to nothing, which are not followed" if number else ""
