"""Readers that other packages bring: installed distributions, made here, with entry points."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from confide.data.readers import records
from confide.utils.errors import InputError
from tests.command import World, command, confide, confide_apart, environment, refused
from tests.data.readers.test_own_reader import as_cards

READER = Path(__file__).with_name("cards.py")


def install(site: Path, name: str, module: str, *entries: str, group: str = "confide.readers") -> None:
    """What an installer leaves in `site` of a package: its module, and the folder that says what it brings."""
    site.mkdir(exist_ok=True)
    (site / f"{name.replace('-', '_')}.py").write_text(module)
    about = site / f"{name.replace('-', '_')}-1.5.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.5\n")
    (about / "entry_points.txt").write_text(f"[{group}]\n" + "".join(f"{entry}\n" for entry in entries))


@pytest.fixture
def site(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path / "site")
    yield tmp_path / "site"
    for name in ("toy_cards", "toy_broken", "toy_other"):
        sys.modules.pop(name, None)


@pytest.fixture
def world(tmp_path, model):
    made = World(tmp_path, model)
    return made.write(as_cards(made.text.read_text()), "text.cards")


def test_an_installed_package_brings_a_format(site, world):
    install(site, "toy-cards", READER.read_text(), "cards = toy_cards:Cards")
    assert "toy_cards" not in sys.modules
    done = confide("prepare", world.path, "--json")
    assert done.code == 0, done
    assert json.loads(done.out)["counts"]["documents"] > 0
    assert confide("prepare", world.path, "data.format=cards").code == 0
    refused(
        confide("prepare", world.path, "data.format=crads"),
        "one of auto, .*code,.* cards, did you mean cards",
    )


def test_in_a_process_of_its_own(site, world):
    install(site, "toy-cards", READER.read_text(), "cards = toy_cards:Cards")
    paths = environment() | {"PYTHONPATH": f"{environment()['PYTHONPATH']}:{site}"}
    done = subprocess.run(
        command("prepare", world.path, "data.format=cards"),
        capture_output=True,
        text=True,
        env=paths,
        timeout=200,
    )
    assert done.returncode == 0, done
    assert (world.run / "data" / "train").is_dir()
    refused(
        confide_apart("prepare", world.path, "data.format=cards"), "'cards' is not valid, must be one of auto"
    )


def test_no_package_is_asked_for_what_confide_reads_itself(site, world):
    install(site, "toy-broken", "raise RuntimeError('imported')", "broken = toy_broken:Reader")
    for stated in ("auto", "jsonl"):
        found = list(records(world.text, stated))
        assert found
    assert confide("prepare", world.path, f"data.train={world.text}").code == 0


@pytest.mark.parametrize(
    ("module", "entry", "said"),
    [
        ("import nothing_of_this_name", "toy_broken:Reader", "ModuleNotFoundError: No module named 'nothing"),
        ("", "toy_broken:Reader", "AttributeError: module 'toy_broken' has no attribute 'Reader'"),
        (
            "class Reader: name = 'toy'",
            "toy_broken:Reader",
            "TypeError: .* is no subclass of confide.data.readers",
        ),
        (READER.read_text(), "toy_broken:Cards", "TypeError: its class says that its name is 'cards'"),
    ],
)
def test_a_package_that_does_not_work_is_named(site, world, module, entry, said):
    install(site, "toy-broken", module, f"toy = {entry}")
    sentence = (
        rf"package toy-broken 1\.5: its reader 'toy' \({entry}\) cannot be used \({said}.*; mend or uninstall"
    )
    for source, stated in ((world.text, "toy"), (world.folder / "text.cards", "auto")):
        with pytest.raises(InputError, match=sentence):
            list(records(source, stated))
    refused(confide("prepare", world.path, "data.format=toy"), sentence)
    assert list(records(world.text, "jsonl"))


def test_no_package_may_take_a_name_of_confides_own(site, world):
    install(site, "toy-other", READER.read_text(), "csv = toy_other:Cards")
    refused(
        confide("prepare", world.path),
        r"package toy-other 1\.5 brings a reader 'csv', and confide has one of this name: uninstall the package",
    )
    assert confide("prepare", world.path, f"data.train={world.text}").code == 0


def test_no_two_packages_may_bring_one_name_or_one_ending(site, world):
    install(site, "toy-cards", READER.read_text(), "cards = toy_cards:Cards")
    other = READER.read_text().replace('"cards"', '"decks"')
    install(site, "toy-other", other, "decks = toy_other:Cards")
    refused(
        confide("prepare", world.path), r"end in \.cards are read by cards and by decks.*: state data\.format"
    )
    assert confide("prepare", world.path, "data.format=decks").code == 0
    (site / "toy_other-1.5.dist-info" / "entry_points.txt").write_text(
        "[confide.readers]\ncards = toy_other:Cards\n"
    )
    refused(
        confide("prepare", world.path),
        r"packages toy-cards 1\.5 and toy-other 1\.5 both bring a reader 'cards': uninstall one",
    )


def test_help_asks_no_package(site):
    install(site, "toy-broken", "raise RuntimeError('imported')", "broken = toy_broken:Reader")
    probe = (
        "import sys; sys.argv[1:] = ['--help']\nfrom confide.cli import main\n"
        "try: main()\nexcept SystemExit: pass\n"
        "print('toy_broken' in sys.modules)"
    )
    paths = environment() | {"PYTHONPATH": f"{environment()['PYTHONPATH']}:{site}"}
    done = subprocess.run(
        [sys.executable, "-c", probe], capture_output=True, text=True, env=paths, timeout=60
    )
    assert done.stdout.splitlines()[-1] == "False", done
