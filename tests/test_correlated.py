"""The figures of benchmarks/correlated.py against dense matrices."""

import importlib.util
import sys

import numpy as np
import pytest
from scipy.linalg import toeplitz

from confide.privacy.correlated_noise import Banded, coefficients
from tests.places import BENCHMARKS

PATH = BENCHMARKS / "correlated.py"
STEPS = 13


@pytest.fixture(scope="module")
def correlated():
    spec = importlib.util.spec_from_file_location("correlated", PATH)
    module = importlib.util.module_from_spec(spec)
    sys.modules["correlated"] = module  # where its dataclasses look for their types
    spec.loader.exec_module(module)
    yield module
    del sys.modules["correlated"]


def dense(name) -> np.ndarray:
    """What the noise of each step (column) does to the weights after each step (row)."""
    ones = np.tril(np.ones((STEPS, STEPS)))
    if name == "constant rate":
        return ones
    if name == "linear decay":
        return ones @ np.diag(1 - np.arange(STEPS) / STEPS)
    ages = np.subtract.outer(np.arange(STEPS), np.arange(STEPS))
    return ones @ np.where(ages >= 0, 0.1 * 0.9 ** np.maximum(ages, 0), 0)


def matrix(below) -> np.ndarray:
    return np.tril(toeplitz(np.pad([1.0, *below], (0, STEPS - 1 - len(below)))))


@pytest.mark.parametrize("name", ["constant rate", "momentum 0.9", "linear decay"])
def test_errors_are_those_of_dense_matrices(correlated, name):
    workload = correlated.WORKLOADS[name](STEPS)
    for bands in (1, 2, 5, STEPS):
        below = correlated.factorise(workload, STEPS, bands)
        c = matrix(below)
        noise = dense(name) @ np.linalg.inv(c) * np.linalg.norm(c, axis=0).max()
        expected = np.linalg.norm(noise) / STEPS**0.5, np.linalg.norm(noise[-1])
        assert correlated._errors(workload, STEPS, below, 1.0) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("name", ["constant rate", "momentum 0.9", "linear decay"])
def test_no_step_in_any_direction_improves_the_factors(correlated, name):
    workload = correlated.WORKLOADS[name](STEPS)
    below = correlated.factorise(workload, STEPS, 4)

    def error(coefficients):
        c = matrix(coefficients)
        return np.linalg.norm(dense(name) @ np.linalg.inv(c)) * np.linalg.norm(c, axis=0).max()

    for direction in np.vstack([np.eye(3), -np.eye(3)]):
        assert error(below + 0.01 * direction) > error(below)


def test_more_bands_take_more_noise_and_win_only_where_their_factors_make_up_for_it(correlated):
    setting = correlated.Setting(units=1000, batch=100, steps=4, epsilon=4.0)
    assert setting.bands() == [1, 2, 4]
    for result in correlated.compare(setting):
        assert result.error <= 1
        assert result.rate == pytest.approx(result.bands * 0.1)
        assert (result.noise > result.plain_noise) == (result.bands > 1)
        assert result.error <= result.built <= 1  # the best matrix for a schedule, and one for all


@pytest.mark.parametrize("name", ["constant rate", "linear decay"])
@pytest.mark.parametrize("bands", [1, 4, STEPS])
def test_a_suggestion_tells_what_the_benchmark_does(correlated, name, bands):
    """Two ways to one figure: sums over pairs of steps there, the matrix itself in the planner."""
    rates = [1 - step / STEPS if name == "linear decay" else 1.0 for step in range(STEPS)]
    below = np.array(coefficients(bands)[1:])
    error, _ = correlated._errors(correlated.WORKLOADS[name](STEPS), STEPS, below, 1.0)
    assert Banded(bands).sensitivity * Banded(bands).noise_in_weights(rates) == pytest.approx(error)
