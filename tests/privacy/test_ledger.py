import os

import pytest

from confide.privacy.ledger import Ledger
from confide.utils.errors import InputError


def test_entries_survive_and_a_repeated_step_is_not_written_twice(tmp_path):
    path = tmp_path / "ledger.jsonl"
    ledger = Ledger(path)
    for step in range(3):
        ledger.record(step, {"step": step, "noise": 0.5})
    ledger.close()
    again = Ledger(path)
    assert [e["step"] for e in again.entries] == [0, 1, 2]
    before = path.read_bytes()
    again.record(1, {"step": 1, "noise": 0.5})
    assert path.read_bytes() == before


def test_another_step_in_the_same_place_is_refused(tmp_path):
    ledger = Ledger(tmp_path / "ledger.jsonl")
    ledger.record(0, {"step": 0, "noise": 0.5})
    with pytest.raises(InputError, match="line 1 records another step"):
        ledger.record(0, {"step": 0, "noise": 0.4})


def test_a_gap_is_refused(tmp_path):
    ledger = Ledger(tmp_path / "ledger.jsonl")
    with pytest.raises(InputError, match="lines are missing"):
        ledger.record(2, {"step": 2})


def test_half_a_line_is_not_a_step(tmp_path):
    path = tmp_path / "ledger.jsonl"
    path.write_bytes(b'{"step": 0}\n{"step": 1}\n{"ste')
    ledger = Ledger(path)
    assert len(ledger.entries) == 2
    ledger.record(2, {"step": 2})
    assert path.read_bytes() == b'{"step": 0}\n{"step": 1}\n{"step": 2}\n'


def test_a_damaged_line_is_named(tmp_path):
    path = tmp_path / "ledger.jsonl"
    path.write_bytes(b'{"step": 0}\nnonsense\n{"step": 2}\n')
    with pytest.raises(InputError, match="line 2 is damaged"):
        Ledger(path)


def test_an_entry_is_on_disk_before_record_returns(tmp_path, monkeypatch):
    path = tmp_path / "ledger.jsonl"
    synced = []
    real = os.fsync
    monkeypatch.setattr(os, "fsync", lambda handle: (synced.append(path.read_bytes()), real(handle))[1])
    Ledger(path).record(0, {"step": 0})
    assert synced == [b'{"step": 0}\n']
