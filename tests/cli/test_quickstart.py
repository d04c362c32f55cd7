"""The first command of a newcomer, from end to end with fewer customers and steps."""

import json
import lzma
import re
from types import SimpleNamespace

import pytest

from confide.cli import quickstart
from confide.config.schema import Config
from confide.runs.folder import Run
from confide.runs.job import Job
from confide.utils.console import Console
from make_helpdesk import as_jsonl

STEPS = 2


@pytest.fixture
def short(monkeypatch, tmp_path_factory):
    """Two steps for 80 customers; all else is what a newcomer gets."""
    written = quickstart.config

    def config(folder) -> Config:
        whole = written(folder)
        return whole.model_copy(
            update={
                "train": whole.train.model_copy(
                    update={"steps": STEPS, "batch": 8.0, "learning_rate": 3e-4, "twin_learning_rate": 3e-4}
                ),
                "data": whole.data.model_copy(update={"eval": 0.1}),
                "privacy": whole.privacy.model_copy(update={"bands": STEPS}),
            }
        )

    mails = tmp_path_factory.mktemp("mails") / "helpdesk.jsonl.xz"
    mails.write_bytes(lzma.compress(as_jsonl(80)))
    monkeypatch.setattr(quickstart, "MAILS", mails)
    monkeypatch.setattr(quickstart, "config", config)


def test_it_compares_a_private_run_with_one_on_the_same_draws_that_is_not(tmp_path, short, capsys):
    quickstart.run(tmp_path)
    said = capsys.readouterr().out
    for what in (
        "held-out customers",
        "base model",
        "private",
        "not private, at its own rate",
        "Who is protected?",
    ):
        assert what in said
    row = re.compile(r"^(?:base model|private|not private).* +(\d+\.\d+) +\S+$", re.MULTILINE)
    loss = [float(found) for found in row.findall(said)]
    assert len(loss) == 3
    assert loss[2] < loss[0]  # even two steps teach, without noise
    private, twin = (draws(tmp_path / part / "metrics.jsonl") for part in ("run", "run/twin"))
    assert private == twin
    assert len(private) == STEPS
    told = json.loads((tmp_path / "run" / "release" / "guarantee.json").read_text())
    assert told["epsilon"] == pytest.approx(8, abs=0.01)
    assert (tmp_path / "run" / "release" / "model.safetensors").exists()

    quickstart.run(tmp_path, as_json=True)  # nothing is trained again
    facts = json.loads(capsys.readouterr().out)
    Job.of(
        Run.load(tmp_path / "run", twin=True), Console(quiet=True)
    )  # the twin is found by later commands, too
    sides = [facts[side]["loss"] for side in ("base", "final", "twin")]
    assert sides == pytest.approx(loss, abs=1e-3)
    share = (sides[0] - sides[1]) / (
        sides[0] - sides[2]
    )  # not from the rounded ones, which may lie a per cent off
    assert facts["gap_closed"] == pytest.approx(share)
    assert f"keeps {share:.0%} of the gain" in said


def test_a_stop_in_the_first_training_begins_no_other(tmp_path, short, monkeypatch):
    begun = []

    def stopped(run, console):
        begun.append("twin" if run.twin else "private")
        return SimpleNamespace(finished=False)

    monkeypatch.setattr(quickstart, "prepared_data", lambda *_: None)
    monkeypatch.setattr(quickstart, "load_tokenizer", lambda _: None)
    monkeypatch.setattr(quickstart, "fine_tune", stopped)
    with pytest.raises(KeyboardInterrupt):
        quickstart.run(tmp_path, as_json=True)
    assert begun == ["private"]


def draws(path) -> list[tuple[int, int]]:
    entries = map(json.loads, path.read_text().splitlines())
    return [(each["units"], each["tokens"]) for each in entries if "step" in each]
