"""MLflow and Weights & Biases: off unless named, offline unless asked, and told nothing private unless allowed."""

import copy
import json
import shutil
import stat
from pathlib import Path

import pytest
from mlflow import MlflowClient

import confide as package
from confide.training import trackers
from confide.training.trackers import Discreet, Frank
from confide.utils.errors import InputError
from tests.command import MARKER, World, confide, refused, tiny_model

PRIVATE = ("train/loss", "train/seconds", "train/clipped", "eval/loss", "eval/perplexity")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def world(tmp_path, model) -> World:
    return World(tmp_path, model)


@pytest.fixture(scope="module")
def public(tmp_path_factory, model) -> World:
    """A run of which MLflow was told; no test changes it."""
    return trained(World(tmp_path_factory.mktemp("public"), model), "mlflow")


@pytest.fixture(scope="module")
def told(tmp_path_factory, model) -> World:
    """A run with a published key of which both were told all; no test changes it."""
    world = World(tmp_path_factory.mktemp("told"), model).set(privacy__published_key="a key for this test")
    return trained(world, "mlflow", "wandb", allow_private=True)


def copied(world: World, folder: Path) -> World:
    """The same config beside a copy of the run folder, to go on with."""
    other = World(folder, world.folder)
    shutil.copytree(world.run, other.run, symlinks=True)
    other.raw = copy.deepcopy(world.raw) | {"run": str(other.run)}
    return other.save()


def trained(world, *kinds, **changes):
    """Train a run with these trackers."""
    world.set(tracking__to=list(kinds), **{f"tracking__{name}": value for name, value in changes.items()})
    result = confide("train", world.path)
    assert result.code == 0, result
    return world


def in_mlflow(world):
    client = MlflowClient(tracking_uri=f"sqlite:///{world.run / 'mlflow' / 'runs.db'}")
    (experiment,) = [each for each in client.search_experiments() if each.name == "confide"]
    return client, client.search_runs([experiment.experiment_id])


def in_wandb(world) -> bytes:
    return b"".join(path.read_bytes() for path in (world.run / "wandb").rglob("*") if path.is_file())


def test_nothing_is_tracked_unless_it_is_named(world):
    assert confide("train", world.path).code == 0
    assert not {"mlflow", "wandb", "tracking.json"} & {path.name for path in world.run.iterdir()}


def test_mlflow_is_told_what_is_public(public):
    world = public
    client, (run,) = in_mlflow(world)
    assert set(run.data.metrics) == {"train/learning_rate", "guarantee/epsilon", "guarantee/delta"}
    history = client.get_metric_history(run.info.run_id, "train/learning_rate")
    assert [(each.step, each.value) for each in history] == [(step, 0.01) for step in (1, 2, 3, 4)]
    assert run.data.params["privacy.noise_multiplier"] == "0.8"
    assert run.info.status == "FINISHED"
    assert run.info.run_name == "run"
    guarantee = json.loads((world.run / "release" / "guarantee.json").read_text())
    stored = next((world.run / "mlflow" / "artifacts").rglob("guarantee.json"))
    assert json.loads(stored.read_text()) == guarantee
    assert run.data.metrics["guarantee/epsilon"] == guarantee["epsilon"]
    values = {str(world.text), MARKER, str(world.folder)}
    assert not [value for value in run.data.params.values() if any(each in value for each in values)]


def test_wandb_is_told_what_is_public(world):
    trained(world, "wandb")
    found = in_wandb(world)
    assert b"train/learning_rate" in found
    assert b"noise_multiplier" in found
    assert not [name for name in PRIVATE if name.encode() in found]
    assert MARKER.encode() not in found


def test_private_measurements_are_told_where_they_are_allowed_and_the_guarantee_says_so(told, tmp_path):
    world = copied(told, tmp_path)
    _, (run,) = in_mlflow(world)
    assert set(PRIVATE) <= set(run.data.metrics)
    assert not [name for name in PRIVATE if name.encode() not in in_wandb(world)]
    guarantee = package.Guarantee.load(world.run / "release" / "guarantee.json")
    assert any("sent to MLflow and Weights & Biases" in each for each in guarantee.not_covered)
    # A run that told once has told, whatever its config says later.
    world.set(tracking__allow_private=False)
    assert confide("train", world.path).code == 0
    guarantee = package.Guarantee.load(world.run / "release" / "guarantee.json")
    assert any("sent to MLflow and Weights & Biases" in each for each in guarantee.not_covered)


def test_a_resumed_run_goes_on_in_the_same_run(world):
    world.set(tracking__to=["mlflow", "wandb"], tracking__allow_private=True)
    package.train(package.load_config(world.path), until=2)
    known = json.loads((world.run / "tracking.json").read_text())
    package.train(package.load_config(world.path))
    assert json.loads((world.run / "tracking.json").read_text()) == known
    client, (run,) = in_mlflow(world)
    steps = [each.step for each in client.get_metric_history(run.info.run_id, "train/learning_rate")]
    assert steps == [1, 2, 3, 4]


def test_a_run_that_was_resumed_is_told_of_whole_when_it_is_over(world):
    world.set(tracking__to=["mlflow"])
    package.train(package.load_config(world.path), until=2)
    assert not (world.run / "mlflow").exists()
    package.train(package.load_config(world.path))
    client, (run,) = in_mlflow(world)
    steps = [each.step for each in client.get_metric_history(run.info.run_id, "train/learning_rate")]
    assert steps == [1, 2, 3, 4]
    assert run.info.end_time - run.info.start_time < 2000  # the telling, not the training


def test_its_files_are_for_the_owner_alone(told):
    for name in ("mlflow", "wandb", "tracking.json"):
        for path in [told.run / name, *(told.run / name).rglob("*")]:
            assert path.is_symlink() or not stat.S_IMODE(path.stat().st_mode) & 0o077, path


def test_the_key_of_all_noise_is_told_to_nobody(told):
    assert b"a key for this test" not in in_wandb(told)
    _, (run,) = in_mlflow(told)
    assert "a key for this test" not in run.data.params.values()


class Noting:
    """Notes what it is told; fails if it is asked to."""

    def __init__(self, fails=False):
        self.told, self.fails = [], fails

    def settings(self, values):
        self.told.append("settings")

    def scalars(self, values, done):
        self.told.append((dict(values), done))
        if self.fails:
            raise ConnectionError("no such server")

    def guarantee(self, values, rates):
        self.told.append("guarantee")

    def close(self):
        self.told.append("closed")


def test_a_tracker_that_fails_is_left_out_with_one_warning():
    failing, said = Noting(fails=True), []
    frank = Frank(failing, "MLflow", said.append)
    for step in range(3):
        frank.scalars({"train/loss": 0.1}, step)
    frank.close()
    assert len(failing.told) == 1
    assert said == ["warning: MLflow is told nothing more: ConnectionError: no such server"]
    said.clear()
    Discreet(lambda: Noting(fails=True), "MLflow", {}, said.append).guarantee({"epsilon": 1}, {1: 0.1})
    assert said == ["warning: MLflow could not be told of this run: ConnectionError: no such server"]


def test_nobody_learns_from_a_tracker_how_long_a_step_took():
    """It notes when it began and when it is told, so it is told all at once, when the run is over."""
    begun: list[Noting] = []

    def begin():
        begun.append(Noting())
        return begun[-1]

    discreet = Discreet(begin, "MLflow", {}, print)
    discreet.settings({})
    discreet.scalars({"train/learning_rate": 0.1, "train/seconds": 2.0}, 1)
    discreet.close()
    assert not begun  # a run that is not finished
    discreet.guarantee({"epsilon": 1}, {1: 0.1, 2: 0.05})
    rates = [({"train/learning_rate": 0.1}, 1), ({"train/learning_rate": 0.05}, 2)]
    assert begun[0].told == ["settings", *rates, "guarantee", "closed"]


def test_nobody_is_told_of_trials_or_of_a_twin(told, tmp_path):
    """A sweep claims that nobody knows how many trials there were, and which was the best."""
    world = copied(told, tmp_path)
    assert confide("train", world.path, "--twin").code == 0
    assert (world.run / "mlflow").is_dir()
    assert not (world.run / "twin" / "mlflow").exists()
    world.set(tracking__to=["mlflow"], run=str(world.folder / "sweep"))
    world.set(privacy__noise_multiplier=None, privacy__epsilon=8.0, privacy__published_key=None)
    assert confide("tune", world.path, "--space", "train.learning_rate=0.01,0.02", "--trials", "2").code == 0
    assert not list((world.folder / "sweep").rglob("mlflow"))
    assert not list((world.folder / "sweep").rglob("tracking.json"))


def test_what_cannot_begin_is_refused(world, monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    world.set(tracking__to=["mlflow"], tracking__offline=False)
    refused(confide("train", world.path), "needs the server in MLFLOW_TRACKING_URI", 1)

    honest = trackers.importlib.util.find_spec
    monkeypatch.setattr(
        trackers.importlib.util, "find_spec", lambda name: None if name == "wandb" else honest(name)
    )
    world.set(tracking__to=["wandb"])
    refused(confide("train", world.path), r"wandb is not installed: .*confide\[wandb\]", 1)


def test_a_damaged_record_is_refused(public, tmp_path):
    world = copied(public, tmp_path)
    (world.run / "tracking.json").write_text("{")
    with pytest.raises(InputError, match=r"tracking\.json is damaged"):
        package.train(package.load_config(world.path))
