"""The study of noise variance: its numbers by hand, its shares by count, the counterexample by an event alone."""

import pytest
from scipy import stats
from studies.noise_variance import ALIKE, ORTHOGONAL, Case

from confide.privacy.accounting import MixtureOfGaussians, least_noise
from studies import noise_variance as study


def test_variances_are_those_of_the_equations():
    row = study.variances(epsilon=4.0, budget=128.0)
    els = least_noise(MixtureOfGaussians.binomial(32, 128 / 32768, 1000), 4.0, 1e-6)
    uls = least_noise(MixtureOfGaussians.bernoulli(32 / 1024, 1000), 4.0, 1e-6)
    assert row["els"] == pytest.approx((els * 10 / 128) ** 2)
    assert row["uls"][ALIKE][32] == pytest.approx((uls * 10 / 32) ** 2)
    assert row["uls"][ORTHOGONAL][32] == pytest.approx((uls * 10 / 2 / 32) ** 2)
    assert set(row["uls"][ALIKE]) == {4, 32}  # 256 users would get half a row each


def rows(els, alike, orthogonal):
    return [
        {
            "epsilon": epsilon,
            "budget": budget,
            "els": els,
            "uls": {ALIKE: {4: alike, 16: alike}, ORTHOGONAL: {4: orthogonal(epsilon, budget), 16: 9.0}},
        }
        for epsilon in study.EPSILONS
        for budget in study.BUDGETS
    ]


def test_claims_are_counted():
    won = rows(1.0, 2.0, lambda epsilon, budget: 0.5 if epsilon < 10 and budget > 16 else 2.0)
    assert study.share(won, ALIKE) == 0
    assert study.share(won, ORTHOGONAL) == pytest.approx(0.5 * 3 / 4 * 9 / 10)
    assert [one["holds"] for one in study.claims(won)] == [True, True, False, True, True]
    with_four = study.share(won[:2], ORTHOGONAL, least_k=4)  # 4 users at 16 and at 32 rows
    assert with_four == 1 / 2
    lost = rows(1.0, 0.5, lambda epsilon, budget: 0.5)
    assert [one["holds"] for one in study.claims(lost)] == [False, False, False, False, False]


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
    found = study.looked_at(iter([good, bad]))
    assert (found["points"], found["above_one"], found["refuted"]) == (2, 1, 1)
    assert found["at"] == {"K": 2, "p": 0.5, "steps": 1, "epsilon": 0.1, "delta": 0.45}
    assert found["largest_ratio"] == bad.ratio()


def test_the_usual_grid_holds_deltas_far_below_the_rate():
    assert all(case.delta <= 0.01 * case.p for case in study.usual())
    assert all(case.delta >= 0.5 * case.p and case.steps == 1 for case in study.extreme())
