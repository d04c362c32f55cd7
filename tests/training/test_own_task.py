"""A task is one file and one line of the registry: with those, every verb knows it."""

import ast
import json

import pytest

from confide.config import registry
from confide.data.unit_graph import UnitGraph
from tests.command import SOURCES, World, confide, refused

PLACE = "tests.training.first_skipped"


@pytest.fixture
def lines(monkeypatch):
    monkeypatch.setitem(registry.TASKS, "first-skipped", f"{PLACE}:FirstSkipped")
    monkeypatch.setitem(registry.TASKS, "whole-documents", f"{PLACE}:WholeDocuments")


@pytest.fixture
def world(tmp_path, model):
    return World(tmp_path, model).set(task="first-skipped")


def guarantee(world):
    return json.loads((world.run / "release" / "guarantee.json").read_text())


def test_it_plans_verifies_trains_audits_and_releases(world, lines):
    world.set(canaries__count=8, canaries__digits=3)
    plan = json.loads(confide("plan", world.path, "--json").out)
    verified = confide("verify", world.path)
    assert verified.code == 0, verified
    trained = confide("train", world.path, "--json")
    assert trained.code == 0, trained
    assert guarantee(world)["epsilon"] == plan["guarantee"]["epsilon"] > 0
    audited = confide("audit", world.run, "--json")
    assert audited.code == 0, audited
    assert json.loads(audited.out)["verdict"] == "underpowered"  # eight coins can refute no such claim
    assert (world.run / "release" / "model.safetensors").exists()
    card = (world.run / "release" / "README.md").read_text()
    assert "Task: first-skipped." in card
    assert "AutoModelForCausalLM.from_pretrained" in card


def test_it_trains_a_lora_adapter(world, lines):
    world.set(adapter={"kind": "lora", "rank": 2})
    assert confide("verify", world.path).code == 0
    assert confide("train", world.path).code == 0
    settings = json.loads((world.run / "release" / "adapter_config.json").read_text())
    assert settings["task_type"] == "CAUSAL_LM"


def test_the_first_token_of_each_row_is_not_predicted(world, lines):
    rows = {}
    for task in ("first-skipped", "causal-lm"):
        run = world.folder / task
        assert confide("train", world.path, f"task={task}", f"run={run}").code == 0
        rows[task] = json.loads(confide("eval", run, "--json").out)
    own, whole = rows["first-skipped"], rows["causal-lm"]
    assert own["rows"] == whole["rows"] > 0
    assert own["tokens"] == whole["tokens"] - whole["rows"]


def test_its_facts_reach_the_rooms_below(world, lines):
    assert confide("train", world.path, "task=whole-documents").code == 0
    assert guarantee(world)["rows_cut"] == "each document is one row, cut off at 16 tokens"
    documents = len(world.text.read_text().splitlines())
    graphs = [UnitGraph.open(path.parent) for path in world.run.rglob("meta.json")]
    assert sum(graph.n_rows for graph in graphs) == documents


def test_a_run_goes_on_with_its_own_task_alone(world, lines):
    assert confide("train", world.path).code == 0
    refused(confide("train", world.path, "task=causal-lm"), "differs in task")


def test_without_its_line_no_verb_knows_it(world):
    for verb in ("plan", "verify", "train"):
        refused(
            confide(verb, world.path),
            "task: 'first-skipped' is not valid, must be one of causal-lm, masked-lm, classification$",
        )
    assert not world.run.exists()


def test_nobody_compares_a_task_with_a_name():
    """Nor looks something up by it: `kind == "causal-lm"`, `{"causal-lm": ...}[task]`."""
    found = []
    for path in (SOURCES / "confide").rglob("*.py"):
        if path.name == "registry.py":
            continue
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            keys = node.keys if isinstance(node, ast.Dict) else []
            keys = ast.walk(node) if isinstance(node, ast.Compare | ast.match_case) else keys
            if any(isinstance(key, ast.Constant) and key.value in (*registry.TASKS,) for key in keys):
                found.append(f"{path.name}:{node.lineno}")
    assert not found
