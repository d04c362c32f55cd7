"""`python -m studies.NAME`: which studies take data, what is printed, and what is refused."""

import json
import subprocess
import sys

import pytest

from studies import main
from tests.command import environment
from tests.places import ROOT

NAMES = [
    path.stem for path in sorted((ROOT / "studies").glob("*.py")) if "\n    main(run)\n" in path.read_text()
]


def ran(monkeypatch, run, *arguments):
    monkeypatch.setattr(sys, "argv", ["study", *map(str, arguments)])
    with pytest.raises(SystemExit) as stop:
        main(run)
    return stop.value.code


def test_a_study_without_data_refuses_any(tmp_path, monkeypatch, capsys):
    def run(folder):
        raise AssertionError("it runs")

    assert ran(monkeypatch, run, tmp_path) == 2
    assert "unexpected extra argument" in capsys.readouterr().err


def test_a_table_is_printed_or_all_facts(tmp_path, monkeypatch, capsys):
    def run(folder):
        return {"markdown": f"worked in {folder.name} of {folder.parent.name}"}

    assert ran(monkeypatch, run, "--folder", tmp_path) == 0
    assert capsys.readouterr().out == f"worked in test-command of {tmp_path.name}\n"
    assert ran(monkeypatch, run, "--folder", tmp_path, "--json") == 0
    assert json.loads(capsys.readouterr().out) == run(tmp_path / "test-command")


def test_a_study_on_data_asks_for_it(tmp_path, monkeypatch, capsys):
    def run(data, folder):
        raise AssertionError("it runs")

    assert ran(monkeypatch, run, "--folder", tmp_path) == 2
    assert "Missing argument 'DATA'" in capsys.readouterr().err


def test_input_at_fault_is_one_sentence(tmp_path):
    command = [
        sys.executable,
        "-m",
        "studies",
        "user-level",
        "--data",
        tmp_path,
        "--folder",
        tmp_path / "work",
    ]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment())
    assert done.returncode == 2
    question, sentence = done.stderr.splitlines()
    assert question.startswith("user-level: ")
    assert sentence.startswith("confide: ")
    assert "Traceback" not in done.stderr


def test_every_study_of_the_results_can_be_run():
    told = (ROOT / "docs" / "results.md").read_text("utf-8")
    assert len(NAMES) == 2
    assert not [name for name in NAMES if f"python -m studies.{name}" not in told]
