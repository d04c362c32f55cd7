"""Do the same work on many items, in order: in this process, in several, or on a Ray cluster.

The results, their order and the first error are the same whoever does the work. So nothing that depends on text may
depend on the number of processes.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import pickle
import signal
import subprocess
import sys
import threading
import traceback
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any, Generic, Protocol, TypeVar

from confide.utils.errors import InputError

Item = TypeVar("Item")
Result = TypeVar("Result")

_START = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[2]); "
    "from confide.utils.workers import serve; serve(int(sys.argv[1]))"
)
_ONE_THREAD = dict.fromkeys(
    ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "RAYON_NUM_THREADS"), "1"
)
_QUIET = {
    "TRANSFORMERS_VERBOSITY": "error"
}  # it warns of texts that are longer than a row before they are cut
_AHEAD = 2  # items of each process that wait or are worked on, so that none waits for this process


class Job(Protocol):
    """The work on each item. It is sent to each process once, so it must be picklable."""

    def ready(self) -> Callable[[Any], Any]:
        """Return the function that does it, after whatever takes time once."""


class Workers(ABC, Generic[Item, Result]):
    """Whoever does a job; a context manager."""

    def map(self, items: Iterable[Item]) -> Iterator[Result]:
        """Yield the result of each item, in order.

        Items are taken ahead of the results. An error of `items` is raised once the results of the items before it
        have been taken, as it would be in one process.

        Raises:
            InputError: the job raised it, or the work cannot go on.
        """
        ahead = iter(items)
        waiting: deque[Callable[[], Result]] = deque()
        failure: BaseException | None = None
        is_over = False
        while True:
            while not is_over and len(waiting) < self._ahead():
                try:
                    item = next(ahead)
                except StopIteration:
                    is_over = True
                except Exception as error:
                    failure, is_over = error, True
                else:
                    waiting.append(self._begin(item))
            if not waiting:
                break
            yield waiting.popleft()()
        if failure is not None:
            raise failure

    def close(self) -> None:
        """End the processes at once."""

    def __enter__(self) -> Workers[Item, Result]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _ahead(self) -> int:
        return 1

    @abstractmethod
    def _begin(self, item: Item) -> Callable[[], Result]:
        """Begin with an item; return a function that waits for its result."""


@dataclass(frozen=True)
class Crew:
    """The processes that do the work.

    Attributes:
        processes: how many of this machine; 1 is this process alone.
        cluster: the address of a Ray cluster, which does it instead; `local` starts one on this machine.
    """

    processes: int = 1
    cluster: str | None = None

    @property
    def is_several(self) -> bool:
        """True if other processes than this one do the work."""
        return self.processes > 1 or self.cluster is not None

    def workers(self, job: Job, what: str) -> Workers[Any, Any]:
        """Return workers for a job; `what` begins a sentence about a process that died."""
        if self.cluster is not None:
            from confide.utils.ray_workers import OnRay

            return OnRay(job, self.cluster, what)
        return Processes(job, self.processes, what) if self.is_several else Here(job)


class Here(Workers[Item, Result]):
    """This process. It begins with an item when its result is asked for."""

    def __init__(self, job: Job) -> None:
        self._do = job.ready()

    def _begin(self, item: Item) -> Callable[[], Result]:
        return lambda: self._do(item)


class Processes(Workers[Item, Result]):
    """Several processes of this machine.

    They are plain Python interpreters that read from a socket. They import nothing of the main program, and they end
    when it ends, whatever the cause. A Ctrl-C reaches only the main process, which then ends the others. A process
    that dies is replaced, and its item is done again, once.

    Args:
        what: the beginning of a sentence about a process that died.
    """

    def __init__(self, job: Job, count: int, what: str) -> None:
        self._job, self._count, self._what = pickle.dumps(job), count, what
        self._threads = ThreadPoolExecutor(count, initializer=self._start)
        self._own = threading.local()
        self._all: list[Process] = []
        self._is_closed = False
        for _ in range(count):  # so that they start now
            self._threads.submit(lambda: None)

    def close(self) -> None:
        self._is_closed = True
        self._threads.shutdown(wait=False, cancel_futures=True)
        for each in self._all:
            each.end()
        self._threads.shutdown(wait=True)
        for each in self._all:  # one that was being started
            each.end()

    def _ahead(self) -> int:
        return _AHEAD * self._count

    def _begin(self, item: Item) -> Callable[[], Result]:
        future: Future[Result] = self._threads.submit(self._do, item)
        return future.result

    def _start(self) -> None:
        self._own.process = Process(self._job)
        self._all.append(self._own.process)

    def _do(self, item: Item) -> Any:
        message = pickle.dumps(item, protocol=pickle.HIGHEST_PROTOCOL)
        for again in (False, True):
            process: Process = self._own.process
            try:
                return process.answer(message)
            except (EOFError, OSError):
                how = process.how_it_ended()
                if self._is_closed or again:
                    raise InputError(f"{self._what} ended {how}, twice at the same text") from None
                self._start()
        raise AssertionError


class Process:
    """One process, and the socket to it.

    Args:
        job: pickled.
    """

    def __init__(self, job: bytes) -> None:
        self._connection, theirs = Pipe()
        command = [sys.executable, "-c", _START, str(theirs.fileno()), json.dumps(sys.path)]
        with theirs:
            self._process = subprocess.Popen(
                command,
                pass_fds=[theirs.fileno()],
                process_group=0,  # so that a Ctrl-C does not reach it
                stdin=subprocess.DEVNULL,
                env={**os.environ, **_ONE_THREAD, **_QUIET},
            )
        self._connection.send_bytes(job)

    def answer(self, message: bytes) -> Any:
        """Send a pickled item and wait for the result.

        Raises:
            InputError: the job raised it.
            EOFError, OSError: the process ended.
        """
        self._connection.send_bytes(message)
        is_done, found = pickle.loads(self._connection.recv_bytes())
        if not is_done:
            raise found
        return found

    def how_it_ended(self) -> str:
        code = self._process.wait()
        return f"by signal {-code}, perhaps for want of memory" if code < 0 else f"with exit code {code}"

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        self._connection.close()


def serve(descriptor: int) -> None:
    """Do items until the connection closes; this is the program of each process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with Connection(descriptor) as connection, contextlib.suppress(EOFError, ConnectionError):
        job = connection.recv_bytes()
        while True:
            connection.send_bytes(answer(job, connection.recv_bytes()))


@functools.lru_cache(maxsize=1)
def _ready(job: bytes) -> Callable[[Any], Any]:
    found: Callable[[Any], Any] = pickle.loads(job).ready()
    return found


def answer(job: bytes, message: bytes) -> bytes:
    """Do a pickled item of a pickled job; return, pickled, whether it was done, and the result or the error."""
    try:
        found = _ready(job)(pickle.loads(message))
        return pickle.dumps((True, found), protocol=pickle.HIGHEST_PROTOCOL)
    except InputError as error:
        return pickle.dumps((False, error))
    except Exception as error:
        return pickle.dumps((False, RuntimeError(_fault(error))))


def _fault(error: Exception) -> str:
    """Describe a fault of the program by its kind and place: its message may hold private text."""
    place = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__} in {place.filename}, line {place.lineno} ({place.name})"
