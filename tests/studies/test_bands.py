"""The study of correlated noise: rates, places and claims against made-up losses."""

import pytest
from studies.parts import short_runs
from studies.parts.short_runs import HELPDESK
from studies.runner.findings import NOT_REPRODUCED, REPRODUCED, judged
from studies.runner.study import Scale, Work

from confide.planning.progress import best_rate
from confide.privacy.correlated_noise import Banded
from studies import bands as study


def grid(text="newsgroups", scale=Scale.SMALL):
    return study.grid(Work(None, None, scale), text)


def keys_of(name, text="newsgroups", steps=32):
    """The keys of a run of an arm, as the grid makes them."""
    made = grid(text)
    arm = next(arm for arm in made.arms if arm.name == name)
    return arm.derived(
        {**made.keys, **arm.keys, "train.steps": steps, short_runs.FACTOR: 1.0, study.FIRST: 0.6}
    )


def test_the_rate_grows_as_less_noise_stays():
    independent, most = keys_of(study.INDEPENDENT), keys_of(study.MOST)
    assert independent["train.learning_rate"] == pytest.approx(best_rate(32, "constant"))
    assert most["train.learning_rate"] == pytest.approx(
        best_rate(32, "constant") / Banded(16).walk_share([1.0] * 32) ** 0.5
    )
    assert most["train.betas"] == (0.6, 0.999)
    assert study.FIRST not in most


@pytest.mark.parametrize("text", ["newsgroups", "articles", HELPDESK])
def test_every_arm_has_as_many_trials_and_bands_ask_for_their_draws(text):
    arms = grid(text).arms
    assert tuple(arm.name for arm in arms) == study.ARMS
    assert {len(arm.trials()) for arm in arms} == {8}
    assert "privacy.bands" not in arms[0].keys
    assert [arm.keys["privacy.sampling"] for arm in arms[1:]] == ["poisson", "poisson", "bins"]
    assert arms[2].keys["privacy.bands"] == arms[3].keys["privacy.bands"]


@pytest.mark.parametrize(
    ("scale", "users"),
    [
        (Scale.SMALL, {"newsgroups": 1789, "articles": 488, HELPDESK: 1603}),
        (Scale.FULL, {"newsgroups": 1789, "articles": 488, HELPDESK: 1603}),
    ],
)
def test_a_text_has_users_for_its_bands(scale, users):
    for text, count in users.items():
        arms = grid(text, scale).arms
        most = max(arm.keys.get("privacy.bands", 1) for arm in arms)
        assert most * short_runs.SIZES[scale]["rows"][text] <= count


def rows(**losses):
    """A row for each arm and run key."""
    return [
        {
            "text": "newsgroups",
            "arm": getattr(study, arm),
            "part": "test",
            "key": key,
            "loss": loss + 0.001 * key,
            short_runs.EPSILON: 8.0,
            short_runs.STEPS: 32,
            "settings": "{}",
        }
        for arm, loss in losses.items()
        for key in (1, 2, 3)
    ]


def test_correlated_noise_is_held_against_independent_noise():
    made = rows(INDEPENDENT=5.0, FEW=5.1, MOST=4.8, KEPT=4.7)
    verdicts = {each.finding.claim.split(": ")[-1]: each.verdict for each in judged(study.findings(made))}
    assert verdicts == {
        f"{study.FEW} (newsgroups).": NOT_REPRODUCED,
        f"{study.MOST} (newsgroups).": REPRODUCED,
        f"{study.KEPT} (newsgroups).": REPRODUCED,
    }
    against_groups = [
        each.finding.claim for each in judged(study.findings(made)) if "beats groups" in each.finding.claim
    ]
    assert len(against_groups) == 1
    [table] = study.tables(made)
    assert [line[3] for line in table.cells] == list(study.ARMS)
