"""Ctrl-C ends a loop after the step that it is in."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def interruptible() -> Iterator[Callable[[], bool]]:
    """Let Ctrl-C end the loop after the current step; a second Ctrl-C ends it at once."""
    asked: list[int] = []

    def ask(number: int, frame: object) -> None:
        if asked:
            raise KeyboardInterrupt
        asked.append(number)

    try:
        before = [(number, signal.signal(number, ask)) for number in (signal.SIGINT, signal.SIGTERM)]
    except ValueError:  # not the main thread: the calling program handles signals
        before = []
    try:
        yield lambda: bool(asked)
    finally:
        for number, handler in before:
            signal.signal(number, handler)
