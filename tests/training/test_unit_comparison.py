"""The filter's step against a slow twin in float64; where gradients lie, and how a run of it ends and goes on."""

import math
import shutil
from collections import namedtuple

import numpy as np
import pytest
import torch

from confide.distributed.ranks import Ranks
from confide.privacy.mechanisms.concentration import ConcentrationAggregation
from confide.privacy.sampling import Draw, StopTraining
from confide.randomness.noise_grid import step_of as step_of_grid
from confide.runs import verify
from confide.runs.folder import Run
from confide.runs.job import Job
from confide.runs.loop import fine_tune
from confide.training import unit_comparison as filtered
from confide.training.gradient_sum import GradientSum
from confide.training.optimisation import Optimisation
from confide.training.step import PrivateStep
from confide.training.tasks import Task
from confide.training.unit_comparison import Gradients
from confide.utils import memory
from confide.utils.console import Console
from confide.utils.errors import InputError
from tests import small
from tests.test_halting import entries
from tests.test_resume import config as run_config
from tests.test_resume import released
from tests.training.test_step import KEY, Fixed, moved, snapshot, unit_gradients

USERS = 12


def filter_of(tau, noise=0.0, epsilon=math.inf, users=USERS):
    return ConcentrationAggregation(None, noise, 1.0, tau, users, epsilon)


def step_of(model, draw, aggregation, **options):
    sgd = Optimisation(steps=10, learning_rate=1.0, optimizer="sgd")
    return PrivateStep(model, small.task(), Fixed([draw]), aggregation, sgd, KEY, **options)


def crowd(times=5.0) -> Draw:
    """Users with much the same words, one with others in part, and user 4 with others alone, of `times` the weight."""
    generator = np.random.default_rng(0)
    same = [generator.integers(2, 8, 9) for _ in range(3)]
    rows, group = [], []
    for user in range(USERS):
        for row in same[: 1 + user % 3]:
            own = row.copy()
            own[generator.integers(9)] = generator.integers(2, 8)
            if user == 4:
                own = generator.integers(20, small.VOCABULARY, 9)
            if user == 7:
                own[:4] = generator.integers(20, small.VOCABULARY, 4)
            rows.append(own)
            group.append(user)
    weight = (1 / np.bincount(group))[group]
    weight[np.array(group) == 4] *= times
    return Draw(rows, np.array(group), weight.astype(np.float32))


def flat(gradients):
    names = list(gradients[0])
    return np.array([np.concatenate([g[n].double().numpy().ravel() for n in names]) for g in gradients])


def slow_gradients(draw):
    """float64[users, weights], and the distance of each pair."""
    vectors = flat(unit_gradients(small.gpt2(), draw))
    return vectors, np.array([[np.linalg.norm(a - b) for b in vectors] for a in vectors])


def slow_filter(gaps, tau, step=0):
    """Whether the step passes, and who is kept, as 000 writes it: bool, bool[users]."""
    passes = (gaps <= tau).sum() / USERS >= 0.8 * USERS
    draws = KEY.stream("main", "concentration keep", step).uniform(USERS)
    kept = np.zeros(USERS, bool)
    for i in range(USERS):
        f = (gaps[i] <= 2 * tau).sum()
        p = 0.0 if f < USERS / 2 else 1.0 if f >= 2 * USERS / 3 else (f - USERS / 2) / (USERS / 6)
        kept[i] = draws[i] < p
    return passes, kept


def tau_that(draw, share):
    """A tau within which this share of all pairs is."""
    return float(np.quantile(slow_gradients(draw)[1], share))


@pytest.mark.parametrize(("micro_tokens", "noise"), [(8192, 0.0), (20, 3.0)])
@pytest.mark.parametrize("times", [5.0, 1.5])
def test_a_step_is_the_mean_of_those_near_most_others(times, micro_tokens, noise):
    """User 4 is beyond tau of most others; beyond 2 tau as well, or not."""
    draw = crowd(times)
    tau = tau_that(draw, 0.83)
    vectors, gaps = slow_gradients(draw)
    passes, kept = slow_filter(gaps, tau)
    mean = vectors[kept].mean(0)
    assert passes
    assert (gaps[4] <= tau).sum() < USERS / 2
    assert kept[4] == (times < 5)
    model = small.gpt2()
    before = snapshot(model)
    report = step_of(model, draw, filter_of(tau, noise), micro_tokens=micro_tokens)(0)
    assert not isinstance(report, StopTraining)
    assert (report.units, report.rows, report.clipped) == (USERS, len(draw.rows), None)
    assert report.loss is not None
    place = 0
    for name, got in moved(before, model).items():
        expected = torch.from_numpy(mean[place : place + got.numel()]).view(got.shape)
        values = KEY.stream("main", "noise", 0, name).normal(got.numel()).float().view(got.shape)
        expected = expected + noise * tau / USERS * values
        off = 2e-6 + (step_of_grid(noise * tau) / USERS if noise else 0.0)
        assert torch.allclose(got.double(), expected, atol=off, rtol=1e-4), name
        place += got.numel()


def test_a_user_in_doubt_is_kept_by_the_key():
    """With f between N/2 and 2N/3 the key's own number decides, in each step anew."""
    draw = crowd()
    gaps = slow_gradients(draw)[1]
    # The outlier has 7 of 12 within 2 tau: half a chance.
    tau = float(np.sort(gaps[4])[6]) / 2 * (1 + 1e-6)
    model, seen = small.gpt2(), []
    step = step_of(model, draw, filter_of(tau))
    for number in range(12):
        step.units.collect(draw, number)
        _, within = step.units.of_units.within((tau, 2 * tau))
        assert within[4] == 7
        kept = step.aggregation.keeps(within, KEY, "main", number)
        assert (kept == slow_filter(gaps, tau, number)[1]).all()
        seen.append(bool(kept[4]))
    assert 0 < sum(seen) < 12


def test_a_step_without_concentration_ends_the_run_and_moves_nothing():
    draw, model = crowd(), small.gpt2()
    before = snapshot(model)
    halt = step_of(model, draw, filter_of(tau_that(draw, 0.5), 5.0))(0)
    assert isinstance(halt, StopTraining)
    assert halt.reason.startswith("at step 1 too few")
    assert all(not v.any() for v in moved(before, model).values())


def test_where_nobody_is_kept_the_mean_is_zero_and_noised(monkeypatch):
    monkeypatch.setattr(ConcentrationAggregation, "passes", lambda *args: True)
    draw, model = crowd(), small.gpt2()
    before = snapshot(model)
    step_of(model, draw, filter_of(1e-9, 1e9))(0)
    for name, got in moved(before, model).items():
        values = KEY.stream("main", "noise", 0, name).normal(got.numel()).float().view(got.shape)
        assert torch.allclose(got, values / USERS, atol=step_of_grid(1.0) / USERS), name


def test_the_noise_has_the_stated_size():
    draw = crowd()
    tau = tau_that(draw, 0.85)
    sizes = []
    for noise in (0.0, 1000.0):
        model = small.gpt2()
        before = snapshot(model)
        step_of(model, draw, filter_of(tau, noise))(0)
        got = torch.cat([v.flatten() for v in moved(before, model).values()])
        sizes.append(got)
    clean, noised = sizes
    stated = 1000 * tau / USERS
    assert float((noised - clean).std()) == pytest.approx(stated, rel=4 / math.sqrt(2 * len(clean)))


def test_running_out_of_memory_starts_the_draw_over(monkeypatch):
    draw, results = crowd(), []
    tau = tau_that(draw, 0.83)
    add = GradientSum._add
    for fails in (False, True):
        failures = [3] if fails else []

        def sometimes(self, draw, part, step, failures=failures):
            if failures and int(draw.group[part.rows[0]]) == failures[0]:
                failures.pop()
                raise MemoryError
            return add(self, draw, part, step)

        monkeypatch.setattr(GradientSum, "_add", sometimes)
        model = small.gpt2()
        step_of(model, draw, filter_of(tau), micro_tokens=64)(0)
        results.append(snapshot(model))
    assert all(torch.allclose(results[1][name], value, atol=1e-6) for name, value in results[0].items())


# the gradients -------------------------------------------------------------------------------------------------
def matrix(users=9, width=70_000, seed=0, offset=0.0):
    generator = np.random.default_rng(seed)
    return (offset + generator.normal(size=(users, width))).astype(np.float32)


def filled(rows, folder=None):
    made = Gradients(len(rows), rows.shape[1], folder)
    for user, row in enumerate(rows):
        made.put(user, row)
    return made


def test_distances_are_those_of_pairs():
    rows = matrix()
    exact = np.array([[np.linalg.norm(a.astype(float) - b) for b in rows] for a in rows])
    made = filled(rows)
    assert np.allclose(made.distances(), exact, rtol=1e-10, atol=1e-6)
    radii = np.quantile(exact[exact > 0], (0.2, 0.5, 0.9))
    for radius, counts in zip(radii, made.within(radii), strict=True):
        assert counts.tolist() == (exact <= radius).sum(1).tolist()
    kept = np.array([1, 4, 7])
    assert np.allclose(made.mean(kept), rows[kept].mean(0, dtype=np.float64), atol=1e-7)
    assert not made.mean(kept[:0]).any()


def test_a_pair_at_the_radius_is_told_exactly_whoever_else_there_is():
    """Near-equal gradients with a large part in common, and one user so far off that products round away the rest."""
    rows = matrix(users=6, width=4096)
    rows = (rows * 0.01 + 300).astype(np.float32)
    gap = rows[1].astype(np.float64) - rows[0]
    radius = math.nextafter(math.sqrt(float(gap @ gap)), math.inf)
    alone = filled(rows)
    beside = rows.copy()
    beside[5] = 3e15
    for radii in ((radius,), (math.nextafter(radius, 0),)):
        counts = alone.within(radii)[0]
        others = filled(beside).within(radii)[0]
        own = [
            1
            + sum(
                float(d @ d) <= radii[0] ** 2
                for j in range(5)
                if j != i
                for d in [rows[i].astype(float) - rows[j]]
            )
            for i in range(5)
        ]
        assert others[:5].tolist() == own
        assert (counts[:5] - others[:5] >= 0).all()
    at, below = alone.within((radius, radius * (1 - 1e-9)))
    assert (at[:2] == below[:2] + 1).all()


def test_a_file_does_what_memory_does_and_leaves_nothing(tmp_path, monkeypatch):
    rows = matrix()
    kept = np.array([0, 3])
    inside = filled(rows, tmp_path)
    assert inside._file is None
    monkeypatch.setattr(memory, "free", lambda device: 28 * 9**2)
    outside = filled(rows, tmp_path)
    assert outside._file is not None
    assert list(tmp_path.iterdir()) == []
    assert (outside.distances() == inside.distances()).all()
    assert (outside.mean(kept) == inside.mean(kept)).all()


def test_a_full_disk_is_told_in_gigabytes(tmp_path, monkeypatch):
    monkeypatch.setattr(memory, "free", lambda device: 1000)
    usage = namedtuple("Usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda place: usage(1, 1, 10**6))
    with pytest.raises(InputError, match=r"a gradient for each of 5,000 units takes 20.0 GB, .* has 0.0 GB"):
        Gradients(5_000, 10**6, tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda place: usage(1, 1, 10**12))
    made = Gradients(3, 10**6, tmp_path)

    def full(*args):
        raise OSError(filtered.errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(filtered.os, "pwrite", full)
    with pytest.raises(InputError, match="train fewer weights"):
        made.put(0, np.zeros(10**6, np.float32))


def test_too_many_users_to_compare_are_refused_before_any_gradient(tmp_path, monkeypatch):
    monkeypatch.setattr(memory, "free", lambda device: 10**6)
    assert Gradients(180, 4).users == 180
    with pytest.raises(InputError, match="to compare 200 units each with each"):
        Gradients(200, 4, tmp_path)


def test_several_ranks_are_refused():
    with pytest.raises(InputError, match="without torchrun"):
        step_of(small.gpt2(), crowd(), filter_of(1.0), ranks=Ranks(size=2))


# whole runs ----------------------------------------------------------------------------------------------------
def settings(folder, tau, epsilon=60.0, key="resume test", **changes):
    base = run_config(folder)
    privacy = base.privacy.model_copy(
        update={
            "mechanism": "concentration",
            "epsilon": epsilon,
            "noise_multiplier": None,
            "tau": tau,
            "published_key": key,
        }
    )
    train = base.train.model_copy(update={"batch": 256.0, "steps": 8} | changes)
    return base.model_copy(update={"privacy": privacy, "train": train})


def test_a_run_trains_and_is_released(tmp_path):
    run = Run(settings(tmp_path, 1e3))
    outcome = fine_tune(run)
    assert (outcome.steps, outcome.finished, outcome.halted) == (8, True, None)
    assert not outcome.guarantee.theorem
    assert entries(run)[0]["clip_norm"] is None
    assert entries(run)[1]["noise_multiplier"] == outcome.guarantee.noise_multiplier


def test_a_run_whose_users_differ_halts_at_once(tmp_path):
    run = Run(settings(tmp_path, 1e-6))
    outcome = fine_tune(run)
    assert (outcome.steps, outcome.finished) == (0, True)
    assert "at step 1 too few users' gradients were within tau" in entries(run)[-1]["halted"]


def ends(job, steps):
    """At which step noise alone ends a run in which all users are near."""
    users = job.setting.parameters.units
    aggregation = job.mechanism.aggregation(job.setting.parameters, job.setting.noise_multiplier)
    passes = [aggregation.passes(np.full(users, users), job.key, "main", step) for step in range(steps)]
    return passes.index(False) if False in passes else steps


def test_a_resumed_run_has_the_same_threshold_and_ends_at_the_same_step_bit_for_bit(tmp_path):
    """With an epsilon at which the noises of threshold and tests decide when a run ends."""
    keys = (f"resume {number}" for number in range(100))
    runs = ((key, Run(settings(tmp_path / key, 1e3, 4.0, key, steps=9))) for key in keys)
    key, whole = next((key, run) for key, run in runs if 3 <= ends(Job.of(run, Console(quiet=True)), 9) < 9)
    outcome = fine_tune(whole)
    assert outcome.halted is not None
    cut = Run(settings(tmp_path / "cut", 1e3, 4.0, key, steps=9))
    assert fine_tune(cut, until=2).halted is None
    again = fine_tune(cut)
    assert (again.steps, again.halted) == (outcome.steps, outcome.halted)
    assert 3 <= again.steps < 9
    assert all(torch.equal(released(cut)[name], value) for name, value in released(whole).items())


def test_verify_checks_the_filter_and_sees_its_faults(tmp_path, monkeypatch):
    job = Job.of(Run(settings(tmp_path, 1e3)), Console(quiet=True))
    found = verify.verify(job)
    assert [(c["name"], c["detail"]) for c in found["checks"] if not c["ok"]] == []
    assert "a step is the mean of the users that are kept" in [c["name"] for c in found["checks"]]

    def failed():
        return {c["name"] for c in verify.verify(job)["checks"] if not c["ok"]}

    with monkeypatch.context() as patch:
        patch.setattr(Gradients, "mean", lambda self, kept: self._matrix[kept].sum(0))
        assert failed() == {"a step is the mean of the users that are kept"}
    with monkeypatch.context() as patch:
        patch.setattr(ConcentrationAggregation, "passes", lambda *args: True)
        assert failed() == {"a step is the mean of the users that are kept"}
    with monkeypatch.context() as patch:
        patch.setattr(
            ConcentrationAggregation,
            "noise_scale",
            property(lambda self: 0.5 * self.noise_multiplier * self.tau / self.users),
        )
        assert failed() == {"noise of the stated size"}


def test_a_user_without_a_finite_gradient_counts_as_zero_and_ends_nothing(monkeypatch):
    """Twice: what such a user had a step before is not kept either."""
    row_loss, draw = Task.row_loss, crowd()
    spoils = False

    def spoilt(self, model, batch):
        found = row_loss(self, model, batch)
        return found * torch.nan if spoils and len(found) and calls.pop() == 7 else found

    monkeypatch.setattr(Task, "row_loss", spoilt)
    step = step_of(small.gpt2(), draw, filter_of(1e9))
    calls = []
    step.units.collect(draw, 0)
    sound = step.units.of_units.norms()
    spoils, calls = True, list(reversed(range(USERS)))
    norms = torch.cat(step.units.collect(draw, 0))
    assert np.flatnonzero(norms.isinf().numpy()).tolist() == [7]
    expected = sound.copy()
    expected[7] = 0
    assert step.units.of_units.norms() == pytest.approx(expected, rel=1e-4)
