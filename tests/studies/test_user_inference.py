"""The study of user inference: its findings against made-up outcomes, and its table."""

from studies.runner.findings import NOT_REPRODUCED, REPRODUCED, judged
from studies.runner.study import Scale, Work

from studies import user_inference as study


def rows(aurocs, losses, tpr=0.1, ceiling=0.3, keys=5):
    """Made-up runs whose figures differ a little by run key."""
    return [
        {
            "method": method,
            "key": key,
            "unit": "" if method == study.NONE else "one user",
            "epsilon": None if method == study.NONE else 8.0,
            "loss": losses[method] + key / 1000,
            "perplexity": 9.0,
            "users": 50,
            "auroc": aurocs[method] + key / 1000,
            "tpr": tpr + key / 1000,
            "ceiling": ceiling if method in (study.ELS, study.ULS) else None,
        }
        for method in study.METHODS
        for key in range(1, keys + 1)
    ]


def verdicts(found):
    return [each.verdict for each in judged(study.findings(found))]


def test_claims_follow_the_outcome():
    hidden = dict(zip(study.METHODS, (0.65, 0.51, 0.5, 0.5), strict=True))
    costs = dict(zip(study.METHODS, (2.0, 3.0, 4.0, 3.8), strict=True))
    assert verdicts(rows(hidden, costs)) == [REPRODUCED] * 8
    told = dict(zip(study.METHODS, (0.5, 0.6, 0.7, 0.6), strict=True))
    level = dict(zip(study.METHODS, (2.0, 3.0, 2.8, 3.0), strict=True))
    assert verdicts(rows(told, level, tpr=0.4)) == [NOT_REPRODUCED] * 8


def test_the_table_has_intervals_over_run_keys_and_never_a_share_below_zero():
    hidden = dict.fromkeys(study.METHODS, 0.5)
    line = study.tables(rows(hidden, hidden, tpr=0.0))[0].cells[-1]
    assert line == [
        "ULS",
        "one user",
        "8",
        "9.00",
        "50",
        "0.503 (0.501 to 0.505)",
        "0.3% (0.1% to 0.5%)",
        "30%",
    ]
    assert study.tables(rows(hidden, hidden, tpr=0.0, keys=1))[0].cells[-1][5:7] == ["0.501", "0.1%"]


def test_all_methods_compute_as_many_rows_with_the_same_run_keys(tmp_path, monkeypatch):
    monkeypatch.setattr(study, "stories", lambda work: tmp_path)
    source = tmp_path / "20newsgroups/20_newsgroups.jsonl.xz"
    source.parent.mkdir()
    source.touch()
    asked = study.asked(Work(tmp_path, tmp_path / "work", Scale.SMALL))
    assert len({run.folder for run in asked}) == len(asked) == 20
    keys = {(run.columns["key"], run.raw["privacy"]["published_key"]) for run in asked}
    assert len(keys) == len({key for _, key in keys}) == 5
    for run in asked:
        by_user = run.columns["method"] in study.BY_USER
        assert run.raw["train"]["batch"] * (study.CHUNKS if by_user else 1) == 128
