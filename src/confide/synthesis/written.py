"""Read a corpus that was written."""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from confide.synthesis.private_text import Text
from confide.utils.errors import InputError


@dataclass(frozen=True)
class Written:
    """A corpus.

    Attributes:
        texts: its documents; each is a unit of its own.
        digest: SHA-256 of the file, in hex.
    """

    path: Path
    texts: tuple[Text, ...]
    digest: str

    @classmethod
    def of(cls, path: Path, conditions: tuple[str, ...] = ()) -> "Written":
        """Read a corpus that `confide synthesize` wrote, or another of the form.

        Args:
            conditions: the fields whose values stand in the prompt, which is then no part of the text.

        Raises:
            InputError: the file is not one.
        """
        try:
            content = path.read_bytes()
            rows = list(_rows(path, content))
        except OSError as error:
            raise InputError(f"{path}: {error.strerror or 'is damaged, or cut short'}") from None
        except Exception as error:  # pyarrow has several of its own
            raise InputError(
                f"{path}: is no corpus: one has a document a line, as JSON, or is a Parquet file "
                f"({type(error).__name__})"
            ) from None
        texts = tuple(
            _text(row, conditions, f"{path}: document {number}") for number, row in enumerate(rows, 1)
        )
        if not texts:
            raise InputError(f"{path}: holds no document")
        return cls(path, texts, hashlib.sha256(content).hexdigest())


def _rows(path: Path, content: bytes) -> Iterator[Any]:
    if path.suffix == ".parquet":
        from pyarrow import parquet

        yield from parquet.read_table(path).to_pylist()
        return
    for line in content.decode("utf-8").splitlines():
        if line.strip():
            yield json.loads(line)


def _text(row: object, conditions: tuple[str, ...], where: str) -> Text:
    if not isinstance(row, dict) or not isinstance(row.get("text"), str):
        raise InputError(f"{where}: has no field text")
    prompt = row.get("prompt")
    before = prompt if isinstance(prompt, str) else ""
    whole = before + row["text"]
    is_conditioned = bool(conditions) and all(isinstance(row.get(name), str) for name in conditions)
    return Text(row["text"] if is_conditioned else whole, whole, "", row)
