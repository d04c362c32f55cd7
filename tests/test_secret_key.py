"""The run key: fresh for each run, from the operating system, in one file, and seen in no other."""

import base64
import json
import re
from pathlib import Path

import pytest

from confide.privacy.mechanisms.weighted import WeightedRows
from confide.randomness.streams import RunKey
from confide.runs.folder import Run
from confide.runs.job import Job
from confide.utils.console import Console
from tests.command import World, confide, files_below, tiny_model

NAMES = re.compile(rb"(?<![0-9a-f])[0-9a-f]{32,}(?![0-9a-f])")  # digests


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> list[Path]:
    """Two runs of one config on one text, each with a key of its own; rows are drawn by rates of their own.

    Without canaries: these differ by key, and with them the rows, and all that is a hash of them, plain or not.
    """
    world = World(tmp_path_factory.mktemp("world"), tiny_model(tmp_path_factory.mktemp("model")))
    world.set(privacy__mechanism="owners", data__unit=["user"])
    folders = [world.folder / name for name in ("one", "two")]
    for folder in folders:
        assert confide("train", world.path, f"run={folder}").code == 0
    return folders


def ledger(run: Path) -> list[dict]:
    return [json.loads(line) for line in (run / "ledger.jsonl").read_text().splitlines()]


# where it comes from ------------------------------------------------------------------------------------------
def test_each_run_has_a_key_of_its_own(runs):
    """Pitfall 30: not one that follows from the config, such as its seed."""
    keys = [(run / "key").read_bytes() for run in runs]
    assert [len(key) for key in keys] == [32, 32]
    assert keys[0] != keys[1]
    jobs = [Job.of(Run.load(run), Console(quiet=True)) for run in runs]
    streams = [job.key.stream("main", "draw").uint64(4).tolist() for job in jobs]
    assert streams[0] != streams[1]
    samplers = [job.sampler(job.phases()[0]) for job in jobs]
    draws = [[sampler.draw(step).unit_ids.tolist() for step in range(20)] for sampler in samplers]
    assert draws[0] != draws[1]


def test_keys_come_from_the_operating_system(tmp_path, monkeypatch):
    monkeypatch.setattr("os.urandom", lambda n: bytes([7]) * n)
    assert RunKey.create(tmp_path / "key").fingerprint(b"") == RunKey(bytes([7]) * 32).fingerprint(b"")
    monkeypatch.undo()
    made = [RunKey.create(tmp_path / f"key{n}").fingerprint(b"") for n in range(5)]
    assert len(set(made)) == 5


def test_the_key_is_bound_to_the_rates_that_rows_are_drawn_at(runs, monkeypatch):
    """Another version of a solver may weigh rows otherwise under the same config: the same noise with other draws, or
    scaled otherwise, would leave less of it in the difference of two trainings than is claimed."""
    run, rates = Run.load(runs[0]), WeightedRows.rates
    before, again = (Job.of(run, Console(quiet=True)).key.fingerprint(b"") for _ in range(2))
    monkeypatch.setattr(WeightedRows, "rates", lambda self, shape: 0.9 * rates(self, shape))
    after = Job.of(run, Console(quiet=True)).key.fingerprint(b"")
    assert before == again != after


# where it goes ------------------------------------------------------------------------------------------------
def test_no_other_file_of_a_run_holds_the_key(runs):
    """Pitfall 16: neither the key nor one derived from it stands in a checkpoint, a log or a release."""
    for run in runs:
        job = Job.of(Run.load(run), Console(quiet=True))
        keys = [job.run.key(), job.key, job._steps(job.phases()[0], print).noise_key]
        secrets = [key._secret for key in keys]
        secrets += [key.stream("main", "noise", 0, "x")._key for key in keys]
        for name, content in files_below(run).items():
            if name == "key":
                continue
            for secret in secrets:
                for form in (secret, secret.hex().encode(), base64.b64encode(secret).rstrip(b"=")):
                    assert form not in content, name


def test_what_names_data_differs_from_run_to_run(runs):
    """Pitfall 31: a plain hash of config, data or model would be the same in both, and test anybody's guess."""
    for name in ("ledger.jsonl", "guarantee.json", "release/guarantee.json", "release/README.md"):
        first, second = (set(NAMES.findall((run / name).read_bytes())) for run in runs)
        assert first, name
        assert not first & second, name
    headers = [ledger(run)[0] for run in runs]
    for entry in ("config", "data", "model"):
        assert headers[0][entry] != headers[1][entry], entry
    assert headers[0]["sampling"]["rates"] != headers[1]["sampling"]["rates"]
