"""Noise correlated over steps: the matrix, the step, who is drawn when, what it costs, and that it keeps its claim."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.linalg import solve_triangular, toeplitz

from confide.config.loading import check
from confide.planning import plan as planning
from confide.privacy import accounting, correlated_noise, mechanisms
from confide.privacy.accounting import MixtureOfGaussians
from confide.privacy.correlated_noise import (
    Banded,
    BandedNoise,
    Buffered,
    BufferedNoise,
    Correlation,
    coefficients,
    exponent_for,
)
from confide.privacy.mechanisms.none import NonPrivate
from confide.privacy.mechanisms.statement import calibrate, state_guarantee
from confide.privacy.mechanisms.values import Aggregation
from confide.privacy.sampling import Sampling
from confide.randomness.noise_grid import step_of as step_of_grid
from confide.randomness.streams import RunKey
from confide.runs import verify
from confide.runs.folder import Run
from confide.runs.job import Job
from confide.runs.loop import fine_tune
from confide.training import step as training
from confide.training.optimisation import Optimisation
from confide.utils.console import Console
from confide.utils.errors import InputError
from tests import small
from tests.privacy.mechanisms.test_mechanisms import build
from tests.privacy.mechanisms.test_mechanisms import config as mechanism_config
from tests.test_resume import config, same
from tests.training.test_step import NOTHING, moved, snapshot, some_draw, step_of

KEY = RunKey.from_text("correlation")
QUIET = Console(quiet=True)


def matrix(bands: int, steps: int, exponent: float = 0.5) -> np.ndarray:
    return dense(Banded(bands, exponent), steps)


def dense(correlation: Correlation, steps: int) -> np.ndarray:
    column, found = np.zeros(steps), correlation.column(steps)[:steps]
    column[: len(found)] = found
    return np.tril(toeplitz(column))


# the matrix ----------------------------------------------------------------------------------------
def test_uncut_it_is_the_square_root_of_prefix_sums():
    whole = matrix(12, 12)
    assert np.allclose(whole @ whole, np.tril(np.ones((12, 12))))
    assert coefficients(1) == [1.0]
    assert Banded(1).sensitivity == 1.0
    assert Banded(5).sensitivity == pytest.approx(np.linalg.norm(matrix(5, 12), axis=0).max())


@pytest.mark.parametrize("bands", [1, 3, 20])
@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_noise_in_the_weights_is_that_of_many_runs(bands, decay):
    generator, steps, runs = np.random.default_rng(0), 9, 20_000
    rates = [1 - decay * step for step in range(steps)]
    noise = np.linalg.solve(matrix(bands, steps), generator.normal(size=(steps, runs)))
    weights = np.cumsum(np.array(rates)[:, None] * noise, axis=0)
    assert Banded(bands).noise_in_weights(rates) == pytest.approx(np.sqrt((weights**2).mean()), rel=0.01)


def test_without_bands_noise_adds_up():
    assert Banded(1).noise_in_weights([1.0] * 4) == pytest.approx(math.sqrt((1 + 2 + 3 + 4) / 4))
    four, two, one = (Banded(bands).noise_in_weights([1.0] * 4) for bands in (4, 2, 1))
    assert four < two < one


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_of_the_noise_of_steps_a_share_stays_in_the_weights(decay):
    generator, steps, runs = np.random.default_rng(0), 9, 20_000
    rates = np.array([1 - decay * step for step in range(steps)])[:, None]
    noise = np.linalg.solve(matrix(4, steps), generator.normal(size=(steps, runs)))
    as_long = generator.normal(size=(steps, runs)) * noise.std(1, keepdims=True)
    of_both = [np.cumsum(rates * each, axis=0) for each in (noise, as_long)]
    share = (of_both[0] ** 2).mean() / (of_both[1] ** 2).mean()
    assert Banded(4).walk_share(rates[:, 0].tolist()) == pytest.approx(share, rel=0.02)
    assert Banded(1).walk_share(rates[:, 0].tolist()) == 1.0
    assert Banded(4).noise_in_steps(steps) == pytest.approx(noise.std(), rel=0.01)


@pytest.mark.parametrize("exponent", [0.5, 0.6, 0.8])
@pytest.mark.parametrize("bands", [1, 2, 3, 7])
def test_a_turn_moves_the_release_by_the_sensitivity_at_most_and_no_other_turn(bands, exponent):
    """By brute force: a gradient of any sign in every bands-th step, wherever the first of them is."""
    steps, most = 12, Banded(bands, exponent).sensitivity
    c = matrix(bands, steps, exponent)
    for first in range(bands):
        turns = np.arange(first, steps, bands)
        assert (np.linalg.norm(c[:, turns], axis=0) <= most * (1 + 1e-15)).all()
        assert (np.count_nonzero(c[:, turns], axis=1) <= 1).all()  # each turn moves steps of its own
    assert np.linalg.norm(c[:, 0]) == pytest.approx(most, rel=1e-15)
    if bands > 1:  # with turns closer together it would not be so
        assert (np.count_nonzero(c[:, [0, bands - 1]], axis=1) > 1).any()


SCHEDULES = [
    (15, 60, "linear", 0, 0.52, 0.9922),
    (32, 240, "constant", 0, 0.57, 0.9754),
    (64, 1000, "cosine", 0, 0.64, 0.9061),
    (64, 1000, "linear", 100, 0.63, 0.9136),
    (12, 12, "cosine", 3, 0.5, 1.0),
    (2, 400, "constant", 0, 0.7, 0.9652),
]


@pytest.mark.parametrize(("bands", "steps", "schedule", "warmup", "exponent", "share"), SCHEDULES)
def test_the_exponent_for_a_schedule_never_loses_to_the_square_root(
    bands, steps, schedule, warmup, exponent, share
):
    """In dense matrices; and it is the same one on every machine."""
    assert exponent_for(bands, steps, schedule, warmup) == exponent
    optimisation = Optimisation(steps, 1.0, schedule, warmup)
    rates = np.array([optimisation.rate(step) for step in range(steps)])

    def noise(exponent: float) -> np.ndarray:
        inverse = solve_triangular(matrix(bands, steps, exponent), np.eye(steps), lower=True)
        weights = np.cumsum(rates[:, None] * inverse, axis=0)
        return Banded(bands, exponent).sensitivity ** 2 * (weights**2).sum(axis=1)

    ours, root = noise(exponent), noise(0.5)
    assert math.sqrt(ours.mean() / root.mean()) == pytest.approx(share, abs=1e-4)
    assert ours.mean() <= root.mean()
    assert ours.max() <= root.max()
    assert Banded(bands, exponent).noise_in_weights(rates) * Banded(
        bands, exponent
    ).sensitivity == pytest.approx(math.sqrt(ours.mean()))


def test_a_very_long_run_takes_the_exponent_of_a_shorter_one_of_its_shape(monkeypatch):
    monkeypatch.setattr(correlated_noise, "_LONGEST", 100)
    exponent_for.cache_clear()
    assert exponent_for(8, 400, "cosine", 40) == exponent_for(8, 100, "cosine", 10) > 0.5
    exponent_for.cache_clear()


@pytest.mark.parametrize("buffers", [1, 2, 3, 5])
def test_buffers_begin_as_the_square_root_and_never_end(buffers):
    column = Buffered(buffers).column(4000)
    exact = 2 * buffers
    assert column[:exact] == pytest.approx(coefficients(exact), rel=1e-12)
    assert column[exact] < coefficients(exact + 1)[-1]
    assert min(column[:40]) > 0
    assert Buffered(buffers).sensitivity == pytest.approx(np.linalg.norm(column), rel=1e-12)
    assert Buffered(buffers).noise_in_weights([1.0] * 60) == pytest.approx(
        np.sqrt((np.linalg.inv(dense(Buffered(buffers), 60)).cumsum(axis=0) ** 2).sum(axis=1).mean())
    )


def test_a_few_buffers_leave_as_much_noise_in_the_weights_as_many_bands():
    """For an epoch of about as many steps as they reach back, of noise that is scaled to the matrix."""
    for buffers, bands, steps in ((3, 15, 60), (4, 26, 104)):
        few, many = (
            each.sensitivity * each.noise_in_weights([1.0] * steps)
            for each in (Buffered(buffers), Banded(bands))
        )
        assert few < 1.02 * many


MATRICES = [Banded(bands, exponent) for bands in (2, 3, 7) for exponent in (0.5, 0.7)]
MATRICES += [Buffered(buffers) for buffers in (1, 2, 4)]


@pytest.mark.parametrize("correlation", MATRICES, ids=str)
def test_noise_is_the_inverse_matrix_times_independent_noise(correlation):
    generator = np.random.default_rng(0)
    z = generator.normal(size=(9, 5))
    correlated = correlation.noise(lambda step: {"w": torch.tensor(z[step])})
    found = np.stack([noise_of(correlated, step, 3.0 * torch.tensor(z[step])) for step in range(9)])
    assert np.allclose(found, 3.0 * np.linalg.solve(dense(correlation, 9), z))


def noise_of(correlated, step, own, scale=3.0):
    """The noise of a step, made of its own independent noise."""
    correlated.take_back(step, {"w": own}, scale)
    return own


@pytest.mark.parametrize("correlation", [Banded(4), Buffered(3)], ids=str)
def test_steps_before_a_resumed_one_are_made_up_for(correlation):
    z = torch.randn(9, 5, generator=torch.Generator().manual_seed(0))
    whole, late = (correlation.noise(lambda step: {"w": z[step].clone()}) for _ in range(2))
    for step in range(9):
        found = noise_of(whole, step, z[step].clone())
    for _ in range(2):  # the last step may be asked for again
        assert torch.equal(noise_of(late, 8, z[8].clone()), found)
    assert not torch.equal(found, z[8])
    with pytest.raises(AssertionError, match="step 3 comes after step 8"):
        noise_of(late, 3, z[3].clone())


@pytest.mark.parametrize("correlation", [Banded(4), Buffered(3)], ids=str)
def test_noise_that_could_not_be_remembered_is_made_again_from_the_first_step(correlation, monkeypatch):
    """Memory may run out halfway, and the step starts over."""
    z = torch.randn(9, 2, 5, generator=torch.Generator().manual_seed(0))
    whole, broken = (
        correlation.noise(lambda step: dict(zip("ab", z[step].clone(), strict=True))) for _ in range(2)
    )

    def noise(made, step):
        sums = dict(zip("ab", z[step].clone(), strict=True))
        made.take_back(step, sums, 3.0)
        return torch.stack(list(sums.values()))

    for step in range(6):
        noise(broken, step)
    keep = type(broken)._keep

    def halfway(self, found):
        keep(self, {"a": found["a"]})
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(type(broken), "_keep", halfway)
        with pytest.raises(MemoryError):
            noise(broken, 6)
    assert torch.equal(noise(broken, 6), noise(whole, 6))


# the step ------------------------------------------------------------------------------------------
@pytest.mark.parametrize("correlation", [Banded(3), Banded(3, 0.66), Buffered(2)], ids=str)
def test_a_step_adds_it_to_the_sum_times_the_sensitivity(correlation):
    """Against steps with independent noise, which give Z, and a step without noise, which gives the sum."""
    clip, s, scale = 0.7, 0.9, 0.25
    draws = [some_draw(seed=1), NOTHING, some_draw((2, 1), seed=2), NOTHING, NOTHING]

    def updates(aggregation):
        found = []
        for number in range(5):  # each from the same weights, so that gradients are the same
            model = small.gpt2()
            before = snapshot(model)
            step_of(model, draws, aggregation)(number)
            found.append(moved(before, model))
        return found

    independent = updates(Aggregation(clip, s, scale))
    bare = updates(Aggregation(clip, 0.0, scale))
    found = updates(Aggregation(clip, s, scale, correlation=correlation))
    for name in bare[0]:
        noise = np.stack(
            [(a[name] - b[name]).numpy().ravel() for a, b in zip(independent, bare, strict=True)]
        )
        ours = np.stack([(a[name] - b[name]).numpy().ravel() for a, b in zip(found, bare, strict=True)])
        expected = correlation.sensitivity * np.linalg.solve(dense(correlation, 5), noise)
        assert np.allclose(ours, expected, atol=4 * scale * step_of_grid(1.5 * clip * s)), name


def test_what_is_taken_back_is_the_noise_itself_and_not_its_grid():
    step = step_of(small.gpt2(), [NOTHING], Aggregation(0.7, 0.9, 0.25, correlation=Banded(3)))
    for name, found in step._independent(1).items():
        exact = step._source(1, name).normal(found.numel()).view(found.shape)
        assert torch.equal(found, exact.float()), name


@pytest.mark.parametrize("correlation", [Banded(3), Buffered(2)], ids=str)
def test_noise_is_made_once_and_is_that_which_a_resumed_run_makes_again(correlation, monkeypatch):
    aggregation = Aggregation(0.7, 0.9, 0.25, correlation=correlation)
    draws = [some_draw(seed=1), NOTHING, some_draw((2, 1), seed=2), NOTHING, NOTHING]
    going, resumed = (step_of(small.gpt2(), draws, aggregation) for _ in range(2))
    made = []
    for each in (going, resumed):
        monkeypatch.setattr(each.correlated, "_independent", noted(each, made))
    for number in range(5):
        going(number)
    assert made == []
    sums = [{name: torch.zeros(p.shape) for name, p in each.parameters.items()} for each in (going, resumed)]
    for each, vectors in zip((going, resumed), sums, strict=True):
        each.correlated.take_back(5, vectors, 0.3)
    assert made == [0, 1, 2, 3, 4]  # those of the resumed one
    for name, vector in sums[0].items():
        assert torch.equal(vector, sums[1][name]), name
        assert vector.abs().max() > 0


@pytest.mark.parametrize("correlation", [Banded(3), Buffered(2)], ids=str)
def test_a_step_that_starts_over_for_memory_has_the_same_noise_and_keeps_none_meanwhile(
    correlation, monkeypatch
):
    aggregation = Aggregation(0.7, 0.9, 0.25, correlation=correlation)
    draws = [some_draw(seed=1), some_draw((2, 1), seed=2), some_draw(seed=3), NOTHING]
    models = [small.gpt2() for _ in range(2)]
    smooth, bumpy = (step_of(model, draws, aggregation) for model in models)
    add, kept, fails = training.add_noise, [], iter([True, False] * 4)

    def once_out(*given, **named):
        kept.append(bumpy._said is not None)
        add(*given, **named)
        if next(fails):
            raise MemoryError

    for number in range(4):
        smooth(number)
    with monkeypatch.context() as patch:
        patch.setattr(training, "add_noise", once_out)
        patch.setattr(
            bumpy.gradients, "start_over", lambda draw: None
        )  # smaller batches would round otherwise
        back = bumpy.correlated.take_back
        patch.setattr(
            bumpy.correlated, "take_back", lambda *g: (kept.append(bumpy._said is None), back(*g))[1]
        )
        for number in range(4):
            bumpy(number)
    assert kept == [True] * 16  # nothing of a failed attempt is there when the next one takes noise back
    for one, other in zip(*(model.parameters() for model in models), strict=True):
        assert torch.equal(one, other)


def noted(step, made):
    def independent(number):
        made.append(number)
        return step._independent(number)

    return independent


def test_noise_of_another_step_is_not_remembered():
    correlated = Banded(3).noise(lambda step: {"w": torch.zeros(2)})
    correlated.take_back(4, {"w": torch.zeros(2)}, 1.0)
    with pytest.raises(AssertionError, match="step 5 is not the one that was asked for last, 4"):
        correlated.remember(5, {"w": torch.zeros(2)})


# who is drawn --------------------------------------------------------------------------------------
def test_each_group_has_its_turn_and_all_are_drawn_alike():
    n, rate, bands, steps = 60, 0.15, 4, 2000
    sampling = Sampling("poisson", rate, bands=bands)
    drawn = np.zeros((steps, n), bool)
    for step in range(steps):
        drawn[step, sampling.draw(n, KEY, "main", step)] = True
    turns = np.array([drawn[turn::bands].mean(axis=0) for turn in range(bands)])
    assert ((turns > 0).sum(axis=0) == 1).all()  # nobody out of turn
    assert np.array_equal(np.sort((turns > 0).sum(axis=1)), [15, 15, 15, 15])
    error = math.sqrt(bands * rate * (1 - bands * rate) / (steps / bands))
    assert np.abs(turns.max(axis=0) - bands * rate).max() < 4.5 * error


def test_of_one_band_nothing_changes():
    plain, one = Sampling("poisson", 0.2), Sampling("poisson", 0.2, None, 1)
    assert np.array_equal(plain.draw(50, KEY, "main", 3), one.draw(50, KEY, "main", 3))


# what it costs -------------------------------------------------------------------------------------
SHAPE_OF = [4] * 40


@pytest.fixture(scope="module")
def shape(tmp_path_factory):
    return small.graph(tmp_path_factory.mktemp("graph") / "g", SHAPE_OF).shape()


@pytest.mark.parametrize(("name", "units"), [("uls", 40), ("dp-sgd", 160)])
def test_a_unit_takes_part_in_as_many_turns_as_are_accounted_for(shape, name, units):
    mechanism = build(name, bands=6)
    rate = 6 * 5 / units
    assert mechanism.parameters(shape).process == MixtureOfGaussians.bernoulli(rate, 9)  # of 50 steps
    assert mechanism.parameters(shape, 6).process == MixtureOfGaussians.bernoulli(rate, 1)
    assert mechanism.parameters(shape, 7).process == MixtureOfGaussians.bernoulli(rate, 2)
    assert any("6 groups" in fact for fact in mechanism.parameters(shape).facts)
    setting = calibrate(mechanism, shape, 4.0)
    assert setting.curve().epsilon(setting.delta) <= 4.0
    assert setting.noise_per_gradient() == setting.noise_multiplier * Banded(6).sensitivity / 5


def test_plain_sgd_takes_the_exponent_for_its_schedule_and_the_accounting_is_the_same(shape, tmp_path):
    root = build("uls", bands=6)
    ours = replace(root, optimizer="sgd")
    decaying = replace(ours, schedule="linear", warmup=5)
    assert root.exponent == 0.5
    assert ours.exponent == exponent_for(6, 50, "constant", 0) > 0.5
    assert decaying.exponent == exponent_for(6, 50, "linear", 5) != ours.exponent
    for mechanism in (ours, decaying):
        setting = calibrate(mechanism, shape, 4.0)
        assert setting.parameters.process == root.parameters(shape).process
        aggregation, most = setting.aggregation(), Banded(6, mechanism.exponent).sensitivity
        assert aggregation.correlation == Banded(6, mechanism.exponent)
        assert aggregation.noise_scale == setting.noise_multiplier * most
        assert setting.noise_per_gradient() == setting.noise_multiplier * most / 5
        assert any(f"(1 - x)^-{mechanism.exponent:g} " in fact for fact in setting.parameters.facts)
    raw = config(tmp_path / "a", privacy__bands=6, train__optimizer="sgd")
    assert mechanisms.build(raw).exponent == exponent_for(6, 24, raw.train.schedule, raw.train.warmup)


@pytest.mark.parametrize("bands", [1, 6])
def test_epsilon_follows_from_what_the_guarantee_says(shape, bands):
    """Somebody who has guarantee.json alone."""
    setting = calibrate(build("uls", bands=bands), shape, 4.0)
    settings = mechanism_config("uls", bands=bands)
    stated = state_guarantee(setting, 50, False, settings, {"state": "planned"}).to_json()
    turns = math.ceil(stated["steps"] / stated["bands"])
    process = MixtureOfGaussians.bernoulli(stated["sampling_probability"][1], turns)
    assert process.curve(stated["noise_multiplier"]).epsilon(stated["delta"]) == pytest.approx(
        stated["epsilon"]
    )
    assert stated["sampling_probability"][0] == (0 if bands > 1 else stated["sampling_probability"][1])
    assert any("in the mean over steps" in fact for fact in stated["public_facts"]) == (bands > 1)


@pytest.mark.parametrize("bands", [1, 4])
def test_no_guess_from_the_sums_beats_the_curve_and_without_the_sensitivity_it_does(bands):
    """One unit of gradient 1 among none, and the best test there is: a matched filter on C times the noised sums."""
    trials, steps, rate, s = 20_000, 8, 0.2, 0.6
    process = MixtureOfGaussians.bernoulli(bands * rate, steps // bands)
    allowed = process.curve(s)
    generator = np.random.default_rng(0)
    c = matrix(bands, steps)
    column = np.linalg.norm(c, axis=0)

    def scores(is_there: bool, scale: float) -> np.ndarray:
        taken = np.zeros((trials, steps))
        if is_there:  # its group has the first turn
            taken[:, ::bands] = generator.random((trials, steps // bands)) < bands * rate
        noise = np.linalg.solve(c, generator.normal(size=(steps, trials))).T * scale
        seen = (taken + noise) @ c.T
        turns = np.arange(0, steps, bands)
        filtered = seen @ c[:, turns] / scale**2
        likelihood = np.exp(filtered - column[turns] ** 2 / scale**2 / 2)
        return np.log1p(bands * rate * (likelihood - 1)).sum(axis=1)

    def found(scale: float) -> float:
        """True positives at a tenth of false ones, less what the curve allows, in standard errors."""
        out, inside = scores(False, scale), scores(True, scale)
        fpr, where = 0.1, np.quantile(out, 0.9)
        tpr = np.mean(inside > where)
        return float((tpr - allowed.true_positive_rate(fpr)) / math.sqrt(0.25 / trials))

    assert -3 < found(s * Banded(bands).sensitivity) < 3  # the accounting is exact, too
    if bands > 1:
        assert found(s) > 5


def test_the_same_guarantee_leaves_less_noise_in_the_weights(shape):
    """The point of it: the sum of all steps' noise, which is what the last weights hold at a constant rate."""
    steps = 8

    def last(bands: int) -> float:
        setting = calibrate(build("uls", steps=steps, epsilon=8.0, bands=bands), shape, 8.0)
        inverse = np.linalg.solve(matrix(bands, steps), np.eye(steps))
        return setting.noise_multiplier * Banded(bands).sensitivity * np.linalg.norm(inverse.sum(axis=0))

    assert last(8) < 0.7 * last(1)


def test_a_plan_shows_rivals_with_independent_noise(shape):
    settings = mechanism_config("uls", bands=6)
    assert planning.rival("uls", mechanisms.build(settings), settings).bands == 6
    assert planning.rival("els", mechanisms.build(settings), settings).bands == 1


# what is refused -----------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("mechanism", "changes", "words"),
    [
        ("els", {}, "under uls and dp-sgd, not under els"),
        ("adaptive", {}, "not under adaptive"),
        ("uls", {"sampling": "shuffle"}, "sampling: poisson"),
        ("uls", {"steps": 5}, "more than the 5 steps"),
    ],
)
def test_what_does_not_go_with_it_is_refused(mechanism, changes, words):
    with pytest.raises(InputError, match=words):
        mechanism_config(mechanism, bands=6, **changes)


@pytest.mark.parametrize(
    ("name", "changes"),
    [("els", {}), ("uls", {"sampling": "shuffle"}), ("uls", {"adjacency": "add-or-remove"})],
)
def test_no_other_way_leads_to_noise_that_nothing_accounts_for(name, changes):
    mechanism = replace(build(name, rows_per_unit=2), **changes)
    with pytest.raises(AssertionError, match="nothing accounts for"):
        replace(mechanism, bands=6)


def test_only_those_that_say_so_correlate():
    assert {name for name in mechanisms.NAMES if mechanisms.find(name).correlates} == {"uls", "dp-sgd"}


def test_replacing_is_accounted_for_turn_by_turn(shape):
    plain, replaced = (
        build("uls", bands=6, adjacency=kind).parameters(shape) for kind in ("zero-out", "replace-one")
    )
    assert replaced.zeroed == plain.process
    assert replaced.process == accounting.replaced(plain.process)
    assert replaced.process != replaced.zeroed


def test_a_twin_draws_alike_and_adds_nothing(tmp_path):
    graph = small.graph(tmp_path / "g", SHAPE_OF)
    private = build("uls", bands=4)
    twin = NonPrivate.twin(private)
    ours, theirs = (each.sampler(graph, KEY, "main", lambda: None) for each in (private, twin))
    assert all(np.array_equal(ours.draw(step).unit_ids, theirs.draw(step).unit_ids) for step in range(8))
    assert twin.aggregation(twin.parameters(graph.shape()), 0.0).noise_scale == 0


def test_more_groups_than_a_step_can_draw_from_are_refused(shape):
    with pytest.raises(InputError, match="at most 8"):
        build("uls", bands=9).parameters(shape)


@pytest.mark.parametrize("key", ["bands", "buffers"])
def test_an_audit_of_sums_takes_independent_noise(tmp_path, key):
    raw = config(tmp_path).model_dump(mode="json")
    raw["privacy"][key] = 2
    raw["canaries"] = {"count": 4, "white_box": True}
    with pytest.raises(InputError, match="independent"):
        check(raw)


# a run ---------------------------------------------------------------------------------------------
def test_a_run_that_was_stopped_goes_on_bit_for_bit(tmp_path):
    whole, cut = (Run(config(tmp_path / name, privacy__bands=3)) for name in ("whole", "cut"))
    fine_tune(whole, QUIET)
    for until in (2, 11, 24):
        outcome = fine_tune(cut, QUIET, until=until)
    same(cut, whole)
    assert any("3 groups" in fact for fact in outcome.guarantee.public_facts)
    plain = Run(config(tmp_path / "plain"))
    fine_tune(plain, QUIET)
    with pytest.raises(AssertionError):
        same(plain, whole)


def test_a_run_with_buffers_that_was_stopped_goes_on_bit_for_bit_and_states_them(tmp_path):
    settings = {"privacy__buffers": 2, "privacy__sampling": "bins"}
    whole, cut = (Run(config(tmp_path / name, **settings)) for name in ("whole", "cut"))
    fine_tune(whole, QUIET)
    for until in (2, 11, 24):
        outcome = fine_tune(cut, QUIET, until=until)
    same(cut, whole)
    found = outcome.guarantee
    assert (found.bands, found.buffers) == (1, 2)
    assert ("noise correlated over", "all later steps (2 buffers)") in found.lines()
    assert any("the mean of t_1^k, ..., t_2^k in the k-th place" in fact for fact in found.public_facts)
    assert any("the same one in each" in fact for fact in found.public_facts)


def noise_passes(job: Job) -> bool:
    checks = {each["name"]: each["ok"] for each in verify.verify(job)["checks"]}
    assert all(passed for name, passed in checks.items() if name != "noise of the stated size"), checks
    return checks["noise of the stated size"]


def nothing_back(patch, kind):
    taken_back = kind._taken_back
    patch.setattr(kind, "_taken_back", lambda self, name, like: taken_back(self, name, like).mul_(0))


def test_verify_knows_its_noise_and_notices_another(tmp_path, monkeypatch):
    job = Job.of(Run(config(tmp_path / "a", privacy__bands=3, train__optimizer="sgd")), QUIET)
    assert job.mechanism.exponent > 0.5
    assert noise_passes(job)
    with monkeypatch.context() as patch:
        nothing_back(patch, BandedNoise)
        assert not noise_passes(job)
    with monkeypatch.context() as patch:
        patch.setattr(Banded, "sensitivity", 1.0)
        assert not noise_passes(job)


def test_verify_knows_the_noise_of_buffers_and_notices_another(tmp_path, monkeypatch):
    job = Job.of(Run(config(tmp_path / "a", privacy__buffers=2, privacy__sampling="bins")), QUIET)
    assert noise_passes(job)
    with monkeypatch.context() as patch:
        nothing_back(patch, BufferedNoise)
        assert not noise_passes(job)
    with monkeypatch.context() as patch:
        patch.setattr(Buffered, "sensitivity", 1.0)
        assert not noise_passes(job)
    with monkeypatch.context() as patch:  # a buffer forgets too fast
        patch.setattr(correlated_noise, "decays", lambda buffers: (0.6, 0.146446))
        patch.setattr(Buffered, "sensitivity", job.mechanism.correlation.sensitivity)
        assert not noise_passes(job)


def test_verify_takes_so_many_steps_that_it_sees_noise_of_long_ago(tmp_path, monkeypatch):
    """With 24 bands the noise of a step is taken back for the last time 23 steps later: here by too much."""
    job = Job.of(Run(config(tmp_path / "a", privacy__bands=24, train__batch=1.0)), QUIET)
    assert noise_passes(job)
    begin = BandedNoise.__init__

    def wrong(self, *given):
        begin(self, *given)
        self._below = [*self._below[:20], 1.0, 1.0, 1.0]

    monkeypatch.setattr(BandedNoise, "__init__", wrong)
    assert not noise_passes(job)


def test_verify_sees_draws_that_ignore_the_groups(tmp_path, monkeypatch):
    job = Job.of(Run(config(tmp_path / "a", privacy__bands=3)), QUIET)
    draw = Sampling.draw
    all_groups = lambda self, *given: draw(replace(self, rate=self.rate * self.bands, bands=1), *given)  # noqa: E731
    monkeypatch.setattr(Sampling, "draw", all_groups)
    checks = {each["name"]: each["ok"] for each in verify.verify(job)["checks"]}
    assert [name for name, passed in checks.items() if not passed] == [
        "draws are those that are accounted for"
    ]


def test_a_run_does_not_go_on_with_another_generator_or_exponent(tmp_path, monkeypatch):
    """Noise by another generator would not take back what was added; another exponent is another matrix."""
    other = ("confide.runs.loop.generator", lambda *given: "dice")
    banded = {"privacy__bands": 3, "train__optimizer": "sgd"}
    buffered = {"privacy__buffers": 2, "privacy__sampling": "bins"}
    for name, settings, change, words in (
        ("generator", banded, other, "cannot take the former back"),
        (
            "exponent",
            banded,
            ("confide.privacy.mechanisms.base.exponent_for", lambda *given: 0.66),
            "exponent",
        ),
        ("buffers", buffered, other, "cannot take the former back"),
    ):
        run = Run(config(tmp_path / name, **settings))
        fine_tune(run, QUIET, until=11)
        with monkeypatch.context() as patch:
            patch.setattr(*change)
            with pytest.raises(InputError, match=words):
                fine_tune(run, QUIET)
        assert fine_tune(run, QUIET).finished
    plain = Run(config(tmp_path / "plain"))
    fine_tune(plain, QUIET, until=12)
    monkeypatch.setattr("confide.runs.loop.generator", lambda *given: "dice")
    assert fine_tune(plain, QUIET).finished  # each step has noise of its own
