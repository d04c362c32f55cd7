"""The study of cohorts: what strategies take of a grid of made-up losses, what they lose, and the claims."""

import numpy as np
import pytest
from studies.parts.user_sampling import COHORT, GROUP, ORACLE, OWN, PRINTED, RANDOM
from studies.runner.findings import NOT_REPRODUCED, REPRODUCED, judged

from confide.planning.user_sampling import Split
from studies import cohorts as study

KS, NS, MOST = (1, 2, 4), (8.0, 16.0, 32.0), 32


def rows(loss, validation=None, noise=lambda n: 1.0, norm=lambda k: k**-0.1):
    """Made-up runs at two epsilons; trials come to the validation loss, or as much as tests, and to more.

    Args:
        loss, validation: (epsilon, k, n) -> loss.
    """
    found = [
        {"part": "norm", "privacy.epsilon": None, "privacy.rows_per_unit": k, "norm": norm(k)} for k in KS
    ]
    for epsilon in (1.0, 16.0):
        for k in KS:
            for n in (n for n in NS if k * n <= MOST):
                place = {"privacy.epsilon": epsilon, "privacy.rows_per_unit": k, "train.batch": n}
                row = place | {"noise_multiplier": noise(n)}
                least = (validation or loss)(epsilon, k, n)
                found += [row | {"part": "validation", "key": 0, "loss": least + more} for more in (0.5, 0.0)]
                found += [
                    row | {"part": "test", "key": key, "loss": loss(epsilon, k, n) + key / 1000}
                    for key in (1, 2, 3)
                ]
    return found


def verdicts(found):
    return [each.verdict for each in judged(study.findings(found))]


def most_users(epsilon, k, n):
    """Return a loss that falls with users: what Estimate-and-Double finds where noise does not grow with them."""
    return 2.0 - 0.1 * np.log2(n) - 0.01 * np.log2(k)


def middling(epsilon, k, n):
    """Return a loss that is least at k = 2, whatever the budget."""
    return 2.0 - 0.1 * np.log2(k * n) + 0.2 * abs(np.log2(k) - 1)


def test_each_strategy_takes_what_it_says():
    found = study.measured(rows(middling))[1.0]
    assert found.budgets == [16.0, 32.0]
    assert found.best(32.0) == Split(2, 16.0)
    taken = {name: by_budget[32.0] for name, by_budget in found.picked.items()}
    assert taken[OWN] == taken[COHORT] == [Split(1, 32.0)]
    assert taken[PRINTED] == taken[GROUP] == [Split(4, 8.0)]
    assert taken[ORACLE] == [Split(2, 16.0)]
    assert set(taken[RANDOM]) == {Split(1, 32.0), Split(2, 16.0), Split(4, 8.0)}
    assert found.lost(ORACLE, 32.0) == pytest.approx(0)
    assert found.lost(GROUP, 32.0) == pytest.approx(0.2)
    assert found.lost(RANDOM, 32.0) == pytest.approx(0.4 / 3)


def test_noise_that_grows_with_users_makes_it_double_rows():
    found = study.measured(rows(middling, noise=lambda n: n))[1.0]
    assert found.picked[OWN][32.0] == [Split(4, 8.0)]


def test_the_best_split_and_the_oracle_are_led_by_validation_and_judged_by_the_test():
    found = study.measured(rows(most_users, validation=lambda epsilon, k, n: -k))[1.0]
    assert found.best(32.0) == Split(4, 8.0)
    assert found.picked[ORACLE][32.0] == [Split(4, 8.0)]
    assert found.lost(COHORT, 32.0) == pytest.approx(-0.2 + 0.02)


def test_claims_follow_the_outcome():
    def norm(k):
        return {1: 1.0, 2: 0.4, 4: 0.39}[k]  # doubled once, and then users

    assert verdicts(rows(middling, norm=norm)) == [REPRODUCED] * 13
    worst = {1: 0.3, 2: 0.5, 4: 0.1}
    found = verdicts(rows(lambda epsilon, k, n: worst[k], norm=norm))
    assert found == [NOT_REPRODUCED] * 12 + [REPRODUCED]


def test_each_epsilon_is_judged_by_itself():
    """The best split at one epsilon, the worst at the other: the mean over both would be neither."""

    def norm(k):
        return {1: 1.0, 2: 0.4, 4: 0.39}[k]

    found = judged(study.findings(rows(lambda e, k, n: middling(e, k, n) * (1 if e > 1 else -1), norm=norm)))
    by_epsilon = {
        epsilon: {each.verdict for each in found if each.finding.claim.endswith(f"at epsilon {epsilon}.")}
        for epsilon in (1, 16)
    }
    assert by_epsilon == {1: {NOT_REPRODUCED}, 16: {REPRODUCED}}


def test_an_epsilon_that_the_paper_does_not_have_is_beyond_it():
    made = [
        row | {study.EPSILON: {1.0: 0.25}.get(row[study.EPSILON], row[study.EPSILON])}
        for row in rows(middling)
    ]
    beyond = {each.claim: each.is_beyond for each in study.findings(made) if "printed" not in each.claim}
    assert {claim.rpartition("epsilon ")[2]: is_beyond for claim, is_beyond in beyond.items()} == {
        "0.25.": True,
        "16.": False,
    }


def test_budgets_at_which_it_is_as_good_as_the_oracle_are_counted():
    """It takes most users at both budgets; at one of them that is 2% worse, or 2% better in the mean but not surely."""

    def loss(epsilon, k, n):
        return 2.0 + 0.02 * (k * n == 32 and k == 1)

    made = rows(loss, validation=lambda epsilon, k, n: 2.0 - 0.1 * k)
    counted = [each for each in study.findings(made) if "as the oracle" in each.claim]
    assert [(each.values, each.low) for each in counted] == [((1.0,), 2)] * 2
    for row in made:
        if row["part"] == "test" and row[study.K] * row[study.N] == 32 and row[study.K] == 1:
            row["loss"] = 1.98 + {1: -0.1, 2: 0.0, 3: 0.1}[row["key"]]
    counted = [each for each in study.findings(made) if "as the oracle" in each.claim]
    assert [each.values for each in counted] == [(1.0,)] * 2


def test_a_rule_that_does_not_double_rows_alone_is_not_what_the_paper_printed():
    steep = judged(study.findings(rows(middling, norm=lambda k: {1: 1.0, 2: 1.3, 4: 1.4}[k])))
    (printed,) = (each for each in steep if "always doubles rows" in each.finding.claim)
    assert printed.verdict == NOT_REPRODUCED


def test_strategies_are_compared_where_they_choose_otherwise():
    def norm(k):  # at budget 16 it takes most users, at 32 it does not
        return {1: 1.0, 2: 0.8, 4: 0.3}[k]

    def noise(n):
        return {8.0: 1.0, 16.0: 1.1, 32.0: 1.8}[n]

    made = rows(middling, norm=norm, noise=noise)
    found = study.measured(made)
    assert study.differ(found[1.0], COHORT).tolist() == [False, True]
    claim, _ = (each for each in study.findings(made) if f"than {COHORT} at" in each.claim)
    least = [found[1.0].lost(name, 32.0) for name in (COHORT, OWN)]
    assert claim.values == pytest.approx(tuple(least[0] - least[1]))
    assert "1 of 2 budgets" in claim.statistic
    always = rows(middling)  # it takes most users everywhere
    assert not any(f"than {COHORT} at" in each.claim for each in study.findings(always))
    assert (
        "At epsilon 1 and 16 Estimate-and-Double always chooses the most users"
        in study.tables(always)[2].note
    )
    assert "always chooses the most users" not in study.tables(made)[2].note


def test_tables_mark_the_best_split_of_each_budget():
    heat, _, lost, chosen = study.tables(rows(middling))
    marked = [
        [head for head, cell in zip(heat.columns, line, strict=True) if "**" in cell] for line in heat.cells
    ]
    assert marked == [[], ["n = 8 users", "n = 16 users"], [], []]
    shown = {tuple(line[:2]): line[-1] for line in lost.cells}
    assert len(shown) == 3 * len(study.STRATEGIES)
    assert shown["16", ORACLE] == shown["all, in the mean", ORACLE] == "+0.0% (+0.0% to +0.0%)"
    assert chosen.cells[-1] == ["16", "best on validation text", "2 x 8", "2 x 16"]


def test_a_budget_has_as_many_rows_at_every_split(tmp_path, monkeypatch):
    sizes = {
        "ks": KS,
        "ns": NS,
        "budget": MOST,
        "steps": 1,
        "rates": (1.0, 2.0),
        "epsilons": (1.0,),
        "seeds": 1,
    }
    monkeypatch.setattr(study, "_SIZES", {study.Scale.TINY: sizes})
    work = study.Work(None, tmp_path, study.Scale.TINY)
    places = [(k, n) for grid in study.grids(work) for k in grid.at[study.K] for n in grid.at[study.N]]
    assert places == [(1, 8.0), (1, 16.0), (1, 32.0), (2, 8.0), (2, 16.0), (4, 8.0)]
    (arm,) = study.grids(work)[1].arms
    asked = {"train.batch": 16.0, "privacy.rows_per_unit": 2}
    assert arm.derived(asked) == asked


def test_the_picture_has_a_panel_for_each_epsilon():
    (plot,) = study.plots(rows(middling))
    assert plot.svg.count("rows a step") == 2
    assert all(plot.svg.count(f"<title>{name}: ") == 4 for name in (OWN, RANDOM, COHORT, GROUP))
    assert (
        f"<title>{COHORT}: 32, {100 * np.expm1(0.2):.4g}</title>" in plot.svg
    )  # a change of the perplexity, in %
