"""Run a detector in several processes, each with its own pipeline and recognisers.

The processes are plain Python interpreters that read texts from a socket and answer with numbers. They import nothing
of the main program, and they end when it ends, whatever the cause. A Ctrl-C reaches only the main process, which then
ends the others.
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
from confide.config.fields import Section
from confide.config.schema import Detector as DetectorSection
from confide.sensitive.detectors.base import Detector
from confide.sensitive.detectors.choice import Asked, asked, fingerprint, kinds_of, made
from confide.sensitive.detectors.spans import Span
from confide.utils.errors import InputError

_START = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[2]); "
    "from confide.sensitive.detectors.processes import serve; serve(int(sys.argv[1]))"
)
_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
# Numbers of characters; the first is for a pipeline, the second for patterns alone. `_ALONE`: what one process searches
# in the time that it takes to start the others (some seconds). `_CHUNK`: what a process receives at a time.
_ALONE = (150_000, 4_000_000)
_CHUNK = (20_000, 250_000)


class Processes:
    """The detector that a config section asks for, run on every processor that this process may use.

    This process searches the first texts itself. It starts others once there is enough text to make that worthwhile.
    `count` sets their number.

    Attributes:
        fingerprint: hex digest of everything that the findings depend on besides the text.

    Raises:
        InputError: as `detector` raises it, or a process ended too early.
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
        """Return one list of spans for each text, sorted by start."""
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
    """Yield the bounds of runs of texts that together have at least `size` characters; the last run may be shorter."""
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
                process_group=0,  # so that a Ctrl-C does not reach it
                stdin=subprocess.DEVNULL,
                env={**os.environ, **_ONE_THREAD},
            )
        self.send(([(each.name, settings.model_dump()) for each, settings in parts], key))

    def send(self, message: Any) -> None:
        with self._watched():
            # The same as `send`, but without its buffer, which Python 3.12.1 frees twice after a failure.
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
    """Answer lists of texts until the connection closes; this is the program of each process.

    The answer has four arrays: the bounds of each text's spans in the other three, and the start, the end and the
    number of the kind of each span. If there is an error in the input, the answer is its message.
    """
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
