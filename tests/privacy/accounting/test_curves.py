import itertools
import json
import math

import dp_accounting
import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as pld
from dp_accounting.pld.common import DifferentialPrivacyParameters
from dp_accounting.rdp import RdpAccountant
from scipy.stats import norm

from confide.privacy.accounting import GroupOf, MixtureOfGaussians, PrivacyProfile, compose
from confide.privacy.accounting.curves import Composed, _coarsened, between, group
from confide.utils.errors import InputError

PRIORS = np.array([1e-10, 1e-6, 1e-3, 0.1, 0.5, 0.9])


def gaussian_delta(mu: float, epsilon: float) -> float:
    """Balle & Wang 2018, Theorem 8; holds for every real epsilon."""
    return norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu)


@pytest.mark.parametrize(("steps", "s"), [(100, 20.0), (1, 0.5), (400, 5.0)])
def test_full_batch_is_the_plain_gaussian(steps, s):
    curve, mu = MixtureOfGaussians.bernoulli(1, steps).curve(s), math.sqrt(steps) / s
    for epsilon in (-5.0, -2.0, -0.31, 0.0, 0.4, 2.5, 8.0):
        exact = gaussian_delta(mu, epsilon)
        assert exact - 1e-15 <= curve.delta(epsilon) <= exact * (1 + 1e-6) + 1e-8
    exact = norm.cdf(norm.ppf(PRIORS) + mu)
    for bound in (curve.reconstruction(PRIORS), curve.true_positive_rate(PRIORS)):
        assert np.all(bound >= exact * (1 - 1e-12))
        assert np.all(bound <= exact * (1 + 1e-4))
    assert curve.advantage() == pytest.approx(2 * norm.cdf(mu / 2) - 1, rel=1e-6)
    for delta in (1e-3, 1e-6, 1e-12):
        epsilon = curve.epsilon(delta)
        assert gaussian_delta(mu, epsilon) <= delta * (1 + 1e-9)
        assert gaussian_delta(mu, epsilon - 1e-3) > delta


def test_one_sampled_step_has_a_closed_form():
    q, s = 0.1, 0.8
    curve = MixtureOfGaussians.bernoulli(q, 1).curve(s)
    cut = norm.isf(PRIORS[:4]) * s
    removal = (1 - q) * norm.sf(cut / s) + q * norm.sf((cut - 1) / s)
    bound = curve.reconstruction(PRIORS[:4])
    assert np.all(bound >= removal * (1 - 1e-12))
    assert np.all(bound <= removal * (1 + 1e-5))
    # the null swapped: reject below the cut, where the mixture has probability fpr
    cuts = np.linspace(-3, 1, 9)
    fpr = (1 - q) * norm.cdf(cuts / s) + q * norm.cdf((cuts - 1) / s)
    addition = norm.cdf(cuts / s)
    assert np.all(curve.addition.blow_up(fpr) >= addition * (1 - 1e-12))
    assert curve.addition.blow_up(fpr) == pytest.approx(addition, rel=1e-4)
    assert np.all(curve.true_positive_rate(fpr) >= addition * (1 - 1e-12))


@pytest.mark.parametrize("steps", [100, 10_000])
def test_transform_errors_never_fall_below_the_truth(steps):
    # a composition by Fourier transform whose answer is known: the Gaussian of mu = 1/2
    one = pld.from_gaussian_mechanism(2 * math.sqrt(steps), value_discretization_interval=5e-5)
    curve = Composed.of(one, steps).curve()
    for epsilon in (-2.0, 0.0, 1.0, 2.5, 3.0, 3.5, 4.0):
        exact = gaussian_delta(0.5, epsilon)
        assert exact * (1 - 1e-9) <= curve.delta(epsilon) <= exact * 1.05 + 1e-11


def test_the_far_tail_is_reached_after_many_steps():
    curve = MixtureOfGaussians.bernoulli(0.001, 10_000).curve(0.7)
    assert curve.composed is not None
    assert curve.composed.rounding > 1e-12  # what the transform alone cannot resolve
    event = dp_accounting.PoissonSampledDpEvent(0.001, dp_accounting.GaussianDpEvent(0.7))
    renyi = RdpAccountant().compose(dp_accounting.SelfComposedDpEvent(event, 10_000))
    assert curve.epsilon(1e-9) < curve.epsilon(1e-12) <= 1.02 * renyi.get_epsilon(1e-12)


def test_curve_is_monotone_convex_between_vertices_and_inverts():
    curve = MixtureOfGaussians.binomial(4, 0.05, 50).curve(1.0, 1e-3)
    grid = np.linspace(-3, 12, 2001)
    deltas = np.array([curve.delta(e) for e in grid])
    assert np.all(np.diff(deltas) <= 1e-15)
    assert deltas[0] <= 1
    for delta in (0.3, 1e-2, 1e-5):
        epsilon = curve.epsilon(delta)
        assert curve.delta(epsilon) == pytest.approx(delta, rel=1e-6)
    assert curve.epsilon(0.999999) == 0.0


def test_reconstruction_stays_between_prior_and_one():
    grid = np.geomspace(1e-12, 1, 60)
    for s in (0.05, 1.0, 1e4):
        curve = MixtureOfGaussians.binomial(4, 0.05, 50).curve(s, 1e-2)
        bound = curve.reconstruction(grid)
        assert np.all(bound >= grid)
        assert np.all(bound <= 1)
        assert np.all(np.diff(bound) >= 0)
        assert float(curve.reconstruction(0.0)) <= 1e-9 or s == 0.05
    assert np.ndim(curve.reconstruction(0.25)) == 0


def test_reconstruction_meets_the_vectors(shared):
    """Tight, and never below: parts in ten thousand above at most."""
    for known in json.loads((shared / "vectors/audit.json").read_text())["reconstruction"]:
        curve = MixtureOfGaussians.bernoulli(known["q"], known["T"]).curve(known["sigma"])
        found = float(curve.reconstruction(known["kappa"]))
        assert known["gamma"] * (1 - 1e-6) <= found <= known["gamma"] * (1 + 1e-3), known


def test_removal_alone_decides_reconstruction():
    q, s, prior = 0.05, 0.3, 0.9
    curve = MixtureOfGaussians.bernoulli(q, 1).curve(s)
    cut = norm.isf(prior) * s
    exact = (1 - q) * norm.sf(cut / s) + q * norm.sf((cut - 1) / s)
    assert exact <= float(curve.reconstruction(prior)) <= exact * 1.001
    assert float(curve.true_positive_rate(prior)) > 1.005 * exact  # the other direction tells more here


def test_mass_at_infinity_counts_at_every_epsilon():
    one = pld.from_privacy_parameters(DifferentialPrivacyParameters(1.0, 0.01), 1e-3)
    curve = Composed.of(one, 1).curve()
    assert curve.delta(0.0) == pytest.approx((math.e - 1 + 2 * 0.01) / (math.e + 1), rel=1e-9)
    for epsilon in (1.0, 5.0, 500.0):
        assert curve.delta(epsilon) == pytest.approx(0.01)
    assert math.isinf(curve.epsilon(0.005))
    assert float(curve.reconstruction(1e-9)) == pytest.approx(0.01, rel=1e-6)


def test_phases_compose_and_a_finer_grid_is_rounded_up():
    half, whole = (MixtureOfGaussians.bernoulli(0.02, steps) for steps in (100, 200))
    together = compose([half.curve(1.0), half.curve(1.0)])
    reference = whole.curve(1.0).epsilon(1e-5)
    assert reference * (1 - 1e-6) <= together.epsilon(1e-5) <= reference * 1.001
    mixed = compose([half.curve(1.0), half.curve(1.0, 1e-2)])
    assert mixed.interval == 1e-2
    one = half.curve(1.0).composed
    assert one is not None
    coarse = Composed(_coarsened(one.pld, 0.05), one.log_moments, one.rounding).curve()
    for epsilon in (-0.5, 0.0, 0.52, 1.0, 2.0):
        assert (
            half.curve(1.0).delta(epsilon) <= coarse.delta(epsilon) <= half.curve(1.0).delta(epsilon - 0.05)
        )
    assert reference <= mixed.epsilon(1e-5) <= reference * 1.05
    one = half.curve(1.0)
    assert compose([one]) is one


def test_black_boxes_compose_by_addition():
    process = GroupOf(MixtureOfGaussians.bernoulli(0.02, 100), 3)
    one = process.curve(2.0)
    both = compose([one, MixtureOfGaussians.bernoulli(1, 1).curve(3.0)])
    expected = one.epsilon(5e-6) + MixtureOfGaussians.bernoulli(1, 1).curve(3.0).epsilon(5e-6)
    assert expected * (1 - 1e-9) <= both.epsilon(1e-5) <= expected * 1.03
    assert both.delta(both.epsilon(1e-5)) <= 1e-5 * (1 + 1e-9)
    assert math.isinf(compose([one, PrivacyProfile.unprotected()]).epsilon(1e-5))


def test_points_and_the_accountant_are_reported():
    curve = MixtureOfGaussians.bernoulli(0.02, 100).curve(1.0)
    points = curve.points()
    assert len(points) == 12
    assert all(a[0] <= b[0] and a[1] > b[1] for a, b in itertools.pairwise(points))
    assert points[4] == (curve.epsilon(1e-5), pytest.approx(1e-5))
    assert "dp_accounting" in curve.accountant
    assert PrivacyProfile.unprotected().points() == []


@pytest.mark.parametrize("delta", [1.0, -1e-5, math.nan])
def test_nonsense_is_refused(delta):
    with pytest.raises(InputError, match=r"privacy\.delta"):
        PrivacyProfile.unprotected().epsilon(delta)
    with pytest.raises(InputError, match="prior"):
        PrivacyProfile.unprotected().reconstruction(-0.5)


def test_pure_privacy_is_what_gaussian_noise_never_gives():
    assert math.isinf(MixtureOfGaussians.bernoulli(0.02, 100).curve(50.0).epsilon(0.0))


def test_a_group_is_charged_for_each_direction_by_the_lemma():
    """Pitfall 41: taking k units out has another price than putting them in; delta grows by the whole geometric sum."""
    curve, k = MixtureOfGaussians.bernoulli(0.05, 20).curve(0.8, 1e-3), 3
    grouped = group(curve, k)
    epsilons = np.linspace(0.05, 0.9, 30)
    for one, of_all in ((curve.removal, grouped.removal), (curve.addition, grouped.addition)):
        at = one.epsilons[np.searchsorted(one.epsilons, epsilons)]  # between vertices lie lines
        expected = np.minimum(1.0, one.delta(at) * np.expm1(k * at) / np.expm1(at))
        assert of_all.delta(k * at) == pytest.approx(expected, rel=1e-6, abs=1e-300)
    assert grouped.removal.delta(2.4) > 1.5 * grouped.addition.delta(2.4)


@pytest.mark.parametrize("is_turned", [False, True])
def test_of_two_texts_one_is_taken_out_and_the_other_put_in(is_turned):
    """Pitfall 41: each at the price of its own direction, at the best way to share out epsilon."""
    curve = MixtureOfGaussians.bernoulli(0.05, 20).curve(0.8, 1e-3)
    if is_turned:
        curve = PrivacyProfile(curve.addition, curve.removal, curve.interval)
    both = between(curve, points=2000)
    ways = np.linspace(-4, 4, 4001)
    for epsilon in (0.0, 0.5, 1.0, 2.0):
        least = (curve.removal.delta(ways) + np.exp(ways) * curve.addition.delta(epsilon - ways)).min()
        assert float(both.removal.delta(epsilon)) == pytest.approx(least, rel=0.02)
        assert both.delta(epsilon) >= 0.999 * least
