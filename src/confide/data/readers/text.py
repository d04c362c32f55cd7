"""Text files: each of them is one document."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from confide.data.readers.base import SmallFileReader
from confide.data.readers.documents import Record
from confide.data.readers.encodings import decoded
from confide.data.readers.files import SmallFile, linked
from confide.data.readers.opening import How
from confide.utils.errors import InputError


class Text(SmallFileReader):
    """A text file as one record: `text`, `path`, `folder` (the path's folder, or the source's name) and `file`."""

    name = "text"
    endings = (".txt", ".text", ".md")
    takes_any_text = True

    def records(self, files: Iterator[SmallFile], source: Path, how: How) -> Iterator[Record]:
        empty = True
        for file in files:
            empty = False
            text = decoded(file.content, file.where, how)
            folder, _, name = file.path.rpartition("/")
            fields = {
                "text": text,
                "path": file.path,
                "folder": folder or source.resolve().name,
                "file": name,
            }
            yield Record(fields, file.where)
        if empty:
            raise InputError(f"{source}: holds no files{linked(how)}.")
