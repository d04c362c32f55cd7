"""A reader as an outside contributor writes it: one file. Its line is put into the registry by the test."""

from collections.abc import Iterator
from pathlib import Path

from confide.data.readers.base import Head, Reader
from confide.data.readers.documents import Record
from confide.data.readers.encodings import text_lines
from confide.data.readers.opening import How
from confide.utils.errors import InputError


class Cards(Reader):
    """Records of lines `field: value`, with a line of ---- after each of them."""

    name = "cards"
    endings = (".cards",)

    def recognises(self, head: Head) -> bool:
        return head.start.startswith(b"----\n")

    def read(self, path: Path, how: How) -> Iterator[Record]:
        fields: dict[str, str] = {}
        for number, line in text_lines(path, how):
            name, colon, value = line.strip().partition(": ")
            if colon:
                fields[name] = value
            elif name != "----":
                raise InputError(f"{path} line {number}: neither `field: value` nor ----.")
            elif fields:
                yield Record(fields, f"{path} line {number}")
                fields = {}
