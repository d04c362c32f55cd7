"""Several processes find what one finds; they end with their work, and one that dies is an error."""

import os
import signal
import subprocess
import sys
import time

import pytest

from confide.config.schema import Detector, Policy
from confide.sensitive.detectors import Processes, asked, processes
from confide.utils.errors import InputError

pytest.importorskip("detect_secrets", reason="detect-secrets is not installed")
pytestmark = pytest.mark.subprocess  # started by what is tested

TEXTS = [f"{n}: https://ann:word{n}@b.org and ftp://bob:{n}@c.de {'b' * (n % 90)}" for n in range(600)] + [
    "",
    "é" * 50,
]
SETTINGS = Detector(patterns=["PRIVATE_KEY", "URL_PASSWORD"])  # which need no large package


@pytest.fixture(params=[SETTINGS, Policy(**SETTINGS.model_dump(), recall=1.0)], ids=["detector", "policy"])
def several(request, monkeypatch):
    monkeypatch.setattr(processes, "_ALONE", (0, 0))
    monkeypatch.setattr(processes, "_CHUNK", (2_000, 2_000))
    with Processes(request.param, "detector", 2) as made:
        yield made


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_processes_find_what_one_finds_in_the_same_order(several):
    one = Processes(SETTINGS, "detector", 1)
    expected = one.find(TEXTS)
    assert sum(map(len, expected)) > 1000
    assert several.find(TEXTS) == expected
    assert several.find(TEXTS[:3]) == expected[:3]
    assert several.find([]) == []
    assert len(several._workers) == 2
    assert one._workers == []
    pids = [worker._process.pid for worker in several._workers]
    several.close()
    assert not any(map(alive, pids))
    assert several.find(TEXTS[:3]) == expected[:3]  # they start again


def test_small_work_starts_none():
    with Processes(SETTINGS, "detector", 2) as made:
        made.find(TEXTS)
        assert made._workers == []


def test_a_process_that_dies_is_an_error_and_ends_the_others(several):
    several.find(TEXTS)
    first, second = (worker._process for worker in several._workers)
    first.send_signal(signal.SIGKILL)
    first.wait()
    with pytest.raises(
        InputError, match="detector: a process that looks for sensitive text ended by signal 9"
    ):
        several.find(TEXTS)
    assert not alive(second.pid)


def test_an_interrupt_ends_all_at_once(several, monkeypatch):
    several.find(TEXTS)
    pids = [worker._process.pid for worker in several._workers]

    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(processes, "wait", interrupt)
    with pytest.raises(KeyboardInterrupt):
        several.find(TEXTS)
    assert not any(map(alive, pids))
    assert several._workers == []


def test_an_error_in_a_process_is_told(several, monkeypatch):
    several.find(TEXTS[:10])
    several.close()
    monkeypatch.setattr(several, "_asked", asked(SETTINGS.model_copy(update={"patterns": ["NONE"]})))
    with pytest.raises(InputError, match=r"detector\.patterns: no recogniser 'NONE'"):
        several.find(TEXTS)


PROGRAM = """
import sys, time
from confide.sensitive.detectors import Processes, asked, processes
from confide.config.schema import Detector, Policy
processes._ALONE = (0, 0)
made = Processes(Detector(patterns=["PRIVATE_KEY"]), "detector", 2)
made.find(["BEGIN PRIVATE KEY"])
print(*(worker._process.pid for worker in made._workers), flush=True)
time.sleep(60)
"""


def test_processes_end_when_the_main_one_is_killed():
    with subprocess.Popen([sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, text=True) as main:
        pids = [int(word) for word in main.stdout.readline().split()]
        assert len(pids) == 2
        assert all(map(alive, pids))
        assert all(os.getpgid(pid) != os.getpgid(main.pid) for pid in pids)  # a Ctrl-C is not for them
        main.kill()
        main.wait()
    deadline = time.monotonic() + 20
    while any(map(alive, pids)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(map(alive, pids))


@pytest.mark.parametrize(
    ("sizes", "bounds"), [([3, 3, 9, 1], [(0, 2), (2, 3), (3, 4)]), ([], []), ([0], [(0, 1)])]
)
def test_chunks_are_of_a_size(sizes, bounds):
    assert list(processes._chunks(["x" * size for size in sizes], 6)) == bounds


def test_the_fingerprint_tells_settings_apart():
    prints = {
        Processes(Detector(patterns=patterns), "detector", 1).fingerprint
        for patterns in (["PRIVATE_KEY"], ["URL_PASSWORD"], ["PRIVATE_KEY", "URL_PASSWORD"])
    }
    assert len(prints) == 3
    again = Processes(Detector(patterns=["URL_PASSWORD"]), "other.key", 1).fingerprint
    assert again in prints
