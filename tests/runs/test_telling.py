"""What a run says as it goes on."""

import math

from confide.cli import show
from confide.runs import telling


def test_a_perplexity_beyond_all_sense_is_short():
    """Evaluations cut losses above 700, beyond which a float has no perplexity."""
    assert telling.evaluation({"loss": 900.0, "perplexity": math.exp(700)}) == (
        "loss 900.0000, perplexity 1.0e+304 or more"
    )
    assert telling.evaluation({"loss": 4.0, "perplexity": math.exp(4)}) == "loss 4.0000, perplexity 54.6"
    assert show.number(math.exp(700)) == "1.0e+304"
