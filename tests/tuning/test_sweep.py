"""A sweep from end to end on a tiny model: what it releases and claims, and that it goes on where it stopped."""

# ruff: noqa: E501 - one fault a line

import json
import math
import shutil
import sys
from functools import cache
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from confide.config.loading import load
from confide.privacy.accounting import MixtureOfGaussians, Repeated, Trials
from confide.privacy.mechanisms.base import calibrated
from confide.privacy.mechanisms.tuned import UNTUNED
from confide.runs.folder import Run
from confide.runs.loop import fine_tune
from confide.tuning import sweep as tuning
from confide.tuning.search import Adaptive, Independent, setting_of
from confide.tuning.space import Space
from confide.tuning.sweep import Trial, Tried, prices, run_trial, sweep
from confide.utils.errors import Diverged, InputError
from tests.command import World, confide, nothing_half_written, refused, tiny_model
from tests.test_statement import DELTA, SHAPE, config

SPACE = Space.of(["train.learning_rate=1e-3..1e-1:log", "train.schedule=constant,linear"])
COUNTED = Independent(Trials(3.0))
LISTED = ("--space", "train.learning_rate=0.01,0.02")


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def world(tmp_path, model, monkeypatch) -> World:
    """Three trials in every counted sweep, and each curve computed once: the accounting has tests of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Trials, "number", lambda self, uniform: 3)
    monkeypatch.setattr(MixtureOfGaussians, "curve", _curve)
    return World(tmp_path, model).set(privacy__published_key="sweep test")


_curve = cache(MixtureOfGaussians.curve)


def started(world: World, name: str = "run") -> Run:
    world.set(run=str(world.folder / name))
    return Run(load(world.path))


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


def same(ours: Path, theirs: Path) -> bool:
    one, other = weights(ours), weights(theirs)
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def entries(run: Run) -> list[dict]:
    return [json.loads(line) for line in run.ledger_path.read_text().splitlines()]


class Stopping:
    """`fine_tune`, stopped by its user in the `where`-th run after a step."""

    def __init__(self, monkeypatch, where: int):
        self.where, self.runs = where, []
        monkeypatch.setattr(tuning, "fine_tune", self)

    def __call__(self, run, console):
        self.runs.append(run.folder.name)
        return fine_tune(run, console, until=1 if len(self.runs) == self.where else None)


def test_the_best_trial_is_released_with_a_guarantee_for_the_whole_sweep(world):
    run = started(world.drop("privacy", "published_key"))
    found = sweep(run, SPACE, COUNTED)
    assert [tried.number for tried in found.trials] == [1, 2, 3]
    assert found.best.loss == min(tried.loss for tried in found.trials)
    assert found.outcome.final == found.best.evaluation
    assert len({tried.loss for tried in found.trials}) == 3
    left = {path.name for path in (run.root / "trials").rglob("*")}
    assert not left & {"release", "model", "guarantee.json", "model.safetensors"}
    guarantee = json.loads((run.release / "guarantee.json").read_text())
    assert guarantee == found.outcome.guarantee.to_json() == json.loads(run.guarantee_path.read_text())
    process = setting_of(run.config, _shape(run)).parameters.process
    assert guarantee["epsilon"] == Repeated(process, COUNTED.trials).curve(0.8).epsilon(1e-3)
    assert guarantee["theorem"] is True
    released = "".join(path.read_text("utf-8", "replace") for path in run.release.iterdir())
    assert "trials/" not in released
    assert "3 trials" not in released


def _shape(run: Run):
    from confide.data.unit_graph import UnitGraph

    return UnitGraph.open(run.data / "train").shape()


def test_every_trial_has_randomness_and_settings_of_its_own(world):
    run = started(world)
    found = sweep(run, Space.of(["train.schedule=constant,linear"]), COUNTED)
    lines = entries(run)
    assert [line["candidate"] for line in lines[1:]] == [tried.candidate for tried in found.trials]
    headers = [_header(run, tried.number) for tried in found.trials]
    schedules = [tried.candidate["train.schedule"] for tried in found.trials]
    assert len(set(schedules)) < len(schedules)  # two trials of the same settings, and yet:
    for name in ("config", "data", "model"):
        assert len({header[name] for header in headers}) == 3
    losses = [tried.loss for tried in found.trials]
    assert len(set(losses)) == 3


def test_another_sweep_in_the_same_folder_draws_afresh(world):
    run = started(world)
    trials = [Trial(run, n, {}, run.config, seal, UNTUNED) for n in (1, 2) for seal in (b"one", b"other")]
    assert len({trial.key().fingerprint(b"") for trial in trials}) == 4
    assert all(trial.key().published for trial in trials)


def _header(run: Run, number: int) -> dict:
    return json.loads((run.root / f"trials/{number:04}/ledger.jsonl").read_text().splitlines()[0])


@pytest.mark.parametrize("search", [COUNTED, Adaptive(3)], ids=["counted", "optuna"])
def test_a_sweep_that_was_stopped_goes_on_exactly(world, monkeypatch, search):
    if isinstance(search, Adaptive):
        pytest.importorskip("optuna")
    whole = sweep(started(world, "whole"), SPACE, search)
    cut = started(world, "cut")
    for runs in (["0001", "0002"], ["0002", "0003"]):
        stopping = Stopping(monkeypatch, 2)
        with pytest.raises(KeyboardInterrupt):
            sweep(cut, SPACE, search)
        assert stopping.runs == runs
        assert not cut.release.exists()
    monkeypatch.setattr(tuning, "fine_tune", fine_tune)
    again = sweep(cut, SPACE, search)
    assert again.trials == whole.trials
    assert again.best == whole.best
    assert same(cut.release, world.folder / "whole" / "release")
    assert entries(cut) == entries(started(world, "whole"))
    assert again.outcome.guarantee.epsilon == whole.outcome.guarantee.epsilon


def test_what_is_done_is_not_done_again(world, monkeypatch):
    run = started(world)
    first = sweep(run, SPACE, COUNTED)
    before = run.ledger_path.read_bytes()
    stopping = Stopping(monkeypatch, 0)
    again = sweep(run, SPACE, COUNTED)
    assert stopping.runs == [f"{first.best.number:04}"]  # to be released once more
    assert again.trials == first.trials
    assert run.ledger_path.read_bytes() == before


def test_text_that_changes_while_a_sweep_is_stopped_changes_nothing(world, monkeypatch):
    run = started(world)
    Stopping(monkeypatch, 2)
    with pytest.raises(KeyboardInterrupt):
        sweep(run, SPACE, COUNTED)
    prepared = (run.data / "prepared.json").read_bytes()
    world.rows(world.text, users=30, seed=5)
    monkeypatch.setattr(tuning, "fine_tune", fine_tune)
    assert len(sweep(run, SPACE, COUNTED).trials) == 3
    assert (run.data / "prepared.json").read_bytes() == prepared


def test_a_search_says_that_it_is_not_counted_and_may_go_further_but_not_back(world):
    pytest.importorskip("optuna")
    run = started(world)
    three = sweep(run, SPACE, Adaptive(3))
    four = sweep(run, SPACE, Adaptive(4))
    assert four.trials[:3] == three.trials
    for found, runs in ((three, 3), (four, 4)):
        guarantee = found.outcome.guarantee
        assert any(f"{runs} runs were made" in line for line in guarantee.not_covered)
        assert any(f"best of {runs}" in reason for reason in guarantee.estimates)
        ((what, epsilon),) = guarantee.epsilons
        assert f"all {runs} runs" in what
        assert guarantee.epsilon < epsilon < runs * guarantee.epsilon
    assert json.loads((run.release / "guarantee.json").read_text()) == four.outcome.guarantee.to_json()
    with pytest.raises(InputError, match="--trials 2: 4 runs were made here already"):
        sweep(run, SPACE, Adaptive(2))


def test_a_search_may_change_what_a_counted_sweep_may_not(world):
    pytest.importorskip("optuna")
    space = Space.of(["train.batch=3.0,4.0", "privacy.noise_multiplier=0.8,1.0"])
    found = sweep(started(world), space, Adaptive(2))
    assert found.outcome.guarantee.noise_multiplier == found.best.candidate["privacy.noise_multiplier"]


def test_a_trial_that_diverges_is_the_worst_and_the_sweep_goes_on(world):
    for number in range(12):  # candidates are drawn: some sweeps draw one of the two alone
        world.set(privacy__published_key=f"sweep {number}")
        try:
            found = sweep(
                started(world, f"run{number}"), Space.of(["train.learning_rate=0.01,1e37"]), COUNTED
            )
        except Diverged:
            continue
        rates = [tried.candidate["train.learning_rate"] for tried in found.trials]
        if len(set(rates)) == 2:
            break
    assert [math.isinf(tried.loss) for tried in found.trials] == [rate == 1e37 for rate in rates]
    assert found.best.candidate["train.learning_rate"] == 0.01
    assert found.outcome.finished


def test_where_every_trial_diverges_nothing_is_released(world):
    run = started(world)
    for _ in range(2):
        with pytest.raises(Diverged, match="every one of 3 trials diverged"):
            sweep(run, Space.of(["train.learning_rate=1e36,1e37"]), COUNTED)
    assert not run.release.exists()
    assert not run.guarantee_path.exists()


def test_an_executor_gets_every_batch_whole(world):
    batches = []

    def backwards(function, trials):
        batches.append([trial.number for trial in trials])
        done = {trial.number: function(trial) for trial in reversed(trials)}
        return [done[trial.number] for trial in trials]

    found = sweep(started(world), SPACE, COUNTED, executor=backwards)
    assert batches == [[1, 2, 3]]
    assert [tried.number for tried in found.trials] == [1, 2, 3]
    assert found.trials == sweep(started(world, "other"), SPACE, COUNTED).trials


def test_a_trial_that_was_finished_is_read_not_run(world, monkeypatch):
    run, trials = started(world), []

    def keeping(function, given):
        trials.extend(given)
        return [function(trial) for trial in given]

    found = sweep(run, SPACE, COUNTED, executor=keeping)
    monkeypatch.setattr(tuning, "fine_tune", None)
    trial = trials[1]
    assert run_trial(trial, tuning.Console(quiet=True)) == found.trials[1]
    assert Tried(1, {}, {"loss": math.nan}).loss == math.inf


# the command ---------------------------------------------------------------------------------------
def test_the_command_prints_a_private_table_and_the_guarantee(world):
    result = confide("tune", world.path, *LISTED, "--trials", 3)
    assert result.code == 0, result.err
    assert "(best)" in result.out
    assert "This table is private" in result.out
    assert "best trial of a sweep together" in result.out
    for verb in ("eval", "audit"):
        for folder in (world.run, world.run / "trials" / "0001"):
            refused(confide(verb, folder), "belongs to a sweep: its trials are private")
    refused(
        confide("train", world.path), "holds a sweep of `confide tune`: choose another `run` folder", lines=1
    )
    as_json = json.loads(confide("tune", world.path, *LISTED, "--trials", 3, "--json").out)
    assert len(as_json["private"]["trials"]) == 3
    assert as_json["settings"]["train.learning_rate"] in (0.01, 0.02)
    assert as_json["guarantee"]["epsilon"] > 0
    assert as_json["release"] == str(world.run / "release")
    assert as_json["report"] == str(world.run / "report.html")
    page = Path(as_json["report"]).read_text("utf-8")
    assert page.startswith("<!doctype html>")
    for tried in as_json["private"]["trials"]:  # what the sweep saw stays in the house
        assert f"{tried['evaluation']['loss']:.4g}" not in page


def test_stopped_by_its_user_the_command_says_how_to_go_on(world, monkeypatch):
    Stopping(monkeypatch, 2)
    result = confide("tune", world.path, *LISTED)
    assert result.code == 130
    assert "run the same command again to go on" in result.err
    assert not (world.run / "release").exists()


FAULTS = {
    "batch": (["train.batch=3.0,4.0"], [], r"--space: train\.batch enters the claim.*--optuna"),
    "steps": (["train.steps=4,5"], [], r"--space: train\.steps enters the claim"),
    "noise": (["privacy.noise_multiplier=0.8,0.9"], [], r"--space: privacy\.noise_multiplier enters the claim"),
    "mechanism": (["privacy.mechanism=uls,els"], [], r"--space: privacy\.mechanism enters the claim"),
    "sampling": (["privacy.sampling=poisson,shuffle"], [], r"--space: privacy\.sampling enters the claim"),
    "generator": (["privacy.noise=secure,fast"], [], r"--space: privacy\.noise enters the claim"),
    "an end of a range": (["privacy.noise_multiplier=0.8..0.9"], [], r"--space: privacy\.noise_multiplier enters"),
    "rows": (["data.max_length=8,16"], [], r"--space: data\.max_length decides which rows there are"),
    "rows, by optuna": (["data.max_length=8,16"], ["--optuna"], r"--space: data\.max_length decides which rows there are"),
    "a value of another kind": (["train.schedule=linear,steep"], [], r"--space: train\.schedule: 'steep' is not valid, must be one of constant, linear, cosine"),
    "half a step": (["train.warmup=0.5..2"], [], r"--space: train\.warmup: 0\.5 is not valid, must be a whole number"),
    "an end out of bounds": (["train.momentum=0.5..1"], ["train.optimizer=sgd"], r"--space: train\.momentum"),
    "a pair that cannot be": (["train.warmup=0,3", "train.optimizer=adamw,sgd", "train.momentum=0.0,0.9"], [], r"train\.momentum: is an option of sgd"),
    "more than there is": (["train.batch=4.0,400.0"], ["--optuna"], r"train\.batch: 400 units a step are more than"),
    "unknown key": (["train.learning_rat=1,2"], [], r"no such key, did you mean train\.learning_rate"),
    "no space": ([], [], r"--space: say what to try"),
    "one trial": (["train.learning_rate=0.01,0.02"], ["--trials", "1"], r"--trials: 1 trials on average are no sweep"),
    "half a run": (["train.learning_rate=0.01,0.02"], ["--trials", "2.5", "--optuna"], r"--trials 2\.5: with --optuna a whole number"),
    "shape of a search": (["train.learning_rate=0.01,0.02"], ["--shape", "0", "--optuna"], r"--shape is for a counted sweep"),
    "together, one by one": (["train.learning_rate=0.01,0.02"], ["--at-once", "2"], r"--at-once is for --optuna with --ray"),
    "nothing held out": (["train.learning_rate=0.01,0.02"], ["data.eval=null"], r"data\.eval: a sweep chooses by held-out loss"),
    "no privacy": (["train.learning_rate=0.01,0.02"], ["privacy.mechanism=none", "privacy.noise_multiplier=null"], r"none protects nobody, so there is nothing to count"),
    "price of an unknown key": (["train.learning_rat=1,2"], ["--plan"], r"no such key, did you mean train\.learning_rate"),
    "price of what enters the claim": (["train.steps=2,4"], ["--plan"], r"--space: train\.steps enters the claim"),
    "price of a search": (["train.learning_rate=0.01,0.02"], ["--plan", "--optuna"], r"--plan tells what counted sweeps cost"),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_what_cannot_be_swept_is_said_before_anything_runs(world, name):
    spaces, more, pattern = FAULTS[name]
    if "--optuna" in more:
        pytest.importorskip("optuna")
    options = [option for option in more if "=" not in option]
    overrides = [override for override in more if "=" in override]
    asked = [part for space in spaces for part in ("--space", space)]
    refused(confide("tune", world.path, *overrides, *asked, *options), pattern)
    nothing_half_written(world.run)
    assert not (world.run / "trials").exists()
    assert not (world.run / "ledger.jsonl").exists()


def test_without_ray_it_says_how_to_get_it(world, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    refused(confide("tune", world.path, *LISTED, "--ray", "auto"), r"pip install 'confide\[cluster\]'")


def test_a_sweep_is_bound_to_the_rows_that_it_chooses_by(world, monkeypatch):
    """Two copies of one sweep, with its key, would else release two of the same trials."""
    monkeypatch.setattr(Trials, "number", lambda self, uniform: 1)
    held = world.folder / "held.jsonl"
    world.set(data__eval=str(held))
    made = {}
    for folder, seed in (("first", 5), ("other", 6), ("again", 5)):
        world.rows(held, users=3, seed=seed, user="somebody else")
        run = started(world, folder)
        sweep(run, SPACE, COUNTED)
        made[folder] = _header(run, 1)
    for name in ("config", "data", "model"):
        assert made["first"][name] == made["again"][name]
        assert made["first"][name] != made["other"][name]
    world.rows(held, users=3, seed=6, user="somebody else")
    shutil.rmtree(run.data)
    with pytest.raises(InputError, match=r"another sweep .differs in held_out."):
        sweep(run, SPACE, COUNTED)


def test_a_folder_holds_one_sweep_or_one_run(world):
    run = started(world)
    sweep(run, SPACE, COUNTED)
    for space, search, words in (
        (Space.of(["train.schedule=constant,linear"]), COUNTED, "another sweep .differs in space"),
        (SPACE, Independent(Trials(4.0)), "another sweep .differs in mean"),
        (SPACE, Adaptive(3), "another sweep .differs in search"),
    ):
        with pytest.raises(InputError, match=words):
            sweep(run, space, search)
    with pytest.raises(InputError, match="does not belong to this config"):
        fine_tune(run)
    with pytest.raises(InputError, match="belongs to a sweep"):
        fine_tune(Run.load(run.root / "trials/0001"))
    single = started(world, "single")
    fine_tune(single)
    with pytest.raises(InputError, match="holds a single run"):
        sweep(single, SPACE, COUNTED)


# what it costs -------------------------------------------------------------------------------------
def test_prices_are_those_of_the_accounting(monkeypatch):
    monkeypatch.setattr(tuning, "MEANS", (4,))
    found = prices(config("uls", noise_multiplier=None, epsilon=4.0), SHAPE, Trials(5.0))
    process = setting_of(config("uls"), SHAPE).parameters.process
    assert found["noise_multiplier"] == calibrated(process, 4.0, DELTA)
    assert [row["trials"] for row in found["sweeps"]] == [4, 5.0]
    for row in found["sweeps"]:
        swept = Repeated(process, Trials(row["trials"]))
        assert row["noise_multiplier"] == calibrated(swept, 4.0, DELTA)
        assert row["epsilon_at_same_noise"] == swept.curve(found["noise_multiplier"]).epsilon(DELTA) > 4.0
        assert row["relative_noise"] == row["noise_multiplier"] / found["noise_multiplier"] > 1
    assert found["sweeps"][0]["most"] == 11  # 1 - (3/4)^11 > 0.95 > 1 - (3/4)^10


def test_the_command_prints_the_prices_and_runs_nothing(world, monkeypatch):
    monkeypatch.setattr(tuning, "MEANS", (4,))
    result = confide("tune", world.path, "--plan", "--trials", 4)
    assert result.code == 0, result.err
    assert "trials on average" in result.out
    assert not (world.run / "trials").exists()
    found = json.loads(confide("tune", world.path, "--plan", "--trials", 4, "--json").out)
    assert found["sweeps"][0]["relative_noise"] > 1


def test_what_a_sweep_released_may_be_tried_and_exported(world, tmp_path):
    assert confide("tune", world.path, *LISTED, "--trials", 2).code == 0
    found = confide("generate", world.run, "the printer", "--json", "--beside", "twin")
    assert list(json.loads(found.out)["said"]) == ["release"]
    assert "no twin beside it" in found.err
    assert confide("export", world.run, "--merge", tmp_path / "out").code == 0
    assert (tmp_path / "out" / "guarantee.json").read_bytes() == (
        world.run / "release" / "guarantee.json"
    ).read_bytes()
    (world.run / "release" / "guarantee.json").write_text("{}")
    refused(
        confide("generate", world.run, "the"), "release does not hold what this sweep released: remove it"
    )
    shutil.rmtree(world.run / "release")
    refused(confide("generate", world.run, "the"), "the sweep is not finished, so nothing is released")
