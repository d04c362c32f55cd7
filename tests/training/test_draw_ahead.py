"""The next draw is made on another thread, and is the one that would have been made anyway."""

import threading

import numpy as np
import pytest

from confide.privacy.mechanisms.rows import RowSampler
from confide.privacy.sampling import Sampling
from confide.randomness.streams import RunKey
from confide.training.draw_ahead import DrawAhead
from tests import small


@pytest.fixture
def sampler(tmp_path):
    graph = small.graph(tmp_path / "graph", [3, 5, 2, 4])
    return RowSampler(
        graph, np.arange(graph.n_rows), Sampling("poisson", 0.3), RunKey.from_text("ahead"), "main"
    )


class Noting:
    """Says which thread drew what."""

    depends_on_step_alone = True

    def __init__(self, sampler):
        self.sampler, self.drawn = sampler, []

    def draw(self, step):
        self.drawn.append((step, threading.current_thread().name))
        return self.sampler.draw(step)


def same(one, other):
    return len(one.rows) == len(other.rows) and all(map(np.array_equal, one.rows, other.rows))


def test_draws_are_the_same_in_order_out_of_order_and_again(sampler):
    ahead = DrawAhead(True)
    for step in (0, 1, 2, 2, 7, 8, 3, 0):
        assert same(ahead.draw(sampler, step), sampler.draw(step))


def test_the_next_draw_is_made_elsewhere_and_used(sampler):
    noting, ahead = Noting(sampler), DrawAhead(True)
    for step in range(4):
        ahead.draw(noting, step)
    ahead._next[2].result()
    assert [step for step, _ in noting.drawn] == [0, 1, 2, 3, 4]
    here = threading.current_thread().name
    assert [name != here for _, name in noting.drawn] == [False, True, True, True, True]


def test_another_sampler_gets_its_own_draws(sampler):
    other, ahead = Noting(sampler), DrawAhead(True)
    ahead.draw(sampler, 0)
    ahead.draw(other, 1)
    assert other.drawn[0][0] == 1


def test_what_depends_on_earlier_steps_is_not_drawn_ahead(sampler):
    noting, ahead = Noting(sampler), DrawAhead(True)
    noting.depends_on_step_alone = False
    for step in range(3):
        ahead.draw(noting, step)
    assert noting.drawn == [(step, threading.current_thread().name) for step in range(3)]
    noting.depends_on_step_alone, off = True, DrawAhead(False)
    off.draw(noting, 3)
    assert noting.drawn[-1] == (3, threading.current_thread().name)
    assert len(noting.drawn) == 4


def test_an_error_of_a_draw_comes_when_its_step_does(sampler):
    class Failing(Noting):
        def draw(self, step):
            if step == 1:
                raise ValueError("step 1")
            return super().draw(step)

    ahead, failing = DrawAhead(True), Failing(sampler)
    ahead.draw(failing, 0)
    with pytest.raises(ValueError, match="step 1"):
        ahead.draw(failing, 1)
