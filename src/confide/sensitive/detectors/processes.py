"""A detector run by several processes, each with its own pipeline and recognisers.

They are plain interpreters that read texts from a socket and answer with numbers. They import nothing of the main
program, and end when it does, whatever ends it; a Ctrl-C reaches the main process alone, which ends them.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import subprocess
import sys
from collections.abc import Iterator, Sequence
from itertools import pairwise
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from typing import Any

import numpy as np

from confide.config import registry
from confide.config.schema import Detector as DetectorSection
from confide.config.schema import Section
from confide.sensitive.detectors.base import Detector
from confide.sensitive.detectors.choice import Asked, asked, fingerprint, kinds_of, made
from confide.sensitive.detectors.spans import Span
from confide.utils.errors import InputError

_START = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[2]); "
    "from confide.sensitive.detectors.processes import serve; serve(int(sys.argv[1]))"
)
_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
# Characters, with a pipeline and with patterns alone: what one process does while others are started (some
# seconds), and what is sent to one of them at a time.
_ALONE = (150_000, 4_000_000)
_CHUNK = (20_000, 250_000)


class Processes:
    """The detector that a config section asks for, on every processor of this one's.

    The first texts are searched in this process, until there has been enough to look through that others are
    worth starting. `fingerprint`: of all that findings depend on beside the text, in hex.

    Raises InputError as `detector` does, and if a process ends before its time.
    """

    def __init__(self, section: DetectorSection, key: str, count: int | None = None) -> None:
        self._asked = asked(section)
        self._key = key
        self._own = made(self._asked, key)
        self._kinds = kinds_of(self._asked)
        self._count = len(os.sched_getaffinity(0)) if count is None else count
        self._workers: list[_Worker] = []
        fast = not any(each.is_slow for each, _ in self._asked)
        self._alone, self._chunk = (size[fast] for size in (_ALONE, _CHUNK))
        self._seen = 0
        self.fingerprint = fingerprint(self._asked, self._own)

    def find(self, texts: Sequence[str]) -> list[list[Span]]:
        """One list a text, sorted by start."""
        self._seen += sum(map(len, texts))
        if self._count < 2 or self._seen < self._alone:
            return self._own.find(texts)
        try:
            return self._find(texts)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End the processes at once."""
        for worker in self._workers:
            worker.end()
        self._workers = []

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _find(self, texts: Sequence[str]) -> list[list[Span]]:
        if not self._workers:
            for _ in range(self._count):
                self._workers.append(_Worker(self._asked, self._key))
        found: list[list[Span]] = [[] for _ in texts]
        waiting = _chunks(texts, self._chunk)
        busy: dict[Any, tuple[_Worker, int]] = {}
        idle = list(self._workers)
        while True:
            while idle and (chunk := next(waiting, None)) is not None:
                worker = idle.pop()
                worker.send(texts[chunk[0] : chunk[1]])
                busy[worker.connection] = worker, chunk[0]
            if not busy:
                return found
            for connection in wait(list(busy)):
                worker, first = busy.pop(connection)
                for number, spans in enumerate(worker.receive(self._kinds), first):
                    found[number] = spans
                idle.append(worker)


def _chunks(texts: Sequence[str], size: int) -> Iterator[tuple[int, int]]:
    """Bounds of runs of texts of `size` characters or more together."""
    first = length = 0
    for number, text in enumerate(texts, 1):
        length += len(text)
        if length >= size:
            yield first, number
            first, length = number, 0
    if first < len(texts):
        yield first, len(texts)


class _Worker:
    def __init__(self, parts: Asked, key: str) -> None:
        self._key = key
        self.connection, theirs = Pipe()
        command = [sys.executable, "-c", _START, str(theirs.fileno()), json.dumps(sys.path)]
        with theirs:
            self._process = subprocess.Popen(
                command,
                pass_fds=[theirs.fileno()],
                process_group=0,  # a Ctrl-C is not for it
                stdin=subprocess.DEVNULL,
                env={**os.environ, **_ONE_THREAD},
            )
        self.send(([(each.name, settings.model_dump()) for each, settings in parts], key))

    def send(self, message: Any) -> None:
        with self._watched():
            # As `send` does it, but for its buffer, which Python 3.12.1 frees twice after a failure.
            self.connection.send_bytes(pickle.dumps(message))

    def receive(self, kinds: Sequence[str]) -> list[list[Span]]:
        with self._watched():
            answer = self.connection.recv()
        if isinstance(answer, str):
            raise InputError(answer)
        bounds, starts, ends, numbers = (column.tolist() for column in answer)
        spans = list(map(Span, starts, ends, (kinds[number] for number in numbers)))
        return [spans[start:end] for start, end in pairwise(bounds)]

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        self.connection.close()

    @contextlib.contextmanager
    def _watched(self) -> Iterator[None]:
        try:
            yield
        except (EOFError, ConnectionError):
            code = self._process.wait()
            how = f"by signal {-code}, perhaps for want of memory" if code < 0 else f"with exit code {code}"
            raise InputError(f"{self._key}: a process that looks for sensitive text ended {how}") from None


def _asked_for(name: str, settings: dict[str, Any]) -> tuple[type[Detector], Section]:
    each: type[Detector] = registry.detectors.get(name, Detector)
    return each, each.Settings.model_validate(settings)


def serve(descriptor: int) -> None:
    """What each process does: answer texts with bounds of each text's spans, starts, ends and numbers of kinds."""
    with Connection(descriptor) as connection, contextlib.suppress(EOFError, ConnectionError):
        values, key = connection.recv()
        try:
            parts = [_asked_for(name, settings) for name, settings in values]
            numbers = {kind: number for number, kind in enumerate(kinds_of(parts))}
            own = made(parts, key)
            while True:
                found = own.find(connection.recv())
                spans = [span for each in found for span in each]
                connection.send(
                    (
                        np.cumsum([0, *map(len, found)], dtype=np.int64),
                        np.array([span.start for span in spans], np.int64),
                        np.array([span.end for span in spans], np.int64),
                        np.array([numbers[span.kind] for span in spans], np.int64),
                    )
                )
        except InputError as error:
            connection.send(str(error))
