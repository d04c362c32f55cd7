"""What tests leave out of a run where they are about something else, and what they compute once."""

import functools
import inspect
from collections.abc import Callable
from typing import Any

import typer.main

from confide.privacy.accounting import pairs, stock
from confide.runs import job
from confide.training import memory_fit

MOST_POINTS, MOST_ATOMS = stock.MOST_POINTS, stock.MOST_ATOMS
"""Up to which grid points and atoms a run asks for a second opinion on its claim; test_stock.py asks up to these."""


class Kept:
    """A function of its arguments alone, whose results are kept, but while a test may have put something in its way."""

    fresh = False
    """True while a test runs that uses monkeypatch."""

    def __init__(self, function: Callable[..., Any], most: int):
        self.plain, self.kept = function, functools.lru_cache(most)(inspect.unwrap(function))

    def __call__(self, *arguments: Any) -> Any:
        return (self.plain if Kept.fresh else self.kept)(*arguments)


def spare_second_opinions() -> None:
    """Leave out second opinions that bisect, up to half a minute at the end of a run: each point of a mixture of three
    atoms and more, or hundreds of thousands of points. Processes of their own and test_stock.py ask for them.

    Many runs of these tests make the same claim: their curves and the opinions on them are computed once.
    """
    stock.MOST_POINTS, stock.MOST_ATOMS = 100_000, 2
    stock.second_opinion = Kept(stock.second_opinion, 256)  # type: ignore[assignment]
    pairs._mixed = Kept(pairs._mixed, 64)  # type: ignore[assignment]


def build_the_command_once() -> None:
    """Build the command line of an app once, as a process of its own does, and not at each call in this process."""
    typer.main.get_command = functools.cache(typer.main.get_command)


def spare_measured_memory() -> None:
    """Give a run of this process as large micro-batches as it would find after three passes: tiny models fit.

    Processes of their own measure, and so does tests/training/test_memory_fit.py.
    """

    def most(model: Any, task: Any, width: int, ranks: Any, reserved_bytes: int, scales: Any) -> int:
        logits = 1 << (memory_fit.LOGITS // task.vocabulary).bit_length() - 1
        found: int = ranks.least(max(width, min(memory_fit.MOST[ranks.device.type], logits)))
        return found

    job.fit = most
