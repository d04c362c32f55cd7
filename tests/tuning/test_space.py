"""What a sweep may try: how it is written, how it is drawn, and what cannot be in it."""

import math

import numpy as np
import pytest

from confide.config.loading import check
from confide.randomness.streams import RunKey
from confide.tuning.space import Listed, Range, Space, altered
from confide.utils.errors import InputError

CONFIG = check({"data": {"train": "x", "unit": "user"}, "privacy": {"epsilon": 8.0}})


@pytest.mark.parametrize(
    ("argument", "choice"),
    [
        (
            "train.schedule=constant, linear",
            Listed("train.schedule", ("constant", "linear")),
        ),
        ("train.learning_rate=1e-4,1e-3", Listed("train.learning_rate", (1e-4, 1e-3))),
        (
            "train.betas=[0.9, 0.99],[0.9,0.999]",
            Listed("train.betas", ([0.9, 0.99], [0.9, 0.999])),
        ),
        ("privacy.normalised=true,false", Listed("privacy.normalised", (True, False))),
        ("train.learning_rate=1e-4..1e-2:log", Range("train.learning_rate", 1e-4, 1e-2, True)),
        ("train.weight_decay=0..0.1", Range("train.weight_decay", 0, 0.1)),
        ("train.weight_decay=0..1", Range("train.weight_decay", 0, 1)),
        ("train.warmup=0..20", Range("train.warmup", 0, 20, whole=True)),
    ],
)
def test_what_an_argument_says(argument, choice):
    assert Space.of([argument]).choices == (choice,)


@pytest.mark.parametrize(
    ("argument", "words"),
    [
        ("", "a space is KEY="),
        ("train.schedule", "a space is KEY="),
        ("train.learning_rat=1,2", "no such key, did you mean train.learning_rate"),
        ("nonsense=1,2", "no such key"),
        ("train.schedule=", "nothing is no choice"),
        ("train.schedule=linear", "one value is no choice: list two or more, as train.schedule=ONE,OTHER$"),
        (
            "train.steps=8",
            "list two or more, as train.steps=ONE,OTHER, or give a range, as train.steps=LOW..HIGH",
        ),
        ("train.schedule=[linear", "not valid YAML"),
        ("train.learning_rate=1e-2..1e-4", "the first number of a range must be below the second"),
        ("train.learning_rate=1e-2..1e-2", "the first number of a range must be below the second"),
        ("train.learning_rate=1e-4...1e-2", "from one number to another|not valid"),
        ("train.learning_rate=a..b", "from one number to another"),
        ("train.learning_rate=true..2", "from one number to another"),
        ("train.learning_rate=0..1:log", ":log needs numbers above 0"),
        ("train.learning_rate=1..inf", "not valid|from one number to another|both finite"),
        ("run=a,b", "run cannot be tuned: each trial has a folder of its own"),
        ("privacy.published_key=a,b", "cannot be tuned: the trials' keys derive"),
    ],
)
def test_what_cannot_be_in_a_space_is_said_in_a_sentence(argument, words):
    with pytest.raises(InputError, match=words):
        Space.of([argument])


def test_a_space_needs_a_key_and_each_but_once():
    with pytest.raises(InputError, match="--space: say what to try"):
        Space.of([])
    with pytest.raises(InputError, match=r"train\.warmup stands twice"):
        Space.of(["train.warmup=1,2", "train.warmup=1..9"])


@pytest.mark.parametrize(
    ("argument", "low", "high", "middle"),
    [
        ("train.learning_rate=1e-4..1e-2:log", 1e-4, 1e-2, 1e-3),
        ("train.weight_decay=0..0.1", 0.0, 0.1, 0.05),
        ("train.warmup=0..20", 0, 20, 10),
        ("train.warmup=1..120:log", 1, 120, 11),
    ],
)
def test_a_range_is_drawn_evenly_in_itself_or_in_its_logarithm(argument, low, high, middle):
    choice = Space.of([argument]).choices[0]
    drawn = [choice.at(u) for u in np.linspace(0, 1 - 2.0**-53, 2001)]
    assert (min(drawn), max(drawn)) == (low, high)
    assert middle == pytest.approx(np.median(drawn), rel=0.02, abs=choice.whole)
    assert all(isinstance(value, int) == choice.whole for value in drawn[1:-1])
    assert all(value == float(f"{value:.4g}") for value in drawn)


def test_every_listed_value_and_whole_number_is_as_likely():
    for argument in ("train.schedule=constant,linear,cosine", "train.warmup=0..2"):
        choice = Space.of([argument]).choices[0]
        drawn = [str(choice.at(u)) for u in (np.arange(3000) + 0.5) / 3000]
        assert {drawn.count(value) for value in set(drawn)} == {1000}


def test_a_point_is_a_function_of_the_stream_and_its_values_are_independent():
    space = Space.of(["train.learning_rate=1e-4..1e-2:log", "train.weight_decay=0..1"])
    key = RunKey.from_text("space test")
    points = [space.draw(key.stream("sweep", "candidate", number)) for number in range(400)]
    again = [space.draw(key.stream("sweep", "candidate", number)) for number in range(400)]
    assert points == again
    rates, decays = (np.array([point[key] for point in points]) for key in points[0])
    assert abs(np.corrcoef(np.log(rates), decays)[0, 1]) < 0.15


def test_corners_are_all_combinations_of_ends_and_values():
    space = Space.of(["train.learning_rate=0.1..0.2", "train.schedule=constant,linear,cosine"])
    corners = [tuple(corner.values()) for corner in space.corners()]
    assert len(corners) == len(set(corners)) == 6
    many = Space.of([f"{key}=1..9" for key in ("train.warmup", "train.seed", "train.steps", "train.batch")])
    assert len(list(many.corners())) == 16


def test_altered_changes_what_the_candidate_names_and_checks_it():
    other = altered(CONFIG, {"train.learning_rate": 0.02, "train.betas": [0.8, 0.9]})
    assert (other.train.learning_rate, other.train.betas) == (0.02, (0.8, 0.9))
    back = altered(other, {"train.learning_rate": 1e-3, "train.betas": [0.9, 0.999]})
    assert back.train == CONFIG.train.model_copy(update={"betas": (0.9, 0.999)})
    for candidate, words in (
        ({"train.learning_rate": -1.0}, "train.learning_rate: -1.0 is not valid"),
        ({"train.momentum": 0.9}, "is an option of sgd"),
        ({"train.warmup": math.nan}, "train.warmup"),
    ):
        with pytest.raises(InputError, match=words):
            altered(CONFIG, candidate)
