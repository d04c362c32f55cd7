"""Draws in blocks of the addressable stream: the same items as a draw all at once, in little memory."""

import resource

import numpy as np
import pytest

from confide.privacy.sampling import OwnRates, Sampling
from confide.randomness import streams
from confide.randomness.streams import RunKey

KEY = RunKey.from_text("draws")


@pytest.fixture
def small_blocks(monkeypatch):
    monkeypatch.setattr(streams, "_WORDS", 64)


@pytest.mark.parametrize("n", [0, 1, 2, 63, 64, 65, 1000, 1001])
@pytest.mark.parametrize("rate", [0.0, 1e-3, 0.3, 1 - 2.0**-53, 1.0])
def test_blocks_draw_what_one_comparison_draws(n, rate, small_blocks):
    stream = KEY.stream("train", "draw", 5)
    expected = np.flatnonzero(stream.uniform(n) < rate)
    found = stream.chosen(rate, n)
    assert found.dtype == np.int64
    assert np.array_equal(found, expected)
    own = np.random.default_rng(n).random(n)
    assert np.array_equal(stream.chosen(own, n), np.flatnonzero(stream.uniform(n) < own))


def test_a_word_at_the_border_is_on_the_side_of_its_value():
    """Whole words are compared: 11 bits of them are no part of the value."""
    rate = 3 * 2.0**-53
    words = np.array([2 << 11, (3 << 11) - 1, 3 << 11, (3 << 11) + 1], dtype=np.uint64)
    assert streams._below(words, rate).tolist() == [True, True, False, False]
    assert streams._below(words, np.full(4, rate)).tolist() == [True, True, False, False]
    between = rate + 2.0**-55  # no multiple of 2^-53: the value 3 * 2^-53 lies below
    assert streams._below(words, between).tolist() == [True, True, True, True]


def test_what_earlier_versions_drew_is_drawn_still():
    assert Sampling("poisson", 0.01).draw(1000, KEY, "train", 3).tolist() == EARLIER["poisson"]
    assert Sampling("poisson", 0.01, bands=3).draw(1000, KEY, "train", 3).tolist() == EARLIER["bands"]
    assert Sampling("shuffle", 0.01).draw(1000, KEY, "train", 3).tolist() == EARLIER["shuffle"]
    rates = np.linspace(0.001, 0.02, 1000)
    assert OwnRates(rates).draw(1000, KEY, "train", 3).tolist() == EARLIER["own"]


def test_an_order_is_made_once_for_all_steps_that_use_it(monkeypatch):
    made = []
    honest = streams.Stream.permutation
    monkeypatch.setattr(streams.Stream, "permutation", lambda self, n: made.append(n) or honest(self, n))
    key = RunKey.from_text("orders")
    for step in range(6):
        Sampling("poisson", 0.01, bands=3).draw(1000, key, "train", step)
    assert made == [1000]
    for step in range(6):  # half of the data a step: three orders in all
        Sampling("shuffle", 0.5).draw(100, key, "train", step)
    assert made == [1000, 100, 100, 100]
    Sampling("poisson", 0.01, bands=3).draw(1001, key, "train", 0)
    Sampling("poisson", 0.01, bands=3).draw(1001, key, "other", 0)
    assert made[-2:] == [1001, 1001]


def test_a_hundred_million_units_take_little_memory():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    drawn = Sampling("poisson", 1e-6).draw(100_000_000, KEY, "train", 0)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    assert 50 < len(drawn) < 160
    assert grown < 64 << 20


EARLIER = {
    "poisson": [322, 369, 474, 699, 728, 812, 895, 947],
    "bands": [55, 97, 267, 322, 343, 369, 408, 428, 481, 511, 665, 699, 876, 900],
    "shuffle": [36, 95, 334, 437, 442, 637, 703, 799, 829, 921],
    "own": [369, 474, 699, 728, 812, 829, 876, 895, 947],
}
