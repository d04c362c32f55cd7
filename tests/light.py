"""What tests leave out of a run where they are about something else."""

from confide.privacy.accounting import stock

MOST_POINTS = stock.MOST_POINTS
"""The grid points up to which a run asks for a second opinion on its claim; test_stock.py asks up to these."""


def spare_second_opinions() -> None:
    """Leave out second opinions that bisect hundreds of thousands of points, half a minute at the end of a run."""
    stock.MOST_POINTS = 100_000
