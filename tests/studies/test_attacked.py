"""The studies that attack their runs: what is kept between two calls, and the tables."""

import json

import pytest
from studies.attacked import attacked

from confide.auditing.attack import Options
from confide.utils.console import Console
from confide.utils.errors import InputError
from studies import exposure, extraction
from tests.test_resume import config as resumable

QUIET = Console(quiet=True)


def test_a_run_is_attacked_once_and_its_findings_are_kept(tmp_path):
    raw = resumable(tmp_path / "a").model_dump(mode="json")
    raw["data"] |= {"unit": None}
    raw["privacy"] = {"mechanism": "dp-sgd", "noise_multiplier": 1.0}
    raw["train"]["steps"] = 2
    raw["canaries"] = {"count": 6, "digits": 2, "insertions": [1, 2]}
    folder, options = tmp_path / "study", Options(attacks=("exposure",))
    run, outcome, found = attacked("one", raw, folder, options, QUIET)
    assert outcome.finished
    assert run.folder == folder / "one"
    assert sum(group["count"] for group in found["exposure"]["groups"].values()) == 6
    run.audit_path.write_text(json.dumps(found | {"exposure": "kept"}))
    assert attacked("one", raw, folder, options, QUIET)[2] == found | {"exposure": "kept"}
    asked = Options(attacks=("exposure",), secrets=3)  # something else is found out anew
    again = attacked("one", raw, folder, asked, QUIET)[2]["exposure"]["groups"].values()
    assert sum(group["count"] for group in again) < 6
    assert "one" in run.config.privacy.published_key


def exposed(method, missed, absent):
    times = {count: [2.0, 4.0] for count in exposure.TIMES}
    return exposure.Row(
        method, None if method == "no DP" else 3.0, missed == 16, 6.5, 16, missed, times, absent
    )


def test_exposures_stand_under_how_often_a_number_was_planted():
    rows = [exposed("no DP", None, [1.0, 2.0]), exposed("selective, numbers missed", 16, [])]
    first, second = exposure._table(rows).splitlines()[2:]
    planted = " | 3.0 (2)" * 4
    assert first == f"| no DP | inf | 6.50 |  | 1.5 (2){planted} |"
    assert second == f"| selective, numbers missed | 3, an estimate | 6.50 | 16 of 16 | {planted} |"
    picture = exposure._picture(rows)
    assert picture.count("selective") == 1 + len(exposure.TIMES)  # its name, and one for each point
    assert "Text protected, numbers missed" in picture


def test_every_method_of_the_exposure_study_is_in_one_panel_with_the_bare_model():
    suffixes = {method.partition(",")[2] for method in exposure.METHODS}
    assert suffixes == {"", " numbers caught", " numbers missed"}


def test_extraction_prints_what_it_found():
    row = extraction.Row(0.1, 12.34, 20.0, 200, (0.25, 0.2, 0.31), 0.01, 0.3)
    line = extraction._table([row]).splitlines()[-1]
    assert line == "| noise multiplier 0.1 | 12.4 | 20.00 | 200 | 25.0% (20.0% to 31.0%) | 1.0% | 30.0% |"


@pytest.mark.parametrize("study", [exposure, extraction])
def test_a_folder_without_the_data_is_refused(study, tmp_path):
    with pytest.raises(InputError, match="folder"):
        study.run(tmp_path, tmp_path / "work")
