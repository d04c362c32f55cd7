"""The rule of verdicts: an interval against the region that a claim names, and Holm's rule where claims are many."""

import math

import numpy as np
import pytest
from scipy import stats
from studies.runner.findings import (
    ABOVE,
    CONFIDENCE,
    NOT_REPRODUCED,
    REPRODUCED,
    UNDECIDED,
    Finding,
    judged,
    paired,
    pooled,
    slopes,
)


def finding(*values, low=-math.inf, high=math.inf, family="", **more):
    return Finding("a claim", "Table 1", "a statistic", values, low, high, family, **more)


def verdicts(*findings):
    return [each.verdict for each in judged(findings)]


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0.5, 1.5, REPRODUCED),
        (-math.inf, 2.0, REPRODUCED),
        (2.0, math.inf, NOT_REPRODUCED),
        (-1.0, 0.0, NOT_REPRODUCED),
        (1.0, 2.0, UNDECIDED),
        (-math.inf, 1.0, UNDECIDED),
    ],
)
def test_a_verdict_is_where_the_interval_lies(low, high, expected):
    assert verdicts(finding(0.99, 1.0, 1.01, low=low, high=high)) == [expected]


def test_the_interval_is_students():
    values = (0.2, 0.5, 0.9, 1.4)
    low, high = finding(*values).interval()
    expected = stats.ttest_1samp(values, 0).confidence_interval(0.95)
    assert (low, high) == pytest.approx((expected.low, expected.high))


def test_one_run_key_decides_nothing_and_a_formula_everything():
    assert verdicts(finding(1.0, low=0.0)) == [UNDECIDED]
    assert verdicts(finding(1.0, low=0.0, is_exact=True)) == [REPRODUCED]
    assert verdicts(finding(0.5, 1.5, low=1.0, is_exact=True)) == [NOT_REPRODUCED]


def test_intervals_cover_the_mean_as_often_as_they_say():
    """A wrong verdict of a claim that is false by a hair: at most 5% of the time, in a family of ten as well."""
    generator, wrong, in_family = np.random.default_rng(1), 0, 0
    for _ in range(600):
        draws = [finding(*generator.normal(0, 1, 5), low=0.0, family="ten") for _ in range(10)]
        found = [verdict != UNDECIDED for verdict in verdicts(*draws)]
        in_family += any(found)
        wrong += verdicts(finding(*draws[0].values, low=0.0)) != [UNDECIDED]
    assert 0.025 < wrong / 600 < 0.075
    assert 0.025 < in_family / 600 < 0.075


def test_holm_judges_the_clearest_first():
    clear, middle, vague = (finding(-1e-3, 0.0, 1e-3, high=h, family="one") for h in (1.0, 0.005, 0.0012))
    found = judged([vague, clear, middle])
    assert [round(1 - each.confidence, 6) for each in found] == [0.05, round(0.05 / 3, 6), 0.025]
    assert [each.verdict for each in found] == [UNDECIDED, REPRODUCED, REPRODUCED]
    # Once one fails, those behind it are judged as strictly as it was.
    found = judged([vague, finding(-2e-3, 0.0, 2e-3, high=0.0013, family="one"), clear])
    assert sorted(round(1 - each.confidence, 6) for each in found) == [round(0.05 / 3, 6), 0.025, 0.025]


def test_claims_of_other_families_do_not_count():
    alone = judged([finding(0.0, 1.0, high=2.0)])[0]
    beside = judged([finding(0.0, 1.0, high=2.0), finding(0.0, 1.0, high=3.0, family="other")])[0]
    assert alone.confidence == beside.confidence == CONFIDENCE


def test_differences_are_of_the_same_run_key():
    assert paired({1: 1.0, 2: 5.0}, {2: 4.0, 1: 3.0}) == (-2.0, 1.0)


def test_a_run_key_that_one_side_lacks_is_refused():
    with pytest.raises(ValueError, match=r"different run keys: \[\[1, 2, 3\], \[1, 2\]\]"):
        paired({1: 1.0, 2: 5.0, 3: 2.0}, {2: 4.0, 1: 3.0})


def test_an_arm_that_was_left_out_has_no_differences():
    assert paired({1: 1.0, 2: 5.0}, {}) == ()
    assert paired({1: 1.0, 2: 5.0}, {0: 3.0}) == ()  # the model before training
    assert slopes([0.0, 1.0], [{}, {1: 1.0}]) == ()


def test_slopes_are_of_each_run_key():
    found = slopes([0.0, 1.0, 2.0], [{1: 0.0, 2: 1.0}, {1: 2.0, 2: 1.0}, {1: 4.0, 2: 1.0}])
    assert found == pytest.approx((2.0, 0.0))


def test_a_pooled_error_is_that_of_the_analysis_of_variance():
    """Two arms alone: their paired t test. Three: the mean square of the residuals, by hand."""
    one, other = {1: 1.0, 2: 4.0, 3: 3.0}, {1: 2.0, 2: 3.0, 3: 5.0}
    found = pooled([one, other])
    assert found.freedom == 2
    assert found.error == pytest.approx(stats.sem(paired(one, other)))
    three = pooled([{1: 0.0, 2: 1.0}, {1: 0.0, 2: 3.0}, {1: 3.0, 2: 2.0}])
    # What is left of the three arms at the first key: 0, -1 and 1; the second key has the opposites.
    assert three.freedom == 2
    assert three.error == pytest.approx(math.sqrt((2 * (0.0**2 + 1.0**2 + 1.0**2)) / 2))


def test_a_pooled_error_ignores_what_a_run_key_does_to_all_arms():
    arms = [{key: 0.1 * arm * key**2 for key in (1, 2, 3)} for arm in range(4)]
    moved = [{key: value + 7.0 * key for key, value in arm.items()} for arm in arms]
    assert pooled(moved, (1, 0, 0, -1)).error == pytest.approx(pooled(arms, (1, 0, 0, -1)).error)


def test_pooled_intervals_cover_the_difference_as_often_as_they_say():
    """Six arms alike, three run keys that move all of them: 5% of the verdicts are wrong, and in a family as well."""
    generator, wrong, in_family, narrower = np.random.default_rng(2), 0, 0, 0
    for _ in range(600):
        blocks = generator.normal(0, 5, 3)
        arms = [dict(enumerate(blocks + generator.normal(0, 1, 3))) for _ in range(6)]
        spread = pooled(arms)
        values = [paired(arms[0], other) for other in arms[1:]]
        found = verdicts(*(finding(*each, low=0.0, family="five", pooled=spread) for each in values))
        in_family += any(verdict != UNDECIDED for verdict in found)
        wrong += verdicts(finding(*values[0], low=0.0, pooled=spread)) != [UNDECIDED]
        low, high = finding(*values[0], pooled=spread).interval(0.99)
        own_low, own_high = finding(*values[0]).interval(0.99)
        narrower += high - low < own_high - own_low
    assert 0.025 < wrong / 600 < 0.075
    assert in_family / 600 < 0.075
    assert narrower / 600 > 0.8


@pytest.mark.parametrize("arms", [[{1: 0.0, 2: 1.0}], [{1: 0.0}, {1: 1.0}]])
def test_one_arm_or_one_run_key_tells_of_no_error(arms):
    with pytest.raises(ValueError, match="two arms and two run keys"):
        pooled(arms)


def test_no_difference_at_all_does_not_bear_out_that_something_is_more():
    assert verdicts(finding(0.0, 0.0, 0.0, low=ABOVE)) == [NOT_REPRODUCED]
    assert verdicts(finding(0.1, 0.1, 0.1, low=ABOVE)) == [REPRODUCED]
