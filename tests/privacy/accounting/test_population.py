import math
import time

import numpy as np
import pytest
from scipy import stats

from confide.privacy.accounting import (
    MixtureOfGaussians,
    Population,
    Targets,
    achieved,
    least_noise_for_kl,
    least_noise_for_reconstruction,
    least_noise_for_secrets,
)
from confide.privacy.accounting import stairs as module
from confide.utils.errors import InputError

B = 2048 / 1.5e6


def population(vectors, steps):
    """Units with rows of their own."""
    offsets = np.concatenate([[0], np.cumsum([len(v) for v in vectors])]).astype(np.int64)
    rho = np.concatenate([np.asarray(v, float) for v in vectors])
    return Population(offsets, np.arange(len(rho)), rho, steps)


def targets(*pairs):
    unit, prior, posterior = zip(*pairs, strict=True)
    return Targets(np.array(unit), np.array(prior, float), np.array(posterior, float))


def scattered(seed, units=68, most=20, steps=200, priors=3):
    """Unequal units whose targets make many of them nearly as demanding as the worst."""
    random = np.random.default_rng(seed)
    vectors = [10 ** random.uniform(-4, -1, random.integers(1, most)) for _ in range(units)]
    prior = 10.0 ** -random.integers(4, 4 + priors, units)
    if priors > 9:
        prior = 10 ** random.uniform(-9, -3, units)
    # a posterior that follows the unit's mean, as those of a linear program do
    reach = np.array([v.sum() for v in vectors]) * math.sqrt(steps) / 4.0
    reach = np.clip(reach * random.uniform(1, 1.2, units), 0.3, None)
    posterior = np.clip(stats.norm.cdf(stats.norm.ppf(prior) + reach), 1.01 * prior, 0.5)
    return population(vectors, steps), Targets(np.arange(units), prior, posterior)


def exact(process, noise, prior):
    """r(prior) of a unit by its own privacy loss distribution."""
    return float(module._Removal(process).curve(noise, 1e-3).reconstruction(prior))


def kl_of(p, r):
    return r * math.log(r / p) + (1 - r) * math.log((1 - r) / (1 - p))


def tails(process, size):
    """P(X >= k) for k = 0 .. size - 1."""
    values, weights = np.array(process.values), np.array(process.probabilities)
    return np.array([weights[values >= k].sum() for k in range(size)])


def poisson_binomial_tails(rates, size):
    masses = np.array([1.0])
    for rate in rates:
        masses = np.convolve(masses, [1 - rate, rate])
    return np.array([masses[k:].sum() for k in range(size)])


@pytest.mark.parametrize(
    ("rates", "steps", "p", "r", "blow_up", "kl"),
    [
        ([B] * 100, 2000, 1e-10, 1e-3, 2.02216, 35.1213),
        ([B] * 100, 2000, 1e-10, 2e-4, 2.3104848872465844, 83.06760234593351),
        (
            [0.002] * 30 + [0.00017130, 0.00047362, 0.00160255, 0.00116407, 0.00018826],
            1000,
            1e-6,
            1e-2,
            1.081,
            5.011,
        ),
        ([0.003] * 30 + [0.0015] * 8, 2000, 1e-10, 1e-3, 1.58174, 26.2423),
        ([0.003] * 5, 2000, 1e-10, 2e-4, 0.6035, 9.15288),
    ],
)
def test_secrets_meet_their_reference(rates, steps, p, r, blow_up, kl):
    units, pair = population([rates], steps), targets((0, p, r))
    noise = least_noise_for_secrets(units, pair, "blow-up")
    assert blow_up <= noise <= 1.003 * blow_up
    assert noise == pytest.approx(least_noise_for_reconstruction(units.process(0), [(p, r)]), rel=1e-3)
    assert float(units.process(0).curve(noise).reconstruction(p)) <= r
    noise = least_noise_for_secrets(units, pair, "kl")
    assert noise == pytest.approx(kl, rel=1e-3)
    assert noise == pytest.approx(least_noise_for_kl(units.process(0), kl_of(p, r)), rel=1e-3)


@pytest.mark.parametrize(("seed", "priors"), [(0, 1), (1, 3), (2, 10)])
def test_every_unit_is_met_and_little_less_would_not_do(seed, priors):
    units, pairs = scattered(seed, priors=priors)
    noise = least_noise_for_secrets(units, pairs, "blow-up")
    own = [units.process(j) for j in range(units.units)]
    reached = np.array([exact(own[j], noise, pairs.prior[j]) for j in range(units.units)])
    assert np.all(reached <= pairs.posterior * (1 + 1e-4))
    closest = np.argsort(reached / pairs.posterior)[-3:]
    assert any(exact(own[j], noise / 1.004, pairs.prior[j]) > pairs.posterior[j] for j in closest)
    bounds = achieved(units, pairs, noise)
    assert np.all(bounds <= pairs.posterior)
    assert np.all(bounds >= reached * (1 - 2e-3))


@pytest.mark.parametrize("seed", [0, 1, 2, 3])
def test_every_unit_is_met_by_kl_and_little_less_would_not_do(seed):
    units, pairs = scattered(seed)
    noise = least_noise_for_secrets(units, pairs, "kl")
    limits = [kl_of(p, r) for p, r in zip(pairs.prior, pairs.posterior, strict=True)]
    ratios = [units.process(j).kl(noise) / limits[j] for j in range(units.units)]
    assert max(ratios) <= 1
    assert units.process(int(np.argmax(ratios))).kl(noise / 1.004) > limits[int(np.argmax(ratios))]


@pytest.mark.parametrize("accountant", ["blow-up", "kl"])
def test_where_the_search_starts_decides_nothing(accountant, monkeypatch):
    units, pairs = scattered(3, units=16)
    usual = least_noise_for_secrets(units, pairs, accountant)
    monkeypatch.setattr(module._Cover, "start", lambda self: 0.5)
    assert least_noise_for_secrets(units, pairs, accountant) == pytest.approx(usual, rel=2e-3)


def test_a_row_in_every_batch_beside_units_of_many_rows():
    # its load is infinite: the binomial of it would put all 400 rows of the other unit into every batch
    units = population([[1.0], [0.001] * 400, [1.0, 0.01], *([[0.002] * k for k in range(1, 70)])], 100)
    pairs = Targets(np.arange(72), np.full(72, 1e-6), np.r_[0.02, 0.01, 0.03, np.full(69, 0.05)])
    alone = [least_noise_for_reconstruction(units.process(j), [(1e-6, pairs.posterior[j])]) for j in range(3)]
    noise = least_noise_for_secrets(units, pairs, "blow-up")
    assert max(alone) * 0.999 <= noise <= max(alone) * 1.003
    bounds = achieved(units, pairs, noise)
    assert np.all(bounds <= pairs.posterior)
    gaussian = stats.norm.cdf(stats.norm.ppf(1e-6) + 10 / noise)
    assert gaussian <= bounds[0] <= max(pairs.posterior[0], 1.001 * gaussian)


def test_every_pair_of_a_unit_is_enforced():
    units = population([[0.002] * 20, [0.001] * 5], 500)
    one = least_noise_for_secrets(units, targets((0, 1e-10, 1e-3), (1, 1e-10, 1e-3)), "blow-up")
    two = targets((0, 1e-10, 1e-3), (1, 1e-10, 1e-3), (0, 1e-4, 5e-4))
    assert least_noise_for_secrets(units, two, "blow-up") > 1.2 * one
    assert least_noise_for_secrets(units, two, "kl") > least_noise_for_secrets(
        units, targets((0, 1e-10, 1e-3)), "kl"
    )


BASE = ([[0.002] * 20, [0.01, 0.001, 0.001]], 300, ((0, 1e-6, 1e-2), (1, 1e-6, 1e-2)))


@pytest.mark.parametrize("accountant", ["blow-up", "kl"])
@pytest.mark.parametrize(
    ("vectors", "steps", "pairs"),
    [
        ([[0.002] * 21, BASE[0][1]], BASE[1], BASE[2]),  # one row more
        ([[0.002] * 19 + [0.003], BASE[0][1]], BASE[1], BASE[2]),  # one larger probability
        ([*BASE[0], [0.002] * 22], BASE[1], (*BASE[2], (2, 1e-6, 1e-2))),  # one unit more
        (BASE[0], 330, BASE[2]),  # more steps
        (BASE[0], BASE[1], ((0, 1e-6, 8e-3), BASE[2][1])),  # a smaller posterior
    ],
)
def test_what_asks_for_more_never_needs_less_noise(vectors, steps, pairs, accountant):
    less = least_noise_for_secrets(population(*BASE[:2]), targets(*BASE[2]), accountant)
    assert least_noise_for_secrets(population(vectors, steps), targets(*pairs), accountant) > 1.001 * less


@pytest.mark.parametrize("noise", [0.3, 1.0, 4.0])
def test_one_step_is_never_below_its_closed_form(noise):
    vectors = [[0.1, 0.3], [0.5] * 4, [0.01] * 9, [], [1.0], [0.0, 0.0]]
    units = population(vectors, 1)
    pairs = targets(*((j, p, 0.9) for j in range(6) for p in (1e-6, 1e-3, 0.1)))
    for j, p, bound in zip(pairs.unit, pairs.prior, achieved(units, pairs, noise), strict=True):
        masses = np.array([1.0])
        for rate in vectors[j]:
            masses = np.convolve(masses, [1 - rate, rate])
        cut = stats.norm.isf(p) * noise  # the likelihood ratio rises, so the best test is a threshold
        closed = float(masses @ stats.norm.sf((cut - np.arange(len(masses))) / noise))
        assert closed * (1 - 1e-9) <= bound <= closed * 1.01
        if j in (3, 5):
            assert bound == p


@pytest.mark.parametrize(("rows", "steps", "noise"), [(1, 1, 1.0), (3, 100, 20.0), (2, 1000, 100.0)])
def test_full_batch_is_the_plain_gaussian(rows, steps, noise):
    units, pairs = population([[1.0] * rows], steps), targets((0, 1e-6, 0.5), (0, 1e-2, 0.5))
    plain = stats.norm.cdf(stats.norm.ppf(pairs.prior) + math.sqrt(steps) * rows / noise)
    bounds = achieved(units, pairs, noise)
    assert np.all(plain * (1 - 1e-9) <= bounds)
    assert bounds == pytest.approx(plain, rel=5e-3)


def test_bounds_at_a_noise_that_was_not_calibrated():
    units, pairs = scattered(5)
    noise = 0.5 * least_noise_for_secrets(units, pairs, "blow-up")
    bounds = achieved(units, pairs, noise)
    for j in range(0, 68, 4):
        assert exact(units.process(j), noise, pairs.prior[j]) <= bounds[j] * 1.002
    assert np.all(bounds >= pairs.prior)
    assert (bounds > pairs.posterior).any()
    assert np.all(achieved(units, pairs, 0.0) == 1)
    assert achieved(units, pairs, 1e6) == pytest.approx(pairs.prior, rel=1e-2)


@pytest.mark.parametrize("seed", range(6))
def test_what_dominates_has_larger_tails(seed):
    random = np.random.default_rng(seed)
    vectors = [random.choice([0.0, 1e-4, 0.02, 0.3, 0.9], random.integers(4, 40)) for _ in range(12)]
    vectors.append(np.full(6, 0.3))
    units = population(vectors, 10)
    of = [poisson_binomial_tails(v[v > 0], 41) for v in vectors]
    roof = np.max(of, axis=0)
    envelope = tails(units.envelope(np.arange(13)), 41)
    assert np.all(envelope >= roof * (1 - 1e-12))
    assert envelope == pytest.approx(roof, rel=1e-8, abs=1e-20)
    for j, tail in enumerate(of):
        assert np.all(tails(units.dominating(units.loads[j]), 41) >= tail * (1 - 1e-9) - 1e-15)
        assert units.loads[j] == pytest.approx(-np.log1p(-vectors[j]).sum())
        assert units.counts[j] == (vectors[j] > 0).sum()
        ordered = [np.pad(np.sort(v)[::-1], (0, 40 - len(v))) for v in vectors]
        assert units.below(j).tolist() == [bool(np.all(v <= ordered[j])) for v in ordered]


def test_the_far_tail_of_many_rows_moves_up():
    units = population([[0.001] * 3000, [0.5] * 8, [0.02] * 2900], 10)
    envelope = units.envelope(np.arange(3))
    assert envelope.values[-1] == 3000
    assert len(envelope.values) < 250
    large = tails(units.process(2), 200)
    assert np.all(tails(envelope, 200) >= large * (1 - 1e-9))


def test_worst_is_exact_where_one_unit_dominates():
    nested = population([[0.01] * 5, [0.01] * 9, [0.02] + [0.01] * 9, []], 50)
    assert nested.worst() == nested.process(2)
    crossed = population([[0.3], [0.01] * 20, [1.0, 0.001]], 50)
    curve = crossed.worst().curve(3.0, 1e-3)
    for j in range(3):
        assert crossed.process(j).curve(3.0, 1e-3).epsilon(1e-5) <= 1.001 * curve.epsilon(1e-5)
    assert "3 units" in crossed.worst().describe()
    with pytest.raises(InputError, match="nothing to protect"):
        population([[], [0.0]], 50).worst()


def test_rows_are_shared_and_unordered():
    units = Population(
        np.array([0, 3, 3, 5]), np.array([4, 0, 2, 2, 1]), np.array([0.1, 0.0, 0.3, 0.9, 0.2]), 7
    )
    assert units.vector(0).tolist() == [0.3, 0.2, 0.1]
    assert units.vector(1).tolist() == []
    assert units.vector(2).tolist() == [0.3]
    assert units.process(1) is None
    assert units.process(0) == MixtureOfGaussians.poisson_binomial([0.3, 0.2, 0.1], 7)
    assert units.means == pytest.approx([0.6, 0.0, 0.3])


def balanced(units, spread, seed=0):
    """A population as a linear program leaves it: almost every secret is as demanding as the worst."""
    random = np.random.default_rng(seed)
    size = np.maximum(1, 60 * random.lognormal(0, 1, units)).astype(np.int64)
    offsets = np.concatenate([[0], np.cumsum(size)])
    posterior, prior = random.uniform(2e-4, 1e-3, units), np.full(units, 1e-10)
    weight = random.random(offsets[-1]) ** 2
    load = (
        (stats.norm.ppf(posterior) - stats.norm.ppf(prior)) / 60 * np.exp(spread * random.normal(size=units))
    )
    rho = weight * np.repeat(load / np.add.reduceat(weight, offsets[:-1]), size)
    rows = np.arange(offsets[-1])
    return Population(offsets, rows, np.minimum(rho, 1.0), 2000), Targets(np.arange(units), prior, posterior)


@pytest.mark.parametrize(("count", "spread", "seconds"), [(3000, 0.02, 6), (250, 0.001, 6)])
def test_thousands_of_secrets_are_quick_and_close_to_the_exact_worst(count, spread, seconds):
    units, pairs = balanced(count, spread)
    start = time.process_time()
    noise = least_noise_for_secrets(units, pairs, "blow-up")
    assert time.process_time() - start < 2 * seconds  # twice the aim, as machines differ
    assert np.all(achieved(units, pairs, noise) <= pairs.posterior)
    margins = module._Cover(units, pairs, module._Reconstruction(pairs), noise)._margins(noise)
    demanding = np.argsort(margins)[-60:]
    limits = pairs.posterior[demanding]
    reached = np.array([exact(units.process(j), noise, 1e-10) for j in demanding])
    assert np.all(reached <= limits * (1 + 1e-4))
    closest = np.argsort(reached / limits)[-3:]
    assert any(exact(units.process(demanding[i]), noise / 1.005, 1e-10) > limits[i] for i in closest)


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: targets((0, 1e-3, 1e-3)), InputError, "prior"),
        (lambda: targets((0, 0.0, 1e-3)), InputError, "prior"),
        (lambda: targets((0, 0.1, 1.0)), InputError, "prior"),
        (lambda: targets((0, math.nan, 0.5)), InputError, "prior"),
        (lambda: population([[1.2]], 5), InputError, "probability"),
        (lambda: population([[math.nan]], 5), InputError, "probability"),
        (lambda: population([[0.2]], 0), InputError, "train.steps"),
        (lambda: Population(np.array([0, 2]), np.array([0]), np.array([0.1]), 5), ValueError, "offsets"),
        (lambda: Population(np.array([0, 1]), np.array([3]), np.array([0.1]), 5), ValueError, "row"),
        (lambda: least(population([[0.0], []], 5)), InputError, "nothing to protect"),
        (lambda: least(population([[0.1]], 5), "pld"), InputError, "accountant"),
        (lambda: achieved(population([[0.1]], 5), PAIR, -1.0), InputError, "noise_multiplier"),
        (lambda: achieved(population([[0.1]], 5), targets((1, 0.1, 0.2)), 1.0), ValueError, "unit"),
    ],
)
def test_impossible_input_is_refused(call, error, words):
    with pytest.raises(error, match=words):
        call()


PAIR = targets((0, 1e-6, 1e-3))


def least(units, accountant="blow-up"):
    return least_noise_for_secrets(units, PAIR, accountant)
