"""The study of example- and user-level sampling: each text is held to what the paper says of the one like it."""

import pytest
from studies.runner.findings import NOT_REPRODUCED, REPRODUCED, UNDECIDED, judged

from studies import els_uls

BUDGETS, EPSILONS = (5, 48), (1.0, 64.0)


def made(text, gaps, k=2, noise=0.9):
    """Runs on a text: ELS has the loss 3, and ULS as much more as `gaps` says by epsilon and budget.

    ELS has one row of each user and noise 1; ULS has k and `noise`.
    """
    rows = []
    for (epsilon, steps), gap in gaps.items():
        for key in (1, 2, 3):
            common = {
                "text": text,
                "key": key,
                "part": "test",
                els_uls.EPSILON: epsilon,
                els_uls.STEPS: steps,
            }
            els = {"rows_per_unit": 1, "noise_multiplier": 1.0, "settings": '{"privacy.rows_per_unit": 1}'}
            uls = {"noise_multiplier": noise, "settings": f'{{"privacy.rows_per_unit": {k}}}'}
            rows.append(common | els | {"arm": els_uls.ELS, "loss": 3.0 + key})
            rows.append(common | uls | {"arm": els_uls.ULS, "loss": 3.0 + key + gap + key / 1000})
    return rows


def verdicts(rows):
    return {each.finding.claim: each.verdict for each in judged(els_uls.findings(rows))}


def gaps(*losses):
    return dict(zip([(e, s) for e in EPSILONS for s in BUDGETS], losses, strict=True))


def test_posts_are_held_to_stack_overflow_and_articles_to_cc_news():
    as_stack_overflow = gaps(-0.1, -0.4, -0.02, -0.1)  # better everywhere, most at epsilon 1 and 48 steps
    found = verdicts(made("newsgroups", as_stack_overflow))
    assert len(found) == 7
    assert set(found.values()) == {REPRODUCED}
    as_cc_news = gaps(0.4, 0.1, 0.2, -0.1)  # worse where epsilon or the budget is small
    found = verdicts(made("articles", as_cc_news))
    assert len(found) == 6
    assert set(found.values()) == {REPRODUCED}
    refuted = [
        claim
        for claim, verdict in verdicts(made("articles", as_stack_overflow)).items()
        if verdict == NOT_REPRODUCED
    ]
    assert len(refuted) == 4
    assert all("ELS is better than ULS" in claim for claim in refuted)


def test_that_els_is_ahead_somewhere_is_judged_by_the_clearest_of_all_settings():
    barely = gaps(-0.1, -0.1, -0.001, -0.1)
    rows = made("articles", barely)
    claim = next(each for each in judged(els_uls.findings(rows)) if "In some setting" in each.finding.claim)
    assert "at epsilon 64 and with 5 steps" in claim.finding.statistic
    assert claim.finding.values == pytest.approx((0.0, 0.001, 0.002))
    assert claim.confidence == pytest.approx(1 - 0.05 / 4)
    assert claim.verdict == UNDECIDED


def test_a_budget_that_changes_nothing_refutes_that_compute_helps():
    found = verdicts(made("newsgroups", gaps(-0.1, -0.05, -0.1, -0.05)))
    assert [verdict for claim, verdict in found.items() if "larger budget" in claim] == [NOT_REPRODUCED] * 2


@pytest.mark.parametrize(
    ("k", "noise", "alike"),
    [(1, 1.0, "yes"), (2, 1.0, ""), (1, 0.9, "")],
    ids=["alike", "more rows", "less noise"],
)
def test_the_table_says_where_both_are_one_mechanism(k, noise, alike):
    rows = made("newsgroups", gaps(0.0, 0.0, 0.0, 0.0), k, noise)
    (table,) = els_uls.tables(rows)
    assert [line[5:] for line in table.cells] == [["1", str(k), "1", f"{noise:g}", alike]] * 4
    assert {len(line) for line in table.cells} == {len(table.columns)}
    assert f"in {4 if alike else 0} of 4 lines" in table.note
    said = [each.statistic for each in els_uls.findings(rows) if "not do worse" in each.claim]
    assert all(("one mechanism" in each) == bool(alike) for each in said)
