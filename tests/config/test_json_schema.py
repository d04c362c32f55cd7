"""The JSON Schema takes every config that confide takes, and marks misspelt keys and names."""

import json
from dataclasses import dataclass
from typing import ClassVar

import jsonschema
import pytest
import yaml
from pydantic import create_model

from confide.config import registry
from confide.config.json_schema import FILE, SHIPPED, json_schema
from confide.config.loading import check
from tests.command import confide
from tests.privacy.mechanisms.every_second import Every, EverySecondRow


@pytest.fixture(scope="module")
def validator():
    schema = json_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


def faults(validator, raw) -> list[str]:
    return [error.message for error in validator.iter_errors(raw)]


def test_a_whole_config_is_taken(validator):
    raw = {"data": {"train": "mail.jsonl", "unit": "sender"}, "privacy": {"epsilon": 8}, "run": "runs/mail"}
    assert faults(validator, raw) == []
    resolved = check(raw).model_dump(mode="json")
    assert faults(validator, resolved) == []


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        ({"data": {"trian": "x"}}, "trian"),
        ({"privacy": {"epsilon": "eight"}}, "eight"),
        ({"privacy": {"mechanism": "ulz"}}, "ulz"),
        ({"data": {"train": "x", "format": "jsonlines"}}, "jsonlines"),
        ({"task": "causal"}, "causal"),
        ({"adaptive": {"flor": 1}}, "flor"),
    ],
)
def test_a_mistake_is_marked(validator, raw, said):
    assert any(said in message for message in faults(validator, raw))


def test_every_section_of_a_mechanism_is_in_it(validator):
    sections = {
        registry.section(name)
        for name in registry.MECHANISMS
        if registry.mechanism(name).Settings is not None
    }
    assert sections <= set(validator.schema["properties"])


def test_an_own_mechanism_brings_its_section(monkeypatch):
    monkeypatch.setitem(
        registry.MECHANISMS, "every-second", "tests.privacy.mechanisms.every_second:EverySecondRow"
    )
    schema = json_schema()
    assert schema["properties"]["every_second"]["$ref"] == "#/$defs/Every"
    assert "every" in schema["$defs"]["Every"]["properties"]
    assert "every-second" in schema["$defs"]["Privacy"]["properties"]["mechanism"]["enum"]


def test_init_writes_it_beside_a_config_that_names_it_and_is_valid(tmp_path, monkeypatch, validator):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mail.jsonl").write_text(
        "".join(json.dumps({"text": "hello there", "sender": f"s{n % 30}"}) + "\n" for n in range(90))
    )
    assert confide("init", "mail.jsonl", "--out", "mail.yaml").code == 0
    written = (tmp_path / "mail.yaml").read_text()
    assert written.startswith(f"# yaml-language-server: $schema={FILE}\n")
    assert faults(validator, yaml.safe_load(written)) == []
    assert (tmp_path / FILE).read_text() == SHIPPED.read_text("utf-8")


def test_what_is_shipped_is_what_the_command_prints():
    printed = confide("schema").out
    made = "python -m confide.config.json_schema > src/confide/bundled/confide.schema.json"
    assert printed == SHIPPED.read_text("utf-8"), made


def test_an_own_file_of_that_name_stays(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / FILE).write_text("mine")
    (tmp_path / "mail.jsonl").write_text('{"text": "hello there", "sender": "ann"}\n' * 20)
    assert confide("init", "mail.jsonl", "--yes").code == 0
    assert (tmp_path / FILE).read_text() == "mine"


def test_two_mechanisms_may_name_their_settings_alike(monkeypatch):
    """Both classes are `Every`: each section keeps its own keys."""
    for name in ("every-second", "every-third"):
        monkeypatch.setitem(registry.MECHANISMS, name, f"{__name__}:{name.title().replace('-', '')}")
    schema = json_schema()
    keys = [
        set(schema["$defs"][schema["properties"][section]["$ref"].split("/")[-1]]["properties"])
        for section in ("every_second", "every_third")
    ]
    assert keys == [{"every"}, {"every", "first"}]


_Third = create_model("Every", __base__=Every, first=(int, 0))
EverySecond = EverySecondRow


@dataclass(frozen=True)
class EveryThird(EverySecondRow):
    first: int = 0
    name: ClassVar[str] = "every-third"
    Settings: ClassVar[type] = _Third
