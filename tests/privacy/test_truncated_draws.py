"""Draws that are made anew above a cap: what small worlds reveal is within the bound of plain Poisson draws."""

import itertools
import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from confide.config.loading import check
from confide.data.shape import Shape
from confide.privacy import mechanisms
from confide.privacy.accounting import MixtureOfGaussians, replaced
from confide.privacy.ledger import Ledger
from confide.privacy.mechanisms.dp_sgd import DPSGD
from confide.privacy.mechanisms.group import example_level
from confide.privacy.mechanisms.none import NonPrivate
from confide.privacy.mechanisms.statement import calibrate, state_guarantee, warnings
from confide.privacy.sampling import Sampling
from confide.randomness.streams import RunKey
from confide.utils.errors import InputError

X = np.linspace(-16, 16, 8_001)
EPSILONS = (-1.5, -0.4, -0.05, 0.0, 0.05, 0.2, 0.5, 1.0, 2.0)
KEY = RunKey.from_text("truncated draws")


def redrawn(n: int, q: float, cap: int) -> dict[tuple[int, ...], float]:
    """The probability of each set of items: that of independent draws that are within the cap."""
    found = {}
    for size in range(min(n, cap) + 1):
        for items in itertools.combinations(range(n), size):
            found[items] = q**size * (1 - q) ** (n - size)
    total = math.fsum(found.values())
    return {items: mass / total for items, mass in found.items()}


def thinned(n: int, q: float, cap: int) -> dict[tuple[int, ...], float]:
    """The same if of a larger draw a random part is kept, which confide does not do."""
    found: Counter = Counter()
    for size in range(n + 1):
        for items in itertools.combinations(range(n), size):
            kept = list(itertools.combinations(items, min(cap, size)))
            for part in kept:
                found[part] += q**size * (1 - q) ** (n - size) / len(kept)
    return dict(found)


def density(draws: dict[tuple[int, ...], float], gradients: tuple[float, ...], s: float) -> np.ndarray:
    sums: Counter = Counter()
    for items, mass in draws.items():
        sums[sum(gradients[item] for item in items)] += mass
    return sum(mass * stats.norm.pdf(X, total, s) for total, mass in sums.items())


def divergence(p: np.ndarray, z: np.ndarray, epsilon: float) -> float:
    return float(np.maximum(p - math.exp(epsilon) * z, 0).sum() * (X[1] - X[0]))


def beyond(draws, n: int, rows: int, s: float, bound, replaces: bool) -> float:
    """By how much a world goes beyond a bound: the unit has the first `rows` items, which contribute up to 1 each."""
    worst = -math.inf
    values = (-1.0, 0.0, 1.0)
    for others in itertools.product(values, repeat=n - rows):
        for own in itertools.product(values, repeat=rows):
            other = tuple(-each for each in own) if replaces else (0.0,) * rows
            pair = density(draws, own + others, s), density(draws, other + others, s)
            for side, (p, z) in ((bound.removal, pair), (bound.addition, pair[::-1])):
                for epsilon in EPSILONS:
                    worst = max(worst, divergence(p, z, epsilon) - float(side.delta(epsilon)))
    return worst


WORLDS = [(2, 1, 0.5, 1), (3, 1, 0.3, 1), (4, 1, 0.5, 2), (3, 2, 0.4, 2), (4, 3, 0.3, 2), (4, 2, 0.5, 3)]


@pytest.mark.parametrize("replaces", [False, True], ids=["zero-out", "replace-one"])
@pytest.mark.parametrize("s", [0.5, 1.0, 2.0])
@pytest.mark.parametrize(("n", "rows", "q", "cap"), WORLDS)
def test_no_small_world_is_beyond_the_bound_of_plain_draws(n, rows, q, cap, s, replaces):
    plain = MixtureOfGaussians.binomial(rows, q, 1)
    curve = (replaced(plain) if replaces else plain).curve(s, 1e-3)
    assert beyond(redrawn(n, q, cap), n, rows, s, curve, replaces) < 1e-6


@pytest.mark.parametrize(("n", "rows", "q", "cap"), [world for world in WORLDS if world[1] == 1])
def test_a_world_of_which_a_random_part_is_kept_is_beyond_it(n, rows, q, cap):
    """So the check above can fail."""
    curve = MixtureOfGaussians.bernoulli(q, 1).curve(1.0, 1e-3)
    assert beyond(thinned(n, q, cap), n, rows, 1.0, curve, False) > 1e-4


def test_draws_have_this_distribution():
    n, q, cap, steps = 4, 0.5, 2, 20_000
    sampling = Sampling("truncated", q, cap)
    counted = Counter(tuple(sampling.draw(n, KEY, "main", step).tolist()) for step in range(steps))
    expected = redrawn(n, q, cap)
    assert set(counted) == set(expected)
    observed = [counted[items] for items in expected]
    assert stats.chisquare(observed, [steps * mass for mass in expected.values()]).pvalue > 1e-4
    of_one = sum(mass for items, mass in expected.items() if 0 in items)
    assert sampling.mean_rate(n) == pytest.approx(of_one, rel=1e-12)


def test_draws_within_the_cap_are_those_of_plain_sampling():
    """And a cap that nothing reaches changes nothing."""
    plain, capped = Sampling("poisson", 0.3), Sampling("truncated", 0.3, 35)
    for step in range(50):
        drawn = plain.draw(100, KEY, "main", step)
        if len(drawn) <= 35:
            assert (capped.draw(100, KEY, "main", step) == drawn).all()
    assert Sampling("truncated", 0.3, 100).mean_rate(100) == pytest.approx(0.3, rel=1e-12)


def test_the_process_is_that_of_plain_draws_and_says_what_is_different():
    process = example_level(Sampling("truncated", 0.1, 12), 50)
    assert process == example_level(Sampling("poisson", 0.1), 50)
    assert "a step of more than 12 is drawn anew" in process.describe()


def test_a_run_of_an_earlier_version_cannot_go_on(tmp_path):
    """It kept a random part of a draw above the cap: its ledger says nothing of new draws."""
    record = Sampling("truncated", 0.1, 12).record(lambda found: "")
    before = {name: record[name] for name in record if name != "above_cap"}
    assert before == {"kind": "truncated", "rate": 0.1, "cap": 12, "bands": 1}
    ledger = Ledger(tmp_path / "ledger.jsonl")
    ledger.record(0, {"sampling": before})
    with pytest.raises(InputError):
        ledger.record(0, {"sampling": record})
    ledger.record(0, {"sampling": before})  # while the same entry may come again
    ledger.close()
    assert "above_cap" not in Sampling("poisson", 0.1).record(lambda found: "")


def test_noise_is_bound_to_the_way_of_drawing():
    """An earlier version drew other rows with the same key. With the same noise, the difference would be free of it."""
    shape = Shape(np.full(40, 3), 120, 5000, True)
    plain = DPSGD(batch=6.0, steps=5)
    capped = replace(plain, sampling="truncated", max_batch=9)
    assert plain.key_binding(shape) == b""
    assert capped.key_binding(shape) == b"draws above the cap are made anew"
    assert NonPrivate.twin(capped).key_binding(shape) == capped.key_binding(shape)


def test_it_is_told_if_a_cap_makes_steps_much_smaller():
    shape = Shape(np.ones(100, np.int64), 100, 5000, True)
    told = {}
    for cap in (10, 15):
        settings = check(
            {
                "data": {"train": "x"},
                "privacy": {
                    "mechanism": "dp-sgd",
                    "noise_multiplier": 2.0,
                    "sampling": "truncated",
                },
                "train": {"batch": 10.0, "steps": 50, "max_batch": cap},
            }
        )
        setting = calibrate(mechanisms.build(settings), shape, None, 2.0, 1e-5)
        told[cap] = [each for each in warnings(setting, settings) if "train.max_batch" in each]
    assert told[15] == []
    (line,) = told[10]
    assert "so a step draws about 7.965 and not 10, and noise is 1.26 times as large" in line


def test_words_of_a_claim_of_an_earlier_version_say_nothing_of_new_draws():
    settings = {"mechanism": "dp-sgd", "noise_multiplier": 2.0, "sampling": "truncated"}
    raw = {"data": {"train": "x"}, "privacy": settings, "train": {"batch": 10.0, "steps": 5, "max_batch": 12}}
    shape = Shape(np.ones(100, np.int64), 100, 5000, True)
    setting = calibrate(mechanisms.build(check(raw)), shape, None, 2.0, 1e-5)
    now = state_guarantee(setting, 5, False, check(raw), {"code": "test"}, 5)
    assert now.batch_in_words == "10, before draws above the cap are made anew"
    before = tuple(fact for fact in now.public_facts if "anew" not in fact)
    assert len(before) == len(now.public_facts) - 1
    assert replace(now, public_facts=before).batch_in_words == "10"
