"""Canaries under crt: beside something that the detector finds stands a number that it misses, or a mask."""

import numpy as np
import pytest

from confide.auditing import attack
from confide.auditing.options import Options
from confide.data.unit_graph import UnitGraph
from confide.privacy.mechanisms.dp_sgd import DPSGD
from confide.privacy.mechanisms.values import Aggregation
from confide.runs.canaries import GRAPH
from confide.runs.folder import Run
from confide.runs.job import Job
from confide.runs.loop import fine_tune
from confide.utils.console import Console
from confide.utils.errors import InputError
from tests import small
from tests.test_selective_run import config

QUIET = Console(quiet=True)
COUNT = 30
CLAIM = Options(attacks=("claim",))


def protected(folder, adjacency=None, **canaries) -> Run:
    folder.mkdir()
    settings = {"count": COUNT, "digits": 2, "guesses": 20, "template": "<<key>> again: {}"} | canaries
    train = {"steps": 30, "batch": 40.0, "learning_rate": 0.04, "schedule": "constant"}
    privacy = {"adjacency": adjacency, "noise_multiplier": 40.0}
    return Run(config(folder, "crt", canaries=settings, train=train, privacy=privacy))


def bare(self, parameters, noise_multiplier):
    """Clipped, and without noise."""
    return Aggregation(self.clip_norm, 0.0, 1 / parameters.divisor / self.clip_norm)


def test_each_canary_is_a_redacted_row_with_its_number_or_a_mask(tmp_path):
    job = Job.of(protected(tmp_path / "a"), QUIET)
    manifest, tokenizer, train = job.manifest(), job.tokenizer, job.prepared.train
    contents = UnitGraph.open(job.run.data / GRAPH)
    worlds = [manifest.rows(contents, world) for world in (0, 1)]
    assert set(manifest.coins.tolist()) == {0, 1}
    for number, (canary, unit) in enumerate(zip(manifest.canaries, manifest.units(train), strict=True)):
        (row,) = train.rows_of(int(unit))
        text = tokenizer.decode(train.fetch(row[None])[0], skip_special_tokens=False)
        assert "key" not in text
        assert text.count(tokenizer.mask_token) == 1 + canary.coin
        assert (canary.secrets[0] in text) == (canary.coin == 0)
        planted = contents.fetch(worlds[canary.coin][number][None])[0]
        assert np.array_equal(planted, train.fetch(row[None])[0])
    assert job.prepared.facts["canaries"] == {"count": COUNT, "missed": 0}


@pytest.mark.parametrize(
    ("template", "expression"),
    [
        ("My ID is {}.", "<<[^>]*>>"),  # nothing else is found: the row would be trained on without noise
        ("<<key>> {}.", r"<<[^>]*>>|\d+"),  # the number is found
        ("<<key>> {}.", r"<<[^>]*>>(?= \d)"),  # what is found depends on the number
        ("<<key>> {}.", r"<<[^>]*>>|<mask>"),  # the mask is found
    ],
)
def test_a_template_that_is_no_such_row_is_refused(tmp_path, template, expression):
    (tmp_path / "a").mkdir()
    run = Run(
        config(
            tmp_path / "a",
            "crt",
            canaries={"count": COUNT, "digits": 2, "template": template},
            detector={"expressions": {"marked": expression, "Q7X": "<<[^k][^>]*>>"}},
        )
    )
    with pytest.raises(
        InputError, match=r"canaries\.template: with mechanism crt .* This fails for 30 of 30 canaries"
    ):
        Job.of(run, QUIET)


def test_a_text_of_several_rows_is_refused_for_that(tmp_path):
    (tmp_path / "a").mkdir()
    settings = {"count": 4, "digits": 2, "template": "{} " + "again " * 20 + "<<key>>"}
    with pytest.raises(InputError, match="canaries: a text makes 2 rows"):
        Job.of(Run(config(tmp_path / "a", "crt", canaries=settings)), QUIET)


def test_a_finding_that_is_cut_off_is_none(tmp_path):
    """Such a row would be trained on without noise, and in one world alone where a number is longer than a mask."""
    for words, is_refused in ((4, False), (16, True)):
        folder = tmp_path / str(words)
        folder.mkdir()
        settings = {"count": 4, "digits": 2, "template": "{} " + "again " * words + "<<key>>"}
        run = Run(config(folder, "crt", task="masked-lm", model=str(masked_lm(folder)), canaries=settings))
        if is_refused:
            with pytest.raises(
                InputError, match=r"canaries\.template: .* same 16 tokens\. This fails for 4 of 4"
            ):
                Job.of(run, QUIET)
        else:
            assert Job.of(run, QUIET).prepared.facts["canaries"]["missed"] == 0


@pytest.mark.parametrize("adjacency", [None, "zero-out"])
def test_a_run_that_keeps_its_claim_and_one_without_noise(tmp_path, monkeypatch, adjacency):
    kept = protected(tmp_path / "kept", adjacency)
    fine_tune(kept, QUIET)
    found = attack.audit(Job.of(kept, QUIET), CLAIM).to_json()
    assert found["game"] == "mask"
    assert found["verdict"] == "consistent"
    monkeypatch.setattr(DPSGD, "aggregation", bare)
    broken = protected(tmp_path / "broken", adjacency)
    fine_tune(broken, QUIET)
    assert attack.audit(Job.of(broken, QUIET), CLAIM).verdict == "violation"


def test_no_exposure_is_told_of_numbers_in_a_text_that_was_redacted(tmp_path):
    run = protected(tmp_path / "a")
    fine_tune(run, QUIET, until=1)
    found = attack.audit(Job.of(run, QUIET), Options(attacks=("claim", "exposure"))).to_json()
    assert "redacted around" in found["left_out"]["exposure"]
    assert "exposure" not in found


def masked_lm(folder):
    small.family("roberta").save_pretrained(folder / "roberta")
    return folder / "roberta" / "config.json"
