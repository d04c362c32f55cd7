"""The study of learning rates that fall: what a course does to a run, and the claims against made-up losses."""

import pytest
import torch
from studies.parts import short_runs
from studies.runner.findings import NOT_REPRODUCED, REPRODUCED, judged
from studies.runner.study import Scale, Work

from confide.config.schedule import share_of_peak
from confide.planning.progress import best_rate
from studies import schedules as study

COURSES = {course.name: course for course in study.COURSES}


def grid(text="newsgroups", scale=Scale.SMALL):
    return study.grid(Work(None, None, scale), text)


def keys_of(course, steps, factor=1.0):
    """The keys of a run of a course, as the grid makes them."""
    arm = next(arm for arm in grid().arms if arm.name == course.name)
    return arm.derived({**grid().keys, **arm.keys, "train.steps": steps, short_runs.FACTOR: factor})


def rates(course, steps):
    """The learning rates of a run over its peak, as its scheduler sets them."""
    given = course.given({"train.steps": steps})
    if not given:
        return [1.0] * steps
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    scheduler, found = given.scheduler(optimizer), []
    for _ in range(steps):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return found


def test_the_rate_falls_over_its_share_of_the_steps():
    assert rates(COURSES["constant"], 4) == [1.0] * 4
    assert rates(COURSES["falling over the last half"], 4) == [1.0, 1.0, 1.0, 0.5]
    linear = [share_of_peak(step, 8, "linear") for step in range(8)]
    assert rates(COURSES["falling from the start"], 8) == pytest.approx(linear)


def test_the_planners_rule_centres_the_rates_of_each_course():
    from_start = keys_of(COURSES["falling from the start"], 32)
    assert from_start["train.learning_rate"] == pytest.approx(best_rate(32, "linear"))
    flat = keys_of(COURSES["constant"], 32)
    assert flat["train.learning_rate"] == pytest.approx(best_rate(32, "constant"))
    doubled = keys_of(COURSES["constant"], 32, factor=2.0)
    assert doubled["train.learning_rate"] == pytest.approx(2 * best_rate(32, "constant"))
    assert short_runs.FACTOR not in flat


@pytest.mark.parametrize("course", COURSES.values(), ids=list(COURSES))
def test_the_mean_square_is_that_of_what_each_step_counts_for(course):
    """With gradients of one, the released weights are the sum of what the steps count for."""
    steps = 400
    lengths = torch.tensor(rates(course, steps), dtype=torch.float64)
    if span := round(
        course.mean * steps
    ):  # a mean over the last `span` iterates: the last update is in one of them
        lengths[-span:] *= torch.arange(span, 0, -1, dtype=torch.float64) / span
    assert float((lengths**2).mean()) == pytest.approx(course.square, rel=0.01)


def test_means_are_of_the_product():
    keys = keys_of(COURSES["constant, mean of the last half"], 32)
    assert (keys["train.average.kind"], keys["train.average.share"]) == ("tail", 0.5)
    assert "train.average.kind" not in keys_of(COURSES["falling over the last half"], 32)


@pytest.mark.parametrize("text", ["newsgroups", "articles", "helpdesk"])
def test_every_course_has_as_many_trials(text):
    arms = grid(text).arms
    assert [arm.name for arm in arms] == list(COURSES)
    assert {len(arm.trials()) for arm in arms} == {4}


def test_courses_are_held_against_a_constant_rate():
    losses = {study.OTHERS[0]: 1.98, study.OTHERS[1]: 1.995}  # 2% and half a percent
    rows = [
        {"text": "newsgroups", "privacy.epsilon": 8.0, "train.steps": 32, "part": "test", "arm": arm}
        | {"key": key, "loss": losses.get(arm, 2.0) + key / 1000, "settings": '{"rate_over_rule": 1.4}'}
        for arm in COURSES
        for key in (1, 2, 3)
    ]
    found = [each.verdict for each in judged(study.findings(rows))]
    assert found == [REPRODUCED, NOT_REPRODUCED, NOT_REPRODUCED, NOT_REPRODUCED]
    [table] = study.tables(rows)
    against = [row[-1] for row in table.cells]
    assert against[0] == ""
    assert against[1].startswith("-2.0%")
