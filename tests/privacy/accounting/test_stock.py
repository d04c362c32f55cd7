"""What dp_accounting finds by itself: it agrees with the claimed curve, and a claim that differs is not released."""

from dataclasses import replace

import pytest

from confide.privacy import mechanisms
from confide.privacy.accounting import MixtureOfGaussians, PrivacyProfile, stock
from confide.privacy.accounting.concentration import Filtered
from confide.privacy.accounting.stock import recheck, second_opinion
from confide.privacy.mechanisms.statement import calibrate, recheck_claim
from confide.runs.folder import Run
from confide.runs.loop import fine_tune
from confide.utils.console import Console
from confide.utils.errors import CheckFailed
from tests.light import MOST_ATOMS, MOST_POINTS
from tests.test_resume import config

DELTA = 1e-5
PAIRS = [
    (MixtureOfGaussians.bernoulli(0.01, 1000), 1.0),
    (MixtureOfGaussians.bernoulli(0.1, 50), 2.0),
    (MixtureOfGaussians.bernoulli(0.001, 5000), 0.7),
    (MixtureOfGaussians.bernoulli(1.0, 20), 9.0),
    (MixtureOfGaussians.binomial(4, 0.01, 1000), 2.5),
    (MixtureOfGaussians.binomial(3, 1.0, 10), 30.0),
]


@pytest.fixture(autouse=True)
def all_points(monkeypatch):
    monkeypatch.setattr(stock, "MOST_POINTS", MOST_POINTS)
    monkeypatch.setattr(stock, "MOST_ATOMS", MOST_ATOMS)


@pytest.mark.parametrize(("pair", "noise"), PAIRS)
def test_it_agrees_with_the_claimed_curve_and_not_with_one_of_other_noise(pair, noise):
    epsilon = pair.curve(noise).epsilon(DELTA)
    found = second_opinion(pair, noise, DELTA)
    assert found.epsilon == pytest.approx(epsilon, rel=2e-3)
    assert recheck(pair, noise, DELTA, epsilon)
    for wrong in (0.98 * noise, 1.02 * noise):
        with pytest.raises(CheckFailed, match="dp_accounting by itself finds"):
            recheck(pair, noise, DELTA, pair.curve(wrong).epsilon(DELTA))


def test_of_other_pairs_and_without_noise_it_says_nothing():
    assert second_opinion(Filtered(4000, 10, 1.0, DELTA), 3.0, DELTA) is None
    assert not recheck(MixtureOfGaussians.bernoulli(0.1, 5), 0.0, DELTA, 1.0)
    assert not recheck(MixtureOfGaussians.bernoulli(1e-6, 100_000), 0.5, DELTA, 1.0)  # a grid too fine for it


def test_a_claim_that_it_does_not_find_is_not_released(tmp_path, monkeypatch):
    run = Run(config(tmp_path / "run"))
    curve = MixtureOfGaussians.curve
    monkeypatch.setattr(
        MixtureOfGaussians, "curve", lambda self, s, *interval: curve(self, 1.1 * s, *interval)
    )
    with pytest.raises(CheckFailed, match="nothing is released"):
        fine_tune(run, Console(quiet=True))
    assert not run.release.exists()
    assert not run.guarantee_path.exists()


def test_under_replace_one_the_curve_against_the_unit_zeroed_out_is_looked_at(tmp_path, monkeypatch):
    settings = config(tmp_path / "run", privacy__adjacency="replace-one")
    import numpy as np

    from confide.data.shape import Shape

    shape = Shape(np.full(40, 3), 120, 5000, True)
    setting = calibrate(mechanisms.build(settings), shape, 3.0, None, DELTA)
    assert recheck_claim(setting, 5)
    profile = MixtureOfGaussians.curve

    def optimistic(self, s, *interval) -> PrivacyProfile:
        return profile(replace(self, steps=max(1, self.steps - 1)), s, *interval)

    monkeypatch.setattr(MixtureOfGaussians, "curve", optimistic)
    with pytest.raises(CheckFailed):
        recheck_claim(setting, 5)
