"""A run that ends when the held-out loss no longer falls: what it claims, and that it ends once and for all."""

import json

import pytest

import confide as package
from confide.config.loading import load
from confide.runs.folder import Run
from confide.runs.job import Job
from confide.utils.console import Console
from tests.command import World, confide, recorded, refused, tiny_model


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def world(tmp_path, model) -> World:
    """A run whose held-out loss rises from the first step on."""
    made = World(tmp_path, model)
    return made.set(train__steps=9, train__eval_every=1, train__patience=2, train__learning_rate=0.5)


def losses(world):
    lines = [json.loads(line) for line in (world.run / "metrics.jsonl").read_text().splitlines()]
    return [line["loss"] for line in lines if line.get("evaluation") in ("base", "during")]


def guarantee(world):
    return package.Guarantee.load(world.run / "release" / "guarantee.json")


def test_it_ends_after_as_many_evaluations_and_counts_all_steps(world):
    result = confide("train", world.path)
    assert result.code == 0
    assert "ended after step" in result.err
    found = losses(world)
    at = found.index(min(found))
    assert len(found) == at + 3  # the lowest, and two more
    taken, stated = len(found) - 1, guarantee(world)
    assert stated.steps == taken < 9
    world.set(train__patience=0, run=str(world.folder / "other"))
    assert confide("train", world.path).code == 0
    whole = package.Guarantee.load(world.folder / "other" / "release" / "guarantee.json")
    assert whole.steps == 9
    assert stated.epsilon == whole.epsilon
    assert "All 9 planned steps are counted" in stated.accountant
    assert any("train.patience" in each for each in stated.not_covered)
    assert not any("train.patience" in each for each in whole.not_covered)


def test_a_claim_of_the_steps_taken_would_be_smaller(world):
    """So the test above can fail: noise and rate are fixed here, and epsilon grows with the steps."""
    job = Job.of(Run(load(world.path)), Console(quiet=True))
    assert job.guarantee(3).epsilon == job.guarantee(9).epsilon
    without = Job.of(Run(load(world.set(train__patience=0).path)), Console(quiet=True))
    assert without.guarantee(3).epsilon < job.guarantee(3).epsilon * 0.9


def test_the_same_command_takes_no_further_step(world):
    assert confide("train", world.path).code == 0
    steps, weights = recorded(world.run), (world.run / "release" / "model.safetensors").read_bytes()
    assert confide("train", world.path).code == 0
    assert recorded(world.run) == steps
    assert (world.run / "release" / "model.safetensors").read_bytes() == weights


def test_a_resumed_run_ends_at_the_same_step(world):
    assert confide("train", world.path).code == 0
    world.set(run=str(world.folder / "other"))
    config = load(world.path)
    assert package.train(config, until=1).finished is False
    ended = package.train(config)
    assert (ended.finished, ended.steps) == (True, guarantee(world).steps)
    assert "train.patience" in ended.halted


def test_an_audit_attacks_the_claim_of_all_steps(world):
    world.set(canaries__count=12, canaries__digits=3)
    assert confide("train", world.path).code == 0
    assert confide("audit", world.run, "--attacks", "claim").code == 0
    told = json.loads((world.run / "audit.json").read_text())
    assert told["claim"]["epsilon"] == guarantee(world).epsilon
    assert "no audit" not in " ".join(
        guarantee(world).evidence
    )  # the guarantee was stated anew with what it found


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train__eval_every": 0}, r"train\.patience.*set train\.eval_every"),
        ({"data__eval": None}, r"train\.patience.*set data\.eval"),
        (
            {
                "privacy__mechanism": "selective",
                "privacy__rows_per_unit": 4,
                "detector": {"expressions": {"a": "paper"}, "recall": 1.0},
                "redacted": {"steps": 2},
            },
            r"train\.patience: a run of mechanism selective has several stages",
        ),
    ],
    ids=["no evaluation", "no text", "stages"],
)
def test_what_it_cannot_mean_is_refused(world, changes, message):
    refused(confide("train", world.set(**changes).path), message)
