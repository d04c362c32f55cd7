"""Hugging Face data sets: saved to disk, a folder with a card, or a name on the hub; rows stream."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from confide.data.readers.base import Reader
from confide.data.readers.documents import Record
from confide.data.readers.fields import nearest
from confide.data.readers.opening import How
from confide.utils.errors import InputError

_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?(:[\w.-]+)?")


def looks_like_name(source: str) -> bool:
    """Tell whether a source looks like `org/name`, `name`, or either with a configuration: `org/name:config`."""
    return _NAME.fullmatch(source) is not None and not source.startswith((".", "/"))


def is_saved(folder: Path) -> bool:
    """Tell whether the folder was written by `save_to_disk`."""
    return (folder / "dataset_dict.json").is_file() or (
        (folder / "dataset_info.json").is_file() and (folder / "state.json").is_file()
    )


class Hub(Reader):
    """A data set that `save_to_disk` wrote, or a name on the hub."""

    name = "hub"
    takes_names = True

    def recognises_folder(self, folder: Path) -> bool:
        return is_saved(folder)

    def recognises_name(self, source: str) -> bool:
        return looks_like_name(source)

    def read(self, path: Path, how: How) -> Iterator[Record]:
        return self.read_name(str(path), how)

    def read_name(self, source: str, how: How) -> Iterator[Record]:
        return hub_records(source, how.split, how.fields)

    def read_folder(self, folder: Path, how: How) -> Iterator[Record]:
        return self.read_name(str(folder), how)


def hub_records(source: str, split: str, fields: Collection[str] | None = None) -> Iterator[Record]:
    """Yield the rows of one split. Code that comes with a data set never runs.

    Raises InputError if the data set or the split cannot be loaded, or it has no rows.
    """
    folder = Path(source).expanduser()
    data = _saved(folder, split) if is_saved(folder) else _named(source, folder, split)
    if fields and data.column_names and set(fields) <= set(data.column_names):
        data = data.select_columns(sorted(fields))
    number = 0
    rows = iter(data)
    while True:
        try:
            row = next(rows)
        except StopIteration:
            break
        except Exception as error:  # broken shards and a lost connection have no common type
            # For a value of another type than the others, pyarrow's message holds the value.
            raise InputError(
                f"{source}: split {split!r} breaks off after row {number} ({type(error).__name__}): check that its "
                "files are whole, and have the same columns and types, and that the connection to the hub holds."
            ) from None
        number += 1
        yield Record(row, f"{source} row {number}")
    if not number:
        raise InputError(f"{source}: split {split!r} has no rows.")


def _saved(folder: Path, split: str) -> Any:
    import datasets

    try:
        data = datasets.load_from_disk(str(folder))
    except Exception as error:
        raise InputError(f"{folder}: the saved data set cannot be loaded ({_first_line(error)}).") from None
    if not isinstance(data, datasets.DatasetDict):
        return data
    if split not in data:
        raise InputError(
            f"{folder}: has no split {split!r}{nearest(split, list(data))}; it has {', '.join(data)}."
        )
    return data[split]


def _named(source: str, folder: Path, split: str) -> Any:
    import datasets

    local = folder.is_dir()
    name, _, config = (str(folder), "", "") if local else source.partition(":")
    try:
        return datasets.load_dataset(name, config or None, split=split, streaming=True)
    except Exception as error:
        what = "the folder could not" if local else "is not a local path and could not"
        raise InputError(
            f"{source}: {what} be loaded as a data set, split {split!r} ({_first_line(error)})."
        ) from None


def _first_line(error: Exception) -> str:
    text = str(error).strip().partition("\n")[0].rstrip(".")
    return f"{type(error).__name__}: {text[:200]}"
