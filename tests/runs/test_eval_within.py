"""A run that holds rows out of the units that train: what trains, what is claimed, and what may not look at them."""

import json
import math
import re
from pathlib import Path

import pytest

import confide as package
from confide.config.loading import load
from confide.data.unit_graph import UnitGraph
from confide.runs.folder import Run
from confide.runs.job import Job
from confide.utils.console import Console
from tests.command import World, confide, refused, tiny_model


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def world(tmp_path, model) -> World:
    return World(tmp_path, model).set(data__eval=None, data__eval_within=0.3, privacy__selection="random")


def rows_of(graph):
    """Return the rows of each unit by name, as bytes."""
    return {
        graph.unit_name(unit): [row.tobytes() for row in graph.fetch(graph.rows_of(unit))]
        for unit in range(graph.n_units)
    }


def prepared(world):
    """Return the graphs of a run that is prepared: to train on, and held out if there is one."""
    assert confide("prepare", world.path).code == 0
    folders = [Path(world.raw["run"]) / "data" / side for side in ("train", "eval")]
    return [UnitGraph.open(folder) for folder in folders if folder.exists()]


def test_the_rest_of_each_unit_trains_and_alone_counts(world):
    every = rows_of(prepared(world.set(data__eval_within=None))[0])
    world.set(data__eval_within=0.3, data__eval_within_most=2, run=str(world.folder / "parted"))
    train, held = prepared(world)
    trained, apart = rows_of(train), rows_of(held)
    assert trained.keys() == every.keys()
    for name, own in every.items():
        assert apart.get(name, []) + trained[name] == own
        assert len(apart.get(name, [])) == min(2, math.ceil(0.3 * len(own)), len(own) - 1)
    assert {len(own) for own in apart.values()} == {1, 2}
    job = Job.of(Run(load(world.path)), Console(quiet=True))
    assert sorted(job.setting.shape.rows_per_unit.tolist()) == sorted(map(len, trained.values()))
    assert not (world.folder / "parted" / "data" / "whole").exists()


def test_its_claim_says_that_losses_on_them_are_not_covered(world):
    assert confide("train", world.path).code == 0
    stated = package.Guarantee.load(world.run / "release" / "guarantee.json")
    assert any("data.eval_within" in each for each in stated.not_covered)
    assert confide("eval", world.run).code == 0
    world.set(data__eval=0.3, data__eval_within=None, run=str(world.folder / "other"))
    assert confide("train", world.path).code == 0
    others = package.Guarantee.load(world.folder / "other" / "release" / "guarantee.json")
    assert not any("data.eval_within" in each for each in others.not_covered)


def test_canaries_are_planted_beside_and_none_of_their_rows_is_held_out(world):
    train, held = map(
        rows_of, prepared(world.set(canaries__count=8, canaries__insertions=4, data__max_length=48))
    )
    planted = {name: len(own) for name, own in train.items() if not name.startswith("person")}
    assert 4 in planted.values()
    assert held
    assert all(name.startswith("person") for name in held)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"data__eval": 0.1}, r"data\.eval: data\.eval_within holds out rows in place of it"),
        (
            {"data__unit": None, "privacy__mechanism": "dp-sgd"},
            r"data\.eval_within: holds out rows of each unit",
        ),
        (
            {"data__unit": ["user", "kind"], "privacy__mechanism": "owners"},
            r"data\.eval_within: .* one field in",
        ),
        ({"privacy__mechanism": "dp-sgd"}, r"data\.eval_within: .* mechanism dp-sgd protects something else"),
        (
            {"train__patience": 2, "train__eval_every": 1},
            r"train\.patience: watches .* text of others",
        ),
        (
            {"data__eval_within": None, "data__eval_within_most": 3},
            r"data\.eval_within_most: is of data\.eval_within",
        ),
    ],
)
def test_what_would_let_them_decide_is_refused(world, changes, sentence):
    result = confide("prepare", world.set(**changes).path)
    assert result.code == 2
    assert re.search(sentence, result.err)
    assert not world.run.exists()


def test_no_sweep_chooses_by_them(world):
    tuned = confide("tune", world.path, "--space", "train.learning_rate=0.01,0.02", "--trials", 3)
    refused(tuned, r"data\.eval_within: a sweep releases")


def test_no_attack_takes_them_for_rows_of_others(world):
    assert confide("train", world.path).code == 0
    found = json.loads(confide("audit", world.run, "--attacks", "membership,users", "--json").out)
    assert found["left_out"].keys() == {"membership", "users"}
    assert all("data.eval_within" in reason for reason in found["left_out"].values())
