"""The study of accountants: slopes and where the black box ends, against made-up epsilons."""

import math

import pytest
from studies.runner.findings import NOT_REPRODUCED, REPRODUCED, judged

from studies import accountants as study


def rows(mixture, black_box):
    """Made-up epsilons by noise and rows, and the two theorems as they should be."""
    found = [
        {"what": "epsilon", "noise": noise, "rows": size, "accountant": accountant, "value": value}
        for accountant, by_noise in ((study.MIXTURE, mixture), (study.BLACK_BOX, black_box))
        for noise, values in by_noise.items()
        for size, value in values.items()
    ]
    found.append({"what": "lemma 1", "value": -1e-6})
    return found + [{"what": "theorem 3", "key": key, "value": 1 + key / 1000} for key in (-1, 0, 1)]


LINEAR = {1.0: {1: 1.0, 2: 2.0, 4: 4.0, 8: 8.0}, 5.0: {1: 20.0, 2: 40.0, 4: 80.0, 8: 160.0}}
ENDS = {1.0: {1: 1.0, 2: 3.0, 4: math.inf, 8: math.inf}, 5.0: {1: 20.0, 2: 60.0, 4: 200.0, 8: math.inf}}


def verdicts(mixture=LINEAR, black_box=ENDS):
    return [each.verdict for each in judged(study.findings(rows(mixture, black_box)))]


def test_claims_follow_the_outcome():
    assert verdicts() == [REPRODUCED] * 9
    never = {noise: dict.fromkeys(values, 1.0) for noise, values in ENDS.items()}
    assert verdicts(black_box=never)[5:7] == [NOT_REPRODUCED] * 2


def test_the_black_box_is_compared_where_it_is_finite_and_a_user_has_several_rows():
    smaller = study.findings(rows(LINEAR, ENDS))[5]
    assert smaller.values == (1.5, 2.5)
    assert smaller.is_check  # no sound bound lies below a tight one


def test_growth_is_judged_by_the_epsilon_that_it_ends_at():
    """One doubling that is too steep refutes the claim, and beyond it the range of epsilon where it ends, alone."""
    bent = LINEAR | {1.0: {1: 1.0, 2: 2.0, 4: 4.0, 8: 10.0}}
    found = study.findings(rows(bent, ENDS))[:5]
    assert [each.is_beyond for each in found] == [False, True, True, True, True]
    ranges = ["", " from epsilon 1 up to epsilon 4", " from epsilon 4 up to epsilon 16"]
    ranges += [" from epsilon 16 up to epsilon 64", " from epsilon 64"]
    assert [each.claim.partition("'s rows")[2] for each in found] == [f"{words}." for words in ranges]
    verdict = [each.verdict for each in judged(found)]
    assert verdict == [NOT_REPRODUCED, REPRODUCED, NOT_REPRODUCED, REPRODUCED, REPRODUCED]
    assert study.slopes(bent[1.0])[-1] == (10.0, pytest.approx(math.log2(2.5)))


def test_the_black_box_is_said_to_end_at_a_number_of_rows():
    found = study.findings(rows(LINEAR, ENDS))[6]
    assert found.values == (4.0, 8.0)
    assert found.high == 8.0


def test_the_table_has_the_slope_of_each_step():
    table = study.tables(rows(LINEAR, ENDS))[0]
    assert table.cells[0][-2:] == ["", ""]
    assert table.cells[2][-2:] == ["1.00", "1.00"]
    assert table.cells[3][1:3] == ["8 / infinite", "160 / infinite"]
