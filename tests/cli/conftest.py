"""Small runs that are finished, which no test changes."""

import shutil
from pathlib import Path

import pytest

from tests.command import World, confide


def finished(folder: Path, tiny: Path, **changes) -> World:
    """A run that has released what a few loud steps have taught it: it differs from its base.

    One in five such runs with `tensor-adamw` says one word for ever, which no test of sampling can use.
    """
    changes = {
        "train__learning_rate": 0.2,
        "train__optimizer": "adamw",
        "privacy__noise_multiplier": 0.1,
    } | changes
    world = World(folder, tiny).set(**changes)
    trained = confide("train", world.path)
    assert trained.code == 0, trained
    return world


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory, model: Path) -> World:
    """A run that trained every weight, and its twin."""
    world = finished(tmp_path_factory.mktemp("whole"), model)
    assert confide("train", world.path, "--twin").code == 0
    return world


@pytest.fixture(scope="session")
def adapted(tmp_path_factory: pytest.TempPathFactory, model: Path) -> World:
    """A run that trained an adapter, with a word that the vocabulary lacked."""
    lora = {"kind": "lora", "rank": 2}
    return finished(tmp_path_factory.mktemp("adapted"), model, adapter=lora, special_tokens=["<name>"])


@pytest.fixture(scope="session")
def bundled(tmp_path_factory: pytest.TempPathFactory, model: Path) -> World:
    """A run that trained an adapter on the bundled model."""
    lora = {"kind": "lora", "rank": 2}
    changes = {"model": "bundled", "adapter": lora, "train__steps": 3, "train__learning_rate": 0.05}
    return finished(tmp_path_factory.mktemp("bundled"), model, **changes)


@pytest.fixture
def copied(tmp_path: Path, whole: World) -> Path:
    """A run folder to change."""
    return Path(shutil.copytree(whole.run, tmp_path / "run"))


@pytest.fixture(params=["whole", "adapted", "bundled"])
def each(request: pytest.FixtureRequest) -> World:
    return request.getfixturevalue(request.param)
