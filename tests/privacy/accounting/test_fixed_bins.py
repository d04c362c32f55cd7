"""Fixed bins under correlated noise: the bound against integrals, other accountants, and attackers who adapt."""

import math

import numpy as np
import pytest
from scipy import stats

from confide.privacy import accounting
from confide.privacy.accounting import BallsInBins, FixedBins, MixtureOfGaussians
from confide.privacy.accounting import fixed_bins as module
from confide.privacy.accounting.fixed_bins import CHANCE, FARTHEST, _bounds, _hull
from confide.privacy.correlated_noise import Buffered, coefficients
from confide.utils.errors import InputError

EPSILONS = np.array([-2.0, -0.5, 0.0, 0.3, 1.0, 2.0])


# against integrals ----------------------------------------------------------------------------------
def exact(gram: np.ndarray, epsilon: float) -> tuple[float, float]:
    """E_Q (S - e^epsilon)+ and E_Q (1 - e^epsilon S)+ of two bins.

    It is a sum over X^1. Given that, S is a constant and a lognormal, so the rest has a closed form.
    """
    (one, both), (_, two) = gram
    points = np.linspace(-11, 11, 40_001)
    weights = stats.norm.pdf(points) * (points[1] - points[0])
    x = math.sqrt(one) * points
    first = np.exp(x - one / 2) / 2
    mean, variance = x * both / one, max(two - both**2 / one, 1e-300)
    second = np.exp(mean - two / 2 + variance / 2) / 2  # of the lognormal
    g = math.exp(epsilon)

    def call(strike: np.ndarray) -> np.ndarray:
        """E (lognormal - strike)+"""
        s = math.sqrt(variance)
        with np.errstate(divide="ignore", invalid="ignore"):
            d = (np.log(second / strike) + variance / 2) / s
            found = second * stats.norm.cdf(d) - strike * stats.norm.cdf(d - s)
        return np.where(strike <= 0, second - strike, found)

    removal = float(weights @ call(g - first))
    addition = float(weights @ (g * call(1 / g - first))) + 1 - g  # (1 - gS)+ = (gS - 1)+ + 1 - gS, E S = 1
    return removal, addition


GRAMS = [
    FixedBins(2, 2, (1.0,)).gram(1.0),
    FixedBins(2, 3, (1.0, 0.5)).gram(1.0),
    FixedBins(2, 7, tuple(coefficients(7))).gram(2.5),
    FixedBins(2, 4, tuple(coefficients(4))).gram(0.9),
]


@pytest.mark.parametrize(
    ("steps", "column", "s"),
    [
        (2, (1.0,), 1.0),
        (3, (1.0, 0.5), 1.0),
        (7, tuple(coefficients(7)), 2.5),
        (4, tuple(coefficients(4)), 0.9),
    ],
)
def test_two_bins_are_bounded_by_little_more_than_the_integral(steps, column, s):
    process = FixedBins(2, steps, column)
    curve = process.curve(s)
    for epsilon in EPSILONS:
        for direction, truth in zip(
            (curve.removal, curve.addition), exact(process.gram(s), float(epsilon)), strict=True
        ):
            claimed = float(direction.delta(epsilon))
            assert claimed >= truth
            assert claimed <= 1.03 * truth + 2e-6


def test_of_one_bin_and_of_known_ones_it_is_gaussian():
    column = (1.0, 0.5, 0.25)
    process = FixedBins(1, 5, column)
    distance = math.sqrt(process.gram(1.0)[0, 0])
    same = MixtureOfGaussians((distance,), (1.0,), 1)
    assert process.curve(1.7).epsilon(1e-5) == same.curve(1.7).epsilon(1e-5)
    # Hardly any noise: each bin is told at a glance, and losses go beyond what is drawn.
    known = FixedBins(4, 8, (1.0,)).curve(0.05)
    gaussian = MixtureOfGaussians((math.sqrt(2),), (1.0,), 1).curve(0.05)
    assert known.epsilon(1e-5) == pytest.approx(gaussian.epsilon(1e-5), rel=1e-12)


@pytest.mark.parametrize(("bins", "s"), [(2, 1.0), (10, 0.8), (8, 2.0), (40, 0.7)])
def test_of_one_epoch_with_independent_noise_it_is_balls_in_bins(bins, s):
    ours, theirs = FixedBins(bins, bins, (1.0,)).curve(s), BallsInBins(bins, bins).curve(s)
    for delta, near in ((1e-2, 1.03), (1e-4, 1.08), (1e-5, 1.3)):
        least = theirs.epsilon(delta)
        assert least * (1 - 1e-3) <= ours.epsilon(delta) <= near * least
    rates = np.array([0.01, 0.1])
    assert (ours.true_positive_rate(rates) <= 1.02 * theirs.true_positive_rate(rates)).all()
    assert (ours.true_positive_rate(rates) >= theirs.true_positive_rate(rates) * (1 - 1e-3)).all()


# against attackers ----------------------------------------------------------------------------------
def losses(process: FixedBins, s: float, trials: int, gradient, is_there: bool) -> np.ndarray:
    """log P/Q of the released sums of simulated runs, by the bins' likelihoods; float64[trials].

    What is released of step t is the sum over the steps i <= t of C_ti g_i, plus noise. `gradient` gets what was
    released before, and gives g of the next step, of absolute value 1 at most.
    """
    generator = np.random.default_rng(7)
    c = np.zeros(process.steps)
    c[: len(process.column)] = process.column
    std = s * (process.norm or math.sqrt(sum(x * x for x in process.column)))
    place = generator.integers(process.bins, size=trials)
    given = np.zeros((trials, process.steps))
    seen = np.zeros((trials, process.steps))
    logs = np.zeros((trials, process.bins))
    for t in range(process.steps):
        given[:, t] = gradient(seen[:, :t])
        moved = given[:, : t + 1] * c[t::-1]  # C_ti g_i
        means = np.stack(
            [moved[:, j : t + 1 : process.bins].sum(axis=1) for j in range(process.bins)], axis=1
        )
        seen[:, t] = std * generator.normal(size=trials)
        if is_there:
            seen[:, t] += means[np.arange(trials), place]
        logs += (means * seen[:, [t]] - means**2 / 2) / std**2
    top = logs.max(axis=1)
    return top + np.log(np.exp(logs - top[:, None]).mean(axis=1))


def always(seen):
    return np.ones(len(seen))


def turning(seen):
    """Go on in the direction that the releases before seem to have, and back where they are near nothing."""
    if not seen.shape[1]:
        return np.ones(len(seen))
    total = seen.sum(axis=1)
    return np.where(np.abs(total) < 0.5, -1.0, np.sign(total))


def resting(seen):
    """Stop where there is much to be seen already."""
    return (np.abs(seen).max(axis=1, initial=0.0) < 1.0).astype(float)


@pytest.mark.parametrize("gradient", [always, turning, resting])
@pytest.mark.parametrize(
    ("bins", "steps", "bands", "s"), [(4, 10, 4, 1.0), (3, 9, 9, 1.5), (10, 24, 8, 0.7), (5, 3, 2, 0.6)]
)
def test_no_attacker_sees_more_and_one_who_never_turns_sees_all(bins, steps, bands, s, gradient):
    process = FixedBins(bins, steps, tuple(coefficients(bands)))
    curve, trials = process.curve(s), 60_000
    there, absent = (losses(process, s, trials, gradient, each) for each in (True, False))
    for epsilon in (0.0, 0.5, float(np.quantile(there, 0.95))):
        for direction, sample in ((curve.removal, there), (curve.addition, -absent)):
            each = np.maximum(-np.expm1(epsilon - sample), 0)
            found, error = each.mean(), each.std() / math.sqrt(trials)
            claimed = float(direction.delta(epsilon))
            assert found <= claimed + 5 * error
            if gradient is always:
                assert claimed <= 1.02 * found + 6 * error + 2e-5


@pytest.mark.parametrize("gradient", [always, turning])
def test_nor_does_one_who_sees_noise_that_all_later_steps_take_back(gradient):
    steps, s = 12, 1.0
    column = Buffered(2).column(steps)
    process, cut = (FixedBins(4, steps, tuple(column), norm) for norm in (Buffered(2).sensitivity, None))
    curve, trials = process.curve(s), 60_000
    there, absent = (losses(process, s, trials, gradient, each) for each in (True, False))
    for epsilon in (0.0, 0.5, float(np.quantile(there, 0.95))):
        for direction, sample in ((curve.removal, there), (curve.addition, -absent)):
            each = np.maximum(-np.expm1(epsilon - sample), 0)
            claimed = float(direction.delta(epsilon))
            assert each.mean() <= claimed + 5 * each.std() / math.sqrt(trials)
            if gradient is always:
                assert claimed <= 1.02 * each.mean() + 6 * each.std() / math.sqrt(trials) + 2e-5
    assert cut.curve(s).epsilon(1e-3) > curve.epsilon(1e-3)  # a shorter column is less noise


def test_an_attacker_who_turns_sees_less():
    """Else the test above would say nothing of those who adapt."""
    process = FixedBins(3, 9, tuple(coefficients(9)))
    straight, bent = (losses(process, 1.5, 60_000, each, True).mean() for each in (always, turning))
    assert bent < 0.9 * straight


# the parts ------------------------------------------------------------------------------------------
def test_the_means_are_those_of_the_matrix():
    column, bins, steps = (1.0, 0.5, 0.375, 0.2), 3, 8
    matrix = np.zeros((steps, steps))
    for i in range(steps):
        for t in range(i, min(steps, i + len(column))):
            matrix[t, i] = column[t - i]
    means = np.stack([matrix @ (np.arange(steps) % bins == j) for j in range(bins)])
    expected = means @ means.T / 4 / sum(c * c for c in column)
    assert FixedBins(bins, steps, column).gram(2.0) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("gram", [*GRAMS, FixedBins(12, 30, tuple(coefficients(12))).gram(0.8)])
def test_no_draw_is_above_the_largest_value_that_the_bound_counts_with(gram, monkeypatch):
    """Bernstein's bound is one of values up to a largest: a wrong one would make it no bound at all."""
    epsilons = np.linspace(0, 12, 61)
    drawn, looked = {}, []

    def add(self, losses, log_weights):
        drawn.setdefault(id(self), []).append((losses, log_weights))

    def bound(self, epsilons, largest, nats):
        looked.append((id(self), largest))
        return np.ones(len(epsilons))

    monkeypatch.setattr(module._Sums, "add", add)
    monkeypatch.setattr(module._Sums, "bound", bound)
    _bounds(gram, epsilons, 200_000)
    assert len(looked) == 2
    for sums, largest in looked:
        kept_losses, logs = (np.concatenate(each) for each in zip(*drawn[sums], strict=True))
        for epsilon, most in zip(epsilons, largest, strict=True):
            values = np.exp(logs) * np.maximum(-np.expm1(epsilon - kept_losses), 0)
            assert values.max() <= most * (1 + 1e-9)
        assert (largest[1:] <= largest[:-1] * (1 + 1e-12)).all()


@pytest.mark.parametrize("gram", GRAMS)
def test_the_mean_of_the_draws_is_the_divergence(gram, monkeypatch):
    """Weights are right: without what the bound adds, both sums are estimates of the integrals."""

    def mean(self, epsilons, largest, nats):
        whole, part = (self._sums[k, ::-1].cumsum()[::-1] / self._count for k in (0, 1))
        return whole - np.exp(epsilons) * part

    monkeypatch.setattr(module._Sums, "bound", mean)
    epsilons = np.linspace(0, 4, 9)
    removal, addition = _bounds(gram, epsilons, 400_000)
    for epsilon, one, other in zip(epsilons, removal, addition, strict=True):
        for found, truth in zip((one, other), exact(gram, float(epsilon)), strict=True):
            assert found == pytest.approx(truth, rel=0.03, abs=1e-7)


def test_pieces_in_which_draws_are_worked_on_decide_nothing(monkeypatch):
    epsilons = np.linspace(0, 6, 31)
    whole = _bounds(GRAMS[3], epsilons, 20_000)
    monkeypatch.setattr(module, "_PIECE", 7)
    for one, other in zip(whole, _bounds(GRAMS[3], epsilons, 20_000), strict=True):
        assert one == pytest.approx(other, rel=1e-12)


@pytest.mark.parametrize("bins", [2, 40])
def test_the_largest_losses_that_are_looked_at_are_numbers_in_float64(bins):
    """Exponentials are added up as they are, not relative to the largest: none may overflow, and no sum may vanish."""
    gram = FixedBins(bins, bins, tuple(coefficients(bins))).gram(1.0)
    longest = math.sqrt(100 + 2 * FARTHEST) - 10  # longest^2 / 2 + 10 longest is the farthest loss
    gram *= longest**2 / gram.diagonal().max()
    with np.errstate(all="raise", under="ignore"):
        found = _bounds(gram, np.linspace(0, FARTHEST, 301), 1 << 14)
    assert np.isfinite(found).all()


def test_a_hull_is_convex_and_lies_between_a_convex_function_and_its_bounds():
    epsilons = np.linspace(0, 5, 301)
    truth = np.exp(-1.5 * epsilons)  # e^(-1.5 e) = g^-1.5 is convex in g
    bounds = truth * np.random.default_rng(0).uniform(1.0, 1.3, len(truth))
    found = _hull(bounds, epsilons)
    assert (found >= truth * (1 - 1e-9)).all()
    assert (found <= bounds * (1 + 1e-9)).all()
    slopes = np.diff(found) / np.diff(np.exp(epsilons))
    assert (np.diff(slopes) >= -1e-9).all()
    assert found.sum() < 0.95 * bounds.sum()


def test_fewer_draws_estimate_the_bound_and_a_claim_has_all():
    process = FixedBins(10, 24, tuple(coefficients(10)))
    fine = process.curve(0.8)
    assert process.estimate(0.8, 1e-2).epsilon(1e-4) == pytest.approx(fine.epsilon(1e-4), rel=0.03)
    assert process.estimate(0.8, 1e-3).epsilon(1e-4) == pytest.approx(fine.epsilon(1e-4), rel=0.01)
    assert process.curve(0.8, 1e-2) is fine


def test_the_least_noise_is_the_least():
    process = FixedBins(10, 24, tuple(coefficients(10)))
    s = accounting.least_noise(process, 8.0, 2e-4)
    assert process.curve(s).epsilon(2e-4) <= 8.0
    assert process.curve(0.99 * s).epsilon(2e-4) > 8.0


def test_the_bound_of_few_draws_is_wider(monkeypatch):
    gram, epsilons = FixedBins(10, 24, tuple(coefficients(10))).gram(0.8), np.linspace(0, 6, 61)
    estimates = _bounds(gram, epsilons, 1 << 17)
    monkeypatch.setattr(module, "DRAWS", 1)  # now so few are a bound
    for estimate, bound in zip(estimates, _bounds(gram, epsilons, 1 << 17), strict=True):
        assert (bound > estimate).all()


def test_correlation_makes_known_what_a_bin_hides_and_never_less():
    """Covariances only help an attacker: of the same lengths, bins that are orthogonal are told apart the least."""
    gram = FixedBins(6, 12, tuple(coefficients(6))).gram(1.2)
    epsilons = np.linspace(0, 6, 61)
    apart = _bounds(np.diag(gram.diagonal()), epsilons, 200_000)
    together = _bounds(gram, epsilons, 200_000)
    known = _bounds(np.full_like(gram, gram.max()), epsilons, 200_000)
    for less, more, most in zip(apart, together, known, strict=True):
        assert (less[:40] < more[:40]).all()
        assert (more[:40] < most[:40]).all()


def test_chance_is_part_of_every_delta():
    curve = FixedBins(4, 8, (1.0, 0.5)).curve(3.0)
    assert curve.delta(50.0) >= CHANCE
    assert math.isinf(curve.epsilon(CHANCE / 2))


@pytest.mark.parametrize("column", [(), (1.0, -0.5), (0.0, 1.0)])
def test_a_matrix_with_negative_elements_is_not_covered(column):
    with pytest.raises(ValueError, match="no negative elements"):
        FixedBins(4, 8, column)


def test_an_epoch_that_takes_minutes_is_refused():
    with pytest.raises(InputError, match="at most 512 steps"):
        FixedBins(513, 600, (1.0, 0.5))


def test_a_run_so_long_that_it_fills_the_memory_is_refused():
    with pytest.raises(InputError, match="at most 100,000 steps"):
        FixedBins(10, 200_000, (1.0, 0.5))


@pytest.mark.parametrize(
    "around",
    [
        lambda process: accounting.Exchanged(process),
        lambda process: accounting.Repeated(process, accounting.Trials(4.0, 1.0)),
        lambda process: accounting.After(MixtureOfGaussians.bernoulli(1.0, 1), 5.0, process),
    ],
    ids=["exchanged", "repeated", "after"],
)
def test_a_search_estimates_through_what_is_around_it(around, monkeypatch):
    process = FixedBins(4, 8, (1.0, 0.5))
    asked = []
    whole = FixedBins.curve

    def counted(self, noise_multiplier, interval=1e-4):
        asked.append(noise_multiplier)
        return whole(self, noise_multiplier, interval)

    monkeypatch.setattr(FixedBins, "curve", counted)
    s = accounting.least_noise(around(process), 6.0, 1e-3)
    assert 1 <= len(set(asked)) <= 6
    assert around(process).curve(s).epsilon(1e-3) <= 6.0
    assert around(process).curve(0.98 * s).epsilon(1e-3) > 6.0


def test_a_search_has_draws_of_its_own():
    """Else the noise at which it ends would be chosen by the draws that its claim rests on."""
    gram, epsilons = FixedBins(4, 8, (1.0, 0.5)).gram(1.0), np.linspace(0, 3, 7)
    seeds = []
    generator = np.random.default_rng

    def counted(seed):
        seeds.append(seed)
        return generator(seed)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(np.random, "default_rng", counted)
        for draws in (module.DRAWS, module.DRAWS // 2):
            _bounds(gram, epsilons, draws)
    assert len(set(seeds)) == 2


def test_it_needs_less_noise_than_groups_in_turn():
    """The reason why it is there: 24 steps of a tenth of the units, noise correlated over an epoch."""
    column = tuple(coefficients(10))
    fixed = accounting.least_noise(FixedBins(10, 24, column), 8.0, 2e-4)
    groups = accounting.least_noise(MixtureOfGaussians.bernoulli(1.0, 3), 8.0, 2e-4)
    assert fixed < 0.8 * groups
