"""Workers do items in order, whoever they are; their errors come in order; processes end with their work."""

import os
import subprocess
import sys
import threading
import time

import pytest

from confide.utils.errors import InputError
from confide.utils.workers import Crew, Processes
from tests.command import environment
from tests.places import ROOT
from tests.utils.jobs import Square

pytestmark = pytest.mark.subprocess  # started by what is tested
CREWS = [Crew(), Crew(2), Crew(3)]


def numbers(crew, items, job=None):
    with crew.workers(job or Square(), "square: a process") as workers:
        return [number for number, _ in workers.map(items)]


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def pids(folder):
    return [int(path.name.partition("-")[2]) for path in folder.glob("began-*")]


@pytest.mark.parametrize("crew", CREWS, ids=str)
def test_results_come_in_order(crew):
    assert numbers(crew, range(40)) == [number**2 for number in range(40)]
    assert numbers(crew, []) == []


def test_several_processes_do_it():
    with Crew(2).workers(Square(), "square: a process") as workers:
        found = {pid for _, pid in workers.map(range(200))}
        again = {pid for _, pid in workers.map(range(200))}
    assert os.getpid() not in found
    assert len(found) == 2
    assert again == found
    assert Crew(2).is_several
    assert not Crew().is_several


@pytest.mark.parametrize("crew", CREWS, ids=str)
def test_errors_come_in_the_order_of_the_items(crew):
    def items():
        yield from (1, 2, -3, -4)
        raise InputError("row 5: is worse")

    found = []
    with crew.workers(Square(), "square: a process") as workers:
        with pytest.raises(InputError, match=r"^-3: is below zero$"):
            found += [number for number, _ in workers.map(items())]
        results = workers.map(each for each in items() if each > 0)
        found += [next(results)[0], next(results)[0]]
        with pytest.raises(InputError, match=r"^row 5: is worse$"):
            next(results)
    assert found == [1, 4]


@pytest.mark.parametrize("crew", CREWS[:2], ids=str)
def test_items_are_not_taken_far_ahead(crew):
    taken = []
    with crew.workers(Square(), "square: a process") as workers:
        for done, _ in enumerate(workers.map(each for each in range(50) if not taken.append(each))):
            assert len(taken) <= done + 1 + 2 * crew.processes


def test_a_fault_of_the_program_tells_its_place_and_no_text():
    with pytest.raises(RuntimeError, match=r"^ValueError in .*jobs\.py, line \d+ \(do\)$") as caught:
        numbers(Crew(2), [1300])
    assert "confidence" not in str(caught.value)


def test_a_process_that_dies_is_replaced_and_only_its_item_is_done_again(tmp_path):
    assert numbers(Crew(2), range(30), Square(tmp_path, kills=1)) == [number**2 for number in range(30)]
    assert len(pids(tmp_path)) == 3
    assert not any(map(alive, pids(tmp_path)))


def test_an_item_that_kills_twice_is_an_error(tmp_path):
    told = r"^square: a process ended by signal 9, perhaps for want of memory, twice at the same text$"
    with pytest.raises(InputError, match=told):
        numbers(Crew(2), range(30), Square(tmp_path, kills=2))
    assert len(pids(tmp_path)) >= 3
    assert not any(map(alive, pids(tmp_path)))


def test_an_interrupt_ends_all_at_once(tmp_path):
    began = time.monotonic()

    def interrupted():
        with Processes(Square(tmp_path), 2, "square: a process") as workers:
            for _ in workers.map([1, 9900, 9900]):
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert time.monotonic() - began < 30
    assert not any(map(alive, pids(tmp_path)))
    assert not [each for each in threading.enumerate() if "ThreadPoolExecutor" in each.name]


PROGRAM = """
import os, sys, time
from pathlib import Path
from confide.utils.workers import Processes
from tests.utils.jobs import Square
with Processes(Square(Path(sys.argv[1])), 2, "square: a process") as workers:
    print(list(workers.map(range(9)))[0][0], flush=True)
    time.sleep(60)
"""


def test_processes_end_when_the_main_one_is_killed(tmp_path):
    command = [sys.executable, "-c", PROGRAM, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment(), cwd=ROOT) as main:
        assert main.stdout.readline() == "0\n"
        assert len(pids(tmp_path)) == 2
        assert all(os.getpgid(pid) != os.getpgid(main.pid) for pid in pids(tmp_path))  # no Ctrl-C for them
        main.kill()
        main.wait()
    deadline = time.monotonic() + 20
    while any(map(alive, pids(tmp_path))) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(map(alive, pids(tmp_path)))
