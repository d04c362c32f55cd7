"""A detector is one file and one line of the registry: with those, whatever asks for sensitive text knows it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from confide.config import registry
from confide.config.loading import check
from confide.config.schema import Policy
from confide.config.sections import schema_of
from confide.runs.folder import Run
from confide.sensitive.detectors import SharedDetector, asked, sharing
from confide.utils.errors import InputError
from confide.utils.workers import Crew
from tests.command import WORDS, World, command, confide, environment, refused
from tests.data.readers.test_plugin import install
from tests.sensitive.detectors.tickets import Tickets

LINE = "tests.sensitive.detectors.tickets:Tickets"
SOURCE = Path(__file__).with_name("tickets.py")


@pytest.fixture(autouse=True)
def forgotten():
    yield
    schema_of.cache_clear()


@pytest.fixture
def line(monkeypatch):
    monkeypatch.setitem(registry.DETECTORS, "ticket-numbers", LINE)


@pytest.fixture
def world(tmp_path, model):
    made = World(tmp_path, model)
    rows = [
        {"user": f"u{n}", "text": f"{' '.join(WORDS[n % 7 :])} TKT-{4000 + n} or REQ-{100 + n}"}
        for n in range(24)
    ]
    made.write("".join(json.dumps(row) + "\n" for row in rows))
    del made.raw["privacy"]["rows_per_unit"]
    made.raw["detector"] = {"ticket_numbers": {}}
    made.raw["redacted"] = {"steps": 2}
    return made.set(privacy__mechanism="selective", data__unit=None, data__eval=None)


def test_it_shows_masks_trains_and_states(world, line):
    found = confide("redact", world.path, "--json")
    assert found.code == 0, found
    assert json.loads(found.out)["kinds"]["TICKET"]["spans"] == 24
    assert "detector ticket-numbers" in (world.run / "redaction.html").read_text()
    trained = confide("train", world.path)
    assert trained.code == 0, trained
    guarantee = json.loads((world.run / "release" / "guarantee.json").read_text())
    assert "what is sensitive: what is marked by detector ticket-numbers" in guarantee["public_facts"]


def test_its_settings_decide_what_is_found(world, line):
    found = confide("redact", world.path, "detector.ticket_numbers.prefix=REQ", "--json")
    assert json.loads(found.out)["kinds"]["TICKET"]["spans"] == 0
    both = "detector.ticket_numbers={prefix: REQ, digits: 3}"
    assert json.loads(confide("redact", world.path, both, "--json").out)["kinds"]["TICKET"]["spans"] == 24


def test_its_section_is_checked_like_any_other(world, line):
    for override, said in (
        (
            "detector.ticket_numbers.digits=0",
            r"ticket_numbers\.digits: 0 is not valid, must be a whole number at",
        ),
        ("detector.ticket_numbers.prefix=TKR", "must be one of TKT, REQ, did you mean TKT"),
        (
            "detector.ticket_numbers.digit=3",
            r"digit: no such key, did you mean detector\.ticket_numbers\.digits",
        ),
        ("detector.ticket_numbers=yes", r"detector\.ticket_numbers: .* must be a section with keys"),
    ):
        refused(confide("prepare", world.path, override), said)


def test_without_its_line_it_is_no_key(world):
    world.raw["detector"] |= {"words": str(world.text)}
    refused(confide("prepare", world.save().path), r"detector\.ticket_numbers: no such key")


def test_each_of_its_findings_may_be_a_secret(world, line):
    del world.raw["detector"], world.raw["redacted"]
    world.raw["privacy"] = {"mechanism": "secret"}
    world.raw["secrets"] = {"detector": {"ticket_numbers": {}}, "prior": 1e-3, "posterior": 0.02}
    prepared = confide("prepare", world.save().path, "--json")
    assert prepared.code == 0, prepared
    assert json.loads(prepared.out)["units"] == 24


def test_a_run_is_bound_to_it_even_where_all_its_settings_are_defaults(world, line):
    raw = world.raw | {"detector": {"ticket_numbers": {}, "expressions": {"x": "y"}}}
    other = world.raw | {"detector": {"expressions": {"x": "y"}}}
    assert '"ticket_numbers": {}' in Run(check(raw)).binding()
    assert Run(check(raw)).binding() != Run(check(other)).binding()
    assert type(check(other).detector) is Policy


def test_what_was_screened_is_searched_again_after_another_version_or_setting(line, monkeypatch):
    def identity(**settings):
        raw = {
            "data": {"train": "x"},
            "privacy": {"mechanism": "redacted"},
            "detector": {"ticket_numbers": settings},
        }
        return SharedDetector(check(raw).detector, "detector").fingerprint

    first = identity()
    assert identity(prefix="TKT") == first
    assert identity(prefix="REQ") != first
    monkeypatch.setattr(Tickets, "packages", ("numpy",))
    assert identity() != first
    monkeypatch.undo()
    monkeypatch.setitem(registry.DETECTORS, "ticket-numbers", LINE)
    monkeypatch.setattr(Tickets, "version", 2)
    assert identity() != first


# of other packages --------------------------------------------------------------------------------------------
@pytest.fixture
def site(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path / "site")
    yield tmp_path / "site"
    sys.modules.pop("toy_tickets", None)


ENTRY = "ticket-numbers = toy_tickets:Tickets"


def test_an_installed_package_brings_a_detector(site, world):
    install(site, "toy-tickets", SOURCE.read_text(), ENTRY, group="confide.detectors")
    paths = environment() | {"PYTHONPATH": f"{environment()['PYTHONPATH']}:{site}"}
    done = subprocess.run(
        command("prepare", world.path), capture_output=True, text=True, env=paths, timeout=200
    )
    assert done.returncode == 0, done
    found = confide("redact", world.path, "--json")
    assert json.loads(found.out)["kinds"]["TICKET"]["spans"] == 24


def test_processes_that_search_have_it_too(site, world, monkeypatch):
    install(site, "toy-tickets", SOURCE.read_text(), ENTRY, group="confide.detectors")
    monkeypatch.setattr(sharing, "_ALONE", (0, 0))
    monkeypatch.setattr(sharing, "_CHUNK", (200, 200))
    texts = [f"see TKT-{n} there" for n in range(1000, 1050)]
    with SharedDetector(check(world.raw).detector, "detector", Crew(2)) as several:
        found = several.find(texts)
        assert several._workers is not None
    [(each, settings)] = asked(check(world.raw).detector)
    assert found == each.of(settings, "detector").find(texts)


def test_a_package_that_does_not_work_is_named(site, world):
    install(site, "toy-tickets", "import nothing_of_this_name", ENTRY, group="confide.detectors")
    refused(
        confide("prepare", world.path),
        r"package toy-tickets 1\.5: its detector 'ticket-numbers' \(toy_tickets:Tickets\) cannot be used",
    )
    with pytest.raises(InputError, match=r"detector\.levle: no such key, did you mean detector\.level"):
        check(world.raw | {"detector": {"levle": "low-entity"}})
