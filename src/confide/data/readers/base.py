"""The interface of a format's reader: its name, its file endings, how it recognises files, and how it reads them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import ClassVar, cast

from confide.data.readers.documents import Record
from confide.data.readers.encodings import encoding_of
from confide.data.readers.files import SmallFile, small_files
from confide.data.readers.opening import How, head_of
from confide.data.readers.parts import Piece, size_of
from confide.data.readers.remote import File
from confide.utils.errors import InputError


class Head:
    """The first 4 KiB of a file, decompressed. They are read when a reader first asks for them."""

    def __init__(self, read: Callable[[], bytes]) -> None:
        self._read = read

    @classmethod
    def of(cls, path: File) -> Head:
        return cls(lambda: head_of(path))

    @cached_property
    def content(self) -> bytes:
        """The bytes as they are. Raises InputError if they cannot be read."""
        return self._read()

    @property
    def is_binary(self) -> bool:
        """True if this is no text in any known encoding."""
        return b"\x00" in self.content and encoding_of(self.content) == "utf-8"

    @cached_property
    def start(self) -> bytes:
        """The beginning of the text, after a mark of its encoding and blanks; UTF-16 and the like as UTF-8."""
        content = self.content
        if b"\x00" in content and (encoding := encoding_of(content)) != "utf-8":
            content = content.decode(encoding, "ignore").encode()
        return content.lstrip(b"\xef\xbb\xbf \t\r\n")


class Reader(ABC):
    """A format of data, by `data.format`. To add one: write its class, and add its line to READERS.

    `name`, `endings` and `read` are enough. It holds one record in memory, and raises InputError, naming file and
    place, for any fault of a file. Open files through `opening` and `encodings`, which see to compression, encodings,
    pipes and sizes.

    Attributes:
        name: the value of `data.format`, and the key in READERS or of the entry point.
        endings: of file names, in lower case, that mean this format; no two readers share one. An ending of
            compression (.gz, .xz, .bz2, .zst) may follow.
        takes_names: whether a source of this format is a name rather than a path.
        takes_urls: whether `read` also takes a `RemoteFile`, which opens, and is named, as a `Path` does. Each file
            is then read by itself, if need be by another process.
        takes_any_text: whether a file is of this format if it is a text and no reader knows it.
    """

    name: ClassVar[str]
    endings: ClassVar[tuple[str, ...]] = ()
    takes_names: ClassVar[bool] = False
    takes_urls: ClassVar[bool] = False
    takes_any_text: ClassVar[bool] = False

    def recognises(self, head: Head) -> bool:
        """Tell whether a file without a known ending is of this format. At most one reader may say so of a file."""
        return False

    def recognises_folder(self, folder: Path) -> bool:
        """Tell whether a folder is of this format as a whole, whatever its files are. Only asked of our own readers."""
        return False

    def recognises_name(self, source: str) -> bool:
        """Tell whether a source that is no path may be a name of this format. Only asked of built-in readers."""
        return False

    def told(self, head: Head) -> str:
        """Return the format of a file with one of the endings: another format's name where the ending means several."""
        return self.name

    def check_files(self, source: Path) -> None:
        """Raise InputError if the format has no files of its own."""
        return

    @abstractmethod
    def read(self, path: Path, how: How) -> Iterator[Record]:
        """Yield the records of one file."""

    def pieces(self, path: File, how: How, size: int) -> list[Piece]:
        """Cut a file into pieces of about `size` bytes that can be read by themselves, for one that `takes_urls`."""
        return [Piece(path, size=size_of(path))]

    def read_piece(self, piece: Piece, how: How) -> Iterator[Record]:
        """Yield the records of a piece as `read` yields them; an empty piece of a file is no fault."""
        return self.read(cast(Path, piece.path), how)

    def read_files(self, paths: Sequence[Path], source: Path, how: How) -> Iterator[Record]:
        """Yield the records of files, which are those that `source` names."""
        return chain.from_iterable(self.read(path, how) for path in paths)

    def read_archive(self, members: Iterator[SmallFile], archive: Path, how: How) -> Iterator[Record]:
        """Yield the records of the files in a tar archive."""
        raise InputError(
            f"{archive}: a tar archive may hold messages or text files, not {self.name}; unpack it."
        )

    def read_folder(self, folder: Path, how: How) -> Iterator[Record] | None:
        """Yield the records of a folder; return None to have its files read one after another."""
        return None

    def read_name(self, source: str, how: How) -> Iterator[Record]:
        """Yield the records behind a name, for a reader that `takes_names`."""
        raise TypeError(f"reader {self.name} takes names, so it must define read_name")


class SmallFileReader(Reader):
    """A format of small files, each of them one document: in a folder, a pattern or a tar archive.

    A subclass needs only `records` besides its name and endings. A folder or an archive of texts whose first file it
    `recognises` is of its format.

    Attributes:
        finds_hidden: whether hidden folders are searched, as those of a maildir are.
    """

    finds_hidden: ClassVar[bool] = False

    @abstractmethod
    def records(self, files: Iterator[SmallFile], source: Path, how: How) -> Iterator[Record]:
        """Yield the record of each file; `source` is the folder that their paths are below."""

    def read(self, path: Path, how: How) -> Iterator[Record]:
        return self.read_files([path], path, how)

    def read_files(self, paths: Sequence[Path], source: Path, how: How) -> Iterator[Record]:
        return self.records(small_files(source, how, paths), paths[0].parent, how)

    def read_archive(self, members: Iterator[SmallFile], archive: Path, how: How) -> Iterator[Record]:
        # Inside an archive paths begin at its root: the archive's own location says nothing about a mailbox.
        return self.records(members, Path("/") / archive.name.partition(".")[0], how)

    def read_folder(self, folder: Path, how: How) -> Iterator[Record]:
        return self.records(small_files(folder, how, mail=self.finds_hidden), folder, how)
