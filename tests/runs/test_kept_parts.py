"""A preparation that was killed goes on with the parts that were finished, and makes the same bytes."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time

import pytest

from confide.data.part_work import PartWork
from confide.models import loading as models
from confide.randomness.seal import Seal
from confide.runs import kept_parts
from confide.runs.folder import Run
from confide.runs.preparation import prepare
from confide.utils.errors import InputError
from tests.command import files_below
from tests.places import ROOT
from tests.runs.test_parts import ROWS, config, parts_in, small, source  # noqa: F401


@pytest.fixture
def kept(small, monkeypatch):  # noqa: F811
    """Parts of a few records, all of which are worth keeping."""
    monkeypatch.setattr(kept_parts, "WORTH", 1)


class Killed(BaseException):
    pass


def work(made, after=None):
    """Prepare; be killed `after` so many documents were written. Return the number of parts that were read, too."""
    run = Run(made)
    run.root.mkdir(parents=True, exist_ok=True)
    seen = 0

    def progress(documents, note):
        nonlocal seen
        seen += documents
        if after is not None and seen >= after:
            raise Killed

    found = prepare(made, models.load_tokenizer(made), run.data, progress, run.data_key(), run.given)
    return found.facts, files_below(run.data)


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


def test_what_was_finished_is_not_read_again(tmp_path, model, kept, read):
    train = source(tmp_path, "jsonl")
    total = parts_in(train)
    made = config(tmp_path, model, "run", train)
    with pytest.raises(Killed):
        work(made, after=40)
    finished = list(read)
    folder = tmp_path / "run" / ".data.parts"
    assert 2 < len(finished) < total - 2
    assert len(list((folder / "train").glob("*.json"))) == len(finished) + 1  # and that of the source
    for path in (folder / "train", *(folder / "train" / f"{number:06d}" for number in finished)):
        assert path.stat().st_mode & 0o77 == 0
    read.clear()
    again = work(made)
    assert read == list(range(len(finished), total))
    assert not folder.exists()
    read.clear()
    assert again == work(config(tmp_path, model, "other", train))
    assert len(read) == total


def test_a_damaged_part_is_read_again(tmp_path, model, kept, read):
    made = config(tmp_path, model, "run", source(tmp_path, "jsonl"))
    with pytest.raises(Killed):
        work(made, after=40)
    folder = tmp_path / "run" / ".data.parts" / "train"
    damaged, cut, forged = (folder / f"{number:06d}" for number in range(3))
    content = bytearray(damaged.read_bytes())
    content[len(content) // 2] ^= 1
    damaged.write_bytes(bytes(content))
    cut.write_bytes(cut.read_bytes()[:-9])
    forged.write_bytes(damaged.read_bytes())
    Seal.against_damage().write_json(
        forged.with_suffix(".json"),
        forged.name,
        {"digest": kept_parts._digest(forged), "of": kept_parts._hash("of this source")},
    )
    read.clear()
    again = work(made)
    assert read[:3] == [0, 1, 2]
    assert again == work(config(tmp_path, model, "other", made.data.train))


@pytest.mark.parametrize("what", ["file", "setting", "tokenizer", "program", "key"])
def test_parts_of_something_else_are_thrown_away(tmp_path, model, monkeypatch, kept, read, what):
    train = source(tmp_path, "jsonl")
    made = config(tmp_path, model, "run", train)
    with pytest.raises(Killed):
        work(made, after=40)
    read.clear()
    if what == "file":
        with open(tmp_path / "c.jsonl", "a") as stream:
            stream.write('\n{"user": "u", "kind": "a", "text": "one more"}')
    elif what == "setting":
        made = config(tmp_path, model, "run", train, max_length=8)
    elif what == "tokenizer":
        monkeypatch.setattr(kept_parts, "_hash", lambda text: "another")
    elif what == "program":
        monkeypatch.setattr("confide.runs.kept_parts.code_version", lambda: "another")
    else:
        shutil.rmtree(tmp_path / "run" / "key", ignore_errors=True)
        made = made.model_copy(
            update={"privacy": made.privacy.model_copy(update={"published_key": "another"})}
        )
    again = work(made)
    assert read[0] == 0
    assert len(read) == parts_in(train)
    assert again[0]["rows"] > 5


def test_a_fault_is_not_kept(tmp_path, model, kept, read):
    train = source(tmp_path, "jsonl")
    whole = (tmp_path / "b.jsonl").read_bytes()
    stamp = os.stat(tmp_path / "b.jsonl")
    (tmp_path / "b.jsonl").write_bytes(b"{" + b" " * (len(whole) - 1))
    os.utime(tmp_path / "b.jsonl", ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    made = config(tmp_path, model, "run", train)
    for _ in range(2):
        with pytest.raises(InputError, match=r"b\.jsonl line 1: not valid JSON"):
            work(made)
    faulty = read[-1]
    (tmp_path / "b.jsonl").write_bytes(whole)
    os.utime(tmp_path / "b.jsonl", ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    read.clear()
    work(made)
    assert read[0] == faulty


def test_little_is_not_kept(tmp_path, model, small):  # noqa: F811
    made = config(tmp_path, model, "run", source(tmp_path, "jsonl"))
    with pytest.raises(Killed):
        work(made, after=40)
    assert not list((tmp_path / "run").glob(".data*"))


def test_a_pickle_of_anything_else_is_refused(tmp_path):
    import pickle

    class Evil:
        def __reduce__(self):
            return os.system, ("true",)

    through = (
        b"\x80\x04\x8c\x04uuid\x8c\x09os.getpid\x93)R."  # protocol 4 follows dots through what is imported
    )
    for content in (pickle.dumps(([Evil()], None)), through):
        (tmp_path / "part").write_bytes(len(content).to_bytes(8, "big") + content)
        with pytest.raises(pickle.UnpicklingError, match="is no part of an item"):
            list(kept_parts._read(tmp_path / "part", ""))


def test_a_part_that_changes_before_it_is_read_is_refused(tmp_path):
    import pickle

    written = kept_parts._write(tmp_path / "part", [])
    assert list(kept_parts._read(tmp_path / "part", written.digest)) == []
    content = pickle.dumps(([], None))
    (tmp_path / "part").write_bytes(len(content).to_bytes(8, "big") + content)
    with pytest.raises(InputError, match="was changed while it was read"):
        list(kept_parts._read(tmp_path / "part", written.digest))


PROGRAM = """
import sys
from confide.data.readers import parts
from confide.runs import kept_parts, reading
parts.SMALLEST = parts.LARGEST = 900; kept_parts.WORTH = 1; reading.BATCH = 4
from confide.cli import main
main()
"""


def test_a_killed_command_goes_on(tmp_path, model, kept, read):
    """Two processes write parts; SIGKILL leaves no time to tidy up."""
    train = source(tmp_path, "jsonl", ROWS * 4)
    made = config(tmp_path, model, "run", train)
    path = tmp_path / "mail.yaml"
    path.write_text(json.dumps(made.model_dump(mode="json", exclude_defaults=True)))
    command = [sys.executable, "-c", PROGRAM, "prepare", str(path), "--processes", "2", "--json"]
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    folder = tmp_path / "run" / ".data.parts" / "train"
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE) as process:
        while process.poll() is None and len(list(folder.glob("0*.json"))) < 3:
            time.sleep(0.002)
        process.send_signal(signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL
    finished = {int(path.stem) for path in folder.glob("0*.json")}
    assert len(finished) >= 3
    again = work(made)
    assert set(read) == set(range(parts_in(train))) - finished
    assert again == work(config(tmp_path, model, "once", train))
