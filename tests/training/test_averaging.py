"""The mean of the weights: what it is a mean of, that it is what is released, and that a resume changes nothing."""

import copy

import pytest
import torch
from safetensors.torch import load_file

from confide.config.train_section import Average
from confide.runs.folder import Run
from confide.runs.job import Job
from confide.runs.loop import fine_tune
from confide.training.averaging import Averages
from confide.training.step import PrivateStep
from confide.utils.console import Console
from confide.utils.errors import InputError
from tests.test_halting import ending  # noqa: F401  # a fixture
from tests.test_resume import config, released

STEPS = 24  # of the config of these tests


def weights_after(numbers, average, steps):
    """The mean of a weight that is `numbers[t]` after step t."""
    parameter = torch.nn.Parameter(torch.zeros(3))
    averages = Averages({"w": parameter}, average, steps)
    for step, value in enumerate(numbers):
        with torch.no_grad():
            parameter.fill_(value)
        averages.update(step)
    with averages.applied():
        inside = parameter.detach().clone()
    assert torch.equal(parameter, torch.full((3,), float(numbers[-1])))
    return inside[0].item()


def test_a_tail_is_the_plain_mean_of_the_last_steps():
    assert weights_after([9.0, 8.0, 1.0, 2.0, 3.0], Average(kind="tail", share=0.6), 5) == pytest.approx(2.0)


def test_before_the_tail_begins_the_weights_are_their_own():
    assert weights_after([9.0, 8.0], Average(kind="tail", share=0.4), 5) == 8.0


def test_an_exponential_mean_is_plain_at_first_and_then_forgets():
    numbers = [1.0, 3.0, 5.0, 7.0]
    assert weights_after(numbers[:2], Average(kind="ema", share=0.5), 4) == pytest.approx(2.0)
    # From then on each step counts a half: ((1 + 3) / 2 + 5) / 2 = 3.5, (3.5 + 7) / 2 = 5.25.
    assert weights_after(numbers, Average(kind="ema", share=0.5), 4) == pytest.approx(5.25)


def test_none_keeps_nothing():
    assert weights_after([1.0, 2.0], Average(), 2) == 2.0


@pytest.mark.parametrize("kind", ["tail", "ema"])
def test_the_mean_of_the_iterates_is_released(tmp_path, monkeypatch, kind):
    seen = []
    take = PrivateStep.__call__

    def watched(self, step, before_update=None):
        report = take(self, step, before_update)
        seen.append({name: p.detach().double().clone() for name, p in self.parameters.items()})
        return report

    monkeypatch.setattr(PrivateStep, "__call__", watched)
    run = Run(config(tmp_path, train__average={"kind": kind, "share": 0.25}))
    fine_tune(run)
    last = STEPS // 4
    if kind == "tail":
        expected = {name: sum(at[name] for at in seen[-last:]) / last for name in seen[0]}
    else:
        expected = copy.deepcopy(seen[0])
        for count, at in enumerate(seen[1:], 2):
            for name, mean in expected.items():
                mean.lerp_(at[name], 1 / min(count, last))
    for name, value in released(run).items():
        torch.testing.assert_close(value.double(), expected[name], rtol=1e-5, atol=1e-6)
        assert not torch.equal(value.double(), seen[-1][name])


@pytest.mark.parametrize("stop", [2, 20])
def test_a_resumed_mean_is_the_same_to_the_bit(tmp_path, stop):
    average = {"kind": "tail", "share": 0.5}
    whole, cut = (Run(config(tmp_path / name, train__average=average)) for name in ("whole", "cut"))
    fine_tune(whole)
    fine_tune(cut, until=stop)
    fine_tune(cut)
    ours, theirs = released(cut), released(whole)
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_evaluation_is_of_what_is_released(tmp_path):
    run = Run(config(tmp_path, train__average={"kind": "ema", "share": 0.5}))
    outcome = fine_tune(run)
    job = Job.of(run, Console(quiet=True))
    phase_runner, (_, state) = job.phase_runner(), job.trained()
    phase_runner.restore(state)
    job.model.load_state_dict(load_file(run.release / "model.safetensors"), strict=False)
    assert job.evaluate()["loss"] == pytest.approx(outcome.final["loss"], rel=1e-6)
    phase_runner.restore(state)
    assert job.evaluate()["loss"] != pytest.approx(outcome.final["loss"], rel=1e-9)


@pytest.mark.parametrize(("last", "told"), [(11, True), (13, False)])
def test_a_run_that_ends_before_its_mean_begins_says_what_it_releases(tmp_path, ending, capsys, last, told):  # noqa: F811
    ending(last)
    run = Run(config(tmp_path, train__average={"kind": "tail", "share": 0.5}))
    assert fine_tune(run, Console()).steps == last
    assert ("the steps of the mean had not begun" in capsys.readouterr().err) == told


def test_a_share_of_no_mean_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"train\.average\.share: is of a mean of the weights"):
        config(tmp_path, train__average={"share": 0.5})


def test_another_share_is_another_run(tmp_path):
    fine_tune(Run(config(tmp_path)), until=3)
    with pytest.raises(InputError, match=r"average|belong|differs"):
        fine_tune(Run(config(tmp_path, train__average={"kind": "ema", "share": 0.5})))
