"""The filter's decisions, its noise and what a config of it may say."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats
from studies.concentration import filter_noise, sampling_noise

from confide.config.loading import check
from confide.data.shape import Shape
from confide.data.unit_graph import UnitGraph
from confide.planning import plan as planning
from confide.privacy import mechanisms
from confide.privacy.accounting.concentration import Filtered, Moves
from confide.privacy.mechanisms.concentration import (
    ConcentrationAggregation,
    laplace,
)
from confide.privacy.mechanisms.none import NonPrivate
from confide.privacy.mechanisms.statement import calibrate, state_guarantee
from confide.privacy.mechanisms.values import Aggregation
from confide.randomness.streams import RunKey, Stream
from confide.utils.errors import InputError
from tests import small

KEY = RunKey.from_text("test")
COUNTS = np.array([3, 1, 4, 2, 5] * 1000)
SHAPE = Shape(COUNTS, int(COUNTS.sum()), 10 * int(COUNTS.sum()), True)


def config(task="causal-lm", train=None, **privacy):
    privacy = {"mechanism": "concentration", "epsilon": 3.0, "tau": 0.25} | privacy
    data = {"train": "x", "unit": "user"} | ({"label": "l"} if task == "classification" else {})
    return check({"task": task, "data": data, "privacy": privacy, "train": {"steps": 40} | (train or {})})


def filter_of(users, epsilon=math.inf):
    return ConcentrationAggregation(None, 1.0, 1.0, tau=1.0, users=users, epsilon=epsilon)


class Counting:
    """A run key that writes down which streams it is asked for."""

    def __init__(self):
        self.asked = []

    def stream(self, *what):
        self.asked.append(what)
        return KEY.stream(*what)


class Words(Stream):
    """A stream of the extreme uniform values."""

    def __init__(self, *values):
        self.values = np.array(values)

    def uniform(self, n, start=0):
        return self.values[:n]


# decisions -----------------------------------------------------------------------------------------------------
def test_laplace_values_are_laplace():
    values = [laplace(KEY.stream("test", "laplace", i), 3.0) for i in range(20_000)]
    assert stats.kstest(values, stats.laplace(scale=3.0).cdf).pvalue > 1e-3
    top = 1 - 2.0**-53
    assert laplace(Words(top, top), 2.0) == pytest.approx(2 * 53 * math.log(2))
    assert laplace(Words(0.0, top), 2.0) == pytest.approx(-2 * 53 * math.log(2))
    assert laplace(Words(0.0, 0.0), 2.0) == 0
    assert laplace(Words(0.0, top), 8.0 / math.inf) == 0


def test_a_step_passes_at_four_fifths_of_all_pairs():
    near = np.full(10, 8)
    assert filter_of(10).passes(near, KEY, "main", 0)
    near[0] = 7
    assert not filter_of(10).passes(near, KEY, "main", 0)


def test_the_noises_of_the_test_have_the_stated_scales():
    """How often a step passes, by the margin, against the two Laplace noises."""
    epsilon, near = 2.0, np.full(20, 20)  # the score is 20, the threshold 16
    passed = [
        filter_of(20, epsilon).passes(near, RunKey.from_text(f"trial {i}"), "main", 0) for i in range(4000)
    ]
    generator = np.random.default_rng(0)
    exact = (generator.laplace(scale=8, size=10**6) - generator.laplace(scale=4, size=10**6) >= -4).mean()
    assert np.mean(passed) == pytest.approx(exact, abs=4 * 0.5 / math.sqrt(4000))


def test_the_threshold_is_drawn_once_and_each_test_anew():
    key, aggregation = Counting(), filter_of(20, 2.0)
    for step in (0, 7):
        aggregation.passes(np.full(20, 20), key, "main", step)
    thresholds = [what for what in key.asked if "threshold" in what[1]]
    tests = [what for what in key.asked if "test" in what[1]]
    assert len(thresholds) == 2
    assert len(set(thresholds)) == 1
    assert len(set(tests)) == 2


def test_users_are_kept_by_how_many_are_within_two_tau():
    aggregation = filter_of(120)
    for count, chance in ((59, 0), (60, 0), (65, 0.25), (70, 0.5), (79, 0.95), (80, 1), (120, 1)):
        kept = np.array([aggregation.keeps(np.full(120, count), KEY, "main", step) for step in range(60)])
        assert kept.mean() == pytest.approx(chance, abs=0.03 if 0 < chance < 1 else 0)
        if 0 < chance < 1:  # each user by itself, and anew in each step
            assert len({tuple(row) for row in kept}) == 60
            assert 0 < kept.mean(0).min() < kept.mean(0).max() <= 1


def test_replacing_a_user_moves_the_mean_of_the_kept_by_less_than_the_noise_is_made_for():
    """Concentrated users with a fringe in doubt: the paper's sensitivity bounds most moves, the proof's all."""
    users, epsilon, steps, delta = 200, 3.0, 40, 1e-5
    aggregation, generator = filter_of(users), np.random.default_rng(0)
    stated = math.sqrt(8 * (epsilon + math.log(steps / delta)))
    moved = []
    for trial in range(100):
        vectors = np.concatenate([generator.normal(0, 0.75, (20, 8)), generator.normal(0, 0.12, (180, 8))])
        moves = []
        for first in (np.full(8, 1.0), np.full(8, -0.6)):
            vectors[0] = first
            gaps = np.linalg.norm(vectors[:, None] - vectors[None], axis=2)
            assert (gaps <= 1).mean() > 0.78
            kept = aggregation.keeps((gaps <= 2).sum(1), KEY, "main", trial)
            moves.append((vectors[kept].mean(0), kept))
        (before, kept), (after, also) = moves
        moved.append(np.linalg.norm(before - after) * users)
        worst = Moves.of(users, 0.22)
        assert worst is not None
        assert moved[-1] <= worst.first + worst.each * (kept != also)[1:].sum()
    assert np.mean(np.array(moved) <= stated) > 0.99
    assert max(moved) > 1


# noise and claim -----------------------------------------------------------------------------------------------
def test_the_noise_is_absolute_and_in_proportion_to_tau():
    mechanism = mechanisms.build(config())
    setting = calibrate(mechanism, SHAPE, 3.0)
    aggregation = mechanism.aggregation(setting.parameters, setting.noise_multiplier)
    delta = setting.parameters.delta
    s = Filtered(5000, 40, 3.0, delta).noise_multiplier
    assert (setting.noise_multiplier, setting.parameters.divisor) == (s, 5000)
    assert aggregation.noise_scale == pytest.approx(s * 0.25 / 5000)
    assert (aggregation.clip_norm, aggregation.scale) == (None, 1.0)
    assert (
        replace(mechanism, tau=0.5).aggregation(setting.parameters, s).noise_scale
        == 2 * aggregation.noise_scale
    )
    assert calibrate(mechanism, SHAPE, 3.0, None, 1e-9).noise_multiplier > s
    assert filter_noise(5000, 40, 3.0, delta) == setting.noise_per_gradient()


def test_every_user_is_drawn_every_step(tmp_path):
    graph = small.graph(tmp_path / "g", [3, 1, 4, 2, 5])
    assert isinstance(graph, UnitGraph)
    sampler = mechanisms.build(config(rows_per_unit=2, selection="random")).sampler(
        graph, KEY, "main", lambda: np.zeros(0)
    )
    draws = [sampler.draw(step) for step in range(5)]
    assert [draw.groups for draw in draws] == [5] * 5
    assert max(np.bincount(draw.group).max() for draw in draws) == 2
    labelled = mechanisms.build(config("classification"))
    assert labelled.like.rule == "random"


def guarantee_of(shape, epsilon=3.0, steps=40):
    mechanism = mechanisms.build(config(epsilon=epsilon))
    setting = calibrate(mechanism, shape, epsilon)
    return state_guarantee(setting, steps, False, config(epsilon=epsilon), {"state": "test"})


def test_the_claim_is_a_theorem_where_it_is_proved_and_else_an_estimate():
    many = guarantee_of(SHAPE)
    assert many.theorem
    assert (many.epsilon, many.adjacency, many.notion) == (3.0, "replace-one", "user-level DP")
    few = guarantee_of(Shape(COUNTS[:100], int(COUNTS[:100].sum()), 1000, True))
    assert not few.theorem
    assert "could not be re-derived for 100 units: nothing is proved" in few.estimates[0]
    assert few.epsilon == 3.0
    some = guarantee_of(Shape(COUNTS[:1200], int(COUNTS[:1200].sum()), 1000, True))
    assert "what is proved is epsilon 3." in some.estimates[0]


def test_the_claim_is_the_same_after_fewer_steps():
    """The noise was made for all of them, and a run that ends early has tested no less."""
    assert guarantee_of(SHAPE, steps=3).epsilon == guarantee_of(SHAPE).epsilon


def test_the_twin_is_the_mean_over_all():
    twin = NonPrivate.twin(mechanisms.build(config()))
    aggregation = twin.aggregation(twin.parameters(SHAPE), 0.0)
    assert aggregation == Aggregation(None, 0.0, 1 / 5000)


# the comparison ------------------------------------------------------------------------------------------------
def test_a_plan_shows_the_crossing():
    size = planning.Size(1000, 500, 2, 16, 100)
    found = planning.plan(config(), SHAPE, size).to_json()
    rows = {row["change"]: row for row in found["neighbours"]}
    assert next(iter(rows)) == "uls, 5000 units a step"
    delta = found["chosen"]["delta"]
    crossing = sampling_noise(5000, 1250, 40, 3.0, delta) / filter_noise(5000, 40, 3.0, delta)
    assert rows["uls, 1250 units a step"]["relative_noise"] == pytest.approx(crossing)
    assert rows["uls, 5000 units a step"]["relative_compute"] == 1
    assert rows["steps 20"]["noise_multiplier"] < found["chosen"]["noise_multiplier"]
    assert found["chosen"]["rows_per_unit"] == 4
    assert len(list(mechanisms.build(config()).alternatives(SHAPE))) == 5


# the config ----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("privacy", "train", "words"),
    [
        ({"tau": None}, {}, "privacy.tau: say within which distance"),
        ({"epsilon": None}, {}, "privacy.epsilon: the filter's tests"),
        ({"noise_multiplier": 1.0}, {}, "privacy.noise_multiplier: the filter's tests spend half"),
        ({"adjacency": "zero-out"}, {}, "privacy.adjacency"),
        ({"sampling": "shuffle"}, {}, "privacy.sampling: every unit takes part"),
        ({"clip_norm": 2.0}, {}, "privacy.clip_norm: the filter clips nothing"),
        ({"normalised": False}, {}, "privacy.normalised"),
        ({"resample": True}, {}, "privacy.resample: concentration averages"),
        ({}, {"batch": 64.0}, "train.batch: every unit takes part"),
        ({}, {"sampling_rate": 0.5}, "train.sampling_rate"),
        ({}, {"divisor": 9.0}, "train.divisor: the filter divides by how many"),
        ({"mechanism": "uls"}, {}, "privacy.tau: is for mechanism concentration"),
    ],
)
def test_what_makes_no_sense_is_refused(privacy, train, words):
    with pytest.raises(InputError, match=words):
        config(train=train, **privacy)


def test_what_says_the_same_is_taken():
    config(adjacency="replace-one", train={"sampling_rate": 1.0}, delta=1e-7)


def test_a_sweep_cannot_be_counted():
    from confide.privacy.accounting import Trials
    from confide.privacy.mechanisms.tuned import CountedSweep

    with pytest.raises(InputError, match=r"does not follow from one epsilon|no noise meets"):
        calibrate(mechanisms.build(config()), SHAPE, 3.0, tuning=CountedSweep(Trials(10.0)))
