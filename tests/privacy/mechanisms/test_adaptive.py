"""Adaptive DP: what reaches the noise, what is paid for it, when a run ends, and what is claimed."""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from dp_accounting import dp_event
from dp_accounting.privacy_accountant import NeighboringRelation
from dp_accounting.rdp import RdpAccountant

from confide.config.loading import check
from confide.data.shape import Shape
from confide.data.unit_graph import UnitGraph
from confide.privacy import mechanisms
from confide.privacy.accounting import Exchanged, MixtureOfGaussians, RenyiBudget, Scaled
from confide.privacy.accounting.filter import ORDERS
from confide.privacy.mechanisms.adaptive import GRID, AdaptiveNoise, _Release, normalised
from confide.privacy.mechanisms.none import NonPrivate
from confide.privacy.mechanisms.statement import calibrate, state_guarantee
from confide.privacy.sampling import Draw, StopTraining
from confide.randomness.streams import RunKey
from confide.runs.folder import Run
from confide.runs.job import Job
from confide.runs.loop import fine_tune
from confide.utils.console import Console
from confide.utils.errors import InputError
from tests import small
from tests.test_resume import config as resumable

KEY = RunKey.from_text("adaptive")
ROWS = 60
SHAPE = Shape(np.ones(ROWS, dtype=np.int64), ROWS, 6 * ROWS, True)
NOISE = 1.2


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    return small.graph(tmp_path_factory.mktemp("graph") / "g", [1] * ROWS)


def perplexity(seed=0):
    return np.random.default_rng(seed).uniform(2.0, small.VOCABULARY, ROWS)


def config(adaptive=None, privacy=None, **changes):
    stated = {} if "noise_multiplier" in (privacy or {}) else {"epsilon": 4.0}
    raw = {
        "data": {"train": "x"},
        "privacy": {"mechanism": "adaptive", **stated, **(privacy or {})},
        "train": {"steps": 30, "batch": 6.0},
        "adaptive": adaptive or {},
    }
    return check(raw | changes)


def built(adaptive=None, noise=NOISE, **privacy) -> AdaptiveNoise:
    """The mechanism of a stage of a run with this noise."""
    made = mechanisms.build(config(adaptive, {"noise_multiplier": noise, **privacy}))
    found = made.phases(SHAPE, noise)[0].mechanism
    assert isinstance(found, AdaptiveNoise)
    return found


def sampler(mechanism, graph, scores=None, key=KEY):
    return mechanism.sampler(graph, key, "main", lambda: perplexity() if scores is None else scores)


def gammas(sampler, steps=30):
    draws = [sampler.draw(step) for step in range(steps)]
    return [draw.noise_factor for draw in draws if isinstance(draw, Draw)]


# what reaches the noise --------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "adaptive", [{}, {"probability": "perplexity", "between": (1.0, 30.0)}], ids=["nll", "perplexity"]
)
def test_a_rows_probability_is_a_function_of_that_row_alone(graph, adaptive):
    mechanism = built(adaptive)
    before, other = perplexity(), perplexity()
    other[7] = 1e6
    found = [_probabilities(mechanism, graph, scores) for scores in (before, other)]
    assert np.flatnonzero(found[0] != found[1]).tolist() == [7]
    assert all(((rho >= 0) & (rho <= 1)).all() for rho in found)
    changed = _probabilities(built({"mode": "nominal"}), graph, other)
    assert np.count_nonzero(changed != _probabilities(built({"mode": "nominal"}), graph, before)) > 1


def _probabilities(mechanism, graph, scores):
    made = sampler(mechanism, graph, scores)
    return made._release.rho if mechanism.is_private else made.rho


def test_probabilities_are_losses_over_the_logarithm_of_the_vocabulary(graph):
    scores = np.full(ROWS, small.VOCABULARY**0.5)
    scores[:4] = 1.0, small.VOCABULARY, np.inf, np.nan
    rho = _probabilities(built(), graph, scores)
    np.testing.assert_allclose(rho[:5], [0.0, 1.0, 1.0, 1.0, 0.5])


def test_one_row_moves_a_release_by_its_sensitivity_at_most(graph):
    """Two data sets that differ in one row, on the same randomness: all that differs is that row's probability."""
    mechanism = built({"floor": 0.1, "expected": 1.0, "gamma_batch": 20.0})
    before, other = perplexity(), perplexity()
    before[7], other[7] = 1.0, 1e9
    releases = [sampler(mechanism, graph, scores)._release for scores in (before, other)]
    gaps = np.array([abs(releases[0].mean(step) - releases[1].mean(step)) for step in range(200)])
    drawn = gaps > 0
    assert gaps[drawn] == pytest.approx(1 / 20.0)
    assert drawn.mean() == pytest.approx(20 / ROWS, abs=0.13)  # four standard errors


def test_what_is_released_is_noised_as_the_budget_says():
    release = _Release(np.full(50, 0.5), 1.0, 50.0, 4.0, 0.1, KEY, "main")
    noise = np.array([release.mean(step) for step in range(2000)]) * 50 - 25
    assert noise.std() == pytest.approx(4.0, rel=0.07)
    assert abs(noise.mean()) < 4 * 4.0 / 2000**0.5


def test_the_sampler_takes_rate_and_noise_of_a_release_from_the_budget(graph):
    for adaptive in ({}, {"gamma_batch": 15.0}, {"gamma_batch": 15.0, "gamma_noise": 2.5}):
        mechanism = built(adaptive)
        made, budget = sampler(mechanism, graph), mechanism.parameters(SHAPE).zeroed
        release = budget.release(NOISE)
        assert (made._release.rate, made._release.noise) == (release.q, release.noise_multiplier)
        assert made._release.rate == adaptive.get("gamma_batch", ROWS) / ROWS
        assert made._rows.sampling.rate == budget.q == 6.0 / ROWS
    assert release.noise_multiplier == 2.5


def test_a_gamma_lies_on_the_grid_between_floor_and_one(graph):
    mechanism = built({"floor": 0.37, "gamma_noise": 60.0, "gamma_batch": 20.0, "expected": 0.9})
    release = sampler(mechanism, graph)._release
    found = np.array([release.gamma(step) for step in range(300)])
    assert found.min() == 0.37
    assert found.max() == 1.0
    inside = found[(found > 0.37) & (found < 1)]
    np.testing.assert_allclose(inside * GRID, np.round(inside * GRID), atol=1e-9)
    rounded = np.array([release.mean(step) for step in range(300)])
    kept = (rounded > 0.4) & (rounded < 1)
    assert np.all((rounded - found)[kept] >= 0)
    assert np.all((rounded - found)[kept] < 1 / GRID + 1e-9)


def test_gammas_have_draws_of_their_own(graph):
    made = sampler(built({"gamma_batch": 6.0}), graph)
    release = replace(made._release, noise=0.0)
    own = [release.mean(step) * release.expected for step in range(400)]
    rows = [release.rho[made._rows.sampling.draw(ROWS, KEY, "main", step)].sum() for step in range(400)]
    assert np.mean(own) == pytest.approx(np.mean(rows), rel=0.15)
    assert abs(np.corrcoef(own, rows)[0, 1]) < 0.2


def test_rows_are_drawn_as_by_dp_sgd(graph):
    plain = mechanisms.build(
        check(
            {
                "data": {"train": "x"},
                "privacy": {"mechanism": "dp-sgd", "epsilon": 4.0},
                "train": {"batch": 6.0},
            }
        )
    )
    for adaptive in ({}, {"mode": "nominal"}):
        mine, theirs = sampler(built(adaptive), graph), sampler(plain, graph)
        for step in range(10):
            a, b = mine.draw(step).rows, theirs.draw(step).rows
            assert all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))


# what is paid ------------------------------------------------------------------------------------------------
BRAVE = {"floor": 0.2, "expected": 0.75, "gamma_batch": 30.0, "gamma_noise": 3.0}


def account(factors, budget, noise=NOISE, releases=None):
    """dp_accounting's account of steps with these factors, each after a release."""
    found = RdpAccountant(ORDERS.tolist(), NeighboringRelation.REPLACE_SPECIAL)
    release = budget.release(noise)
    event = dp_event.PoissonSampledDpEvent(release.q, dp_event.GaussianDpEvent(release.noise_multiplier))
    found.compose(event, len(factors) if releases is None else releases)
    for factor in factors:
        found.compose(dp_event.PoissonSampledDpEvent(budget.q, dp_event.GaussianDpEvent(factor * noise)))
    return found.rdp


def test_every_release_and_every_step_is_paid_for(graph):
    mechanism = built(BRAVE)
    made, budget = sampler(mechanism, graph), mechanism.parameters(SHAPE).zeroed
    taken = gammas(made, 4)
    assert len(set(taken)) > 1
    np.testing.assert_allclose(made._filter.spent, account(taken, budget), rtol=1e-9)


def test_a_run_ends_before_its_budget_is_passed(graph):
    mechanism = built(BRAVE)
    made, budget = sampler(mechanism, graph), mechanism.parameters(SHAPE).zeroed
    taken = gammas(made, 200)
    assert 0 < len(taken) < 30
    limit = budget.limit(NOISE)
    assert np.all(account(taken, budget) <= limit)
    following = made._release.gamma(len(taken))
    assert np.any(account([*taken, following], budget) > limit)
    ended = made.draw(len(taken))
    assert isinstance(ended, StopTraining)
    assert "budget" in ended.reason
    assert isinstance(made.draw(500), StopTraining)


def test_no_run_ends_early_where_no_gamma_is_below_what_was_planned(graph):
    for scores in (perplexity(), np.ones(ROWS), np.full(ROWS, 1e9)):
        made = sampler(built(), graph, scores)
        assert all(isinstance(made.draw(step), Draw) for step in range(30))


def test_a_resumed_run_finds_its_gammas_and_its_end_again(graph):
    mechanism = built(BRAVE)
    whole = gammas(sampler(mechanism, graph), 40)
    again = sampler(mechanism, graph)
    assert isinstance(again.draw(len(whole)), StopTraining)
    assert again.draw(len(whole) - 1).noise_factor == whole[-1]
    assert again.draw(0).noise_factor == whole[0]
    assert gammas(sampler(mechanism, graph, key=RunKey.from_text("other")), 40) != whole


def test_without_a_noise_there_is_no_budget_to_keep(graph):
    with pytest.raises(AssertionError, match="stage"):
        sampler(mechanisms.build(config()), graph)


# a whole run -------------------------------------------------------------------------------------------------
def run_config(folder, adaptive, **changes):
    made = resumable(folder, **changes)
    raw = made.model_dump(mode="json") | {"adaptive": adaptive}
    raw["privacy"] |= {"mechanism": "adaptive", "rows_per_unit": 4}
    return check(raw)


def multipliers(run):
    entries = [json.loads(line) for line in run.ledger_path.read_text().splitlines()[1:]]
    return [entry["noise_multiplier"] for entry in entries if "halted" not in entry]


def test_a_run_ends_by_itself_and_its_ledger_stays_within_the_budget(tmp_path):
    # perplexities of an untrained model are near 8,192: gammas of 0.41, give or take 0.04, and 0.5 were planned
    adaptive = {
        "probability": "perplexity",
        "between": (0.0, 20000.0),
        "floor": 0.3,
        "expected": 0.5,
        "gamma_noise": 1.0,
    }
    run = Run(run_config(tmp_path / "whole", adaptive))
    outcome = fine_tune(run)
    assert outcome.finished
    assert outcome.halted is not None
    assert 4 < outcome.steps < 24
    assert (run.release / "model.safetensors").exists()
    made, shape = mechanisms.build(run.config), UnitGraph.open(run.data / "train").shape()
    parameters = made.parameters(shape)
    factors = np.array(multipliers(run)) / 0.8
    assert len(factors) == outcome.steps
    assert isinstance(parameters.zeroed, RenyiBudget)
    assert np.all(account(factors, parameters.zeroed, 0.8) <= parameters.zeroed.limit(0.8))
    assert outcome.guarantee.epsilon == calibrate(made, shape, None, 0.8).curve().epsilon(parameters.delta)
    cut = Run(run_config(tmp_path / "cut", adaptive))
    fine_tune(cut, until=2)
    assert fine_tune(cut).steps == outcome.steps
    assert multipliers(cut) == multipliers(run)


def test_nominal_factors_are_means_over_the_drawn_rows_in_a_run(tmp_path):
    run = Run(run_config(tmp_path / "nominal", {"mode": "nominal", "normalise": "rank", "floor": 0.05}))
    fine_tune(run, until=6)
    job = Job.of(run, Console(quiet=True))
    graph, sampling = job.prepared.train, job.setting.parameters.sampling
    (scores,) = run.root.glob("perplexities-*.npy")
    rho = normalised(np.log(np.load(scores)), "rank")
    drawn = [sampling.draw(graph.n_rows, job.key, "main", step) for step in range(6)]
    expected = [max(0.05, rho[rows].mean()) if len(rows) else 1.0 for rows in drawn]
    np.testing.assert_allclose(multipliers(run), 0.8 * np.array(expected))


@pytest.mark.parametrize("changed", ["text", "model"])
def test_scores_are_not_those_of_a_twin_on_other_text_or_by_another_model(tmp_path, changed):
    adaptive = {"mode": "nominal", "floor": 0.05}
    config = run_config(tmp_path / "a", adaptive, train__steps=2)
    fine_tune(Run(config, twin=True))
    (before,) = Run(config).root.glob("perplexities-*.npy")
    text = Path(config.data.train)
    if changed == "text":
        text.write_text(text.read_text().replace("printer", "store"))
    else:
        config = run_config(tmp_path / "a", adaptive, train__steps=2, train__seed=1)
    fine_tune(Run(config))
    found = sorted(Run(config).root.glob("perplexities-*.npy"))
    assert len(found) == 2
    old, new = np.load(before), np.load(next(path for path in found if path != before))
    assert len(old) != len(new) or not np.allclose(old, new)


# nominal -----------------------------------------------------------------------------------------------------
def test_a_nominal_factor_is_the_mean_over_the_drawn_rows_and_1_over_none(graph):
    made = sampler(built({"mode": "nominal", "floor": 0.05, "normalise": "perplexity"}), graph)
    rho = normalised(np.log(perplexity()), "perplexity")
    for step in range(20):
        drawn = made.rows.sampling.draw(ROWS, KEY, "main", step)
        expected = rho[drawn].mean() if len(drawn) else 1.0
        assert made.draw(step).noise_factor == pytest.approx(max(0.05, expected))
    nothing = replace(made, rows=replace(made.rows, sampling=replace(made.rows.sampling, rate=1e-9)))
    assert nothing.draw(0).noise_factor == 1.0
    low = replace(made, rho=np.zeros(ROWS))
    assert low.draw(0).noise_factor == 0.05


def test_normalisations():
    losses = np.log(np.array([2.0, 4.0, 4.0, 18.0]))
    np.testing.assert_allclose(normalised(losses, "perplexity"), [0, 0.125, 0.125, 1])
    np.testing.assert_allclose(normalised(losses, "rank"), [0, 0.5, 0.5, 1])
    half = math.log(2) / math.log(9)
    np.testing.assert_allclose(normalised(losses, "log-perplexity"), [0, half, half, 1])
    assert normalised(np.full(3, 2.0), "rank").tolist() == [1, 1, 1]


# what is claimed ---------------------------------------------------------------------------------------------
def claimed(adaptive=None, steps=30, privacy=None):
    made = config(adaptive, privacy)
    setting = calibrate(
        mechanisms.build(made), SHAPE, made.privacy.epsilon, made.privacy.noise_multiplier, made.privacy.delta
    )
    return setting, state_guarantee(setting, steps, False, made, {"state": "test"})


def test_private_is_a_theorem_that_meets_its_target_and_lists_its_constants():
    setting, found = claimed({"floor": 0.4, "expected": 0.6, "gamma_batch": 30.0, "gamma_noise": 9.0})
    assert found.theorem
    assert 3.98 < found.epsilon <= 4.0
    assert found.accountant.startswith("dp_accounting RDP: A budget of Renyi divergence")
    (gamma,) = (fact for fact in found.public_facts if fact.startswith("gamma"))
    for part in ("probability 0.5 ", "B_g = 30 ", "s_g = 9,", "floor 0.4", "planned with 0.6"):
        assert part in gamma
    assert any("perplexities: the base model" in fact for fact in found.public_facts)
    assert any("seen no private row" in line for line in found.not_covered)
    assert setting.parameters.zeroed == RenyiBudget(0.1, 30, 0.6, 0.5, 9.0, 0.4)


def test_noise_is_that_of_a_planned_step_over_its_factor():
    bold, careful = (claimed({"floor": 0.1, "expected": factor})[0].noise_multiplier for factor in (1.0, 0.5))
    assert careful == pytest.approx(2 * bold, rel=1e-3)


def test_the_claim_is_the_same_after_fewer_steps():
    (_, whole), (_, few) = claimed(), claimed(steps=3)
    assert few.epsilon == whole.epsilon
    assert few.curve == whole.curve
    assert few.reconstruction == whole.reconstruction


def test_where_no_step_costs_more_than_planned_pairs_compose():
    (_, fixed), (_, filtered) = (claimed({"floor": 0.5, "expected": factor}) for factor in (0.5, 0.501))
    assert fixed.accountant.startswith(
        "dp_accounting PLD: 30 planned steps. In each a unit takes part with probability 0.1"
    )
    assert filtered.accountant.startswith("dp_accounting RDP: A budget of Renyi divergence")
    assert fixed.noise_multiplier < 0.97 * filtered.noise_multiplier


def test_no_gamma_is_released_after_the_planned_steps(graph):
    sampled = sampler(built({"floor": 0.2, "expected": 0.2}, noise=3.0), graph, np.full(ROWS, small.TOKENS))
    assert isinstance(sampled.draw(29), Draw)
    assert isinstance(sampled.draw(30), StopTraining)


def test_replacing_a_row_costs_twice_zeroing_it_out():
    setting, _ = claimed(privacy={"adjacency": "replace-one"})
    assert setting.parameters.process == Exchanged(setting.parameters.zeroed)
    assert setting.noise_multiplier > 1.25 * claimed()[0].noise_multiplier


def test_nominal_is_an_estimate_at_the_least_factor():
    adaptive = {"mode": "nominal", "floor": 0.4, "expected": 0.8}
    setting, found = claimed(adaptive, privacy={"noise_multiplier": 2.0})
    assert not found.theorem
    assert any("as if gammas were public" in reason for reason in found.estimates)
    assert any("size of the noise" in line for line in found.not_covered)
    process = MixtureOfGaussians.bernoulli(0.1, 30)
    assert setting.parameters.process == Scaled(process, 0.4)
    assert found.epsilon == process.curve(0.8).epsilon(found.delta)
    ((what, epsilon),) = found.epsilons
    assert "gamma is 0.8 in every step" in what
    assert epsilon == process.curve(1.6).epsilon(found.delta)
    assert found.accountant.startswith("dp_accounting PLD")


def test_the_twin_repeats_the_draws_and_adds_no_noise(graph):
    twin = NonPrivate.twin(mechanisms.build(config(BRAVE)))
    (phase,) = twin.phases(SHAPE, 0.0)
    assert phase.noise_multiplier == 0.0
    mine, theirs = sampler(phase.mechanism, graph), sampler(built(BRAVE), graph)
    for step in range(3):
        a, b = mine.draw(step).rows, theirs.draw(step).rows
        assert all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))
    assert isinstance(mine.draw(29), Draw)
    assert twin.scorer is None


# the config --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("adaptive", "privacy", "key"),
    [
        ({"flor": 0.3}, {}, r"adaptive\.flor: no such key, did you mean adaptive\.floor"),
        ({"floor": 0.0}, {}, r"adaptive\.floor"),
        ({"floor": 0.6, "expected": 0.5}, {}, r"adaptive\.expected.*below the floor"),
        ({"normalise": "perplexity"}, {}, r"adaptive\.normalise.*for mode: nominal"),
        ({"mode": "nominal", "gamma_noise": 3.0}, {}, r"adaptive\.gamma_noise.*for mode: private"),
        ({"mode": "nominal", "gamma_batch": 3.0}, {}, r"adaptive\.gamma_batch.*for mode: private"),
        ({"mode": "nominal", "probability": "perplexity"}, {}, r"adaptive\.probability"),
        ({"probability": "perplexity"}, {}, r"adaptive\.between.*needs"),
        ({"between": (1.0, 2.0)}, {}, r"adaptive\.between.*is for probability"),
        ({"probability": "perplexity", "between": (3.0, 2.0)}, {}, r"adaptive\.between.*low < high"),
        ({}, {"adjacency": "add-or-remove"}, r"privacy\.adjacency.*adaptive draws"),
        ({}, {"sampling": "shuffle"}, r"privacy\.sampling"),
        ({}, {"selection": "longest"}, r"privacy\.selection"),
        ({"floor": 0.3}, {"mechanism": "dp-sgd"}, "adaptive: is for mechanism adaptive"),
        ({}, {"accountant": "kl"}, r"privacy\.accountant"),
    ],
)
def test_what_cannot_be_is_refused(adaptive, privacy, key):
    with pytest.raises(InputError, match=key):
        config(adaptive, privacy)


def test_truncated_draws_are_refused():
    with pytest.raises(InputError, match=r"privacy\.sampling"):
        config(privacy={"sampling": "truncated"}, train={"steps": 30, "batch": 6.0, "max_batch": 9})


def test_a_classifier_needs_a_scorer():
    classes = {"task": "classification", "data": {"train": "x", "label": "y"}}
    with pytest.raises(InputError, match=r"adaptive\.scorer"):
        config(**classes)
    assert config({"scorer": "bundled"}, **classes).adaptive.scorer == "bundled"


def test_more_rows_for_gamma_than_there_are(graph):
    with pytest.raises(InputError, match=r"adaptive\.gamma_batch: 61 rows are more than the 60"):
        built({"gamma_batch": 61.0}).parameters(SHAPE)
