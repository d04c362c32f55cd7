"""A Ray cluster does items in order, and those of a process or a node that dies are done again."""

import os
import sys

import pytest

from confide.utils.errors import InputError
from confide.utils.ray_workers import OnRay
from confide.utils.workers import Crew
from tests.places import ROOT
from tests.utils.jobs import Square
from tests.utils.test_workers import pids

ray = pytest.importorskip("ray", reason="ray is not installed")
pytestmark = pytest.mark.subprocess  # started by what is tested


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """Two nodes on this machine, beside the one of this program."""
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT / "src"), str(ROOT)]))
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
        try:
            yield made
        finally:
            ray.shutdown()
            made.shutdown()


def test_results_and_errors_come_in_order(cluster):
    with Crew(cluster=cluster.address).workers(Square(), "square: a process") as workers:
        assert [number for number, _ in workers.map(range(30))] == [number**2 for number in range(30)]
        with pytest.raises(InputError, match=r"^-3: is below zero$"):
            list(workers.map([1, -3, -4]))
        with pytest.raises(RuntimeError, match=r"^ValueError in .*jobs\.py, line \d+ \(do\)$"):
            list(workers.map([1300]))
    assert not ray.is_initialized()


def test_two_share_a_connection_until_both_are_closed(cluster):
    crew = Crew(cluster=cluster.address)
    first, second = (crew.workers(Square(), "square: a process") for _ in range(2))
    first.close()
    assert [number for number, _ in second.map([2])] == [4]
    first.close()
    assert ray.is_initialized()
    second.close()
    assert not ray.is_initialized()


def test_what_a_process_or_a_node_that_dies_had_is_done_again(cluster, tmp_path):
    node = cluster.add_node(num_cpus=2)
    cluster.wait_for_nodes()
    with OnRay(Square(tmp_path, kills=1), cluster.address, "square: a process") as workers:
        found = workers.map(range(200))
        first = [next(found) for _ in range(40)]
        cluster.remove_node(node)  # with the items that its two processes have
        numbers = [number for number, _ in [*first, *found]]
    assert numbers == [number**2 for number in range(200)]
    assert len(pids(tmp_path)) > 3


def test_an_item_that_kills_every_process_is_an_error(cluster, tmp_path):
    with (
        OnRay(Square(tmp_path, kills=99), cluster.address, "square: a process") as workers,
        pytest.raises(InputError, match=r"^square: a process ended, 4 times at the same text \(\w+\)$"),
    ):
        list(workers.map(range(9)))


def test_no_cluster_is_a_sentence():
    with pytest.raises(InputError, match=r"^--ray 127\.0\.0\.1:1: no cluster answers"):
        OnRay(Square(), "127.0.0.1:1", "square: a process")


def test_without_ray_a_sentence_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(
        InputError, match=r"^--ray needs a package that is not installed: pip install 'confide\[cluster\]'$"
    ):
        OnRay(Square(), "local", "square: a process")
