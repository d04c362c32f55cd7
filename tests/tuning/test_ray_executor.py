"""Trials as tasks of a Ray cluster: with a stand-in for Ray, and with Ray itself where it is installed."""

import socket
import sys
import types

import pytest

from confide.tuning.ray_executor import on_ray
from confide.utils.errors import InputError


class RayError(Exception):
    """What Ray raises."""


class WorkerCrashed(RayError):
    """A process is gone."""


class TaskError(RayError):
    """As Ray wraps what a task raised."""

    def __init__(self, cause: Exception):
        super().__init__("a long remote traceback")
        self.cause = cause


class StandIn(types.ModuleType):
    """Ray, as far as it is used: tasks run when their result is asked for."""

    def __init__(self, gpus: int = 0, fails: bool = False):
        super().__init__("ray")
        self.gpus, self.fails = gpus, fails
        self.connected: list[str] = []
        self.asked: list[dict] = []
        self.exceptions = types.SimpleNamespace(RayTaskError=TaskError, RayError=RayError)

    def is_initialized(self) -> bool:
        return bool(self.connected)

    def init(self, address: str, **settings: object) -> None:
        if self.fails:
            raise ConnectionError("nobody is there")
        self.connected.append(address)

    def cluster_resources(self) -> dict[str, float]:
        return {"CPU": 8.0} | ({"GPU": float(self.gpus)} if self.gpus else {})

    def remote(self, **resources: int):
        self.asked.append(resources)
        return lambda function: types.SimpleNamespace(remote=lambda item: (function, item))

    def get(self, running):
        function, item = running
        try:
            return function(item)
        except RayError:
            raise
        except Exception as error:
            raise TaskError(error) from error


@pytest.fixture
def stand_in(monkeypatch):
    def install(**settings) -> StandIn:
        ray = StandIn(**settings)
        monkeypatch.setitem(sys.modules, "ray", ray)
        return ray

    return install


@pytest.mark.parametrize("gpus", [0, 4])
def test_each_trial_is_a_task_of_one_processor_and_one_gpu_if_there_are_any(stand_in, gpus):
    ray = stand_in(gpus=gpus)
    spread = on_ray("auto")
    assert list(spread(lambda x: x * x, [1, 2, 3])) == [1, 4, 9]
    assert list(spread(lambda x: -x, [4])) == [-4]
    assert ray.connected == ["auto"]
    assert ray.asked == [{"num_cpus": 1, "num_gpus": min(1, gpus)}] * 2


def test_a_fault_of_a_trial_is_told_as_it_was_raised(stand_in):
    stand_in()

    def refuse(x: int) -> int:
        raise InputError("data.train: a sentence")

    with pytest.raises(InputError, match=r"^data\.train: a sentence$"):
        list(on_ray("auto")(refuse, [1]))


def test_a_process_that_is_lost_is_told_in_a_sentence(stand_in):
    stand_in()

    def crash(x: int) -> int:
        raise WorkerCrashed("killed by the kernel")

    with pytest.raises(InputError, match=r"a trial ended with its process or machine \(WorkerCrashed\)"):
        list(on_ray("auto")(crash, [1]))


def test_where_no_cluster_answers_it_says_so(stand_in):
    stand_in(fails=True)
    with pytest.raises(InputError, match="--ray auto: no cluster answers"):
        list(on_ray("auto")(abs, [1]))


@pytest.mark.parametrize("address", ["127.0.0.1:{}", "ray://127.0.0.1:{}", "127.0.0.1:99999999"])
def test_an_address_at_which_nobody_listens_is_told_at_once(stand_in, address):
    ray = stand_in()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and does not listen
        named = address.format(taken.getsockname()[1])
        with pytest.raises(InputError, match="no cluster answers"):
            list(on_ray(named)(abs, [1]))
        assert ray.connected == []
        taken.listen()
        if "{}" in address:
            assert list(on_ray(named)(abs, [-1])) == [1]


def test_with_ray_itself():
    ray = pytest.importorskip("ray", reason="ray is not installed: trials are not spread over a cluster")
    try:
        assert list(on_ray("local")(abs, [-1, 2])) == [1, 2]
    finally:
        ray.shutdown()
