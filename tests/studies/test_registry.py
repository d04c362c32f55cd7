"""`confide study`: which studies take data."""

import pytest

from confide import studies
from confide.utils.errors import InputError
from tests.command import confide


def test_a_study_without_data_runs_without_and_refuses_any(tmp_path, monkeypatch):
    from confide.studies import noise_variance

    monkeypatch.setattr(noise_variance, "run", lambda folder: {"markdown": f"worked in {folder.name}"})
    assert "worked in noise-variance" in confide("study", "noise-variance", "--folder", tmp_path).out
    with pytest.raises(InputError, match="reads no data"):
        studies.run("noise-variance", tmp_path, tmp_path)


def test_a_study_on_data_asks_for_it(tmp_path):
    result = confide("study", "user-level", "--folder", tmp_path)
    assert result.code == 2
    assert "study user-level needs the folder" in result.err


def test_every_study_can_be_found():
    with pytest.raises(InputError, match="mean-estimation, noise-variance"):
        studies.run("nothing", None, None)
