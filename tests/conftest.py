"""What many tests need: the data beside the project, tiny models and tokenizers, small graphs."""

import os
import time
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import numpy as np
import pytest
import torch

torch.set_num_threads(1)

SHARED = Path(__file__).resolve().parents[2] / "shared"


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of public data and small models beside the repository."""
    if not (SHARED / "data").is_dir():
        pytest.skip("../shared/data is not there: tests on real text are skipped")
    return SHARED


TURN, TRANSFORM = 60e-9, 20e-3
"""Seconds of a turn of a plain loop, and of a real transform of 2^20 values, where limits of processor time are met."""


@pytest.fixture
def slowness() -> float:
    """How many times slower this machine is right now, at least 1: what limits of processor time are multiplied by.

    A virtual machine that shares its processor or its memory can be half as fast for minutes, and says so in no other
    way.
    """
    return max(1.0, *(_turn() / TURN for _ in range(3)), *(_transform() / TRANSFORM for _ in range(3)))


def _turn(turns: int = 1_000_000) -> float:
    began, total = time.process_time(), 0
    for number in range(turns):
        total += number
    return (time.process_time() - began) / turns


def _transform() -> float:
    values = np.linspace(0, 1, 2**20)
    began = time.process_time()
    np.fft.rfft(values)
    return time.process_time() - began


def pytest_make_parametrize_id(config: pytest.Config, val: object, argname: str) -> str | None:
    """Bytes are no names: a gzip header holds the time, and workers must collect the same tests."""
    return argname if isinstance(val, bytes) else None
