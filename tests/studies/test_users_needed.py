"""The study of few users and many: equal compute, and claims that follow the outcome."""

import json
import math

import pytest
from studies.runner.findings import NOT_REPRODUCED, REPRODUCED, judged
from studies.runner.grid import NOTHING, TRIAL
from studies.runner.study import Scale, Work
from studies.runner.texts import TEXTS
from studies.runner.twins import EPSILON
from studies.users_needed import BARE, LENGTH, SEARCHED, STEPS, SUGGESTED, K, findings, grids, spent, tables

NUMBERS = {"64 customers": 64, "256 customers": 256, "helpdesk": 1603}


@pytest.mark.parametrize(("text", "count"), NUMBERS.items())
def test_every_setting_of_a_search_computes_as_many_rows_and_draws_no_more_users_than_there_are(
    tmp_path, text, count
):
    for grid in grids(Work(None, tmp_path, Scale.FULL), text, count, {}):
        for arm in grid.arms:
            for settings in arm.trials() if arm.name != SUGGESTED else ():
                keys = arm.derived({**grid.keys, **settings})
                assert _rows_computed(keys, count) == pytest.approx(4608, rel=0.05)
                assert keys["train.batch"] < 0.86 * count


def _rows_computed(keys, count):
    """The rows of all steps: users who are drawn once an epoch are divided into a whole number of steps."""
    drawn = keys["train.batch"]
    if keys.get("privacy.sampling") == "bins":
        drawn = count / round(count / drawn)
    return keys[K] * drawn * keys[STEPS]


def test_few_users_have_several_rows_each_and_many_have_one():
    assert spent(4608, 1603, {STEPS: 48}) == {
        STEPS: 48,
        K: 1,
        "train.batch": 96.0,
        "privacy.sampling": "bins",
    }
    assert spent(4608, 256, {STEPS: 16})[K] == 2
    assert spent(4608, 64, {STEPS: 16})[K] == 8


def test_training_with_privacy_and_without_has_as_many_trials(tmp_path):
    private, _, bare = grids(Work(None, tmp_path, Scale.SMALL), "helpdesk", 1603, {})
    assert len(private.arms[0].trials()) == len(bare.arms[0].trials()) == 18
    assert bare.at == bare.tuned_at == {EPSILON: (math.inf,)}


def test_fewer_customers_train_and_the_same_are_held_out(tmp_path):
    work = Work(None, tmp_path, Scale.SMALL)
    whole, few = (TEXTS[name].parts(work) for name in ("helpdesk", "64 customers"))
    units = {
        part: {json.loads(line)["customer"] for line in few[part].open(encoding="utf-8")} for part in few
    }
    assert len(units["train"]) == 64
    assert few["test"].read_text("utf-8") == whole["test"].read_text("utf-8")
    mails = [json.loads(line) for line in whole["train"].open(encoding="utf-8")]
    kept = [json.loads(line) for line in few["train"].open(encoding="utf-8")]
    assert kept == [mail for mail in mails if mail["customer"] in units["train"]]  # all of each


def rows(losses, noises):
    """Runs of three keys: before training the loss is 6, and without privacy 2."""
    found = []
    for text, count in NUMBERS.items():
        common = {"text": text, "part": "test", "users": count, "settings": json.dumps({STEPS: 16})}
        common |= {LENGTH: noises[text]}
        found.append(common | {"arm": NOTHING, "key": TRIAL, EPSILON: None, "loss": 6.0})
        searched, suggested = losses[text]
        for arm, epsilon, loss in (
            (SEARCHED, 8.0, searched),
            (SUGGESTED, 8.0, suggested),
            (BARE, math.inf, 2.0),
        ):
            settings = {STEPS: 16, "train.batch": 9, K: 1, "privacy.sampling": "bins"}
            settings |= {"privacy.mechanism": "uls"}
            settings = json.dumps(settings if arm == SUGGESTED else {STEPS: 16})
            for key in (1, 2, 3):
                more = {"arm": arm, EPSILON: epsilon, "key": key, "loss": loss + key / 1000}
                found.append(common | more | {"settings": settings})
    return found


NOISES = {"64 customers": 50.0, "256 customers": 10.0, "helpdesk": 1.0}  # little, part, most


def verdicts(losses, noises=NOISES, bare=2.0):
    found = rows(losses, noises)
    for row in found:
        row["loss"] += (bare - 2.0) if row["arm"] == BARE else 0.0
    return [(each.finding.family, each.verdict) for each in judged(findings(found))]


def test_bounds_that_were_set_after_a_measurement_are_no_finding():
    found = findings(rows(dict.fromkeys(NUMBERS, (4.0, 4.0)), NOISES))
    assert {each.family: each.is_check for each in found} == {
        "learning": True,
        "verdict": True,
        "suggestion": False,
        "more users": False,
    }


def test_claims_follow_the_outcome():
    good = verdicts({"64 customers": (5.6, 5.6), "256 customers": (4.4, 4.4), "helpdesk": (3.2, 3.2)})
    assert len(good) == 11
    assert {verdict for _, verdict in good} == {REPRODUCED}
    bad = verdicts({"64 customers": (3.2, 3.6), "256 customers": (5.4, 5.8), "helpdesk": (5.6, 5.9)})
    assert [family for family, verdict in bad if verdict == NOT_REPRODUCED] == [
        *("verdict", "suggestion") * 3,
        *("more users",) * 2,
    ]


def test_a_model_that_got_worse_bears_out_no_verdict():
    worse = verdicts(dict.fromkeys(NUMBERS, (6.5, 6.5)), dict.fromkeys(NUMBERS, 50.0))
    assert {verdict for family, verdict in worse if family == "verdict"} == {NOT_REPRODUCED}


def test_where_nothing_could_be_learnt_nothing_is_claimed_of_plans():
    found = verdicts(dict.fromkeys(NUMBERS, (6.5, 6.5)), bare=6.2)
    assert {family for family, _ in found} == {"learning", "more users"}
    assert {verdict for family, verdict in found if family == "learning"} == {NOT_REPRODUCED}


def test_the_table_names_the_settings_of_both():
    found = rows(dict.fromkeys(NUMBERS, (4.0, 4.2)), NOISES)
    (table,) = tables(found)
    assert len(table.cells) == 6
    said = [dict(zip(table.columns, cells, strict=True)) for cells in table.cells]
    assert {row["way"]: row["settings"] for row in said} == {
        SEARCHED: "16 steps",
        SUGGESTED: "uls: 16 steps of 9 users, 1 row of each, each once an epoch",
    }
    assert said[1]["against the search"].startswith("+22")
    assert said[0]["share of the gain"].startswith("50%")
