"""`sampling: bins`: who is drawn, what is accounted for and claimed, and what is refused."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.linalg import toeplitz

from confide.planning import plan as planning
from confide.privacy import mechanisms
from confide.privacy.accounting import BallsInBins, Exchanged, FixedBins
from confide.privacy.correlated_noise import Banded, Buffered, coefficients
from confide.privacy.mechanisms.none import NonPrivate
from confide.privacy.mechanisms.statement import calibrate, state_guarantee, warnings
from confide.randomness.streams import RunKey
from confide.runs.folder import Run
from confide.runs.loop import fine_tune
from confide.utils.console import Console
from confide.utils.errors import InputError
from tests import small
from tests.privacy.mechanisms.test_mechanisms import build, config
from tests.test_resume import config as run_config
from tests.test_resume import same

KEY = RunKey.from_text("bins")
SHAPE_OF = [4] * 40


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    return small.graph(tmp_path_factory.mktemp("graph") / "g", SHAPE_OF)


@pytest.mark.parametrize(
    ("name", "population", "batch", "bins"),
    [("uls", 40, 5.0, 8), ("uls", 40, 6.0, 7), ("uls", 40, 40.0, 1), ("dp-sgd", 160, 50.0, 3)],
)
def test_draws_divisor_and_account_have_the_same_bins(graph, name, population, batch, bins):
    shape = graph.shape()
    mechanism = build(name, sampling="bins", batch=batch)
    parameters = mechanism.parameters(shape)
    assert parameters.process == parameters.zeroed == BallsInBins(bins, 50)
    assert mechanism.parameters(shape, 7).process == BallsInBins(bins, 7)
    assert parameters.sampling.rate == 1 / bins
    assert parameters.divisor == parameters.expected_batch == pytest.approx(population / bins)
    assert any("exactly one step of every epoch" in fact for fact in parameters.facts)
    sampler = mechanism.sampler(graph, KEY, "main", lambda: None)
    for epoch in range(2):
        drawn = [sampler.draw(bins * epoch + place).unit_ids for place in range(bins)]
        assert sorted(np.concatenate(drawn).tolist()) == list(range(population))


@pytest.mark.parametrize(
    ("name", "population", "batch", "bins", "bands"), [("uls", 40, 5.0, 8, 8), ("dp-sgd", 160, 50.0, 3, 7)]
)
def test_under_correlated_noise_everybody_keeps_the_bin(graph, name, population, batch, bins, bands):
    shape = graph.shape()
    mechanism = build(name, sampling="bins", batch=batch, bands=bands)
    parameters = mechanism.parameters(shape)
    column = tuple(coefficients(bands))
    assert parameters.process == parameters.zeroed == FixedBins(bins, 50, column)
    assert mechanism.parameters(shape, 7).process == FixedBins(bins, 7, column)
    assert parameters.sampling.range == (1 / bins, 1 / bins)
    facts = "; ".join(parameters.facts)
    assert "the same one in each" in facts
    assert f"C has the first {bands} coefficients" in facts
    assert "groups" not in facts
    sampler = mechanism.sampler(graph, KEY, "main", lambda: None)
    first, second = (
        [sampler.draw(bins * epoch + place).unit_ids.tolist() for place in range(bins)] for epoch in range(2)
    )
    assert first == second
    assert sorted(each for drawn in first for each in drawn) == list(range(population))


@pytest.mark.parametrize("buffers", [1, 3])
def test_with_buffers_everybody_keeps_the_bin_and_all_steps_are_accounted(graph, buffers):
    shape = graph.shape()
    mechanism = build("uls", sampling="bins", batch=5.0, buffers=buffers)
    matrix = Buffered(buffers)
    for steps in (50, 20):  # a run that ends early has the noise of one that does not
        process = mechanism.parameters(shape, steps).process
        assert process == FixedBins(8, steps, tuple(matrix.column(steps)), matrix.sensitivity)
    c = np.tril(toeplitz(matrix.column(50)))
    means = np.stack([c[:, j::8].sum(axis=1) for j in range(8)])
    found = mechanism.parameters(shape).process.gram(2.0)
    assert found == pytest.approx(means @ means.T / (2.0 * matrix.sensitivity) ** 2)
    aggregation = mechanism.aggregation(mechanism.parameters(shape), 2.0)
    assert aggregation.noise_scale == pytest.approx(2.0 * matrix.sensitivity * mechanism.clip_norm)
    assert not aggregation.correlation.is_independent
    assert "weights hold less" in mechanism.noise_unit
    record = mechanism.parameters(shape).sampling.record
    assert record(lambda text: "")["buffers"] == buffers
    assert "buffers" not in build("uls", sampling="bins", bands=2).parameters(shape).sampling.record(
        lambda text: ""
    )
    sampler = mechanism.sampler(graph, KEY, "main", lambda: None)
    assert sampler.draw(1).unit_ids.tolist() == sampler.draw(9).unit_ids.tolist()


def test_two_buffers_leave_little_more_noise_than_an_epoch_of_bands(graph):
    """In the weights, after as many steps as a short run has, at the same epsilon and delta."""
    noises = []
    for changes in ({"bands": 8}, {"buffers": 2}):
        setting = calibrate(build("uls", sampling="bins", steps=24, **changes), graph.shape(), 4.0)
        assert setting.curve().epsilon(setting.delta) <= 4.0
        matrix = setting.mechanism.correlation
        noises.append(setting.noise_multiplier * matrix.sensitivity * matrix.noise_in_weights([1.0] * 24))
    assert noises[0] < noises[1] < 1.1 * noises[0]


def test_the_matrix_that_is_accounted_is_that_of_the_noise(graph):
    """Under SGD it follows from the planned steps, and stays what it is where a run ends early."""
    mechanism = replace(build("uls", sampling="bins", bands=8), optimizer="sgd")
    assert mechanism.exponent > 0.5
    for steps in (50, 20):
        parameters = mechanism.parameters(graph.shape(), steps)
        assert parameters.process == FixedBins(8, steps, tuple(coefficients(8, mechanism.exponent)))
    aggregation = mechanism.aggregation(parameters, 2.0)
    assert aggregation.correlation == Banded(8, mechanism.exponent)
    column = parameters.process.column
    assert aggregation.noise_scale == pytest.approx(2.0 * np.linalg.norm(column) * mechanism.clip_norm)


def test_correlated_noise_needs_less_of_it_in_bins_than_in_groups(graph):
    shape = graph.shape()
    bins, groups = (
        calibrate(build("uls", sampling=kind, bands=8, steps=20), shape, 4.0) for kind in ("bins", "poisson")
    )
    assert bins.curve().epsilon(bins.delta) <= 4.0
    assert bins.noise_multiplier < 0.85 * groups.noise_multiplier


def test_noise_meets_the_target_with_less_of_it_than_coins_need(graph):
    shape = graph.shape()
    dealt, coins = (calibrate(build("uls", sampling=kind), shape, 4.0) for kind in ("bins", "poisson"))
    assert dealt.curve().epsilon(dealt.delta) <= 4.0
    assert dealt.noise_multiplier < 0.97 * coins.noise_multiplier


@pytest.mark.parametrize(("bands", "buffers"), [(1, 0), (6, 0), (1, 2)])
@pytest.mark.parametrize("adjacency", ["zero-out", "replace-one", "add-or-remove"])
def test_epsilon_follows_from_what_the_guarantee_says(graph, adjacency, bands, buffers):
    """Somebody who has guarantee.json alone; the claim is a theorem."""
    literal = {"delta": 1e-4, "noise_multiplier": 1.2, "sampling_rate": 0.125, "divisor": 5.0}
    changes = {"sampling": "bins", "adjacency": adjacency, "bands": bands, "buffers": buffers} | (
        literal if adjacency == "add-or-remove" else {}
    )
    settings = config("uls", **changes)
    mechanism = mechanisms.build(settings)
    setting = calibrate(
        mechanism, graph.shape(), settings.privacy.epsilon, settings.privacy.noise_multiplier, 1e-4
    )
    found = state_guarantee(setting, 21, False, settings, {"state": "planned"})
    assert found.theorem
    stated = found.to_json()
    assert stated["sampling"] == stated["sampling_used"] == "bins"
    low, high = stated["sampling_probability"]
    process = BallsInBins(round(1 / high), stated["steps"])
    assert (stated["bands"], stated["buffers"]) == (bands, buffers)
    if bands > 1:
        process = FixedBins(round(1 / high), stated["steps"], tuple(coefficients(bands)))
    if buffers:
        column = Buffered(buffers).column(10_000)
        process = FixedBins(
            round(1 / high), stated["steps"], tuple(column[:21]), float(np.linalg.norm(column))
        )
    assert (low, stated["steps"]) == (high, 21)
    if adjacency == "replace-one":
        process = Exchanged(process)
    assert process.curve(stated["noise_multiplier"]).epsilon(stated["delta"]) == pytest.approx(
        stated["epsilon"]
    )


@pytest.mark.parametrize(
    ("mechanism", "changes", "words"),
    [
        ("els", {}, "for uls and dp-sgd, not for els"),
        ("group", {}, "not for group"),
        ("adaptive", {}, r"privacy\.sampling"),
        ("uls", {"max_batch": 3, "bands": 3}, "option of sampling: truncated"),
        ("uls", {"max_batch": 9}, "option of sampling: truncated"),
        ("uls", {"adjacency": "add-or-remove"}, "literal constant"),
        ("uls", {"buffers": 2, "bands": 3}, "either buffers or bands"),
        ("els", {"buffers": 2}, "under uls and dp-sgd, not under els"),
    ],
)
def test_what_does_not_go_with_it_is_refused(mechanism, changes, words):
    with pytest.raises(InputError, match=words):
        config(mechanism, sampling="bins", **changes)


@pytest.mark.parametrize("sampling", ["poisson", "truncated", "shuffle"])
def test_buffers_are_for_bins_alone(sampling):
    most = {"max_batch": 9} if sampling == "truncated" else {}
    with pytest.raises(InputError, match=r"privacy\.buffers\) needs sampling: bins"):
        config("uls", sampling=sampling, buffers=2, **most)
    with pytest.raises(AssertionError, match="nothing accounts for"):
        replace(build("uls", sampling=sampling, **most), buffers=2)


def test_no_other_way_leads_to_draws_that_nothing_accounts_for():
    assert {name for name in mechanisms.NAMES if mechanisms.find(name).deals} == {"uls", "dp-sgd"}
    with pytest.raises(AssertionError, match="nothing accounts for"):
        replace(build("els", rows_per_unit=2), sampling="bins")


def test_rivals_in_a_plan_toss_coins_and_a_twin_draws_alike(graph):
    settings = config("uls", sampling="bins")
    mechanism = mechanisms.build(settings)
    assert planning.rival("uls", mechanism, settings).sampling == "bins"
    assert planning.rival("els", mechanism, settings).sampling == "poisson"
    ours, theirs = (
        each.sampler(graph, KEY, "main", lambda: None) for each in (mechanism, NonPrivate.twin(mechanism))
    )
    assert all(np.array_equal(ours.draw(step).unit_ids, theirs.draw(step).unit_ids) for step in range(8))


@pytest.mark.parametrize(("name", "points"), [("uls", True), ("els", False)])
def test_shuffled_batches_are_told_of_it_where_it_is_possible(graph, name, points):
    settings = config(name, sampling="shuffle")
    setting = calibrate(mechanisms.build(settings), graph.shape(), 4.0)
    assert any("with bins" in line for line in warnings(setting, settings)) == points


@pytest.mark.parametrize(
    ("batch", "steps", "told"),
    [
        (10.0, 12, []),
        (16.0, 12, ["here 2, so a step draws about 20 and not 16"]),
        (10.0, 3, ["3 are less than an epoch of 4"]),
    ],
)
def test_what_whole_epochs_change_is_told(graph, batch, steps, told):
    settings = config("uls", sampling="bins", batch=batch, steps=steps)
    setting = calibrate(mechanisms.build(settings), graph.shape(), 4.0)
    found = [line for line in warnings(setting, settings) if "epoch" in line]
    assert len(found) == len(told)
    assert all(words in line for words, line in zip(told, found, strict=True))


@pytest.mark.parametrize("bands", [1, 6])
def test_a_run_that_was_stopped_goes_on_bit_for_bit(tmp_path, bands):
    whole, cut, plain = (
        Run(
            run_config(tmp_path / name, privacy__sampling=kind, privacy__bands=bands if kind == "bins" else 1)
        )
        for name, kind in (("whole", "bins"), ("cut", "bins"), ("plain", "poisson"))
    )
    quiet = Console(quiet=True)
    fine_tune(whole, quiet)
    for until in (2, 11, 24):
        outcome = fine_tune(cut, quiet, until=until)
    same(cut, whole)
    assert outcome.guarantee.theorem == (not outcome.guarantee.estimates)
    assert outcome.guarantee.sampling == "bins"
    fine_tune(plain, quiet)
    with pytest.raises(AssertionError):
        same(plain, whole)
