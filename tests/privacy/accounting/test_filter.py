"""The Renyi filter: its budget holds whatever happens, and its numbers are dp_accounting's."""

import dataclasses
import math

import numpy as np
import pytest
from dp_accounting import dp_event
from dp_accounting.pld import PLDAccountant
from dp_accounting.privacy_accountant import NeighboringRelation
from dp_accounting.rdp import RdpAccountant

from confide.privacy.accounting import (
    MixtureOfGaussians,
    RenyiBudget,
    RenyiFilter,
    SampledGaussian,
    Scaled,
    least_noise,
)
from confide.privacy.accounting.filter import ORDERS, RELEASE

FACTORS = (0.3, 0.4, 0.5, 0.6, 0.8, 1.0)
BUDGET = RenyiBudget(q=0.05, steps=20, planned=0.6, release_q=0.2)
NOISE = 1.5


def accountant(releases):
    """dp_accounting's own account of (q, noise multiplier) pairs."""
    found = RdpAccountant(ORDERS.tolist(), NeighboringRelation.REPLACE_SPECIAL)
    for q, noise in releases:
        found.compose(dp_event.PoissonSampledDpEvent(q, dp_event.GaussianDpEvent(noise)))
    return found


def factors(policy, generator, step, spent, limit):
    """The factor that somebody asks for who may know everything that was spent."""
    if policy == "random":
        return generator.choice(FACTORS)
    if policy == "most":
        return FACTORS[0]
    if policy == "waits":  # cheap until little is left, and then as dear as can be
        return FACTORS[0] if np.max(spent / limit) > 0.9 else FACTORS[-1]
    if policy == "probes":  # what comes nearest to the budget
        costs = [np.max((spent + BUDGET.step(NOISE, f).cost) / limit) for f in FACTORS]
        return FACTORS[int(np.argmin([abs(1 - cost) for cost in costs]))]
    return FACTORS[step % len(FACTORS)]


def test_the_budget_is_never_passed_in_1000_adaptive_histories():
    generator = np.random.default_rng(0)
    limit, release = BUDGET.limit(NOISE), BUDGET.release(NOISE)
    lengths = set()
    for history in range(1000):
        policy = ("random", "most", "waits", "probes", "in turn")[history % 5]
        kept = RenyiFilter(limit)
        spent, refused = np.zeros(len(ORDERS)), 0
        for step in range(200):
            wanted = [release, BUDGET.step(NOISE, factors(policy, generator, step, spent, limit))]
            for one in wanted:
                if kept.allows(one):
                    kept.spend(one)
                    spent = spent + one.cost  # counted here as well, release by release
                else:
                    refused += 1
            assert np.all(spent <= limit * (1 + 1e-12))
            if refused > 2:
                break
        assert refused > 2
        np.testing.assert_allclose(kept.spent, spent, rtol=1e-9)
        lengths.add(step)
    assert len(lengths) > 10


def test_exactly_the_planned_steps_fit_and_not_one_more():
    kept = RenyiFilter(BUDGET.limit(NOISE))
    planned = BUDGET.step(NOISE, BUDGET.planned)
    for _ in range(BUDGET.steps):
        for one in (BUDGET.release(NOISE), planned):
            assert kept.allows(one)
            kept.spend(one)
    assert not kept.allows(BUDGET.release(NOISE))
    assert not kept.allows(planned)
    np.testing.assert_array_equal(kept.spent, kept.limit)


def test_what_was_not_allowed_cannot_be_spent():
    kept = RenyiFilter(BUDGET.limit(NOISE))
    with pytest.raises(AssertionError, match="budget"):
        kept.spend(SampledGaussian(1.0, 0.01))
    assert not kept.spent.any()


def test_one_order_alone_is_enough_to_refuse():
    step = BUDGET.step(NOISE, 1.0)
    for order in range(len(ORDERS)):
        limit = np.full(len(ORDERS), np.inf)
        limit[order] = 0.99 * step.cost[order]
        assert not RenyiFilter(limit).allows(step)
        limit[order] = step.cost[order]
        assert RenyiFilter(limit).allows(step)


def test_the_numbers_are_those_of_dp_accounting():
    history = [(0.05, 0.45), (0.2, 3.0), (0.05, 1.5), (1.0, 40.0), (0.05, 0.45), (0.01, 2.2)]
    kept = RenyiFilter(np.full(len(ORDERS), np.inf))
    for q, noise in history:
        kept.spend(SampledGaussian(q, noise))
    np.testing.assert_allclose(kept.spent, accountant(history).rdp, rtol=1e-9)


def test_epsilon_is_dp_accountings_at_the_best_order():
    release, curve = BUDGET.release(NOISE), BUDGET.curve(NOISE)
    own = accountant([(0.05, 0.6 * NOISE), (release.q, release.noise_multiplier)] * BUDGET.steps)
    for delta in (1e-3, 1e-5, 1e-6, 3.3e-8):
        expected = own.get_epsilon(delta)
        assert expected <= curve.epsilon(delta) <= 1.001 * expected


def test_if_no_step_costs_more_than_planned_the_claim_is_that_of_composed_pairs():
    """dp_accounting's own composition of 500 planned steps and releases."""
    loose = RenyiBudget(q=0.01, steps=500, planned=0.5, release_q=0.2)
    fixed, noise, delta = dataclasses.replace(loose, least=0.5), 1.6, 1e-5
    assert fixed.is_fixed
    assert not dataclasses.replace(loose, least=0.49).is_fixed
    own = PLDAccountant(NeighboringRelation.REPLACE_SPECIAL)
    for one in (fixed.step(noise, 0.5), fixed.release(noise)):
        event = dp_event.PoissonSampledDpEvent(one.q, dp_event.GaussianDpEvent(one.noise_multiplier))
        own.compose(dp_event.SelfComposedDpEvent(event, fixed.steps))
    exact, found = own.get_epsilon(delta), fixed.curve(noise).epsilon(delta)
    assert exact * 0.999 <= found <= 1.01 * exact
    assert found < 0.9 * loose.curve(noise).epsilon(delta)
    steps_alone = MixtureOfGaussians.bernoulli(0.01, 500).curve(0.5 * noise).epsilon(delta)
    assert steps_alone < found < 1.05 * steps_alone
    assert math.isinf(fixed.curve(0.0).epsilon(delta))


def test_a_step_below_the_least_factor_is_never_taken():
    with pytest.raises(AssertionError, match="below the least"):
        dataclasses.replace(BUDGET, least=0.6).step(NOISE, 0.59)


def test_the_curve_is_no_better_than_exact_accounting_of_the_same_steps():
    bare = dataclasses.replace(BUDGET, planned=1.0, release_noise=1e5)
    exact = MixtureOfGaussians.bernoulli(bare.q, bare.steps).curve(0.8, 1e-3)
    found = bare.curve(0.8)
    for epsilon in (-3.0, -1.0, -0.1, 0.0, 0.1, 1.0, 3.0):
        for mine, other in ((found.removal, exact.removal), (found.addition, exact.addition)):
            assert mine.delta(epsilon) >= other.delta(epsilon)
    for delta in (1e-2, 1e-5, 1e-9):
        assert exact.epsilon(delta) <= found.epsilon(delta)
    assert found.epsilon(1e-9) < 1.2 * exact.epsilon(1e-9)  # RDP is loose, but not that loose
    for p in (1e-6, 1e-3, 0.1):
        assert 1 > found.reconstruction(p) >= exact.reconstruction(p) >= p
        assert 1 > found.true_positive_rate(p) >= exact.true_positive_rate(p)
    assert 1 > found.advantage() >= exact.advantage()


@pytest.mark.parametrize("noise", [0.2, 1.0, 30.0])
def test_a_curve_is_one(noise):
    direction = BUDGET.curve(noise).removal
    assert np.all(np.diff(direction.epsilons) > 0)
    assert np.all(np.diff(direction.deltas) <= 0)
    assert direction.deltas.min() >= 0
    assert direction.deltas.max() <= 1


def test_no_noise_protects_nobody():
    assert math.isinf(BUDGET.curve(0.0).epsilon(1e-5))


def test_noise_is_found_for_a_target():
    noise = least_noise(BUDGET, 2.0, 1e-5)
    assert 1.99 < BUDGET.curve(noise).epsilon(1e-5) <= 2.0


def test_a_release_costs_a_few_percent_of_a_step():
    release, planned = BUDGET.release(NOISE), BUDGET.step(NOISE, BUDGET.planned)
    assert release.noise_multiplier / release.q == pytest.approx(
        RELEASE * planned.noise_multiplier / planned.q
    )
    share = BUDGET.release(20.0).cost / BUDGET.step(20.0, BUDGET.planned).cost
    assert np.all((share > 0.03) & (share < 0.05), where=ORDERS <= 64)
    stated = dataclasses.replace(BUDGET, release_noise=7.0)
    assert stated.release(NOISE).noise_multiplier == 7.0


def test_divergences_of_next_to_nothing_are_not_negative():
    assert SampledGaussian(0.01, 1e7).cost.min() > 0


def test_scaled_noise_is_counted_at_its_scale():
    process = MixtureOfGaussians.bernoulli(0.05, 20)
    assert Scaled(process, 0.5).curve(2.0, 1e-3).epsilon(1e-5) == process.curve(1.0, 1e-3).epsilon(1e-5)
    assert "0.5 times" in Scaled(process, 0.5).describe()


def test_who_chooses_factors_by_what_came_out_gets_no_further_than_the_curve():
    """The game itself: an attacker who sees all outputs asks for less noise whenever the unit seems to be there."""
    budget = RenyiBudget(q=0.5, steps=8, planned=0.6, release_q=0.5, release_noise=20.0)
    noise, trials = 3.0, 2000
    generator = np.random.default_rng(1)
    limit, curve = budget.limit(noise), budget.curve(noise)
    losses = np.zeros(trials)
    for trial in range(trials):
        kept, loss = RenyiFilter(limit), 0.0
        while True:
            step = budget.step(noise, FACTORS[0] if loss > 0.5 else FACTORS[3])
            if not kept.allows(step):
                break
            kept.spend(step)
            s = step.noise_multiplier
            x = s * generator.normal() + (generator.random() < step.q)  # with the unit
            loss += math.log(1 - step.q + step.q * math.exp((x - 0.5) / s**2))
        losses[trial] = loss
    for epsilon in (0.0, 0.3, 0.6):
        seen = np.maximum(0, -np.expm1(epsilon - losses))
        assert seen.mean() > 0.02
        assert seen.mean() - 4 * seen.std() / trials**0.5 <= curve.removal.delta(epsilon)
