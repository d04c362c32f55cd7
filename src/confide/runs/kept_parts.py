"""Finished parts of a source, kept until all are used: `prepare` and `redact` go on after a kill.

They hold the text or its rows, and are as private. A part counts as finished once a file beside it, sealed with the
run key, holds its digest.
"""

from __future__ import annotations

import hashlib
import io
import os
import pickle
import shutil
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from confide.data.part_work import Finished, Item, Items, PartWork
from confide.data.readers.parts import Part
from confide.randomness.seal import Broken, Seal
from confide.randomness.streams import RunKey
from confide.runs.provenance import code_version
from confide.runs.records import seal_of
from confide.utils.errors import InputError
from confide.utils.workers import Crew

WORTH = 1 << 26
"""Bytes of a source, as stored, from which on its parts are kept: less is read again in a minute."""

_RECORD = "parts.json"
_FRAME = 512  # items that are read back at a time
_LENGTH = 8
# What items are made of. A pickle of anything else is refused, whoever sealed it.
_MODULES = ("confide.data.", "datetime", "decimal", "uuid", "zoneinfo", "pandas._libs.tslibs.")
_NAMES = {
    ("collections", "Counter"),
    ("confide.utils.errors", "InputError"),
    ("confide.sensitive.detectors.spans", "Span"),
    ("confide.sensitive.redaction.counting", "Counts"),
    ("confide.sensitive.redaction.counting", "Tally"),
    ("confide.sensitive.redaction.searching", "Searched"),
    ("numpy", "dtype"),
    ("numpy", "ndarray"),
    ("numpy._core.multiarray", "_reconstruct"),
    ("numpy._core.multiarray", "scalar"),
    ("numpy._core.numeric", "_frombuffer"),
}


StoreOf = Callable[[str, PartWork, Sequence[Part]], "KeptParts | None"]


class KeptParts:
    """The finished parts of one source.

    Args:
        folder: where they lie; what is there of another source, or of other settings, is removed.
        facts: all that decides what the parts hold.
        seal: of the run.
    """

    def __init__(self, folder: Path, facts: dict[str, Any], seal: Seal) -> None:
        self._folder, self._seal = folder, seal
        self._of = _hash(
            repr(sorted(facts.items()))
        )  # a part of another source is none, whoever left it here
        if not self._is_of(facts):
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(mode=0o700, parents=True)
            seal.write_json(folder / _RECORD, _RECORD, facts)

    def job(self, work: PartWork, crew: Crew) -> PartWork | _KeptWork:
        """Return the job to do in place of `work`. Processes of this machine write their results themselves."""
        return work if crew.cluster is not None else _KeptWork(work, str(self._folder))

    def has(self, part: Part) -> bool:
        """Tell whether a part is there, undamaged. A damaged one is done again."""
        name = _name(part)
        try:
            return self._recorded(name) == _digest(self._folder / name)
        except (Broken, OSError, KeyError):
            return False

    def items(self, part: Part, result: _Written | Items | None) -> Iterator[Item]:
        """Yield the items of a part that is there, or of which the job has this result."""
        name = _name(part)
        if isinstance(result, Items):
            result = _write(self._folder / name, result)
        # What a fault ended is read again the next time: the connection may be better then.
        if result is not None and not result.is_faulty:
            record = {"digest": result.digest, "of": self._of}
            self._seal.write_json(self._folder / f"{name}.json", name, record)
        return _read(self._folder / name, self._recorded(name) if result is None else result.digest)

    def _recorded(self, name: str) -> str:
        record = self._seal.read_json(self._folder / f"{name}.json", name)
        if record["of"] != self._of:
            raise Broken
        return str(record["digest"])

    def _is_of(self, facts: dict[str, Any]) -> bool:
        try:
            return self._seal.read_json(self._folder / _RECORD, _RECORD) == facts
        except (Broken, OSError):
            return False


@dataclass(frozen=True)
class _Written:
    digest: str
    is_faulty: bool


@dataclass(frozen=True)
class _KeptWork:
    """A job that leaves its results in a folder."""

    work: PartWork
    folder: str

    def ready(self) -> Callable[[Part], _Written]:
        do = self.work.ready()
        return lambda part: _write(Path(self.folder) / _name(part), do(part))


def _name(part: Part) -> str:
    return f"{part.number:06d}"


def _write(path: Path, items: Items) -> _Written:
    """Write items in one go, some at a time."""
    building = path.with_name(
        f".{path.name}.{uuid.uuid4().hex}.new"
    )  # a process of before may still be writing
    digest = hashlib.blake2b(digest_size=20)
    stream = iter(items)
    frame: list[Item] = []
    fault: InputError | None = None
    is_faulty = False
    descriptor = os.open(building, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with open(descriptor, "wb") as file:
        while fault is None:
            frame = []
            try:
                frame.extend(islice(stream, _FRAME))
            except InputError as error:
                fault = error
            if not frame and fault is None:
                break
            is_faulty = is_faulty or fault is not None or any(map(_has_fault, frame))
            content = pickle.dumps((frame, fault), protocol=pickle.HIGHEST_PROTOCOL)
            for piece in (len(content).to_bytes(_LENGTH, "big"), content):
                file.write(piece)
                digest.update(piece)
        file.flush()
        os.fsync(file.fileno())
    building.rename(path)
    return _Written(digest.hexdigest(), is_faulty)


def _has_fault(item: Item) -> bool:
    return isinstance(item, Finished) and item.seen is not None and item.seen.fault is not None


def _read(path: Path, digest: str) -> Iterator[Item]:
    """Yield the items of a part.

    Raises:
        InputError: the file has changed since its digest was taken; or the fault of the part.
    """
    found = hashlib.blake2b(digest_size=20)
    fault: InputError | None = None
    with path.open("rb") as file:
        while length := file.read(_LENGTH):
            content = file.read(int.from_bytes(length, "big"))
            found.update(length + content)
            frame, fault = _Unpickler(io.BytesIO(content)).load()
            yield from frame
    if found.hexdigest() != digest:
        raise InputError(f"{path} was changed while it was read: run the same command again")
    if fault is not None:
        raise fault


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        plain = "." not in name  # else the name leads through what a module imports, to anything
        if (module, name) in _NAMES or (
            plain and any(module == each or module.startswith(each) for each in _MODULES)
        ):
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"{module}.{name} is no part of an item")


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=20)).hexdigest()


def keeper(folder: Path, source: str, files: Any, key: RunKey | None) -> StoreOf:
    """Return a function that says where the parts of a source are kept, or None if it is not worth it.

    Args:
        folder: where they lie, in a folder of the name that the function is given.
        source, files: see `facts_of`; they are of the time before anything is read.
        key: of the run.
    """

    def store(name: str, work: PartWork, found: Sequence[Part]) -> KeptParts | None:
        size = sum(part.size for part in found)
        if len(found) == 1 or size < WORTH or work.finishing.limit is not None:
            return None
        return KeptParts(folder / name, facts_of(source, files, work, found, code_version()), seal_of(key))

    return store


def facts_of(source: str, files: Any, work: PartWork, parts: Sequence[Part], code: str) -> dict[str, Any]:
    """Return all that decides what the parts of a source hold.

    Args:
        source: as `data_source.source_of` returns it.
        files: as `data_source.files_of` returns it.
        work: the job.
        parts: all of them.
        code: the version of the program.
    """
    finishing = work.finishing
    tokenizer = getattr(finishing.work.tokenizer, "backend_tokenizer", None)
    settings = [
        finishing.share,
        sorted(finishing.cut),
        None if finishing.search is None else finishing.search.identity,
        finishing.bare,
        finishing.limit,
        finishing.recipe.loss_on,
    ]
    text = finishing.work
    settings += [text.in_rows, text.length, text.places, text.without_quotes, text.sketched]
    return {
        "source": source,
        "files": files,
        "settings": settings,
        "tokenizer": _hash(
            repr((tokenizer if tokenizer is None else tokenizer.to_str(), *_of_tokenizer(work)))
        ),
        "parts": _hash(repr([(part.reader.name, part.pieces) for part in parts])),
        "code": code,
    }


def _of_tokenizer(work: PartWork) -> tuple[Any, ...]:
    """Return what decides rows and is no part of the tokenizer's file: its template and its special tokens."""
    tokenizer = work.finishing.work.tokenizer
    names = ("chat_template", "bos_token_id", "eos_token_id", "pad_token_id")
    return (type(tokenizer).__name__, *(getattr(tokenizer, name, None) for name in names))


def _hash(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=20).hexdigest()
