"""What an arm gains of what training without privacy gains, and the studies that ask it: recipe, user-level."""

import math

import pytest
from studies.recipe import CHOSEN, COMMON, CONSTANT, EPOCHS, KEPT, NOISY, PLAIN
from studies.runner import twins
from studies.runner.findings import NOT_REPRODUCED, REPRODUCED, judged
from studies.runner.grid import NOTHING
from studies.runner.study import Scale, Work
from studies.runner.twins import EPSILON, TUNED, gained, without_repeats

from studies import recipe, user_level


def rows(losses, text="more newsgroups", before=7.0):
    """Runs of three keys with a loss by (arm, epsilon), and the model before training."""
    common = {"text": text, "part": "test", "settings": "{}", "noise_multiplier": 0.7}
    found = [common | {"arm": NOTHING, "key": 0, EPSILON: None, "loss": before, "perplexity": 1096.6}]
    for (arm, epsilon), loss in losses.items():
        for key in (1, 2, 3):
            found.append(common | {"arm": arm, EPSILON: epsilon, "key": key, "loss": loss + key / 1000})
    return found


def test_a_share_is_of_the_gain_of_the_twin_that_is_named():
    found = rows({("a", 8.0): 5.0, ("a", math.inf): 3.0, ("a" + TUNED, math.inf): 2.0}, before=7.0)
    own, tuned = (gained(found, "more newsgroups", "a", 8.0, twin) for twin in (None, "a" + TUNED))
    assert own == pytest.approx(dict.fromkeys((1, 2, 3), 0.5), abs=1e-3)
    assert tuned == pytest.approx(dict.fromkeys((1, 2, 3), 0.4), abs=1e-3)
    assert twins.percents(own) == "50% (50% to 50%)"


def test_the_model_before_training_is_told_once_for_each_text():
    found = rows({("a", 8.0): 5.0}) + rows({}) + rows({}, text="other")
    assert [row["text"] for row in without_repeats(found) if row["arm"] == NOTHING] == [
        "more newsgroups",
        "other",
    ]


def test_both_recipes_spend_as_much_and_twins_are_tuned_with_as_many_trials(tmp_path):
    private, bare = recipe.grids(Work(None, tmp_path, Scale.SMALL))
    for grid in (private, bare):
        assert {arm.keys["train.batch"] * arm.keys["privacy.rows_per_unit"] for arm in grid.arms} == {128}
    assert [len(arm.trials()) for arm in (*private.arms, *bare.arms)] == [2] * 4
    assert private.at[EPSILON] == (3.0, 8.0, math.inf)
    assert math.inf not in private.tuned_at[EPSILON]  # the twin keeps what was chosen with privacy
    assert bare.at[EPSILON] == bare.tuned_at[EPSILON] == (math.inf,)
    assert {arm.name for arm in bare.arms} == {PLAIN + TUNED, CHOSEN + TUNED}


def outcome(plain, chosen, tuned, epochs=None, kept=None):
    made = {}
    for arm, loss in ((PLAIN, plain), (CHOSEN, chosen), (EPOCHS, epochs), (KEPT, kept)):
        if loss is not None:
            made |= {(arm, 3.0): loss, (arm, 8.0): loss, (arm, math.inf): 5.0, (arm + TUNED, math.inf): tuned}
    return rows(made)


@pytest.mark.parametrize("scale", [Scale.SMALL, Scale.FULL])
def test_all_ways_of_the_recipe_ask_for_as_many_rows(tmp_path, scale):
    for grid in recipe.grids(Work(None, tmp_path, scale)):
        assert len({arm.keys["train.batch"] * arm.keys["privacy.rows_per_unit"] for arm in grid.arms}) == 1


def test_claims_of_the_recipe_follow_the_outcome():
    found = judged(recipe.findings(outcome(plain=5.6, chosen=5.1, tuned=4.95)))
    assert [each.verdict for each in found] == [REPRODUCED] * 7
    found = judged(recipe.findings(outcome(plain=5.3, chosen=5.6, tuned=5.2)))
    assert [each.verdict for each in found] == [NOT_REPRODUCED] * 7
    found = judged(recipe.findings(outcome(plain=5.6, chosen=5.1, tuned=4.95, epochs=5.0)))
    assert [each.verdict for each in found] == [REPRODUCED] * 13
    found = judged(recipe.findings(outcome(plain=5.6, chosen=5.1, tuned=4.95, epochs=5.0, kept=4.99)))
    assert [each.verdict for each in found] == [REPRODUCED] * 19
    assert len({each.finding.claim for each in found}) == 19
    late = [each.finding for each in found if each.finding.is_late]
    assert len(late) == 4
    assert all("the plain recipe gains without privacy, tuned for that" in each.claim for each in late)


def test_what_came_later_keeps_the_others_as_they_were_and_has_one_twin(tmp_path):
    first, *later, twin = recipe.grids(Work(None, tmp_path, Scale.FULL))
    assert [arm.name for arm in first.arms] == [PLAIN, CHOSEN, EPOCHS]
    assert [arm.name for grid in later for arm in grid.arms] == [KEPT, COMMON, CONSTANT, NOISY]
    assert [arm.name for arm in twin.arms] == [PLAIN + TUNED]
    assert twin.arms[0].keys == first.arms[0].keys
    assert twin.at[EPSILON] == twin.tuned_at[EPSILON] == (math.inf,)
    for grid in later:
        assert math.inf not in grid.at[EPSILON]
        (arm,) = grid.arms
        assert grid.at[EPSILON] == ((3.0,) if arm.name == NOISY else (3.0, 8.0))
        assert arm.keys["privacy.bands"] == (
            10 if arm.name == NOISY else round(6854 / arm.keys["train.batch"])
        )


def test_an_arm_of_one_epsilon_claims_nothing_at_another():
    made = {(arm, 3.0): loss for arm, loss in ((PLAIN, 5.6), (CHOSEN, 5.3), (NOISY, 5.1))}
    made |= {(arm, 8.0): loss for arm, loss in ((PLAIN, 5.4), (CHOSEN, 5.1))}
    bare = {(arm, math.inf): 5.0 for arm in (PLAIN, CHOSEN, PLAIN + TUNED)}
    found = rows(made | bare)
    claims = [each.claim for each in recipe.findings(found) if "10 bands" in each.claim]
    assert len(claims) == 3
    assert all(claim.startswith("At epsilon 3") for claim in claims)
    (table,) = recipe.tables(found)
    assert [row[1] for row in table.cells if row[0] == NOISY] == ["3"]


def user_rows(many, few):
    found = []
    for text, loss in ((user_level.MANY, many), (user_level.FEW, few)):
        losses = {(user_level.ULS, 8.0): loss, (user_level.ULS, math.inf): 5.0}
        found += rows(losses | {(user_level.ULS + TUNED, math.inf): 5.0}, text)
    return found


def test_claims_of_user_level_training_follow_the_outcome():
    found = judged(user_level.findings(user_rows(5.2, 5.9)))
    assert [each.verdict for each in found] == [REPRODUCED] * 5
    found = judged(user_level.findings(user_rows(7.5, 7.1)))
    assert [each.verdict for each in found] == [NOT_REPRODUCED] * 5


def test_a_gain_is_held_against_the_best_way_without_privacy():
    """A way that is bad without privacy must not make its private runs look good."""
    found = rows(
        {
            (user_level.ULS, 8.0): 6.0,
            (user_level.OFTEN, 8.0): 6.2,
            (user_level.ULS, math.inf): 5.5,
            (user_level.OFTEN, math.inf): 5.0,
            (user_level.ULS + TUNED, math.inf): 5.5,
            (user_level.OFTEN + TUNED, math.inf): 4.0,
        },
        user_level.FEW,
    )
    assert twins.best_twin(found, user_level.FEW) == user_level.OFTEN + TUNED
    share = next(
        each.finding for each in judged(user_level.findings(found)) if each.finding.family == "share"
    )
    assert share.values == pytest.approx((1 / 3,) * 3, abs=1e-3)
