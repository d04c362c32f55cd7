"""Many runs of one claim: a threshold from half of them, exact rates from the others."""

import json
import math

import numpy as np
import pytest
from scipy import stats

from confide.auditing import repeated
from confide.auditing.attack import CanaryScores
from confide.auditing.bounds import clopper_pearson
from confide.auditing.game import Claim
from confide.config.loading import check
from confide.config.schema import Config
from confide.models import loading as models
from confide.privacy.accounting import MixtureOfGaussians
from confide.privacy.mechanisms.values import PRESENCE
from confide.randomness.streams import RunKey
from confide.runs.canaries import Canary, Manifest
from confide.runs.folder import Run
from confide.runs.loop import fine_tune
from confide.utils.console import Console
from confide.utils.errors import InputError
from tests.command import confide
from tests.runs.test_canaries import planted

MU, DELTA = 1.0, 1e-5
CURVE = MixtureOfGaussians.bernoulli(1.0, 1).curve(1 / MU)
CLAIM = Claim("a row", "zero-out", CURVE.epsilon(DELTA), DELTA, CURVE, one_row=True)
NOTHING = Claim("a row", "zero-out", math.inf, DELTA, None, one_row=True)


def world(runs: int, apart: float, generator) -> tuple[np.ndarray, np.ndarray]:
    """Scores of Gaussian worlds `apart` standard deviations from each other, and fair coins."""
    coins = generator.random(runs) < 0.5
    return generator.normal(size=runs) + apart * coins, coins


def test_the_best_guesser_of_the_claimed_curve_is_no_violation():
    generator = np.random.default_rng(0)
    trials = 2000
    wide = 0.2  # a delta at which so many runs could show more than the epsilon of a curve
    epsilon = CURVE.epsilon(wide)
    claim = Claim("a row", "zero-out", epsilon, wide, CURVE, one_row=True)
    found = [repeated.count(claim, *world(200, MU, generator)) for _ in range(trials)]
    allowed = 0.05 + 2 * math.sqrt(0.05 * 0.95 / trials)
    assert np.mean([each.refutes for each in found]) <= allowed
    assert min(each.strongest for each in found) > epsilon
    assert np.mean([each.bound > epsilon for each in found]) <= allowed


@pytest.mark.parametrize(("runs", "fp"), [(30, 0), (40, 3), (300, 60)])
def test_counts_refute_where_their_exact_intervals_leave_the_curve(runs, fp):
    """Of a Gaussian curve the exact true positive rate is known; intervals by another library."""

    def by_hand(tp: int, fp: int) -> bool:
        least = stats.binomtest(tp, runs, alternative="greater").proportion_ci(0.975, "exact").low
        most = stats.binomtest(fp, runs, alternative="less").proportion_ci(0.975, "exact").high
        return bool(least > stats.norm.cdf(stats.norm.ppf(most) + MU))

    expected = [by_hand(tp, fp) for tp in range(runs + 1)]
    assert [repeated.refutes(CURVE, tp, runs - tp, fp, runs - fp) for tp in range(runs + 1)] == expected
    assert expected[-1]
    assert not expected[fp]
    # and with the two worlds exchanged
    assert [repeated.refutes(CURVE, runs - fp, fp, runs - tp, tp) for tp in range(runs + 1)] == expected


def test_worlds_further_apart_are_a_violation():
    """The curve refutes where a bound on epsilon at its delta would not."""
    generator = np.random.default_rng(0)
    found = [repeated.count(CLAIM, *world(200, 4.0, generator)) for _ in range(100)]
    assert np.mean([each.verdict(CLAIM) == "violation" for each in found]) > 0.8
    assert all(each.could_refute for each in found)
    assert max(each.bound for each in found) < CLAIM.epsilon


def test_few_runs_are_underpowered_whatever_came_of_them():
    scores, coins = np.arange(8.0), np.arange(8) % 2 == 1
    scores = scores + 100 * coins
    found = repeated.count(CLAIM, scores, coins)
    assert (found.tp, found.fn, found.fp, found.tn) == (2, 0, 0, 2)
    assert found.verdict(CLAIM) == "underpowered"
    assert found.bound == found.strongest == clopper_pearson(2, 0, 0, 2, DELTA)
    assert found.verdict(NOTHING) == "nothing claimed"


def test_the_threshold_comes_from_the_first_half_alone():
    coins = np.array([True, False] * 4)
    scores = np.where(coins, 1.0, 0.0)
    scores[4:] += 10  # all above it
    found = repeated.count(CLAIM, scores, coins)
    assert (found.tp, found.fn, found.fp, found.tn) == (2, 0, 2, 0)
    assert (found.runs, found.chosen_from) == (4, 4)


@pytest.mark.parametrize(
    ("scores", "coins", "expected"),
    [
        ([0.0, 1.0, 5.0, 6.0], [False, False, True, True], 3.0),
        (
            [0.0, 1.0, 5.0, 6.0],
            [False, True, False, True],
            0.5,
        ),  # of two gaps as good, the first of the widest
        ([2.0, 2.0], [True, False], 2.0),
        ([], [], 0.0),
    ],
)
def test_the_threshold_lies_in_the_middle_of_the_best_gap(scores, coins, expected):
    assert repeated.threshold(np.array(scores), np.array(coins, bool)) == expected


def told(seed: str, claim: Claim = CLAIM, coin: bool = True) -> CanaryScores:
    manifest = Manifest(seed, PRESENCE, "digits", "{}", (Canary("c", ("1",), int(not coin), 1),))
    return CanaryScores(claim, manifest, np.array([1.0]), np.array([coin]))


def test_runs_of_two_claims_or_with_the_same_coins_are_refused():
    runs = [told(f"{i}", coin=i % 2 == 0) for i in range(40)]
    assert repeated.repeated(runs)["repeated"]["runs"] == 20
    other = MixtureOfGaussians.bernoulli(1.0, 2).curve(1 / MU)
    for claim, name in (
        (Claim("a user", "zero-out", CLAIM.epsilon, DELTA, CURVE, one_row=True), "unit"),
        (Claim("a row", "zero-out", CLAIM.epsilon, DELTA, other, one_row=True), "curve"),
    ):
        with pytest.raises(InputError, match=f"their {name} differs"):
            repeated.repeated([*runs, told("x", claim)])
    with pytest.raises(InputError, match="same run key"):
        repeated.repeated([*runs, told("7")])
    with pytest.raises(InputError, match="none has the canary, or all have it"):
        repeated.repeated([told(f"{i}") for i in range(6)])


def test_the_order_of_the_runs_changes_nothing():
    generator = np.random.default_rng(1)
    runs = [
        CanaryScores(CLAIM, told(f"{i}").manifest, generator.normal(size=1), generator.random(1) < 0.5)
        for i in range(40)
    ]
    assert repeated.repeated(runs) == repeated.repeated(runs[::-1])


def test_the_command_attacks_many_runs_together(tmp_path):
    """Of four runs two guesses count: not even right ones refute."""
    folders = []
    for key in _of_both_coins(planted(tmp_path / "any", count=1)):
        raw = planted(tmp_path / key, count=1).model_dump(mode="json")
        raw["privacy"]["published_key"] = key
        raw["train"] |= {"steps": 2}
        config = check(raw)
        fine_tune(Run(config), Console(quiet=True))
        folders.append(config.run)
    said = confide("audit", *folders, "--json")
    assert said.code == 0, said.err
    found = json.loads(said.out)
    assert found["verdict"] == "underpowered"
    assert found["repeated"]["runs"] == found["repeated"]["chosen_from"] == 2
    refused = confide("audit", *folders, "--attacks", "users")
    assert refused.code == 2
    assert "only the claim is attacked" in refused.err


def _of_both_coins(config: Config) -> list[str]:
    """Four run keys; of the two runs whose guesses count one has its canary."""
    tokenizer = models.load_tokenizer(config)
    keys = [f"run {number}" for number in range(20)]
    drawn = {key: Manifest.draw(config, tokenizer, RunKey.from_text(key)) for key in keys}
    keys.sort(key=lambda key: drawn[key].commitment)
    coins = [drawn[key].canaries[0].coin for key in keys]
    first = next(place for place in range(2, 19) if coins[place] != coins[place + 1])
    return keys[first - 2 : first + 2]
