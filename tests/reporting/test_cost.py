"""What privacy has cost, in short: a share of the gain of the same training without privacy."""

from types import SimpleNamespace

import pytest

from confide.reporting.facts import Measured
from confide.reporting.verdict import _cost, _short_cost


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


def test_a_folder_without_a_record_of_steps_says_so():
    """The folder of a sweep: its trials have the records."""
    claim = SimpleNamespace(steps=10)
    nothing = Measured(None, {}, [], [], None, None, "")
    found = _cost(SimpleNamespace(guarantee=claim, measured=nothing))
    assert found.short == "Not recorded here"
    assert found.sentences[0] == "Training took 10 steps."
    assert "0 seconds" not in " ".join(found.sentences)
    with_record = _cost(SimpleNamespace(guarantee=claim, measured=measured(4.0, None)))
    assert with_record.sentences[0] == "Training took 10 steps and 2 seconds."
