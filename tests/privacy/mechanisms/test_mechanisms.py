"""A mechanism's sampler, divisor and accountant must tell the same story."""

import numpy as np
import pytest

from confide.config.loading import check
from confide.data.shape import Shape
from confide.data.unit_graph import GraphWriter, UnitGraph
from confide.privacy import mechanisms
from confide.privacy.accounting import GroupOf, MixtureOfGaussians, Replacement
from confide.privacy.mechanisms.none import NonPrivate
from confide.privacy.mechanisms.statement import calibrate
from confide.randomness.streams import RunKey
from confide.utils.errors import InputError
from tests import small

KEY = RunKey.from_text("test")
COUNTS = [1, 2, 3, 8, 5, 1, 9, 4, 4, 2]


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    return small.graph(tmp_path_factory.mktemp("graph") / "g", COUNTS)


def config(mechanism, **changes):
    raw = {
        "data": {"train": "x", "unit": "from"},
        "privacy": {"mechanism": mechanism},
        "train": {"batch": 5.0, "steps": 50},
    }
    if mechanism != "none":
        raw["privacy"]["epsilon"] = 4.0
    for key, value in changes.items():
        section = "train" if key in ("batch", "steps", "max_batch", "sampling_rate", "divisor") else "privacy"
        raw[section][key] = value
    if raw["privacy"].get("noise_multiplier"):
        raw["privacy"].pop("epsilon", None)
    return check(raw)


def build(mechanism, **changes):
    return mechanisms.build(config(mechanism, **changes))


def draws(mechanism, graph, steps=400):
    sampler = mechanism.sampler(graph, KEY, "main", lambda: np.arange(graph.n_rows, dtype=float) + 1)
    return [sampler.draw(step) for step in range(steps)]


def test_rows_in_use_rate_and_divisor_follow_from_the_shape(graph):
    shape = graph.shape()
    capped = int(np.minimum(COUNTS, 3).sum())
    cases = {
        "dp-sgd": (sum(COUNTS), 5 / sum(COUNTS)),
        "els": (capped, 5 / capped),
        "group": (capped, 5 / capped),
        "uls": (sum(COUNTS), 5 / len(COUNTS)),
    }
    for name, (rows, rate) in cases.items():
        options = {} if name == "dp-sgd" else {"rows_per_unit": 3}
        parameters = build(name, **options).parameters(shape)
        assert (parameters.rows, parameters.sampling.rate, parameters.divisor) == (
            rows,
            pytest.approx(rate),
            pytest.approx(5.0),
        )


@pytest.mark.parametrize("batch", [2.5, 3.9])
@pytest.mark.parametrize("name", ["dp-sgd", "els", "group", "uls"])
def test_the_divisor_is_the_expected_batch_whatever_the_number_of_units(name, batch):
    """Pitfall 6: int(N * q) is another number, and jumps with N."""
    options = {} if name == "dp-sgd" else {"rows_per_unit": 3}
    for units in (7, 10, 11, 13):
        parameters = build(name, batch=batch, **options).parameters(
            Shape(np.full(units, 3), 3 * units, 30 * units, True)
        )
        assert parameters.divisor == pytest.approx(batch, rel=1e-12)
        aggregation = build(name, batch=batch, normalised=False, **options).aggregation(parameters, 1.0)
        assert aggregation.scale == pytest.approx(1 / batch, rel=1e-12)


def test_processes_are_those_of_the_papers(graph):
    shape, capped = graph.shape(), int(np.minimum(COUNTS, 3).sum())
    assert build("dp-sgd").parameters(shape).process == MixtureOfGaussians.bernoulli(5 / sum(COUNTS), 50)
    assert build("els", rows_per_unit=3).parameters(shape).process == MixtureOfGaussians.binomial(
        3, 5 / capped, 50
    )
    assert build("group", rows_per_unit=3).parameters(shape).process == GroupOf(
        MixtureOfGaussians.bernoulli(5 / capped, 50), 3
    )
    assert build("uls").parameters(shape).process == MixtureOfGaussians.bernoulli(5 / len(COUNTS), 50)


def test_a_cap_that_no_unit_reaches_is_not_paid_for(graph):
    process = build("els", rows_per_unit=100).parameters(graph.shape()).process
    assert process == MixtureOfGaussians.binomial(9, 5 / sum(COUNTS), 50)


@pytest.mark.parametrize("name", ["dp-sgd", "els", "group", "uls"])
def test_each_is_drawn_as_often_as_the_accountant_says(graph, name):
    mechanism = build(name, **({} if name == "dp-sgd" else {"rows_per_unit": 3}))
    taken = draws(mechanism, graph, 800)
    groups = np.array([draw.groups for draw in taken])
    parameters = mechanism.parameters(graph.shape())
    population = parameters.units if name == "uls" else parameters.rows
    assert groups.mean() == pytest.approx(5.0, abs=4 * (5 / 800) ** 0.5)
    # Binomial, not constant: the variance is that of independent draws.
    assert groups.var() == pytest.approx(
        population * parameters.sampling.rate * (1 - parameters.sampling.rate), rel=0.25
    )


@pytest.mark.parametrize("rule", ["random", "longest", "shortest", "highest-ppl", "lowest-ppl"])
@pytest.mark.parametrize("name", ["els", "uls"])
def test_no_unit_contributes_more_than_its_cap(graph, name, rule):
    owner_of = {tuple(graph.fetch(np.array([i]))[0]): graph.owners_of(i)[0] for i in range(graph.n_rows)}
    mechanism = build(name, rows_per_unit=3, selection=rule)
    seen: dict[int, set] = {}
    for draw in draws(mechanism, graph):
        step: dict[int, int] = {}
        for row in draw.rows:
            owner = owner_of[tuple(row)]
            seen.setdefault(owner, set()).add(tuple(row))
            step[owner] = step.get(owner, 0) + 1
        assert max(step.values(), default=0) <= 3
    if name == "els" or rule != "random":
        assert max(len(rows) for rows in seen.values()) <= 3


def test_user_sampling_clips_a_users_rows_together_and_averages(graph):
    """Pitfall 7: per-user claimed, per-row clipped."""
    for draw in draws(build("uls", rows_per_unit=3, selection="random"), graph, 50):
        for unit in range(draw.groups):
            weights = draw.weight[draw.group == unit]
            assert weights.sum() == pytest.approx(1.0)
            assert len(set(weights)) == 1
        assert len(set(map(int, draw.group))) == draw.groups


def test_rows_with_two_owners_are_refused(tmp_path):
    """Pitfall 28."""
    with GraphWriter(tmp_path / "g", vocabulary=small.VOCABULARY) as writer:
        writer.add([1, 2, 3], ["a", "b"])
        writer.add([1, 2, 3], ["a"])
    graph = UnitGraph.open(tmp_path / "g")
    for name in ("uls", "els", "group"):
        with pytest.raises(InputError, match="one owner"):
            build(name, batch=1.0).parameters(graph.shape())
    # A row is its own unit whoever owns it.
    assert build("dp-sgd", batch=1.0).parameters(graph.shape()).units == 2


def test_more_than_there_is_cannot_be_drawn(graph):
    with pytest.raises(InputError, match=r"train.batch: 11 units a step are more than the 10"):
        build("uls", batch=11.0).parameters(graph.shape())


def test_shuffling_makes_an_estimate_and_poisson_a_theorem(graph):
    """Pitfall 14."""
    shuffled = build("uls", sampling="shuffle")
    shape = graph.shape()
    assert (shuffled.sampling, shuffled.claim(shape, 1.0, 1e-3, 50).sampling) == ("shuffle", "poisson")
    assert build("uls").claim(shape, 1.0, 1e-3, 50).sampling == "poisson"


@pytest.mark.parametrize("name", ["uls", "els", "group", "dp-sgd"])
def test_truncated_draws_cost_what_plain_ones_do_and_hold_the_cap(graph, name):
    made = build(name, sampling="truncated", max_batch=6)
    assert made.parameters(graph.shape()).process == build(name).parameters(graph.shape()).process
    assert max(draw.groups for draw in draws(made, graph)) == 6


def test_a_cap_below_what_is_drawn_on_average_is_refused(graph):
    """A literal rate may ask for more than the batch: nearly every step would be drawn anew."""
    made = build("uls", sampling="truncated", max_batch=6, sampling_rate=0.9, divisor=5.0)
    with pytest.raises(InputError, match=r"train\.max_batch: 6 is below the 9 units"):
        made.parameters(graph.shape())


def test_replace_one_costs_what_replacing_does_and_a_guess_what_zeroing_out_does(graph):
    parameters = build("uls", adjacency="replace-one").parameters(graph.shape())
    assert parameters.process == Replacement(0.5, 50)
    assert parameters.zeroed == MixtureOfGaussians.bernoulli(0.5, 50)


def test_clip_and_noise_use_one_norm(graph):
    """Pitfalls 1 and 29: whatever clip_norm is, noise on the sum is s times it; normalising comes after."""
    for norm in (0.1, 1.0, 7.0):
        for normalised in (True, False):
            mechanism = build("uls", clip_norm=norm, normalised=normalised)
            aggregation = mechanism.aggregation(mechanism.parameters(graph.shape()), 2.0)
            assert aggregation.clip_norm == norm
            assert aggregation.noise_scale == pytest.approx(2.0 * norm)
            assert aggregation.scale == pytest.approx((1 / norm if normalised else 1) / 5.0)


def test_the_twin_repeats_the_draws_without_clip_or_noise(graph):
    mechanism = build("uls", rows_per_unit=2)
    twin = NonPrivate.twin(mechanism)
    for ours, theirs in zip(draws(mechanism, graph, 20), draws(twin, graph, 20), strict=True):
        assert [list(r) for r in ours.rows] == [list(r) for r in theirs.rows]
    aggregation = twin.aggregation(twin.parameters(graph.shape()), 0.0)
    assert (aggregation.clip_norm, aggregation.noise_scale) == (None, 0.0)
    assert calibrate(twin, graph.shape()).curve().epsilon(1e-5) == float("inf")


def test_noise_meets_the_target_and_no_more(graph):
    for name in ("dp-sgd", "els", "group", "uls"):
        setting = calibrate(build(name), graph.shape(), 4.0, delta=1e-5)
        assert setting.curve().epsilon(1e-5) <= 4.0
        less = calibrate(
            build(name), graph.shape(), noise_multiplier=setting.noise_multiplier * 0.99, delta=1e-5
        )
        assert less.curve().epsilon(1e-5) > 4.0


def test_group_privacy_never_beats_els_on_the_same_draws(graph):
    noise = [
        calibrate(build(n, rows_per_unit=3), graph.shape(), 4.0, delta=1e-5).noise_multiplier
        for n in ("els", "group")
    ]
    assert noise[0] < noise[1]


def test_median_of_the_rows_per_unit(graph):
    assert build("els", rows_per_unit="median").cap(graph.shape()) == 3


def test_default_delta_is_that_of_the_paper(graph):
    assert build("uls").parameters(graph.shape()).delta == pytest.approx(
        min(sum(COUNTS) ** -1.1, 1 / len(COUNTS))
    )


def test_a_shape_is_all_that_terms_need():
    shape = Shape(rows_per_unit=np.full(1000, 5), rows=5000, tokens=10**6, single_owner=True)
    assert build("uls", batch=10.0).parameters(shape).sampling.rate == pytest.approx(0.01)


def test_draws_come_from_the_key_and_from_no_seed_of_the_config(graph):
    """Pitfall 30."""
    mechanism = build("uls")
    here = mechanism.sampler(graph, KEY, "main", lambda: np.ones(1)).draw(0)
    there = mechanism.sampler(graph, RunKey.from_text("other"), "main", lambda: np.ones(1)).draw(0)
    assert [list(r) for r in here.rows] != [list(r) for r in there.rows]
    from confide.privacy.mechanisms import uls

    assert "seed" not in set(vars(mechanism)) | set(uls.UserLevelSampling.__dataclass_fields__)


@pytest.mark.parametrize(
    "missing", ["train.sampling_rate", "train.divisor", "privacy.delta", "privacy.noise_multiplier"]
)
def test_add_or_remove_needs_literal_constants(missing):
    """Pitfall 32: rates derived from private data under an add-or-remove claim."""
    raw = {
        "data": {"train": "x", "unit": "from"},
        "privacy": {"adjacency": "add-or-remove", "noise_multiplier": 1.0, "delta": 1e-5},
        "train": {"sampling_rate": 0.01, "divisor": 10.0},
    }
    check(raw)
    section, key = missing.split(".")
    del raw[section][key]
    with pytest.raises(InputError, match=f"{missing}: an add-or-remove claim needs a literal constant"):
        check(raw)
