"""A cache of findings on disk, so that each text is searched only once.

The file is private, since it tells where sensitive text stands. The name of an entry is a hash of its text. The hash
is keyed with the run key and with everything that the findings depend on besides the text. So other settings lead to
other entries. Someone who has the file but not the key cannot test guesses of a text. A damaged file counts as empty
and is made again.
"""

from __future__ import annotations

import hashlib
import os
import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from confide.randomness.streams import RunKey
from confide.sensitive.detectors.spans import Span
from confide.utils.errors import InputError

_WAIT = 60.0  # seconds to wait for another process that writes
_ASKED = 500  # entries per query: every SQLite allows at least 999 parameters


class Cache:
    """The findings of texts by one set of detectors.

    `fingerprint` identifies the detectors and their settings. `kinds` are all kinds that findings may have, in a fixed
    order. Entries are hashed with `key`, the run key, and can be found again only with the same key. Several processes
    may use one file at the same time. Only the owner can read the file and its folder.

    Raises:
        InputError: the file cannot be written, or another process holds it too long; the message names the file.
    """

    def __init__(self, path: Path, fingerprint: str, kinds: Sequence[str], key: RunKey) -> None:
        self._path = path
        mac = key.authenticator("findings")
        mac.update(fingerprint.encode())
        self._key = mac.digest()
        self._kinds = tuple(kinds)
        self._numbers = {kind: number for number, kind in enumerate(kinds)}
        self._file = self._opened()

    def close(self) -> None:
        self._file.close()

    def find(self, texts: Sequence[str], search: Callable[[list[str]], list[list[Span]]]) -> list[list[Span]]:
        """Return the findings of each text, from the cache or else from `search`; store the new ones."""
        names = [self._name(text) for text in texts]
        found = self._kept(set(names))
        missing = {name: text for name, text in zip(names, texts, strict=True) if name not in found}
        if missing:
            new = dict(zip(missing, search(list(missing.values())), strict=True))
            self._keep(new)
            found |= new
        return [list(found[name]) for name in names]

    def _name(self, text: str) -> bytes:
        return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16, key=self._key).digest()

    def _kept(self, names: set[bytes]) -> dict[bytes, list[Span]]:
        asked = list(names)
        rows: list[tuple[bytes, bytes]] = []
        for first in range(0, len(asked), _ASKED):
            some = asked[first : first + _ASKED]
            marks = ",".join("?" * len(some))
            rows += self._run(f"SELECT name, spans FROM found WHERE name IN ({marks})", some)
        found = {name: self._unpacked(spans) for name, spans in rows}
        return {name: spans for name, spans in found.items() if spans is not None}

    def _keep(self, found: dict[bytes, list[Span]]) -> None:
        rows = [(name, self._packed(spans)) for name, spans in found.items()]
        self._run("INSERT OR REPLACE INTO found VALUES (?, ?)", rows, many=True)

    def _run(self, statement: str, values: Sequence[Any], many: bool = False) -> list[Any]:
        for again in (True, False):
            try:
                with self._file:
                    if not many:
                        return self._file.execute(statement, values).fetchall()
                    self._file.executemany(statement, values)
                    return []
            except sqlite3.OperationalError as error:
                raise self._unusable(error) from None
            except sqlite3.DatabaseError as error:
                if not again:
                    raise self._unusable(error) from None
                self._file.close()
                self._remove()
                self._file = self._opened()
        raise AssertionError  # the second round returns or raises

    def _opened(self) -> sqlite3.Connection:
        try:
            return self._made()
        except (OSError, sqlite3.OperationalError) as error:
            raise self._unusable(error) from None
        except sqlite3.DatabaseError:
            self._remove()
            return self._made()

    def _unusable(self, error: Exception) -> InputError:
        return InputError(f"{self._path}: findings cannot be kept here: {error}")

    def _made(self) -> sqlite3.Connection:
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(os.open(self._path, os.O_CREAT | os.O_RDWR, 0o600))
        self._path.chmod(0o600)
        file = sqlite3.connect(self._path, timeout=_WAIT)
        try:
            with file:
                file.execute(
                    "CREATE TABLE IF NOT EXISTS found (name BLOB PRIMARY KEY, spans BLOB) WITHOUT ROWID"
                )
        except sqlite3.DatabaseError:
            file.close()
            raise
        return file

    def _remove(self) -> None:
        for ending in ("", "-journal"):
            self._path.with_name(self._path.name + ending).unlink(missing_ok=True)

    def _packed(self, spans: Sequence[Span]) -> bytes:
        rows = [(span.start, span.end, self._numbers[span.kind]) for span in spans]
        return np.array(rows, "<u4").tobytes()

    def _unpacked(self, content: bytes) -> list[Span] | None:
        if len(content) % 12:
            return None
        rows = np.frombuffer(content, "<u4").reshape(-1, 3).tolist()
        if any(number >= len(self._kinds) for _, _, number in rows):
            return None
        return [Span(start, end, self._kinds[number]) for start, end, number in rows]
