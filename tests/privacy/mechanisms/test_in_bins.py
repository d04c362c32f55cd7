"""`sampling: bins`: who is drawn, what is accounted for and claimed, and what is refused."""

from dataclasses import replace

import numpy as np
import pytest

from confide.planning import plan as planning
from confide.privacy import mechanisms
from confide.privacy.accounting import BallsInBins, Exchanged
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


def test_noise_meets_the_target_with_less_of_it_than_coins_need(graph):
    shape = graph.shape()
    dealt, coins = (calibrate(build("uls", sampling=kind), shape, 4.0) for kind in ("bins", "poisson"))
    assert dealt.curve().epsilon(dealt.delta) <= 4.0
    assert dealt.noise_multiplier < 0.97 * coins.noise_multiplier


@pytest.mark.parametrize("adjacency", ["zero-out", "replace-one", "add-or-remove"])
def test_epsilon_follows_from_what_the_guarantee_says(graph, adjacency):
    """Somebody who has guarantee.json alone; the claim is a theorem."""
    literal = {"delta": 1e-4, "noise_multiplier": 1.2, "sampling_rate": 0.125, "divisor": 5.0}
    changes = {"sampling": "bins", "adjacency": adjacency} | (literal if adjacency == "add-or-remove" else {})
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
        ("uls", {"bands": 3}, "sampling: poisson"),
        ("uls", {"max_batch": 9}, "option of sampling: truncated"),
        ("uls", {"adjacency": "add-or-remove"}, "literal constant"),
    ],
)
def test_what_does_not_go_with_it_is_refused(mechanism, changes, words):
    with pytest.raises(InputError, match=words):
        config(mechanism, sampling="bins", **changes)


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


def test_a_run_that_was_stopped_goes_on_bit_for_bit(tmp_path):
    whole, cut, plain = (
        Run(run_config(tmp_path / name, privacy__sampling=kind))
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
