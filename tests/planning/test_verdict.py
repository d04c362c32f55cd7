"""Whether there are enough units is said of a plan, by the rule that suggestions follow and what was measured."""

import json
import math
import re

import numpy as np
import pytest

from confide.config.loading import check
from confide.data.shape import Shape
from confide.planning.plan import Size, in_plan
from confide.planning.progress import COMMON_FASTER, own_rate
from confide.planning.suggest import suggest
from confide.planning.verdict import MOST, PART, verdict
from confide.privacy import mechanisms
from confide.privacy.accounting import BallsInBins, FixedBins, MixtureOfGaussians, delta_default, least_noise
from confide.privacy.correlated_noise import INDEPENDENT, Banded, Buffered
from confide.privacy.mechanisms.statement import calibrate
from confide.tuning.space import altered
from tests.command import World, confide, tiny_model

SIZE = Size(5_300_000, 5_300_000, 4, 256, 8192)


def judged(
    units: int,
    rate: float = 0.1,
    rows: int = 1,
    trainable: int = 5_300_000,
    train=None,
    adapter=None,
    **privacy,
):
    config = check(
        {
            "data": {"train": __file__, "unit": "user"},
            "privacy": {"epsilon": 8.0, "rows_per_unit": rows} | privacy,
            "train": {"steps": 60, "batch": units * rate} | (train or {}),
            "adapter": adapter or {},
        }
    )
    shape = Shape(np.full(units, 40, np.int64), 40 * units, 2000 * units, True)
    mechanism = mechanisms.build(config)
    setting = calibrate(
        mechanism, shape, config.privacy.epsilon, config.privacy.noise_multiplier, config.privacy.delta
    )
    size = Size(trainable, trainable, 4, 256, 8192)
    return verdict(config, shape, size, in_plan("this config", setting, config.privacy.epsilon, 50.0, size))


def test_an_epsilon_that_protects_little_is_called_so():
    assert ", which protects little: " in judged(500, epsilon=15.0)["words"][0]
    nothing = judged(500, epsilon=1e6)
    assert nothing["grade"] == "hardly any protection"
    assert ", which protects next to nothing: " in nothing["words"][0]
    assert "protects little" not in judged(500, epsilon=10.0)["words"][0]


def test_a_mechanism_that_protects_rows_is_judged_by_rows():
    """Of 50 users with 40 rows each, 2,000 rows are protected."""
    found = judged(50, 4.0, mechanism="dp-sgd", rows_per_unit=4, delta=1e-5)
    assert "2,000 rows" in found["words"][0]
    assert "units" not in found["words"][0]
    assert found["units_for_most"] > 500


@pytest.mark.parametrize(
    ("units", "rate", "delta", "near", "expect"),
    [
        (8155, 400 / 8103, 1.9e-6, 1.29, "most"),  # an earlier run
        (1603, 192 / 1603, 1e-5, 3.1, "part"),  # customers of `confide study user-level`
        (254, 120 / 254, 4.24e-5, 11.8, "part"),
        (117, 60 / 117, 2.8e-6, 33.7, "little"),  # mail, which kept more than that: 30%
        (63, 35 / 63, 2.347e-4, 42.6, "little"),
        (70, 0.5, None, None, "little"),
        (10, 0.5, None, None, "little"),
    ],
)
def test_some_runs_and_seventy_users(units, rate, delta, near, expect):
    steps = {63: 40, 254: 40, 1603: 24}.get(units, 60)
    found = judged(units, rate, delta=delta, train={"steps": steps})
    assert found["expect"] == expect
    if near is not None:
        assert found["noise_over_gradient"] == pytest.approx(near, rel=0.05)
    assert f"{units:,} units" in found["words"][0]
    assert re.search(r"is about [\d,.]+ times as long", found["words"][0])
    assert ("too few units" in found["words"][0]) == (expect == "little")


def test_as_many_units_as_it_says_are_enough():
    found = judged(70, 0.5, delta=1e-5)
    assert found["expect"] == "little"
    assert judged(round(1.05 * found["units_for_part"]), 0.5, delta=1e-5)["expect"] == "part"
    assert judged(round(0.9 * found["units_for_part"]), 0.5, delta=1e-5)["expect"] == "little"
    assert judged(round(1.05 * found["units_for_most"]), 0.5, delta=1e-5)["expect"] == "most"
    assert f"about {found['units_for_part']:,} units for a quarter of what" in found["words"][1]


def test_it_follows_noise_weights_and_rows():
    first = judged(500)["noise_over_gradient"]
    assert judged(500, trainable=4 * 5_300_000)["noise_over_gradient"] == pytest.approx(2 * first)
    assert judged(500, rows=4)["noise_over_gradient"] < first
    assert judged(500, epsilon=1.0)["noise_over_gradient"] > 2 * first


def test_correlated_noise_counts_with_what_it_leaves_in_the_weights():
    independent, correlated = judged(1603, 0.1), judged(1603, 0.1, bands=8)
    noises = []
    for bands in (1, 8):
        process = MixtureOfGaussians.bernoulli(0.1 * bands, math.ceil(60 / bands))
        multiplier = least_noise(process, 8.0, delta_default(1603, 40 * 1603))
        noises.append(multiplier * Banded(bands).sensitivity * Banded(bands).noise_in_weights([1.0] * 60))
    ratio = correlated["noise_over_gradient"] / independent["noise_over_gradient"]
    assert ratio == pytest.approx(noises[1] / noises[0], rel=0.01)
    assert ratio < 0.85
    assert "correlated over steps" in correlated["words"][0]
    assert "correlated" not in independent["words"][0]


def test_noise_that_all_later_steps_take_back_counts_alike():
    dealt, buffered = judged(1603, 0.1, sampling="bins"), judged(1603, 0.1, sampling="bins", buffers=2)
    noises = []
    for process, matrix in (
        (BallsInBins(10, 60), INDEPENDENT),
        (FixedBins.of(10, 60, Buffered(2)), Buffered(2)),
    ):
        multiplier = least_noise(process, 8.0, delta_default(1603, 40 * 1603))
        noises.append(multiplier * matrix.sensitivity * matrix.noise_in_weights([1.0] * 60))
    ratio = buffered["noise_over_gradient"] / dealt["noise_over_gradient"]
    assert ratio == pytest.approx(noises[1] / noises[0], rel=0.01)
    assert ratio < 0.85
    assert "correlated over steps" in buffered["words"][0]


@pytest.mark.parametrize(
    "changes", [{"epsilon": None, "noise_multiplier": 0.0}, {"train": {"optimizer": "sgd"}}]
)
def test_where_no_rule_is_known_nothing_is_said(changes):
    assert judged(500, **changes) is None


def test_a_learning_rate_that_is_far_from_the_rules_is_told():
    """It is the one with which a suggestion of the same steps is ranked."""
    found = judged(1603, 0.1, sampling="bins", bands=10)
    rate, said = found["learning_rate"], found["words"][-1]
    assert said.startswith(f"the learning rate is 0.001; by the same rule about {rate:g} suits")
    near = judged(1603, 0.1, sampling="bins", bands=10, train={"learning_rate": rate * 1.9})
    far = judged(1603, 0.1, sampling="bins", bands=10, train={"learning_rate": rate * 2.1})
    assert len(near["words"]) + 1 == len(far["words"])
    noise = judged(1603, 0.1, sampling="bins")["learning_rate"]
    assert noise < rate  # independent noise bears less
    share = Banded(10).walk_share([1.0] * 60)
    assert rate == pytest.approx(own_rate(60, "constant", math.inf, share), rel=0.05)
    common = judged(1603, 0.1, sampling="bins", bands=10, common_tokens=0.25)
    assert common["learning_rate"] == pytest.approx(COMMON_FASTER * rate, rel=0.05)


def test_the_rate_of_a_plan_is_that_of_a_suggestion_of_its_own():
    """Both know the noise of their steps, and the same rule."""
    config = check(
        {
            "data": {"train": __file__, "unit": "user"},
            "privacy": {"epsilon": 8.0, "rows_per_unit": 2, "scales": {"embeddings": 2.0}},
            "train": {"steps": 32, "batch": 100.0},
        }
    )
    shape = Shape(np.full(1000, 40, np.int64), 40_000, 2_000_000, True)
    best = altered(config, suggest(config, shape, SIZE, count=1)["ranked"][0]["settings"], "test")
    setting = calibrate(mechanisms.build(best), shape, 8.0, None, best.privacy.delta)
    found = verdict(best, shape, SIZE, in_plan("this config", setting, 8.0, 50.0, SIZE))
    assert found["learning_rate"] == pytest.approx(best.train.learning_rate, rel=0.03)


def test_where_no_learning_rate_is_known_none_is_told():
    found = judged(1603, 0.1, adapter={"kind": "bias"})
    assert found["learning_rate"] is None
    assert not any("learning rate" in line for line in found["words"])


def test_the_plan_says_it(tmp_path):
    world = World(tmp_path, tiny_model(tmp_path))
    said, facts = confide("plan", world.path), json.loads(confide("plan", world.path, "--json").out)
    assert facts["verdict"]["expect"] in ("most", "part", "little")
    grade, words = facts["verdict"]["grade"], facts["verdict"]["words"]
    assert grade == {"most": "good", "part": "costly", "little": "poor"}[facts["verdict"]["expect"]]
    claim, verdict, table, *_ = said.out.split("\n\n")
    assert claim.startswith("epsilon")
    assert verdict.startswith(f"verdict: {grade}. ")
    assert words[0][1:] in verdict
    assert len(verdict.splitlines()) == len(words)
    assert "this config" in table
    assert said.out.splitlines()[-1].startswith("the verdict was measured with the bundled model")
    assert facts["verdict"]["noise_over_gradient"] > 0
    large = confide("plan", world.path, "privacy.delta=0.1")
    assert "delta = 0.1 is large" in large.out
    assert "is large" not in confide("plan", world.path, "privacy.delta=1e-6").out
    assert MOST < PART < math.inf
