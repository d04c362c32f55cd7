"""The study of noise variance: its numbers by hand, its shares by count, the counterexample by an event alone."""

from itertools import product

import pytest
from scipy import stats
from studies.noise_variance import ALIKE, ORTHOGONAL, Case
from studies.runner.findings import NOT_REPRODUCED, REPRODUCED, judged

from confide.privacy.accounting import MixtureOfGaussians, least_noise
from studies import noise_variance as study


def test_variances_are_those_of_the_equations():
    found = study.variances(epsilon=4.0, budget=128.0)
    els = least_noise(MixtureOfGaussians.binomial(32, 128 / 32768, 1000), 4.0, 1e-6)
    uls = least_noise(MixtureOfGaussians.bernoulli(32 / 1024, 1000), 4.0, 1e-6)
    assert found[0]["value"] == pytest.approx((els * 10 / 128) ** 2)
    of_users = {(row["gradients"], row["n"]): row["value"] for row in found[1:]}
    assert of_users[ALIKE, 32] == pytest.approx((uls * 10 / 32) ** 2)
    assert of_users[ORTHOGONAL, 32] == pytest.approx((uls * 10 / 2 / 32) ** 2)
    assert {n for _, n in of_users} == {4, 32}  # 256 users would get half a row each


def test_rows_in_use_hardly_matter_if_their_variances_are_alike():
    found = study.by_rows_in_use(epsilon=4.0, budget=128.0)
    assert [row["group_size"] for row in found] == [1, 2, 8, 32]
    assert found[-1]["value"] == study.variances(4.0, 128.0)[0]["value"]
    made = [
        found[-1] | {"group_size": size, "value": value} for size, value in ((2, 0.85), (8, 1.0), (32, 1.0))
    ]
    (claim,) = (each for each in judged(study._of_rows_in_use(made)))
    assert claim.verdict == NOT_REPRODUCED
    assert claim.finding.values == (0.85, 1.0)


EPSILONS, BUDGETS = (0.25, 1.0, 4.0, 16.0), tuple(float(2**i) for i in range(4, 14))


def rows(els, alike, orthogonal):
    """Made-up variances of settings with 4 and with 16 users, and the conjecture at a point of each grid."""
    found = []
    for epsilon, budget in product(EPSILONS, BUDGETS):
        common = {"what": "variance", "epsilon": epsilon, "budget": budget}
        found.append(common | {"method": "ELS", "value": els})
        for n in (4, 16):
            for name, value in ((ALIKE, alike), (ORTHOGONAL, orthogonal(epsilon, budget) if n == 4 else 9.0)):
                found.append(common | {"method": "ULS", "gradients": name, "n": n, "value": value})
    for grid, refuted in ((study.USUAL, 0), (study.EXTREME, 1)):
        found.append({"what": "conjecture", "grid": grid, "value": 1.0 + refuted, "is_refuted": refuted})
    return found


def verdicts(rows):
    return [each.verdict == REPRODUCED for each in judged(study.findings(rows))]


def test_claims_are_counted():
    won = rows(1.0, 2.0, lambda epsilon, budget: 0.5 if epsilon < 10 and budget > 16 else 2.0)
    assert study.share(won, ALIKE) == 0
    assert study.share(won, ORTHOGONAL) == pytest.approx(0.5 * 3 / 4 * 9 / 10)
    of_epsilon = study.share(won, ORTHOGONAL, epsilon=4.0)
    assert of_epsilon == pytest.approx(0.5 * 9 / 10)
    assert verdicts(won) == [True, True, False, True, True, False, False, True, True, False]
    few = [row for row in won if row["what"] == "variance" and row["epsilon"] == 0.25 and row["budget"] <= 32]
    assert study.share(few, ORTHOGONAL, least_k=4) == 1 / 2  # 4 users at 16 and at 32 rows
    lost = rows(1.0, 0.5, lambda epsilon, budget: 0.5)
    assert verdicts(lost) == [False] * 8 + [True, False]
    always = [row | ({"value": 0.5} if row.get("gradients") == ORTHOGONAL else {}) for row in lost]
    assert verdicts(always)[5:7] == [True, True]


def test_what_the_paper_does_not_say_is_no_claim_of_the_paper():
    found = study.findings(rows(1.0, 2.0, lambda epsilon, budget: 0.5))
    assert [each.claim for each in found if each.is_beyond] == [
        "With gradients alike and several rows of a user, ELS has the smaller variance in nearly all settings."
    ]


def test_the_conjecture_fails_where_delta_is_nearly_the_probability_of_being_drawn():
    """By hand, T = 1: at noise K s_ULS the event {x > t} alone passes delta, so that ELS needs more noise."""
    case = Case(group_size=2, p=0.5, steps=1, epsilon=0.1, delta=0.45)
    assert case.ratio() > 1.02
    noise = 2 * least_noise(MixtureOfGaussians.bernoulli(0.5, 1), 0.1, 0.45)
    event = 0.6
    with_unit = sum(stats.binom.pmf(j, 2, 0.5) * stats.norm.sf((event - j) / noise) for j in range(3))
    assert with_unit - 2.718281828**0.1 * stats.norm.sf(event / noise) > 1.02 * 0.45
    assert case.is_refuted()


def test_no_event_refutes_it_at_the_delta_of_a_guarantee():
    case = Case(group_size=8, p=0.5, steps=1, epsilon=0.5, delta=1e-6)
    assert case.ratio() <= 1
    assert not case.is_refuted()


def test_a_grid_reports_its_worst_point():
    good, bad = Case(8, 0.5, 1, 0.5, 1e-6), Case(2, 0.5, 1, 0.1, 0.45)
    found = study.looked_at(study.USUAL, [good, bad])
    assert [row["is_refuted"] for row in found] == [0, 1]
    assert found[1]["value"] == bad.ratio()
    line = study._conjecture_table(found + study.looked_at(study.EXTREME, [good])).cells[0]
    assert line[:4] == ["usual", "2", "1", "1"]
    assert line[-1] == "K 2, p 0.5, steps 1, epsilon 0.1, delta 0.45"


def test_the_usual_grid_holds_deltas_far_below_the_rate():
    assert all(case.delta <= 0.01 * case.p for case in study.usual())
    assert all(case.delta >= 0.5 * case.p and case.steps == 1 for case in study.extreme())
