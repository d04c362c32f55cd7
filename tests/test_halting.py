"""A mechanism that ends its run: nothing moves any more, the ledger says why, and the model is released."""

import json
from dataclasses import replace

import pytest
import torch

from confide.privacy.mechanisms.uls import UserLevelSampling
from confide.privacy.sampling import StopTraining
from confide.runs.folder import Run
from confide.runs.loop import fine_tune
from tests.test_resume import config, released


class Ending:
    """A sampler that has enough after some steps, and makes the noise of each step as it is told."""

    def __init__(self, sampler, last, factors):
        self.sampler, self.last, self.factors = sampler, last, factors

    def draw(self, step):
        if step >= self.last:
            return StopTraining("the budget is spent")
        return replace(self.sampler.draw(step), noise_factor=self.factors[step % len(self.factors)])


@pytest.fixture
def ending(monkeypatch):
    build = UserLevelSampling.sampler

    def set_to(last, factors=(1.0,)):
        monkeypatch.setattr(
            UserLevelSampling, "sampler", lambda self, *args: Ending(build(self, *args), last, factors)
        )

    return set_to


def entries(run):
    return [json.loads(line) for line in run.ledger_path.read_text().splitlines()]


def test_a_halted_run_is_finished_and_released(tmp_path, ending):
    ending(5)
    run = Run(config(tmp_path))
    outcome = fine_tune(run)
    assert (outcome.steps, outcome.finished, outcome.halted) == (5, True, "the budget is spent")
    assert outcome.guarantee.steps == 5
    assert entries(run)[-1].items() >= {"phase": "main", "step": 5, "halted": "the budget is spent"}.items()
    assert len(entries(run)) == 7
    again = released(run)
    once_more = fine_tune(Run(config(tmp_path)))
    assert (once_more.steps, once_more.halted) == (5, "the budget is spent")
    assert all(torch.equal(again[name], value) for name, value in released(run).items())
    assert len(entries(run)) == 7


def test_a_run_that_halts_at_once_releases_the_base(tmp_path, ending):
    ending(0)
    outcome = fine_tune(Run(config(tmp_path)))
    assert (outcome.steps, outcome.finished) == (0, True)
    assert outcome.final == outcome.base


def test_a_halt_is_met_again_after_a_resume(tmp_path, ending):
    ending(5)
    whole, cut = Run(config(tmp_path / "whole")), Run(config(tmp_path / "cut"))
    fine_tune(whole)
    fine_tune(cut, until=4)
    assert fine_tune(cut).halted == "the budget is spent"
    assert cut.ledger_path.read_text().count("halted") == 1
    assert all(torch.equal(released(cut)[name], value) for name, value in released(whole).items())


def test_noise_grows_and_shrinks_as_the_draw_says_and_the_ledger_records_it(tmp_path, ending):
    ending(24, (1.0, 0.25))
    run = Run(config(tmp_path))
    fine_tune(run)
    assert [entry["noise_multiplier"] for entry in entries(run)[1:5]] == [0.8, 0.2, 0.8, 0.2]
