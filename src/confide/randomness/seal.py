"""Files that a run writes and later reads back, sealed with its key so that it recognises them.

The content of these files decides what is trained, released or claimed. A file of another run, of the run's twin or of
another step, or a file with one changed bit, would change that without notice. An HMAC under the run key over the use
and the content of a file detects all of these.
"""

import hmac
import io
import json
from pathlib import Path
from typing import Any

import numpy as np

from confide.randomness.streams import KEY_BYTES, RunKey
from confide.utils.files import whole_file, write_text

TAG_BYTES = 32


class Broken(Exception):
    """A file differs from the one that the run wrote: it is damaged, or of another run, step or version of confide."""


class Seal:
    """Seals files, and opens those that it sealed.

    HMAC-SHA-256. Without the run key nobody can seal another content, or the same content for another use.
    A published key, of a reproducible experiment, protects against mistakes and damage alone.

    Args:
        key: the run key, bound to config and data if the file is a function of them.
    """

    def __init__(self, key: RunKey):
        self._key = key

    @classmethod
    def against_damage(cls) -> "Seal":
        """Return a seal under a key that everyone knows: it detects damage, but no deliberate change."""
        return cls(RunKey(bytes(KEY_BYTES)))

    def over(self, *what: str) -> hmac.HMAC:
        """Return an HMAC to feed with the content of a file. `what` names the file's use: a seal holds for one use."""
        return self._key.authenticator("seal", *what)

    def write_json(self, path: Path, what: str, content: dict[str, Any]) -> None:
        """Write a readable file in one go; its last entry, `seal`, is the HMAC of the others."""
        write_text(path, json.dumps(content | {"seal": self._of_json(what, content)}, indent=2) + "\n")

    def read_json(self, path: Path, what: str) -> dict[str, Any]:
        """Read what `write_json` wrote for the same use.

        Raises:
            Broken: the file holds something else.
            OSError: it cannot be read.
        """
        try:
            content = json.loads(path.read_text("utf-8"))
        except (ValueError, RecursionError):
            content = None
        if not isinstance(content, dict):
            raise Broken
        self._check(content.pop("seal", None), self._of_json(what, content))
        return content

    def write_array(self, path: Path, what: str, array: np.ndarray) -> None:
        """Write an array in one go, as NumPy's `.npy` followed by the HMAC."""
        stream = io.BytesIO()
        np.save(stream, array)
        data = stream.getvalue()
        with whole_file(path) as building:
            building.write_bytes(data + self._of_bytes(what, data))

    def read_array(self, path: Path, what: str) -> np.ndarray:
        """Read what `write_array` wrote for the same use.

        Raises:
            Broken: the file holds something else.
            OSError: it cannot be read.
        """
        data = path.read_bytes()
        content, tag = data[:-TAG_BYTES], data[-TAG_BYTES:]
        self._check(tag, self._of_bytes(what, content))
        array: np.ndarray = np.load(io.BytesIO(content), allow_pickle=False)
        return array

    def tag(self, what: str, data: bytes) -> bytes:
        """Compute the HMAC of some bytes: `TAG_BYTES` bytes."""
        return self._of_bytes(what, data)

    def _of_json(self, what: str, content: dict[str, Any]) -> str:
        return self._of_bytes(what, json.dumps(content, sort_keys=True).encode()).hex()

    def _of_bytes(self, what: str, data: bytes) -> bytes:
        mac = self.over(what)
        mac.update(data)
        return mac.digest()

    @staticmethod
    def _check(found: object, wanted: str | bytes) -> None:
        if not isinstance(found, type(wanted)) or not hmac.compare_digest(_bytes(found), _bytes(wanted)):
            raise Broken


def _bytes(tag: Any) -> bytes:
    return tag if isinstance(tag, bytes) else str(tag).encode()
