"""`confide study --compare`: findings against those that are kept."""

import json
from contextlib import nullcontext

import pytest
from studies.__main__ import _compare
from studies.runner import register
from studies.runner.comparison import INSIDE, MISSING, NEW, OUTSIDE, SAME, VERDICT, compared, is_kept, told
from studies.runner.study import Scale, Work

from confide.utils.errors import CheckFailed
from tests.command import confide


def entry(
    claim, mean, interval=(1.9, 2.1), verdict="reproduced", study="one", scale="small", confidence=0.95
):
    return {
        "study": study,
        "scale": scale,
        "claim": claim,
        "mean": mean,
        "interval": list(interval),
        "verdict": verdict,
        "unit": "bits",
        "confidence": confidence,
        "keys": 3,
        "over": "run keys",
        "freedom": None,
        "date": "2026-11-28",
    }


def outcomes(found, kept, **options):
    return {each.claim: each.outcome for each in compared(found, kept, "one", "small", **options)}


@pytest.mark.parametrize(
    ("mean", "interval", "outcome"),
    [
        (2.0005, (1.9, 2.1), SAME),
        (2.05, (1.9, 2.1), INSIDE),
        (2.2, (1.9, 2.1), OUTSIDE),
        (1.8, (1.9, 2.1), OUTSIDE),
        (2.05, (None, None), OUTSIDE),  # of one run key: no interval says what chance does
        (2.0, (None, None), SAME),
    ],
)
def test_a_figure_is_the_same_or_in_its_interval_or_not(mean, interval, outcome):
    kept = [entry("a", 2.0, interval)]
    assert outcomes([entry("a", mean)], kept) == {"a": outcome}


def test_a_computed_figure_has_no_interval_to_move_in():
    kept = [entry("a", 2.0, confidence=None)]
    assert outcomes([entry("a", 2.05, confidence=None)], kept) == {"a": OUTSIDE}
    assert outcomes([entry("a", 2.0, confidence=None)], kept) == {"a": SAME}


def test_claims_that_came_or_went_are_named():
    kept = [
        entry("gone", 2.0),
        entry("stays", 2.0),
        entry("gone", 5.0, study="two"),
        entry("a", 5.0, scale="full"),
    ]
    found = [entry("stays", 2.0), entry("came", 2.0)]
    assert outcomes(found, kept) == {"stays": SAME, "came": NEW, "gone": MISSING}
    assert outcomes(found, kept, text="newsgroups") == {"stays": SAME, "came": NEW}
    assert not is_kept(compared(found, kept, "one", "small"))
    assert is_kept(compared(found, kept, "one", "small", "newsgroups"))


def test_what_is_no_longer_so_is_shown_with_both_figures():
    kept = [entry("a", 2.0), entry("b", 2.0), entry("c", 2.0)]
    rows = compared(
        [entry("a", 2.0), entry("b", 3.0), entry("c", 2.05, verdict="undecided")], kept, "one", "small"
    )
    lines = told("one", rows).splitlines()
    assert (
        lines[0]
        == "one: 3 findings: 1 the same, 1 inside the interval, 1 outside the interval; 1 with another verdict"
    )
    assert lines[1] == "  outside the interval: b"
    assert lines[2].startswith("    kept: 2 (1.9 to 2.1; 3 run keys), reproduced")
    assert lines[3].startswith("    now: 3 (1.9 to 2.1")
    assert lines[4] == "  inside the interval: c"
    assert len(lines) == 7


@pytest.mark.parametrize(
    ("mean", "ends"), [(2.05, nullcontext()), (3.0, pytest.raises(CheckFailed, match="one"))]
)
def test_a_figure_that_has_left_its_interval_fails_the_command(mean, ends, monkeypatch, tmp_path):
    monkeypatch.setattr(register, "kept", lambda: [entry("a", 2.0)])
    with ends:
        _compare({"one": [entry("a", mean)]}, Work(None, tmp_path, Scale.SMALL), as_json=False)


def test_of_a_study_that_follows_the_code_only_the_verdict_counts(monkeypatch, tmp_path):
    kept, moved = [entry("a", 2.0, confidence=None)], [entry("a", 3.0, confidence=None)]
    assert outcomes(moved, kept, follows_code=True) == {"a": VERDICT}
    assert outcomes(moved, kept) == {"a": OUTSIDE}
    monkeypatch.setattr(register, "kept", lambda: kept)
    work = Work(None, tmp_path, Scale.SMALL)
    _compare({"one": moved}, work, as_json=False, moving=["one"])
    with pytest.raises(CheckFailed, match="one"):
        _compare({"one": moved}, work, as_json=False)
    with pytest.raises(CheckFailed, match="one"):
        _compare({"one": [entry("a", 3.0, verdict="not reproduced", confidence=None)]}, work, False, ["one"])


def test_programs_get_what_came_of_each_finding(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(register, "kept", lambda: [entry("a", 2.0)])
    _compare({"one": [entry("a", 2.05), entry("b", 1.0)]}, Work(None, tmp_path, Scale.SMALL), as_json=True)
    stays, new = json.loads(capsys.readouterr().out)["one"]
    assert (stays["outcome"], stays["kept"]["mean"], stays["now"]["mean"]) == (INSIDE, 2.0, 2.05)
    assert (new["outcome"], new["kept"], new["now"]["claim"]) == (NEW, None, "b")


def test_what_cannot_be_compared_is_refused(tmp_path):
    for options, words in (
        (("--scale", "tiny"), "keeps nothing of blow-up at the scale tiny"),
        (("--record",), "--record replaces"),
    ):
        done = confide("study", "blow-up", "--compare", *options, "--folder", tmp_path)
        assert (done.code, words in done.err) == (2, True)
