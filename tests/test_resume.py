"""Stop it anywhere, start it again: the same weights bit for bit, and the same ledger. Pitfall 15."""

import gc
import json
import random
import shutil
import weakref
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from confide.config.loading import check
from confide.models import loading as models
from confide.models.loading import load_model
from confide.runs import job as jobs
from confide.runs import loop as finetuning
from confide.runs.folder import Run
from confide.runs.job import Job
from confide.runs.loop import fine_tune
from confide.utils.errors import InputError
from tests import small


def corpus(path: Path, users: int = 30) -> Path:
    generator = random.Random(1)
    words = ["printer", "floor", "paper", "again", "nobody", "has", "a", "key", "to", "the", "store", "room"]
    with open(path, "w") as stream:
        for user in range(users):
            for _ in range(generator.randint(1, 6)):
                text = " ".join(generator.choice(words) for _ in range(generator.randint(5, 40)))
                stream.write(json.dumps({"user": f"u{user}", "text": text}) + "\n")
    return path


@pytest.fixture(params=[False, True], ids=["published key", "secret key"])
def secret(request) -> bool:
    """Noise and draws of a secret key take branches of their own. Pitfall 36."""
    return request.param


def config(folder: Path, secret: bool = False, **changes):
    """One text and one model for all runs of a test; the run folder is `folder`/run.

    With `secret` the key is published nowhere, and in the run folder already: the same one for all runs of a test.
    """
    if secret:
        changes = {"privacy__published_key": None} | changes
        (folder / "run").mkdir(parents=True, exist_ok=True, mode=0o700)
        (folder / "run" / "key").write_bytes(bytes(range(32)))
        (folder / "run" / "key").chmod(0o600)
    common = folder.parent / "common"
    common.mkdir(parents=True, exist_ok=True)
    raw = {
        "model": str(small.config_file(common)),
        "tokenizer": "bundled",
        "data": {"train": str(corpus(common / "text.jsonl")), "unit": "user", "eval": 0.2, "max_length": 16},
        "privacy": {"noise_multiplier": 0.8, "rows_per_unit": 2, "published_key": "resume test"},
        "train": {
            "steps": 24,
            "batch": 6.0,
            "checkpoint_every": 3,
            "learning_rate": 0.01,
            "schedule": "cosine",
        },
        "run": str(folder / "run"),
    }
    for key, value in changes.items():
        section, _, name = key.partition("__")
        (raw[section] if name else raw)[name or section] = value
    return check(raw)


def released(run: Run) -> dict[str, torch.Tensor]:
    return load_file(run.release / "model.safetensors")


def same(run: Run, other: Run) -> None:
    assert run.ledger_path.read_bytes() == other.ledger_path.read_bytes()
    ours, theirs = released(run), released(other)
    assert ours.keys() == theirs.keys()
    for name in ours:
        assert torch.equal(ours[name], theirs[name]), name


def test_stopping_and_resuming_is_the_same_run(tmp_path, secret):
    whole, cut = Run(config(tmp_path / "whole", secret)), Run(config(tmp_path / "cut", secret))
    fine_tune(whole)
    for until in (1, 7, 24):
        outcome = fine_tune(cut, until=until)
        assert outcome.steps == until
        assert outcome.finished == (until == 24)
        assert outcome.guarantee.steps == until
    same(cut, whole)
    assert [json.loads(line)["step"] for line in cut.ledger_path.read_text().splitlines()[1:]] == list(
        range(24)
    )
    measured = [json.loads(line) for line in cut.metrics_path.read_text().splitlines()]
    assert [line["step"] for line in measured if "step" in line] == list(range(24))


def test_a_lost_checkpoint_repeats_steps_and_spends_nothing_new(tmp_path, secret):
    run = Run(config(tmp_path / "a", secret))
    fine_tune(run, until=9)
    ledger = run.ledger_path.read_bytes()
    for folder in run.checkpoints.folder.iterdir():
        for file in folder.iterdir():
            file.unlink()
        folder.rmdir()
    fine_tune(run, until=9)
    assert run.ledger_path.read_bytes() == ledger


def test_a_step_that_is_missing_behind_the_last_checkpoint_is_told(tmp_path, secret):
    run = Run(config(tmp_path / "a", secret))
    fine_tune(run, until=3)
    shutil.copytree(run.checkpoints.folder, tmp_path / "earlier")
    fine_tune(run, until=9)
    shutil.rmtree(run.checkpoints.folder)
    shutil.copytree(tmp_path / "earlier", run.checkpoints.folder)
    lines = run.ledger_path.read_text().splitlines(keepends=True)
    run.ledger_path.write_text("".join(lines[:7] + lines[8:]))
    with pytest.raises(InputError, match="does not record every step"):
        fine_tune(run)


@pytest.mark.parametrize(
    ("key", "value"),
    [("privacy__noise_multiplier", 0.7), ("train__batch", 5.0), ("train__learning_rate", 0.02)],
)
def test_a_folder_of_another_config_is_refused(tmp_path, key, value):
    fine_tune(Run(config(tmp_path / "a")), until=2)
    before = (tmp_path / "a/run/ledger.jsonl").read_bytes()
    with pytest.raises(
        InputError, match=rf"holds a run with another config \(differs in {key.replace('__', '.')}\)"
    ):
        fine_tune(Run(config(tmp_path / "a", **{key: value})))
    assert (tmp_path / "a/run/ledger.jsonl").read_bytes() == before


def test_other_data_under_the_same_config_are_refused(tmp_path):
    run = Run(config(tmp_path / "a"))
    fine_tune(run, until=2)
    shutil.rmtree(run.data)
    settings = check(run.config.model_dump())
    corpus(tmp_path / "common/text.jsonl", users=31)
    with pytest.raises(InputError, match="records another step"):
        fine_tune(Run(settings))


def test_a_finished_run_is_released_again_and_not_evaluated_again(tmp_path, monkeypatch):
    run = Run(config(tmp_path / "a", train__steps=2))
    before = fine_tune(run)
    weights = released(run)
    shutil.rmtree(run.release)
    monkeypatch.setattr(Job, "evaluate", lambda job: pytest.fail("evaluated"))
    after = fine_tune(Run(run.config))
    assert before.final == after.final is not None
    assert all(torch.equal(released(run)[name], weights[name]) for name in weights)
    monkeypatch.setattr(Job, "held_out", lambda job: "other rows")
    monkeypatch.setattr(Job, "evaluate", lambda job: {}["evaluated"])
    with pytest.raises(KeyError, match="evaluated"):
        fine_tune(Run(run.config))


def test_looking_more_often_is_no_other_config(tmp_path):
    begun = fine_tune(Run(config(tmp_path / "a", train__eval_on_start=False)), until=2)
    assert begun.base is None
    more = {"train__eval_on_start": True, "train__eval_every": 5, "train__checkpoint_every": 4}
    assert fine_tune(Run(config(tmp_path / "a", **more)), until=4).steps == 4
    assert fine_tune(Run(config(tmp_path / "b", **more)), until=2).base is not None


def test_two_processes_cannot_share_a_run(tmp_path):
    run = Run(config(tmp_path / "a"))
    with run.locked(), pytest.raises(InputError, match="another process"):
        fine_tune(Run(run.config))


def test_a_published_key_draws_the_same_wherever_text_and_model_lie(tmp_path):
    runs = [Run(config(tmp_path / where / "a", train__steps=2)) for where in ("here", "there")]
    for run in runs:
        fine_tune(run)
    first, second = map(released, runs)
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_a_missing_key_is_not_replaced(tmp_path):
    run = Run(config(tmp_path / "a", privacy__published_key=None))
    fine_tune(run, until=2)
    (run.root / "key").unlink()
    with pytest.raises(InputError, match="cannot be resumed"):
        fine_tune(Run(run.config))


def test_nothing_holds_the_model_of_a_run_that_is_done(tmp_path, monkeypatch):
    """Studies and sweeps train one run after another in a process: rings of hooks would pile models up."""
    made = []

    def loaded(*arguments):
        made.append(weakref.ref(model := load_model(*arguments)))
        return model

    monkeypatch.setattr(models, "load_model", loaded)
    gc.disable()
    try:
        fine_tune(Run(config(tmp_path, train__steps=2)))
        assert [each() for each in made] == [None]
    finally:
        gc.enable()


def test_a_step_is_not_taken_again_with_noise_by_another_generator(tmp_path, monkeypatch, secret):
    """A checkpoint is lost, and the run goes on where noise is made otherwise: the same draws, other noise."""
    run = Run(config(tmp_path / "a", secret))
    fine_tune(run, until=4)
    shutil.rmtree(run.checkpoints.folder)
    monkeypatch.setattr(finetuning, "generator", lambda kind, device, parts: "chacha20")
    with pytest.raises(InputError, match=r"line 2: this step was taken with noise by aes, .* by chacha20"):
        fine_tune(Run(run.config))
    monkeypatch.undo()
    fine_tune(Run(run.config), until=6)
    monkeypatch.setattr(finetuning, "generator", lambda kind, device, parts: "chacha20")
    assert fine_tune(Run(run.config)).finished  # what was not taken yet may have any
    kinds = [json.loads(line)["generator"] for line in run.ledger_path.read_text().splitlines()[1:]]
    assert kinds == ["aes"] * 6 + ["chacha20"] * 18


def test_a_run_may_lie_in_a_folder_called_trials(tmp_path):
    """Of a sweep are those alone beside whose folder its ledger lies."""
    run = Run(config(tmp_path / "trials").model_copy(update={"run": str(tmp_path / "trials" / "a")}))
    fine_tune(run, until=1)
    assert Run.load(run.root).root == run.root


def test_a_run_that_began_with_noise_of_another_layout_does_not_go_on(tmp_path, monkeypatch, secret):
    """Pitfall 35: a step that is taken again would have other noise."""
    run = Run(config(tmp_path / "a", secret))
    fine_tune(run, until=2)
    before = run.ledger_path.read_bytes()
    monkeypatch.setattr(jobs, "LAYOUT", jobs.LAYOUT + 1)
    with pytest.raises(InputError, match=r"line 1 records another step .*differs in noise"):
        fine_tune(Run(run.config))
    assert run.ledger_path.read_bytes() == before


def test_a_run_goes_on_with_what_its_optimiser_knew(tmp_path, secret):
    """Pitfall 15: AdamW's moments and the schedule are part of what a run goes on from."""
    runs = [Run(config(tmp_path / name, secret, train__steps=6)) for name in "ab"]
    fine_tune(runs[0])
    for until in (3, 6):
        fine_tune(runs[1], until=until)
    same(*runs)
