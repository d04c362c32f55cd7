"""Distances of collections of texts: against scipy, and at their two ends."""

import numpy as np
import pytest
from scipy.spatial.distance import jensenshannon

from confide.synthesis.divergence import frontier, likeness, of_lengths, of_runs


def test_distances_of_words_are_those_of_scipy():
    first, second = ["a b a", "c"], ["a d", "d b b"]
    ours = of_runs(first, second, 1)
    assert ours == pytest.approx(jensenshannon([2, 1, 1, 0], [1, 2, 0, 2], base=2))
    assert of_runs(first, first, 2) == 0
    assert of_runs(["a b"], ["b a"], 2) == 1
    assert of_runs(["a b"], ["b a"], 1) == 0
    with pytest.raises(ValueError, match="empty"):
        of_runs(["a"], ["a b"], 2)


def test_lengths_are_compared_in_bins_that_double():
    assert of_lengths(["a b", "a"], ["c d e", "f"]) == 0  # 2 and 3 words are alike
    assert of_lengths(["a b"], ["a b c d"]) == 1


def test_a_frontier_has_the_area_one_for_the_same_and_none_for_the_apart():
    p, q = np.array([0.5, 0.5, 0.0]), np.array([0.0, 0.0, 1.0])
    assert frontier(p, p) == pytest.approx(1)
    assert frontier(p, q) < 0.05
    between = np.array([0.4, 0.4, 0.2])
    assert frontier(p, q) < frontier(p, between) < 1
    assert frontier(p, between) == pytest.approx(frontier(between, p))


def test_clouds_that_are_drawn_alike_are_liker_than_others():
    generator = np.random.default_rng(3)
    centres = generator.normal(size=(4, 8))
    cloud = [
        centres[generator.integers(4, size=300)] + 0.1 * generator.normal(size=(300, 8)) for _ in range(2)
    ]
    part = centres[generator.integers(2, size=300)] + 0.1 * generator.normal(size=(300, 8))
    alike, apart = likeness(*cloud), likeness(cloud[0], part)
    assert alike > 0.9
    assert apart < 0.7
    assert likeness(*cloud) == alike
    with pytest.raises(ValueError, match="two points"):
        likeness(cloud[0], part[:1])
