"""What privacy has cost, in short: a share of the gain of the same training without privacy."""

import pytest

from confide.reporting.facts import Measured
from confide.reporting.verdict import _short_cost


def measured(private, twin):
    steps = [{"seconds": 2.0}]
    evaluations = [(0, "base", {"loss": 5.0}), (9, "final", {"loss": private})]
    return Measured(None, {}, steps, evaluations, None if twin is None else {"loss": twin}, None, "")


@pytest.mark.parametrize(
    ("private", "twin", "said"),
    [
        (4.0, 3.0, "50% of the gain in loss is kept"),
        (3.0, 3.0, "100% of the gain in loss is kept"),
        (4.0, 4.5, "Not known: training without privacy did worse"),
        (4.0, 6.0, "2 seconds"),
        (4.0, None, "2 seconds"),
    ],
)
def test_a_twin_that_did_worse_is_no_measure(private, twin, said):
    assert _short_cost(measured(private, twin)) == said
