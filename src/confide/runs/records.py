"""Record facts of prepared data next to them, so that reading back can check them against what was written."""

import hashlib
from pathlib import Path
from typing import Any

from confide.randomness.seal import Broken, Seal
from confide.randomness.streams import RunKey
from confide.utils.errors import InputError

RECORD = "prepared.json"
_BLOCK = 1 << 20


def write_record(folder: Path, facts: dict[str, Any], key: RunKey | None) -> None:
    """Write facts of a folder and a digest of each file in it, sealed with the key."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    digests = {path.relative_to(folder).as_posix(): _digest(path) for path in paths}
    seal_of(key).write_json(folder / RECORD, RECORD, facts | {"digests": digests})


def read_record(folder: Path, key: RunKey | None) -> dict[str, Any]:
    """Read the record of a folder.

    Raises:
        InputError: it is not as it was written, or was written under another key.
    """
    path = folder / RECORD
    try:
        return seal_of(key).read_json(path, RECORD)
    except Broken:
        raise InputError(
            f"{path} is damaged, or was made under another key: remove {folder}, and the data are prepared again"
        ) from None


def check_files(folder: Path, digests: dict[str, str]) -> None:
    """Check that every recorded file is there and holds the same bytes.

    Raises:
        InputError: a file is missing, or holds other bytes.
    """
    for name, digest in digests.items():
        try:
            same = _digest(folder / name) == digest
        except FileNotFoundError:
            raise InputError(
                f"{folder / name} is missing: remove {folder}, and the data are prepared again"
            ) from None
        if not same:
            raise InputError(f"{folder / name} is damaged: remove {folder}, and the data are prepared again")


def _digest(path: Path) -> str:
    # A hash of private text without a key: it stays in the private folder, next to the text.
    digest = hashlib.blake2b(digest_size=20)
    with open(path, "rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()


def seal_of(key: RunKey | None) -> Seal:
    """Return the seal of a run; without a key, one that detects damage alone."""
    return Seal.against_damage() if key is None else Seal(key)
