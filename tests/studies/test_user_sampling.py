"""Noise of a split agrees with the mechanisms', and the strategies choose what they say."""

from itertools import pairwise

import numpy as np
import pytest
from studies.parts.user_sampling import (
    Target,
    greedy_local_oracle,
    max_cohort,
    max_group_size,
    random_split,
    splits,
    uls_variances,
)

from confide.data.shape import Shape
from confide.planning.user_sampling import Split, noise_variance
from confide.privacy.mechanisms.els import ExampleLevelSampling
from confide.privacy.mechanisms.statement import calibrate
from confide.privacy.mechanisms.uls import UserLevelSampling
from confide.utils.errors import InputError
from tests.planning.test_user_sampling import path

TARGET = Target(epsilon=2.0, delta=1e-5, steps=40, users=64)


# noise ---------------------------------------------------------------------------------------------------------
def shape(rows):
    return Shape(np.array(rows), sum(rows), 10 * sum(rows), single_owner=True)


def test_noise_of_uls_is_what_the_mechanism_is_given():
    mechanism = UserLevelSampling(batch=16.0, steps=TARGET.steps, rows_per_unit=2)
    setting = calibrate(mechanism, shape([4] * 64), TARGET.epsilon, None, TARGET.delta)
    assert TARGET.uls_noise(16) == setting.noise_multiplier
    assert noise_variance(setting.noise_multiplier, 3.0, 16) == pytest.approx(
        (3 * setting.noise_per_gradient()) ** 2
    )


def test_noise_of_els_is_what_the_mechanism_is_given():
    rows = [1, 3, 8, 9] * 16
    mechanism = ExampleLevelSampling(batch=32.0, steps=TARGET.steps, rows_per_unit=4)
    setting = calibrate(mechanism, shape(rows), TARGET.epsilon, None, TARGET.delta)
    in_use = sum(min(4, own) for own in rows)
    assert TARGET.els_noise(32, 4, in_use) == setting.noise_multiplier


def test_more_users_than_there_are_are_refused():
    with pytest.raises(InputError, match="sampling probability"):
        TARGET.uls_noise(65)


def test_splits_spend_the_budget_on_users_that_there_are():
    found = splits(96, (1, 2, 4, 8, 16), least=8, most=64)
    assert found == [Split(2, 48.0), Split(4, 24.0), Split(8, 12.0)]
    assert all(split.budget == 96 for split in found)
    with pytest.raises(InputError, match="96 rows a step"):
        splits(96, (1,), least=1, most=64)


def test_variances_come_with_the_least_first():
    found = uls_variances(splits(64, (1, 2, 4, 8), 1, 64), lambda k: k**-0.5, TARGET.uls_noise)
    by_hand = {k: (TARGET.uls_noise(64 / k) * k**-0.5 / (64 / k)) ** 2 for k in (1, 2, 4, 8)}
    assert {split.k: variance for split, variance in found} == pytest.approx(by_hand)
    assert all(a <= b for (_, a), (_, b) in pairwise(found))


def test_the_printed_quotient_would_never_double_users():
    noise = {n: TARGET.uls_noise(n) for n in (1, 2, 4, 8, 16)}
    assert all(noise[n] < noise[2 * n] < 2 * noise[n] for n in (1, 2, 4, 8))

    def norm(k):
        return 0.99 ** np.log2(k)

    assert path(norm, lambda n: n * noise[n], budget=16)[-1].split == Split(16, 1.0)
    assert path(norm, noise.__getitem__, budget=8)[-1].split == Split(1, 8.0)


def test_the_oracle_goes_where_the_loss_is_lower():
    losses = {(2, 1): 3.0, (1, 2): 2.0, (2, 2): 1.0, (1, 4): 1.5, (4, 2): 5.0, (2, 4): 5.0}
    found = greedy_local_oracle(lambda s: losses[s.k, s.n], Split(1, 1.0), 8, 64, 64)
    assert [place.split for place in found] == [Split(1, 1), Split(1, 2), Split(2, 2), Split(2, 4)]


def test_the_plain_strategies():
    choices = splits(64, (1, 2, 4, 8), 1, 64)
    assert max_cohort(choices) == Split(1, 64.0)
    assert max_group_size(choices) == Split(8, 8.0)
    generator = np.random.default_rng(0)
    counts = np.bincount([random_split(choices, generator).k for _ in range(4000)], minlength=9)[[1, 2, 4, 8]]
    assert counts.sum() == 4000
    assert np.abs(counts - 1000).max() < 5 * np.sqrt(1000 * 0.75)
