"""Where nobody is protected, each command says so; and where a claim is worth little."""

import json
import math

import pytest

from confide.cli.base import print_json
from confide.config.loading import load
from confide.runs.folder import Run
from confide.runs.loop import fine_tune
from tests import small
from tests.command import World, confide, refused

WARNING = (
    "warning: this run claims no privacy: its model, and all that it writes, is as confidential as the text"
)


@pytest.fixture(scope="module")
def world(tmp_path_factory) -> World:
    folder = tmp_path_factory.mktemp("unprotected")
    world = World(folder, small.saved(folder / "model", "gpt2"))
    return world.set(privacy__noise_multiplier=0, train__steps=1)


@pytest.fixture(scope="module")
def trained(world) -> str:
    """What `train` printed."""
    done = confide("train", world.path)
    assert done.code == 0, done.err
    return done.err + done.out


def test_a_twin_without_its_run_is_refused_before_it_trains(world, tmp_path):
    refused(
        confide("train", world.path, "--twin", f"run={tmp_path / 'alone'}"),
        "alone: train the run itself first, with this command without --twin",
        lines=1,
    )
    assert not (tmp_path / "alone").exists()


def test_without_noise_a_plan_and_a_run_say_that_nobody_is_protected(world, trained):
    said = "privacy.noise_multiplier: 0 adds no noise, so no privacy is claimed and nobody is protected"
    plan = confide("plan", world.path)
    assert plan.out.startswith(f"{said}\n")
    assert "epsilon inf" not in plan.out
    assert f"warning: {said}\n" in trained
    assert "  who           nobody (" in trained
    assert "  how strongly  no privacy\n" in trained


def test_a_plan_with_hardly_any_noise_is_called_weak(world, tmp_path):
    plan = confide("plan", world.path, "privacy.noise_multiplier=0.01", f"run={tmp_path / 'run'}")
    assert "These bounds are weak." in plan.out
    protected = confide("plan", world.path, "privacy.noise_multiplier=20", f"run={tmp_path / 'run'}")
    assert "These bounds are weak." not in protected.out


def test_what_leaves_the_house_unprotected_comes_with_a_warning(world, trained, tmp_path):
    assert WARNING in confide("export", world.run, "--merge", tmp_path / "whole").err
    few = ("--documents", "2", "--max-new-tokens", "4", "--out", tmp_path / "text.jsonl")
    assert WARNING in confide("synthesize", world.run, *few, "--json").err


def test_json_has_no_infinity(world, trained, capsys):
    def refuse(constant):
        raise AssertionError(constant)

    found = confide("audit", world.run, "--attacks", "membership, users", "--json")
    assert found.code == 0, found.err
    assert json.loads(found.out, parse_constant=refuse)["claim"]["epsilon"] == "inf"
    assert (
        json.loads((world.run / "audit.json").read_text(), parse_constant=refuse)["claim"]["epsilon"] == "inf"
    )
    print_json({"loss": math.nan, "rows": [1, (math.inf, 0.5)]})
    said = json.loads(capsys.readouterr().out, parse_constant=refuse)
    assert said == {"loss": "nan", "rows": [1, ["inf", 0.5]]}


def test_an_audit_of_a_run_that_goes_on_says_of_which_step_it_is(world, trained, tmp_path):
    run = tmp_path / "stopped"
    stopped = load(world.path, [f"run={run}", "train.steps=2", "privacy.noise_multiplier=1"])
    assert not fine_tune(Run(stopped), until=1).finished
    done = confide("audit", run, "--attacks", "membership")
    assert done.out.startswith(f"{run}: nothing is released yet; this is of its model after step 1\n")
