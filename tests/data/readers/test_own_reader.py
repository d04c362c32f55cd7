"""A reader is one file and one line of the registry: with those, every verb that reads data knows its format."""

import gzip
import json

import pytest

from confide.config import registry
from confide.config.loading import reference
from confide.data.readers import records
from tests.command import World, confide, refused

LINE = "tests.data.readers.cards:Cards"


def as_cards(text: str) -> str:
    rows = map(json.loads, text.splitlines())
    return (
        "".join("----\n" + "".join(f"{name}: {value}\n" for name, value in row.items()) for row in rows)
        + "----\n"
    )


@pytest.fixture
def line(monkeypatch):
    monkeypatch.setitem(registry.READERS, "cards", LINE)


@pytest.fixture
def world(tmp_path, model, line):
    made = World(tmp_path, model)
    return made.write(as_cards(made.text.read_text()), "text.cards")


def facts(world: World) -> dict:
    done = confide("prepare", world.path, "--json")
    assert done.code == 0, done
    return json.loads(done.out)


def test_it_prepares_and_trains_as_the_same_records_in_another_format_do(world):
    cards = facts(world)
    assert confide("train", world.path).code == 0
    assert (world.run / "release" / "model.safetensors").exists()
    jsonl = facts(world.set(data__train=str(world.text), run=str(world.folder / "other")))
    assert cards == jsonl


@pytest.mark.parametrize(
    ("name", "stated"),
    [
        ("t.cards", "auto"),
        ("t.cards.gz", "auto"),
        ("t", "auto"),
        ("t.txt", "cards"),
        ("folder/t.cards", "auto"),
    ],
)
def test_it_is_told_by_its_ending_by_its_first_bytes_or_by_the_config(world, name, stated):
    content = as_cards(world.text.read_text()).encode()
    path = world.folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    source = path.parent if "/" in name else path
    found = [record.fields for record in records(source, stated)]
    assert found == list(map(json.loads, world.text.read_text().splitlines()))


def test_a_first_config_is_written_for_it(world, monkeypatch):
    monkeypatch.chdir(world.folder)
    assert confide("init", "text.cards").code == 0
    assert 'unit: "user"' in (world.folder / "confide.yaml").read_text()
    assert confide("prepare", "confide.yaml").code == 0


def test_its_errors_name_file_and_line(world):
    world.write("----\nuser: a\ntext: b\noops\n", "text.cards")
    refused(confide("prepare", world.path), r"text\.cards line 4: neither `field: value` nor ----")


def test_it_is_among_the_formats_that_are_known(world):
    refused(
        confide("prepare", world.path, "data.format=crads"),
        "must be one of auto, .*cards, did you mean cards",
    )
    assert ", code" in reference()
    assert ", cards" in reference()


def test_without_its_line_it_is_no_format(world, monkeypatch):
    monkeypatch.delitem(registry.READERS, "cards")
    refused(
        confide("prepare", world.path, "data.format=cards"),
        "data.format: 'cards' is not valid, must be one of",
    )
    refused(confide("prepare", world.path), "text.cards")


def test_no_two_readers_share_an_ending_and_one_takes_any_text():
    made = [registry.readers.get(name, object) for name in registry.READERS]
    endings = [ending for reader in made for ending in reader.endings]
    assert len(set(endings)) == len(endings)
    assert sum(reader.takes_any_text for reader in made) == 1
