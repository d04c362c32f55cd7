"""A mechanism is one file and one line of the registry: with those, every verb knows it."""

import json

import pytest

from confide.config import registry
from confide.config.loading import check, keys
from confide.config.sections import schema_of
from confide.utils.errors import InputError
from tests.command import World, confide, refused

LINE = "tests.privacy.mechanisms.every_second:EverySecondRow"


@pytest.fixture
def line(monkeypatch):
    monkeypatch.setitem(registry.MECHANISMS, "every-second", LINE)
    yield
    schema_of.cache_clear()


@pytest.fixture
def world(tmp_path, model, line):
    made = World(tmp_path, model)
    return made.set(privacy__mechanism="every-second", data__unit=None, canaries__count=8, canaries__digits=3)


def test_it_plans_verifies_trains_audits_and_releases(world):
    plan = json.loads(confide("plan", world.path, "--json").out)
    assert confide("verify", world.path).code == 0
    trained = confide("train", world.path, "--json")
    assert trained.code == 0, trained
    guarantee = json.loads((world.run / "release" / "guarantee.json").read_text())
    assert guarantee["epsilon"] == plan["guarantee"]["epsilon"] > 0
    assert "one of 2 rows is used" in guarantee["public_facts"]
    ledger = [json.loads(line) for line in (world.run / "ledger.jsonl").read_text().splitlines()]
    assert ledger[0]["mechanism"] == "every-second"
    audited = confide("audit", world.run, "--json")
    assert audited.code == 0, audited
    assert json.loads(audited.out)["verdict"] == "underpowered"  # eight coins can refute no such claim
    assert (world.run / "release" / "model.safetensors").exists()


def test_only_every_second_row_is_drawn(world):
    half = json.loads(confide("plan", world.path, "--json").out)["guarantee"]
    own = json.loads(confide("plan", world.path, "every_second.every=1", "--json").out)["guarantee"]
    assert half["units"] == (own["units"] + 1) // 2
    assert half["sampling_probability"] > own["sampling_probability"]


def test_its_section_is_checked_like_any_other(world):
    refused(
        confide("plan", world.path, "every_second.every=0"), "every_second.every: 0 is not valid, must be"
    )
    refused(
        confide("plan", world.path, "every_second.evry=3"),
        r"every_second\.evry: no such key, did you mean every_second\.every",
    )
    refused(
        confide("plan", world.path, "every_second.every=10"), r"every_second\.every: use dp-sgd on less data"
    )
    # Canaries are refused with it, too.
    found = confide("plan", world.path, "privacy.adjacency=add-or-remove")
    assert found.code == 2
    assert "privacy.adjacency: rows are dropped by number" in found.err
    assert "every_second.every" in keys(schema_of("every-second"))


def test_its_section_is_no_other_mechanisms(line):
    raw = {"data": {"train": "x", "unit": "user"}, "privacy": {"epsilon": 8}, "every_second": {"every": 2}}
    with pytest.raises(InputError, match="every_second: no such key"):
        check(raw)


def test_a_setting_at_its_default_changes_no_draw_and_another_is_another_run(world):
    assert confide("train", world.path).code == 0
    assert "every" not in json.dumps(
        json.loads((world.run / "ledger.jsonl").read_text().splitlines()[0])["config"]
    )
    again = confide("train", world.path, "every_second.every=2")
    assert again.code == 0
    refused(confide("train", world.path, "every_second.every=3"), r"differs in every_second\.every")
