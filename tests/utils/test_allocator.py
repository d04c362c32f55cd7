"""Freed memory that stays in the process while a run trains, and goes when the next one begins."""

import subprocess
import sys

import pytest

from tests.command import environment

_KEPT = """
import torch
from confide.utils.allocator import keep_freed_memory

def held():
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) // 1024 for line in lines if line.startswith("RssAnon"))

assert keep_freed_memory()
before = held()
large = [torch.ones(8 << 18) for _ in range(16)]
between = [torch.ones(8 << 18) for _ in range(2)]  # what is freed does not lie at the end of the heap
del large
kept = held()
assert keep_freed_memory()
print(kept - before, held() - before)
"""


_LARGE = """
import resource
import numpy as np
from confide.utils.allocator import keep_freed_memory

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

def step():
    for part in [np.empty(800 << 20, np.uint8) for _ in range(3)]:
        part[:: 1 << 12] = 1

assert keep_freed_memory()
step()
before = faults()
step()
print(faults() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="an allocator of Linux")
def test_a_step_that_frees_more_than_two_gigabytes_pays_for_fresh_pages_once():
    done = subprocess.run([sys.executable, "-c", _LARGE], env=environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 100  # of 614,400 pages, or 1,200 large ones


@pytest.mark.skipif(sys.platform != "linux", reason="an allocator of Linux")
def test_what_an_earlier_run_freed_is_given_back():
    done = subprocess.run([sys.executable, "-c", _KEPT], env=environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    kept, left = map(int, done.stdout.split())
    assert kept > 130  # 128 MB that were freed, and 16 that were not
    assert left < 40
