"""What tests leave out of a run where they are about something else, and what they compute once."""

import functools

import typer.main

from confide.privacy.accounting import stock

MOST_POINTS = stock.MOST_POINTS
"""The grid points up to which a run asks for a second opinion on its claim; test_stock.py asks up to these."""


def spare_second_opinions() -> None:
    """Leave out second opinions that bisect hundreds of thousands of points, half a minute at the end of a run.

    The opinion on a pair is a function of the pair alone, and many runs of these tests make the same claim.
    """
    stock.MOST_POINTS = 100_000
    stock.second_opinion = functools.cache(stock.second_opinion)


def build_the_command_once() -> None:
    """Build the command line of an app once, as a process of its own does, and not at each call in this process."""
    typer.main.get_command = functools.cache(typer.main.get_command)
