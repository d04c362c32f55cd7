"""`confide redact` reads by part, as `prepare` does: what it writes is the same, byte for byte, whoever reads."""

import json
import os
import pickle
import signal
import subprocess
import sys
import time

import pytest

from confide.config import registry
from confide.data.part_work import PartWork
from confide.data.readers import Document
from confide.randomness.streams import RunKey
from confide.runs import kept_parts
from confide.runs.training_text import TrainingText
from confide.sensitive.redaction.searching import Searching
from confide.utils.workers import Crew
from tests.command import confide
from tests.places import ROOT
from tests.runs.test_crews import settings
from tests.runs.test_parts import ROWS, parts_in, small, source  # noqa: F401

PATTERNS = {"NUMBER": r"\d{4}", "TEA": "(?i)tea", "E": r"\be\w+"}
GOLD = [row | {"gold": [[0, 3, "HEAD"]] if len(row["text"]) > 3 else []} for row in ROWS]


@pytest.fixture
def redact(tmp_path, model, small):  # noqa: F811
    """A function that redacts in a run of its own, and returns what was printed and written."""
    train = source(tmp_path, "jsonl", GOLD)

    def written(name, changes=None):
        config = settings(tmp_path, model, tmp_path / name, changes or plain(train))
        path = tmp_path / f"{name}.yaml"
        path.write_text(json.dumps(config.model_dump(mode="json", exclude_defaults=True)))
        return path

    def run(name, *arguments, changes=None):
        path = written(name, changes)
        sample = tmp_path / name / "sample.jsonl"
        if "--sample" in arguments:
            arguments += ("--out", sample)
        done = confide("redact", path, "--json", "--documents", "4", *arguments)
        assert done.code == 0, done
        assert not [row for row in ROWS if row["text"].strip() and row["text"] in done.out + done.err]
        page = tmp_path / name / "redaction.html"
        return done.out, *(path.read_bytes() for path in (page, sample) if path.exists())

    run.train, run.written = train, written
    return run


def plain(train, **data):
    data = {"train": train, "without_unit": "own", "eval": 0.3} | data
    return {"data": data, "privacy": {"mechanism": "redacted"}, "detector": {"expressions": PATTERNS}}


KINDS = {
    "several detectors": (
        {"strip_quotes": True, "max_documents": 61},
        {"patterns": ["IP_ADDRESS"], "expressions": PATTERNS},
        (),
    ),
    "annotations": ({}, {"expressions": PATTERNS, "spans": "gold"}, ()),
    "sample": ({"strip_quotes": True}, {"expressions": PATTERNS}, ("--sample", "0.4", "--draws", "3")),
}


@pytest.mark.subprocess
@pytest.mark.parametrize("name", KINDS)
def test_several_processes_write_what_one_writes(redact, name):
    data, detector, more = KINDS[name]
    changes = plain(redact.train, **data) | {"detector": detector}
    assert parts_in(redact.train) > 8
    one = redact("one", "--processes", "1", *more, changes=changes)
    assert redact("two", "--processes", "2", *more, changes=changes) == one
    assert len(one) == 2
    assert json.loads(one[0])["documents"] > 15


@pytest.fixture
def read(monkeypatch):
    """The numbers of the parts that this process reads."""
    numbers = []
    real = PartWork._items

    def seen(self, part, do):
        numbers.append(part.number)
        return real(self, part, do)

    monkeypatch.setattr(PartWork, "_items", seen)
    return numbers


def test_parts_are_those_of_the_whole(redact, monkeypatch, read):
    several = redact("several")
    assert len(read) == parts_in(redact.train)
    monkeypatch.undo()
    assert redact("whole") == several


PROGRAM = """
import os, signal, sys
from confide.data.readers import parts
from confide.runs import kept_parts
parts.SMALLEST = parts.LARGEST = 900; kept_parts.WORTH = 1
from confide.cli import main
main()
"""


def test_the_second_reading_of_a_sample_is_of_what_the_first_one_kept(redact, monkeypatch, read, tmp_path):
    once = redact("once", "--sample", "0.4")
    assert len(read) == 2 * parts_in(redact.train)
    read.clear()
    monkeypatch.setattr(kept_parts, "WORTH", 1)
    assert redact("kept", "--sample", "0.4") == once
    assert len(read) == parts_in(redact.train)
    assert not (tmp_path / "kept" / ".redact.parts").exists()


@pytest.mark.parametrize("what", ["setting", "version"])
def test_what_another_policy_found_is_not_taken(redact, monkeypatch, read, what):
    monkeypatch.setattr(kept_parts, "WORTH", 1)
    changes = plain(redact.train) | {"detector": {"patterns": ["IP_ADDRESS"], "expressions": PATTERNS}}
    with monkeypatch.context() as patch:
        patch.setattr(TrainingText, "forget", lambda text: None)
        redact("run", changes=changes)
        total = len(read)
        redact("run", changes=changes)
    assert len(read) == total
    if what == "version":
        monkeypatch.setattr("confide.sensitive.detectors.choice.FINDINGS", 99)
    redact("run", *(("--against", "gold") if what == "setting" else ()), changes=changes)
    assert len(read) == 2 * total


@pytest.mark.subprocess
def test_a_killed_command_goes_on(redact, monkeypatch, read, tmp_path):
    monkeypatch.setattr(kept_parts, "WORTH", 1)
    once = redact("once")
    total = parts_in(redact.train)
    read.clear()
    folder = tmp_path / "run" / ".redact.parts"
    command = [sys.executable, "-c", PROGRAM, "redact", str(redact.written("run")), "--processes", "2"]
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        while process.poll() is None and len(list(folder.glob("*/0*.json"))) < 3:
            time.sleep(0.002)
        process.send_signal(signal.SIGKILL)
        told = process.stdout.read() + process.stderr.read()
    assert process.returncode == -signal.SIGKILL, told
    assert not [row for row in ROWS if row["text"].strip() and row["text"].encode() in told]
    finished = {int(path.stem) for path in folder.glob("*/0*.json")}
    assert len(finished) >= 3
    for path in (*folder.glob("*"), *folder.glob("*/0*")):
        assert path.stat().st_mode & 0o77 == 0
    again = redact("run")
    assert set(read) == set(range(total)) - finished
    assert again == once


@pytest.mark.subprocess
def test_a_worker_that_dies_loses_its_part_alone(redact, monkeypatch, tmp_path):
    """The first process to come to the fourth part is killed there; another one does that part again."""
    once = redact("once")
    (tmp_path / "sitecustomize.py").write_text(
        KILLER.format(mark=str(tmp_path / "killed"), log=str(tmp_path / "log"))
    )
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert redact("two", "--processes", "2") == once
    assert (tmp_path / "killed").exists()
    done = [int(number) for number in (tmp_path / "log").read_text().split()]
    assert sorted(done) == sorted([*range(parts_in(redact.train)), 3])


KILLER = """
import os, signal, sys
class Finder:
    def find_spec(self, name, path, target=None):
        if name != "confide.data.part_work":
            return None
        sys.meta_path.remove(self)
        import importlib.util
        spec = importlib.util.find_spec(name)
        real = spec.loader.exec_module
        def run(module):
            real(module)
            own = module.PartWork._items
            def items(self, part, do):
                with open({log!r}, "a") as log:
                    log.write(f"{{part.number}}\\n")
                if part.number == 3:
                    try:
                        os.close(os.open({mark!r}, os.O_CREAT | os.O_EXCL))
                    except FileExistsError:
                        pass
                    else:
                        os.kill(os.getpid(), signal.SIGKILL)
                return own(self, part, do)
            module.PartWork._items = items
        spec.loader.exec_module = run
        return spec
sys.meta_path.insert(0, Finder())
"""


def test_a_search_is_sent_with_the_key_to_this_machine_alone(tmp_path, monkeypatch):
    """The detector has a section of its own, so the class of the config is made as it is read."""
    monkeypatch.setitem(registry.DETECTORS, "ticket-numbers", "tests.sensitive.detectors.tickets:Tickets")
    secret = bytes(range(32))
    changes = plain(str(tmp_path / "x.jsonl"))
    changes["detector"] = {"ticket_numbers": {"prefix": "REQ"}, "expressions": PATTERNS}
    config = settings(tmp_path, "m", tmp_path / "run", changes)
    documents = [Document("tea for REQ-1984 in 1985", ("u",), None, "line 1")]
    for crew, holds in ((Crew(2), True), (Crew(cluster="auto"), False)):
        with Searching(config, None, None, tmp_path / "spans.db", RunKey(secret), crew) as search:
            sent = pickle.dumps(search)
            assert (secret in sent) == holds
            with pickle.loads(sent) as again:
                assert again.ready()(documents) == search.ready()(documents)
                assert again.ready()(documents)[0].counts.kinds.keys() == {"TEA", "TICKET", "NUMBER"}
