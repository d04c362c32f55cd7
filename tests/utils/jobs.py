"""Jobs for workers, in a module that other processes can import."""

import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from confide.utils.errors import InputError


@dataclass(frozen=True)
class Square:
    """Square a number; some numbers are at fault, break the program, or kill the process."""

    folder: Path | None = None
    kills: int = 0  # how often the number 7 kills its process

    def ready(self) -> Callable[[int], tuple[int, int]]:
        if self.folder is not None:
            (self.folder / f"began-{os.getpid()}").touch()

        def do(number: int) -> tuple[int, int]:
            if number < 0:
                raise InputError(f"{number}: is below zero")
            if number == 1300:
                raise ValueError("said in confidence")
            if number == 7 and self.folder is not None and self._is_to_die():
                os.kill(os.getpid(), signal.SIGKILL)
            if number == 9900:
                time.sleep(60)
            return number * number, os.getpid()

        return do

    def _is_to_die(self) -> bool:
        assert self.folder is not None
        died = len(list(self.folder.glob("died-*")))
        if died < self.kills:
            (self.folder / f"died-{died}").touch()
        return died < self.kills
