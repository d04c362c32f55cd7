"""How the settings were found decides what a claim says: the cost of a sweep is in it, or is declared missing."""

import math

import pytest

from confide.privacy import mechanisms
from confide.privacy.accounting import Repeated, Trials
from confide.privacy.guarantee import NOT_COVERED, TUNING, Guarantee
from confide.privacy.mechanisms.base import calibrated
from confide.privacy.mechanisms.statement import calibrate, promise, state_guarantee, together
from confide.privacy.mechanisms.tuned import UNTUNED, CountedSweep, UncountedSweep
from confide.privacy.mechanisms.values import ClaimParts
from confide.utils.errors import InputError
from tests.privacy.mechanisms import test_secret
from tests.test_statement import DELTA, NOISE, SHAPE, STEPS, config

SWEEP = CountedSweep(Trials(8.0))
MECHANISMS = ("uls", "els", "group", "dp-sgd")


def setting(name="uls", tuning=UNTUNED, **changes):
    settings = config(name, **changes)
    privacy = settings.privacy
    built = mechanisms.build(settings)
    return calibrate(built, SHAPE, privacy.epsilon, privacy.noise_multiplier, DELTA, tuning), settings


def stated(name="uls", tuning=UNTUNED, steps=STEPS, published=False, **changes):
    found, settings = setting(name, tuning, **changes)
    return state_guarantee(found, steps, published, settings, {"code": "test"})


@pytest.mark.parametrize("name", MECHANISMS)
def test_a_counted_sweep_states_the_cost_of_the_whole(name):
    one, swept = stated(name), stated(name, SWEEP)
    process = setting(name)[0].parameters.process
    assert swept.epsilon == Repeated(process, SWEEP.trials).curve(NOISE).epsilon(DELTA)
    assert swept.epsilon > 1.2 * one.epsilon
    assert swept.theorem
    assert swept.advantage > one.advantage
    assert all(r > q for (_, r), (_, q) in zip(swept.reconstruction, one.reconstruction, strict=True))
    assert (swept.noise_multiplier, swept.delta) == (one.noise_multiplier, one.delta)
    assert "8 on average (geometric distribution)" in swept.accountant
    assert "best trial of a sweep together" in swept.protected_output
    assert "best trial of a sweep" in " ".join(swept.sentences())
    assert any("number of trials was random" in fact for fact in swept.public_facts)
    assert Guarantee.from_json(swept.to_json()) == swept


def test_the_tuning_that_is_counted_is_no_longer_called_uncovered():
    assert TUNING in NOT_COVERED
    assert TUNING in stated().not_covered
    swept = stated(tuning=SWEEP)
    assert not any(TUNING in line for line in swept.not_covered)
    assert {line for line in NOT_COVERED if line != TUNING} < set(swept.not_covered)
    assert any("held-out units, by whose loss" in line for line in swept.not_covered)
    assert any("tuning outside of it" in line for line in swept.not_covered)


def test_fewer_steps_of_a_counted_trial_cost_less_but_more_than_of_a_single_run():
    few, whole = stated(tuning=SWEEP, steps=2), stated(tuning=SWEEP)
    assert stated(steps=2).epsilon < few.epsilon < whole.epsilon


@pytest.mark.parametrize("name", ["uls", "els"])
def test_the_noise_is_raised_until_the_sweep_meets_the_target(name):
    asked = {"noise_multiplier": None, "epsilon": 4.0}
    one, swept = setting(name, **asked)[0], setting(name, SWEEP, **asked)[0]
    assert swept.noise_multiplier > 1.05 * one.noise_multiplier
    assert 3.9 < swept.curve().epsilon(DELTA) <= 4.0
    assert stated(name, SWEEP, **asked).epsilon <= 4.0
    assert Repeated(one.parameters.process, SWEEP.trials).curve(one.noise_multiplier).epsilon(DELTA) > 4.0


def test_guesses_are_bound_by_the_repeated_zero_out_curve_under_replace_one():
    swept = stated("dp-sgd", SWEEP, adjacency="replace-one")
    zeroed = Repeated(setting("dp-sgd")[0].parameters.process, SWEEP.trials).curve(NOISE)
    assert dict(swept.reconstruction)[1e-3] == pytest.approx(float(zeroed.reconstruction(1e-3)))
    assert swept.epsilon > stated("dp-sgd", SWEEP).epsilon


def test_a_published_key_makes_a_counted_sweep_an_estimate():
    swept = stated(tuning=SWEEP, published=True)
    assert not swept.theorem
    assert "published" in swept.estimates[0]


def test_where_nothing_is_promised_nothing_is_counted():
    with pytest.raises(InputError, match="nothing to count"):
        setting("none", SWEEP)


def test_a_mechanism_whose_noise_does_not_follow_from_the_sweep_is_refused(monkeypatch):
    built = mechanisms.build(config("uls", noise_multiplier=None, epsilon=4.0))
    noise = calibrated(built.parameters(SHAPE).process, 4.0, DELTA)
    monkeypatch.setattr(type(built), "least_noise", lambda *_: noise)
    calibrate(built, SHAPE, 4.0, None, DELTA)
    with pytest.raises(InputError, match="does not follow from one epsilon"):
        calibrate(built, SHAPE, 4.0, None, DELTA, SWEEP)


@pytest.mark.parametrize(
    "parts",
    [
        ClaimParts(secret_targets=((1e-6, 1e-3),)),
        ClaimParts(epsilons=(("if half is missed", 3.0),)),
    ],
)
def test_a_claim_of_more_than_one_epsilon_is_refused(monkeypatch, parts):
    built = mechanisms.build(config("uls"))
    monkeypatch.setattr(type(built), "claim", lambda *_: parts)
    with pytest.raises(InputError, match="does not follow from one epsilon"):
        calibrate(built, SHAPE, None, NOISE, DELTA, SWEEP)


SAME = {"clip_norm": 0.3, "normalised": False, "rows_per_unit": 2, "selection": "random"}
OTHER = {
    "batch": 5.0,
    "noise_multiplier": 1.3,
    "adjacency": "replace-one",
    "sampling": "shuffle",
    "noise": "fast",
    "published_key": "open",
}


@pytest.mark.parametrize("key", [*SAME, *OTHER])
def test_a_promise_changes_with_all_that_a_claim_rests_on_and_with_nothing_else(key):
    own, other = (promise(*setting("uls", SWEEP, **changes)) for changes in ({}, {key: (SAME | OTHER)[key]}))
    assert (own == other) == (key in SAME)


def test_several_runs_compose_by_their_losses_where_they_are_alike():
    one = setting("uls")[0]
    epsilon, delta = together([one] * 4)
    assert delta == DELTA
    assert stated("uls").epsilon < epsilon < 4 * stated("uls").epsilon
    ahead = mechanisms.build(config("uls")).parameters(SHAPE, 4 * STEPS).process.curve(NOISE)
    assert epsilon == pytest.approx(ahead.epsilon(DELTA), rel=0.01)
    assert together([one]) == pytest.approx((stated("uls").epsilon, DELTA), rel=1e-3)


def test_several_runs_that_differ_add_up():
    one, other = setting("uls")[0], setting("uls", batch=5.0)[0]
    epsilon, delta = together([one, other, one])
    assert delta == 3 * DELTA
    assert epsilon == 3 * other.curve().epsilon(DELTA)


def test_several_runs_without_protection_have_no_epsilon():
    assert together([setting("none")[0]]) is None
    assert together([setting("uls", noise_multiplier=0.0)[0]] * 2) is None


def test_a_search_is_not_covered_and_says_how_many_runs_there_were():
    found = stated(tuning=UncountedSweep(12, (9.5, DELTA)))
    assert not found.theorem
    assert "best of 12" in found.estimates[0]
    assert found.epsilon == stated().epsilon
    assert found.epsilons == ((f"at delta {DELTA:.3g} for all 12 runs together, by composition", 9.5),)
    assert f"{TUNING}: 12 runs were made, of which this is the best" in found.not_covered
    assert TUNING not in found.not_covered
    assert "9.5" in " ".join(found.sentences())


def test_a_search_without_privacy_claims_none():
    found = stated("none", UncountedSweep(12, None))
    assert found.notion == "none"
    assert found.epsilon == math.inf


def test_secret_protection_is_refused():
    calibrate(test_secret.build(), test_secret.shape())
    with pytest.raises(InputError, match="the claim of secret"):
        calibrate(test_secret.build(), test_secret.shape(), tuning=SWEEP)
