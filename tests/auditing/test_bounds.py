"""Bounds meet published numbers, hold at mechanisms that are just as private as claimed, and see those that are not."""

import math
import time
from functools import cache
from itertools import pairwise

import numpy as np
import pytest
from scipy import optimize, stats

from confide.auditing import bounds, fdp
from confide.auditing.bounds import (
    Plan,
    ceiling_epsilon,
    ceiling_p_value,
    clopper_pearson,
    count_correct,
    guess,
    k_ary,
    one_run,
    one_run_p_value,
    strongest,
    strongest_clopper_pearson,
)
from confide.auditing.fdp import f_dp, f_dp_least_correct, f_dp_p_value, f_dp_refutes
from confide.privacy.accounting import Direction, MixtureOfGaussians, PrivacyProfile
from confide.utils.errors import InputError

TRIALS, ALPHA = 2000, 0.05
MOST = ALPHA + 2 * math.sqrt(ALPHA * (1 - ALPHA) / TRIALS)
DELTA = 1e-5


@cache
def gaussian(noise):
    return MixtureOfGaussians.bernoulli(1.0, 1).curve(noise, 1e-2)


def rng(seed):
    return np.random.default_rng(seed)


def share(alarm, right, r):
    """The share of games in which alarm(right guesses) is raised. Alarms are rising in that count, which is tested."""
    low, high = -1, r + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if alarm(middle) else (middle, high)
    return np.mean(right >= high)


def share_of_pairs(alarm, first, second):
    """As `share`, of two counts that need not rise: each distinct pair is looked at once."""
    pairs, times = np.unique(np.stack([first, second], axis=-1), axis=0, return_counts=True)
    return sum(n for pair, n in zip(pairs.tolist(), times, strict=True) if alarm(*pair)) / times.sum()


def correct_of_scores(scores, coins, r):
    """Right guesses of the r/2 highest in, the r/2 lowest out, for each row: int64[trials]."""
    held = np.take_along_axis(coins, np.argsort(scores, axis=1), axis=1)
    return held[:, -(r - r // 2) :].sum(axis=1) + (~held[:, : r // 2]).sum(axis=1)


def gaussian_game(mu, m, r, trials=TRIALS, seed=0):
    """Right guesses about m independent releases N(mu coin, 1)."""
    generator = rng(seed)
    coins = generator.integers(0, 2, (trials, m)).astype(bool)
    scores = generator.normal(size=(trials, m)) + mu * coins
    return correct_of_scores(scores, coins, r)


def levelled_game(mu, m, trials=TRIALS, seed=0):
    """Right guesses about all of m units, of a mechanism with the same curve that draws one level for all of them.

    N(mu, 1) against N(0, 1) is randomised response at epsilon = |loss|, loss ~ N(mu^2 / 2, mu^2), the level being told.
    """
    generator = rng(seed)
    level = np.abs(generator.normal(mu**2 / 2, mu, trials))
    return generator.binomial(m, 1 / (1 + np.exp(-level)))


# numbers of others ---------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("m", "r", "v", "delta", "epsilon"),
    [  # recomputed by others with 40 digits from Steinke et al. 2023
        (100, 100, 75, 0, 0.7022139),
        (100, 100, 75, 1e-4, 0.6994668),
        (1000, 100, 75, 1e-4, 0.6729847),
        (100000, 1510, 1439, 1e-5, 2.675851),
        (1000, 200, 180, 1e-5, 1.7962851),
        (1000, 100, 50, 1e-5, 0),
    ],
)
def test_one_run_meets_the_vectors(m, r, v, delta, epsilon):
    found = one_run(m, r, v, delta)
    assert found == pytest.approx(epsilon, abs=1e-6)
    if epsilon:
        assert one_run_p_value(m, r, v, found, delta) == pytest.approx(0.05, abs=1e-6)


def test_the_other_forms_meet_theirs():
    assert clopper_pearson(500, 0, 0, 500, 0, alpha=0.01) == pytest.approx(4.5419158, abs=1e-6)
    assert k_ary(100, 50, 10) == pytest.approx(1.848211, abs=1e-6)


# the mathematics, done slowly ----------------------------------------------------------------------------------
@pytest.mark.parametrize(("r", "v", "epsilon"), [(30, 25, 0.5), (30, 12, 2.0), (30, 0, 1.0), (30, 30, 0.0)])
def test_the_p_value_of_one_run_is_the_theorems(r, v, epsilon):
    m, delta, q = 40, 1e-3, 1 / (1 + math.exp(-epsilon))
    mass = [math.comb(r, k) * q**k * (1 - q) ** (r - k) for k in range(r + 1)]
    means = [sum(mass[max(0, v - i) : v]) / i for i in range(1, m + 1)]
    assert one_run_p_value(m, r, v, epsilon, delta) == pytest.approx(
        min(1, sum(mass[v:]) + 2 * m * delta * max(means))
    )


@pytest.mark.parametrize("q", [0.5, 0.9, 0.999, 1 - 1e-7])
def test_the_window_of_the_largest_mean_is_wide_enough(q):
    r = 50_000
    masses = stats.binom.pmf(np.arange(r + 1), r, q)
    for v in {1, 70, r // 2, int(r * q), min(r, int(r * q) + 300), r - 1, r}:
        means = np.cumsum(masses[:v][::-1]) / np.arange(1, v + 1)
        assert bounds._largest_mean(r, v, q) == pytest.approx(means.max(), rel=1e-9)


def test_a_million_coins():
    start = time.process_time()
    assert one_run(10**6, 10**6, 700_000, 0) == pytest.approx(math.log(0.7 / 0.3), abs=0.01)
    assert 0 < one_run(10**6, 10**6, 700_000, 1e-8) < math.log(0.7 / 0.3)
    assert one_run(10**6, 10**6, 500_000, 1e-8) == 0
    assert 12 < one_run(10**6, 10**6, 10**6, 1e-8) < 13
    found = [one_run_p_value(10**6, 10**6, 700_000, e, 1e-9) for e in (0.0, 0.5, 0.8, 0.84, 0.85, 1.0)]
    assert all(a <= b for a, b in pairwise(found))
    assert found[-1] == 1
    assert time.process_time() - start < 10


@pytest.mark.parametrize(("sides", "choices"), [("both", 2), ("in", 2), ("both", 5)])
def test_the_recursion_is_the_linear_program(sides, choices):
    """The largest P[N >= v] over all distributions of N that meet every constraint of the proof."""
    curve = MixtureOfGaussians.bernoulli(0.4, 3).curve(0.8, 1e-2)  # its two directions differ
    m, r = 30, 12
    e = np.linspace(-4, 6, 101)
    removal, addition = curve.removal.delta(e), curve.addition.delta(e)
    loss = {"in": removal / 2, "both": (removal + addition) / 2}[sides]
    if choices > 2:
        loss = np.maximum(removal, addition)
    n = np.arange(r + 1)
    rows, limits = [], []
    for t in range(1, r + 1):
        right = np.where(n >= t, n, 0) / m
        wrong = np.where(n >= t - 1, r - n, 0) / m / (choices - 1)
        rows.append(right - np.exp(e)[:, None] * wrong)
        limits.append(loss)
    for v in (8, 10, 11, 12):
        slow = -optimize.linprog(
            -(n >= v).astype(float),
            A_ub=np.concatenate(rows),
            b_ub=np.concatenate(limits),
            A_eq=np.ones((1, r + 1)),
            b_eq=[1],
        ).fun
        thinned = PrivacyProfile(Direction(e, removal), Direction(e, addition), 0.0)
        found = f_dp_p_value(thinned, m, r, v, sides, choices)
        assert found == pytest.approx(slow, rel=2e-3)
        assert f_dp_p_value(curve, m, r, v, sides, choices) <= found * 1.001  # more vertices, tighter


def test_p_value_and_refutation_are_one():
    curve = gaussian(1.0)
    for m, r in ((100, 30), (1000, 200)):
        least = f_dp_least_correct(curve, m, r, 0.2)
        assert f_dp_refutes(curve, m, r, least, 0.2)
        assert not f_dp_refutes(curve, m, r, least - 1, 0.2)
        assert f_dp_p_value(curve, m, r, least) <= 0.2 * 1.001 < 1.001 * f_dp_p_value(curve, m, r, least - 1)
    assert f_dp_least_correct(curve, 1000, 5) is None
    assert f_dp_p_value(curve, 1000, 900, 400) == 1
    assert f_dp_p_value(gaussian(50.0), 5000, 2000, 2000) == pytest.approx(fdp.LEAST_P)


def test_the_bound_is_that_of_a_refuted_curve_beside_one_that_is_not():
    seen = {}

    def family(noise):
        seen[noise] = gaussian(noise)
        return seen[noise]

    for start in (0.05, 1.0, 40.0):
        seen.clear()
        found = f_dp(1000, 200, 170, family, DELTA, start=start)
        verdicts = {noise: f_dp_refutes(curve, 1000, 200, 170) for noise, curve in seen.items()}
        refuted = min(noise for noise, verdict in verdicts.items() if verdict)
        stands = max(noise for noise, verdict in verdicts.items() if not verdict)
        assert stands < refuted < 1.001 * stands
        assert found == seen[refuted].epsilon(DELTA)


# false alarms --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("delta", [0.0, DELTA])
@pytest.mark.parametrize("epsilon", [0.0, 1.0, 3.0])
def test_one_run_at_randomised_response(epsilon, delta):
    m = 300
    right = rng(1).binomial(m, 1 / (1 + math.exp(-epsilon)), TRIALS)
    found = share(lambda v: one_run(m, m, v, delta) > epsilon, right, m)
    assert 0.01 < found <= MOST  # nor is it idle
    assert share(lambda v: one_run_p_value(m, m, v, epsilon, delta) <= ALPHA, right, m) == found


def test_one_run_at_randomised_response_that_sometimes_tells_all():
    m, r, epsilon, delta = 400, 40, 1.0, 0.02
    generator = rng(2)
    told = generator.random((TRIALS, m)) < delta  # the sure ones are guessed first
    sure = np.minimum(told.sum(axis=1), r)
    right = sure + generator.binomial(r - sure, 1 / (1 + math.exp(-epsilon)))
    assert share(lambda v: one_run(m, r, v, delta) > epsilon, right, r) <= MOST
    assert share(lambda v: one_run(m, r, v, 0) > epsilon, right, r) > 0.1  # what leaving delta out would do


@pytest.mark.parametrize(("noise", "r"), [(4.0, 60), (1.0, 300), (1.0, 60), (0.6, 30)])
def test_f_dp_at_gaussian_scores(noise, r):
    m = 300
    right = gaussian_game(1 / noise, m, r)
    claimed = gaussian(noise)
    assert share(lambda v: f_dp_p_value(claimed, m, r, v) <= ALPHA, right, r) <= MOST
    stated = claimed.epsilon(DELTA)
    assert share(lambda v: f_dp(m, r, v, gaussian, DELTA, start=noise) > stated, right, r) <= MOST


@pytest.mark.parametrize("mu", [0.5, 1.0, 2.0])
def test_f_dp_at_the_mechanism_that_uses_its_curve_up(mu):
    """One level of leakage for all units: within the same curve, and far more often far from its mean."""
    m = 1000
    right = levelled_game(mu, m)
    found = share(lambda v: f_dp_refutes(gaussian(1 / mu), m, m, v), right, m)
    assert 0.01 < found <= MOST
    accuracy = stats.norm.cdf(mu / 2)  # the mean; a binomial tail at it takes guesses for independent
    assert share(lambda v: stats.binom.sf(v - 1, m, accuracy) <= ALPHA, right, m) > 0.2


def test_f_dp_one_sided_and_at_chance():
    m, r, generator = 200, 20, rng(3)
    coins = generator.integers(0, 2, (TRIALS, m)).astype(bool)
    order = np.argsort(generator.normal(size=(TRIALS, m)) + coins, axis=1)
    highest = np.take_along_axis(coins, order, axis=1)[:, -r:].sum(axis=1)
    assert share(lambda v: f_dp_p_value(gaussian(1.0), m, r, v, "in") <= ALPHA, highest, r) <= MOST
    chance = generator.binomial(r, 0.5, TRIALS)
    assert share(lambda v: f_dp(m, r, v, gaussian, DELTA) > 0, chance, r) <= MOST
    assert share(lambda v: f_dp(m, r, v, gaussian, DELTA, sides="in") > 0, chance, r) <= MOST


def test_a_million_guesses_at_chance_show_nothing():
    assert one_run(10**6, 10**6, 500_500, 1e-7) == 0
    assert f_dp(5000, 5000, 2525, gaussian, DELTA) == 0


@pytest.mark.parametrize("told", [0.0, 0.7, 2.0])
def test_f_dp_for_several_choices(told):
    """Each unit's text a of k is told as N(told e_a, I_k): replacing it moves the mean by told sqrt(2)."""
    m, r, k, generator = 100, 25, 5, rng(4)
    output = generator.normal(size=(TRIALS, m, k))
    output[..., 0] += told  # text 0 without loss of generality
    ranked = np.sort(output, axis=-1)
    sure = np.argsort(ranked[..., -2] - ranked[..., -1], axis=1)[:, :r]
    right = (np.take_along_axis(output.argmax(axis=-1), sure, axis=1) == 0).sum(axis=1)
    claimed = gaussian(1 / (told * math.sqrt(2)) if told else 100.0)
    assert share(lambda v: f_dp_p_value(claimed, m, r, v, choices=k) <= ALPHA, right, r) <= MOST
    if told == 2:
        assert share(lambda v: f_dp_p_value(gaussian(2.0), m, r, v, choices=k) <= ALPHA, right, r) > 0.9


@pytest.mark.parametrize(("epsilon", "delta", "runs"), [(0.0, 0.0, 100), (1.0, 0.0, 100), (2.0, 0.05, 1000)])
def test_clopper_pearson_at_the_worst_answers(epsilon, delta, runs):
    """Answers with tpr = e^epsilon fpr + delta, in either direction."""
    fpr = 0.05
    tpr = math.exp(epsilon) * fpr + delta
    generator = rng(5)
    tp, fp = generator.binomial(runs, tpr, TRIALS), generator.binomial(runs, fpr, TRIALS)

    def above(tp, fp):
        return clopper_pearson(tp, runs - tp, fp, runs - fp, delta) > epsilon

    def mirrored(tp, fp):
        return clopper_pearson(runs - fp, fp, runs - tp, tp, delta) > epsilon

    found = share_of_pairs(above, tp, fp)
    assert found <= MOST
    assert share_of_pairs(mirrored, tp, fp) == found


def test_clopper_pearson_at_randomised_response_uses_half_of_alpha_for_each_rate():
    runs, epsilon = 400, 1.0
    q = 1 / (1 + math.exp(-epsilon))
    generator = rng(6)
    tp, fp = generator.binomial(runs, q, TRIALS), generator.binomial(runs, 1 - q, TRIALS)
    assert share_of_pairs(lambda a, b: clopper_pearson(a, runs - a, b, runs - b, 0) > epsilon, tp, fp) <= MOST
    tpr = stats.beta.ppf(ALPHA / 2, 390, 11)
    fpr = stats.beta.ppf(1 - ALPHA / 2, 6, 395)
    assert clopper_pearson(390, 10, 5, 395, 0.01) == pytest.approx(
        max(math.log((tpr - 0.01) / fpr), math.log((1 - fpr - 0.01) / (1 - tpr)))
    )


@pytest.mark.parametrize(("epsilon", "k"), [(0.0, 10), (1.0, 2), (2.0, 10), (4.0, 1000)])
def test_k_ary_at_randomised_response(epsilon, k):
    r = 200
    right = rng(7).binomial(r, math.exp(epsilon) / (math.exp(epsilon) + k - 1), TRIALS)
    found = share(lambda v: k_ary(r, v, k) > epsilon, right, r)
    assert 0.01 < found <= MOST


def test_a_ceiling_asks_what_is_known_of_the_guesses():
    r, ceiling = 100, 0.04
    apart = rng(8).binomial(r, ceiling, TRIALS)
    together = np.where(rng(9).random(TRIALS) < 0.03, r, rng(10).binomial(r, 0.01 / 0.97, TRIALS))

    def alarms(right, ceiling, independent):
        return share(lambda v: ceiling_p_value(r, v, ceiling, independent) <= ALPHA, right, r)

    assert alarms(apart, ceiling, True) <= MOST
    assert alarms(apart, ceiling, False) <= MOST
    assert alarms(together, ceiling, False) <= MOST
    everything = np.where(rng(11).random(TRIALS) < 0.2, r, 0)  # each guess right with probability 0.2
    assert alarms(everything, 0.2, True) > 0.15
    assert alarms(everything, 0.2, False) <= MOST
    assert ceiling_p_value(100, 10, 0.04, True) == pytest.approx(stats.binom.sf(9, 100, 0.04))
    assert ceiling_p_value(100, 10, 0.04, False) == pytest.approx(0.4)


# power ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("mu", "m", "r"), [(0.5, 1000, 200), (1.0, 1000, 200), (2.0, 400, 40), (3.0, 1000, 1000)]
)
def test_a_whole_curve_shows_more_than_a_pair(mu, m, r):
    typical = int(np.median(gaussian_game(mu, m, r, trials=200)))
    by_curve, by_pair = f_dp(m, r, typical, gaussian, DELTA), one_run(m, r, typical, DELTA)
    assert by_pair < by_curve < gaussian(1 / mu).epsilon(DELTA)
    assert by_curve > 1.2 * by_pair


@pytest.mark.parametrize(("epsilon", "m", "r"), [(1, 2500, 375), (3, 500, 75), (8, 640, 320)])
def test_half_the_noise_is_seen(epsilon, m, r):
    mu = optimize.brentq(lambda x: gaussian(1 / x).epsilon(DELTA) - epsilon, 0.05, 5)
    least = f_dp_least_correct(gaussian(1 / mu), m, r)
    assert least is not None
    assert np.mean(gaussian_game(2 * mu, m, r, trials=400) >= least) >= 0.8


def test_more_right_guesses_never_show_less():
    def rises(values):
        assert all(a <= b for a, b in pairwise(values))
        assert values[0] == 0 < values[-1]

    rises([one_run(100, 60, v, DELTA) for v in range(61)])
    rises([f_dp(100, 60, v, gaussian, DELTA) for v in range(0, 61, 4)])
    rises([k_ary(60, v, 7) for v in range(61)])
    rises([clopper_pearson(v, 60 - v, 10, 50, DELTA) for v in range(61)])
    p_values = [f_dp_p_value(gaussian(2.0), 100, 60, v) for v in range(61)]
    assert all(a >= b for a, b in pairwise(p_values))


def test_the_strongest_outcome_is_every_guess_right():
    found = strongest(100, 60, DELTA, family=gaussian)
    assert found.one_run == one_run(100, 60, 60, DELTA) > one_run(100, 60, 59, DELTA)
    assert found.f_dp == f_dp(100, 60, 60, gaussian, DELTA) > f_dp(100, 60, 59, gaussian, DELTA)
    assert strongest(100, 60, DELTA).f_dp is None
    assert strongest(4, 4, DELTA).one_run == 0  # 1/16 of all such games have no wrong guess
    assert strongest_clopper_pearson(40, 30, DELTA) == clopper_pearson(40, 0, 0, 30, DELTA)


# guesses -------------------------------------------------------------------------------------------------------
def test_the_highest_are_guessed_in_and_the_lowest_out():
    scores = np.array([0.3, -1.0, 2.0, 0.1, 5.0, -7.0])
    assert guess(scores, Plan(4)).tolist() == [0, -1, 1, 0, 1, -1]
    assert guess(scores, Plan(3)).tolist() == [0, 0, 1, 0, 1, -1]
    assert guess(scores, Plan(2, "in")).tolist() == [0, 0, 1, 0, 1, 0]
    assert np.abs(guess(np.zeros(6), Plan(6))).sum() == 6
    coins = np.array([1, 0, 1, 0, 0, 1], dtype=bool)
    assert count_correct(guess(scores, Plan(4)), coins) == 2
    assert count_correct(guess(scores, Plan(1, "in")), coins) == 0


# bad input -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("call", "key"),
    [
        (lambda: one_run(10, 11, 5, 0), "guesses"),
        (lambda: one_run(10, 0, 0, 0), "guesses"),
        (lambda: one_run(10, 5, 6, 0), "correct"),
        (lambda: one_run(10, 5, -1, 0), "correct"),
        (lambda: one_run(10, 5, 5, 1.0), "delta"),
        (lambda: one_run(10, 5, 5, 0, 0.0), "alpha"),
        (lambda: one_run_p_value(10, 5, 5, -1.0, 0), "epsilon"),
        (lambda: one_run_p_value(10, 5, 5, math.nan, 0), "epsilon"),
        (lambda: f_dp_p_value(gaussian(1.0), 10, 11, 5), "guesses"),
        (lambda: f_dp_p_value(gaussian(1.0), 10, 5, 5, "out"), "sides"),
        (lambda: f_dp_p_value(gaussian(1.0), 10, 5, 5, choices=1), "choices"),
        (lambda: f_dp_refutes(gaussian(1.0), 10, 5, 5, 1.0), "alpha"),
        (lambda: f_dp_least_correct(gaussian(1.0), 10, 0), "guesses"),
        (lambda: f_dp(10, 5, 5, gaussian, 0.0), "delta"),
        (lambda: f_dp(10, 5, 5, gaussian, DELTA, start=0.0), "start"),
        (lambda: clopper_pearson(0, 0, 1, 1, 0), "tp"),
        (lambda: clopper_pearson(1, 1, -1, 1, 0), "fp"),
        (lambda: k_ary(5, 5, 1), "k must"),
        (lambda: k_ary(5, 6, 3), "correct"),
        (lambda: ceiling_p_value(5, 3, 1.1, True), "ceiling"),
        (lambda: guess(np.array([1.0, math.nan]), Plan(1)), "scores"),
        (lambda: guess(np.ones(3), Plan(4)), "guesses"),
        (lambda: guess(np.ones(3), Plan(2, "up")), "sides"),
        (lambda: count_correct(np.ones(3), np.ones(4, dtype=bool)), "coins"),
    ],
)
def test_what_cannot_be_is_refused_by_name(call, key):
    with pytest.raises(InputError, match=key):
        call()


# secrets of many values ------------------------------------------------------------------------------------------
@pytest.mark.parametrize("epsilon", [0.5, 3.0, 6.0])
def test_secrets_that_are_told_as_often_as_epsilon_allows_show_no_more(epsilon):
    """The output is a secret itself, or any other value alike: randomised response, which uses all of (epsilon, 0)."""
    k, trials, alpha = 1000, 2000, 0.05
    generator = np.random.default_rng(0)
    truth = np.exp(epsilon) / (np.exp(epsilon) + k - 1)
    for secrets in (1, 3):
        right = (generator.random((trials, secrets)) < truth).sum(1)
        bounds = np.array([ceiling_epsilon(np.full(secrets, k), int(v), 0.0, alpha) for v in right])
        assert (bounds > epsilon).mean() <= alpha + 2 * np.sqrt(alpha * (1 - alpha) / trials)


def test_more_choices_and_more_right_guesses_show_more_and_delta_less():
    one = ceiling_epsilon(np.array([10**6]), 1, 0.0)
    assert one == pytest.approx(np.log(0.05 * 10**6))
    assert ceiling_epsilon(np.array([10**6]), 1, 0.01) < one
    assert ceiling_epsilon(np.array([10**6]), 1, 0.05) == 0
    assert ceiling_epsilon(np.array([10**6, 10**6]), 1, 0.0) == pytest.approx(one - np.log(2))
    assert ceiling_epsilon(np.array([10**6, 10**6]), 2, 0.0) == pytest.approx(one)
    assert ceiling_epsilon(np.array([10**6]), 0, 0.0) == 0
    with pytest.raises(InputError, match="at least one value"):
        ceiling_epsilon(np.array([0]), 1, 0.0)
