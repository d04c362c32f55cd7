"""Do the items of a job on a Ray cluster; placing them, trying again and keeping data on disk are Ray's."""

from __future__ import annotations

import os
import pickle
import socket
from collections.abc import Callable
from typing import Any

from confide.utils.errors import InputError
from confide.utils.workers import Item, Job, Result, Workers, answer

PATIENCE = 10.0
"""Seconds to wait for a cluster that was named by its address."""

_AGAIN = 3  # times that Ray does an item again whose process or node died


class OnRay(Workers[Item, Result]):
    """A Ray cluster. Every node needs confide, in the same version.

    Args:
        address: of the cluster: `auto`, HOST:PORT, or `local` to start one on this machine.
        what: the beginning of a sentence about a process that died.

    Raises:
        InputError: see `joined`.
    """

    def __init__(self, job: Job, address: str, what: str) -> None:
        ray, started = joined(address)
        self._ray, self._what = ray, what
        if started or _OPEN:
            _OPEN.append(self)
        self._job = ray.put(pickle.dumps(job))
        self._task = ray.remote(max_retries=_AGAIN, num_cpus=1)(answer)
        self._processors = max(1, int(ray.cluster_resources().get("CPU", 1)))

    def close(self) -> None:
        if self in _OPEN:
            _OPEN.remove(self)
            if not _OPEN:
                self._ray.shutdown()

    def _ahead(self) -> int:
        return 2 * self._processors

    def _begin(self, item: Item) -> Callable[[], Result]:
        waiting = self._task.remote(self._job, pickle.dumps(item, protocol=pickle.HIGHEST_PROTOCOL))
        return lambda: self._result(waiting)

    def _result(self, waiting: Any) -> Any:
        try:
            is_done, found = pickle.loads(self._ray.get(waiting))
        except self._ray.exceptions.RayError as error:
            raise InputError(
                f"{self._what} ended, {_AGAIN + 1} times at the same text ({type(error).__name__})"
            ) from None
        if not is_done:
            raise found
        return found


_OPEN: list[
    OnRay[Any, Any]
] = []  # those that share a connection which one of them made; the last one ends it


def joined(address: str) -> tuple[Any, bool]:
    """Connect to a Ray cluster; return the module, and whether this call connected it.

    Args:
        address: of the cluster; `local` starts one on this machine, `auto` finds the one it belongs to.

    Raises:
        InputError: Ray is not installed, or no cluster answers.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nobody is told of a run
    try:
        import ray
    except ImportError:
        raise InputError(
            "--ray needs a package that is not installed: pip install 'confide[cluster]'"
        ) from None
    if ray.is_initialized():
        return ray, False
    _reach(address)
    try:
        # What workers print stays with them, since it may hold private text.
        ray.init(address=address, include_dashboard=False, log_to_driver=False)
    except ConnectionError as error:
        raise InputError(f"--ray {address}: no cluster answers: {error}") from None
    return ray, True


def _reach(address: str) -> None:
    """Check that the address answers: otherwise Ray tries for minutes, and then ends the process."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if not (colon and port.isdecimal()):  # Ray finds `local` and `auto` by itself
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=PATIENCE).close()
    except (OSError, OverflowError) as error:
        raise InputError(f"--ray {address}: no cluster answers: {error}") from None
