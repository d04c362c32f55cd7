"""A game says "violation" of trainers that break their claim, and of others at most as often as it may."""

import math
import sys

import numpy as np
import pytest

from confide.auditing.bounds import Plan, one_run
from confide.auditing.game import ALPHA, Claim, Family, planned, play, play_numbers, verdict
from confide.privacy.accounting import MixtureOfGaussians
from confide.privacy.mechanisms.values import PRESENCE
from confide.runs.canaries import Canary, Manifest
from confide.utils.errors import InputError
from tests.places import BENCHMARKS

sys.path.insert(0, str(BENCHMARKS))
from audit_power import GAMES, power

TRIALS = 3


@pytest.mark.parametrize("game", GAMES, ids=lambda game: game.fault)
def test_a_trainer_that_breaks_its_claim_is_caught(game):
    """At the sizes that `benchmarks/audit_power.py` states, which finds a power of 0.9 and more."""
    assert power(game, TRIALS, is_broken=True) == 1


@pytest.mark.parametrize("game", GAMES, ids=lambda game: game.fault)
def test_the_trainer_that_keeps_its_claim_is_not(game):
    assert power(game, TRIALS, is_broken=False) <= 1 / TRIALS  # two of three have a chance below 1%


def gaussian(mu: float, is_known: bool = False) -> Claim:
    """With the family of all noises or without it."""
    process = MixtureOfGaussians.bernoulli(1.0, 1)
    curve, family = process.curve(1 / mu), Family.of(process, process, 1 / mu) if is_known else None
    return Claim("one user", "zero-out", curve.epsilon(1e-5), 1e-5, curve, False, zeroed=curve, family=family)


def scores(mu: float, coins: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    return generator.normal(size=len(coins)) + mu * coins


def test_false_alarms_are_as_rare_as_promised():
    generator, alarms, trials = np.random.default_rng(0), 0, 2000
    sample = generator.random((trials, 60)) < 0.5
    for coins in sample:
        found = scores(0.7, coins, generator)
        order = np.argsort(found)
        correct = int(coins[order[-10:]].sum() + (~coins[order[:10]]).sum())
        alarms += correct >= LEAST
    assert alarms / trials <= ALPHA + 2 * np.sqrt(ALPHA * (1 - ALPHA) / trials)


LEAST = play(gaussian(0.7), "steps", np.zeros(60), np.zeros(60, bool), 20).needed or 21


@pytest.mark.parametrize("mu", [0.7, 1.2])
def test_the_bound_of_the_claimed_mechanism_refutes_exactly_what_the_verdict_does(mu):
    """That of any mechanism needs more."""

    def played(wrong: int, is_known: bool = True):
        coins = np.arange(300) >= 150
        coins[:wrong] = True  # guessed to be out
        return play(gaussian(mu, is_known), "steps", np.arange(300.0), coins, 100)

    epsilon, best = gaussian(mu).epsilon, played(0)
    assert best.correct == 100
    assert best.own_bound == best.own_strongest > epsilon
    for wrong, is_refuted in ((100 - best.needed, True), (101 - best.needed, False)):
        own = played(wrong)
        assert own.verdict() == ("violation" if is_refuted else "consistent")
        assert (own.own_bound > 0.999 * epsilon) == is_refuted
        assert own.bound < own.own_bound < own.own_strongest
        assert f"at most {math.ceil(100 * best.own_bound) / 100:.2f}" in own.in_words(gaussian(mu))
    assert played(0, is_known=False).own_bound is None


def test_the_most_that_a_game_could_have_shown_is_as_if_every_guess_were_right():
    """Pitfall 20: else a game with few right guesses seems to have had no power, and one with many all there is."""
    coins = np.arange(300) >= 150
    best = play(gaussian(1.0), "steps", np.arange(300.0), coins, 100)
    coins[:30] = True  # guessed to be out
    found = play(gaussian(1.0), "steps", np.arange(300.0), coins, 100)
    assert (found.correct, best.correct) == (70, 100)
    assert found.bound < found.strongest == best.strongest == best.bound == one_run(300, 100, 100, 1e-5)


def test_a_claim_that_no_score_could_refute_is_underpowered():
    coins = np.arange(30) % 2 == 0
    claim = gaussian(2.5)
    game = play(claim, "release", coins.astype(float), coins, 10)
    assert game.correct == 10
    assert game.needed is None
    assert verdict(claim, [game]) == "underpowered"
    assert game.strongest == game.bound < claim.epsilon
    assert "not even all of them" in game.in_words(claim)


def test_perfect_guesses_refute_a_small_claim():
    coins = np.arange(200) % 2 == 0
    claim = gaussian(0.3)
    game = play(claim, "release", coins.astype(float), coins, 60)
    assert verdict(claim, [game]) == "violation"
    assert game.p_value < 1e-3
    assert game.bound > claim.epsilon


def test_guessing_at_random_is_consistent_with_a_small_claim():
    generator = np.random.default_rng(1)
    coins = generator.random(400) < 0.5
    claim = gaussian(0.3)
    game = play(claim, "release", generator.normal(size=400), coins, 100)
    assert verdict(claim, [game]) == "consistent"
    assert game.bound == 0


def test_a_game_about_another_unit_than_the_claims_is_refused():
    canaries = tuple(Canary(f"c{i}", ("text",), 0, 10) for i in range(4))
    manifest = Manifest("00", PRESENCE, "digits", "{}", canaries)
    by_row = Claim("one row", "zero-out", 1.0, 1e-5, None, one_row=True)
    with pytest.raises(InputError, match="another unit than the claim's"):
        by_row.players(manifest)
    assert (
        len(Claim("all rows of one user", "zero-out", 1.0, 1e-5, None, one_row=False).players(manifest)) == 4
    )


def test_without_a_claim_there_is_nothing_to_violate():
    claim = Claim("one row", "not applicable", float("inf"), 1e-5, None, one_row=True)
    coins = np.arange(200) % 2 == 0
    assert verdict(claim, [play(claim, "release", coins.astype(float), coins, 60)]) == "nothing claimed"


# numbers -------------------------------------------------------------------------------------------------------
K = 10**6


def test_one_number_of_a_million_refutes_what_coins_cannot():
    claim = gaussian(1.8)
    assert 8 < claim.epsilon < 10
    choices = np.array([K] * 3)
    game = play_numbers(claim, True, choices)
    assert verdict(claim, [game]) == "violation"
    assert game.bound == game.strongest == pytest.approx(np.log(ALPHA * K / 3), abs=0.01)
    assert game.bound > claim.epsilon
    assert "of the numbers of 3 canaries 1 is what the released model finds" in game.in_words(claim)
    assert "95% confidence" in game.in_words(claim)
    missed = play_numbers(claim, False, choices)
    assert missed.bound == 0
    assert verdict(claim, [missed]) == "underpowered"  # a miss speaks for nobody
    coins = np.arange(30) % 2 == 0
    few = play(claim, "release", coins.astype(float), coins, 10)
    assert few.needed is None
    assert verdict(claim, [few, missed]) == "underpowered"
    assert verdict(claim, [few, game]) == "violation"
    assert play_numbers(gaussian(4.0), True, choices[:1]).needed is None


def test_the_best_guesser_of_a_kept_claim_is_right_as_rarely_as_promised():
    """Against a Gaussian: a unit whose text adds mu to a coordinate of its own, and the largest one is guessed."""
    mu, k, trials = 1.5, 400, 2000
    generator = np.random.default_rng(0)
    sums = generator.normal(size=(trials, k))
    sums[:, 0] += mu
    right = sums.argmax(1) == 0
    curve = MixtureOfGaussians.bernoulli(1.0, 1).curve(1 / mu)
    claim = Claim("one user", "zero-out", curve.epsilon(1e-5), 1e-5, curve, one_row=False, zeroed=curve)
    ceiling = float(curve.reconstruction(1 / k))
    assert right.mean() <= ceiling
    assert right.mean() > 5 / k  # the guesser is a good one
    game = play_numbers(claim, True, np.array([k]), alpha=1.01 * ceiling)
    assert game.verdict() == "violation"  # so a violation comes up as often as its alpha, and not more
    assert play_numbers(claim, True, np.array([k]), alpha=0.99 * ceiling).verdict() != "violation"
    without = Claim("one user", "zero-out", 1.0, 1e-5, curve, one_row=False)
    assert play_numbers(without, True, np.array([k])).needed is None


def test_each_number_that_one_guess_may_hit_counts():
    claim = gaussian(1.8)
    assert claim.zeroed is not None
    k = np.array([next(k for k in range(100, K, 100) if claim.zeroed.reconstruction(1 / k) <= ALPHA)])
    assert play_numbers(claim, True, k).needed == 1
    assert play_numbers(claim, True, np.repeat(k, 2)).needed is None
    assert play_numbers(claim, True, k, ALPHA / 2).needed is None
    assert play_numbers(claim, True, np.repeat(k, 2)).p_value > ALPHA


def test_bounds_are_rounded_down_in_words():
    claim = gaussian(0.3)
    game = play_numbers(claim, True, np.array([770]))
    assert f"epsilon >= {np.floor(100 * game.bound) / 100:.2f} at delta 1e-05" in game.in_words(claim)
    assert float(game.in_words(claim).split("epsilon >= ")[1].split()[0]) <= game.bound


def test_where_few_were_ever_drawn_the_guesses_are_few_and_all_that_somebody_is_in():
    assert planned(300, None, 1.0) == planned(300, None, 0.6) == Plan(100)
    assert planned(300, None, 0.4) == Plan(48, "in")
    assert planned(300, 20, 0.4) == Plan(20, "in")
    assert planned(3, None, 0.01) == Plan(1, "in")
    coins = np.arange(300) < 150
    scores = np.where(np.arange(300) < 60, 5.0, 0.0)  # of those who are in, two fifths were drawn
    scores[60:] -= np.random.default_rng(0).random(240)
    claim = Claim("a row", "zero-out", 2.0, 1e-5, None, one_row=True)
    few, many = (play(claim, "steps", scores, coins, None, 0.05, seen) for seen in (0.4, 1.0))
    assert (few.guesses, few.correct) == (48, 48)
    assert many.guesses == 100
    assert many.correct < 90
    assert few.bound > many.bound
