"""How candidates come about: a function of the key, and with Optuna of the losses as well."""

import sys

import numpy as np
import pytest

from confide.config.loading import check
from confide.privacy.accounting import Trials
from confide.privacy.mechanisms.tuned import UNTUNED, CountedSweep, UncountedSweep
from confide.randomness.streams import RunKey
from confide.tuning.search import Adaptive, Independent, setting_of
from confide.tuning.space import Space
from confide.utils.errors import InputError
from tests.test_statement import SHAPE, config

SPACE = Space.of(
    [
        "train.learning_rate=1e-4..1e-1:log",
        "train.schedule=constant,linear",
        "train.betas=[0.9,0.99],[0.9,0.999]",
        "train.warmup=0..3",
    ]
)


def loss(candidate) -> float:
    """Least at a learning rate of 0.01."""
    return abs(np.log10(candidate["train.learning_rate"]) + 2) + candidate["train.warmup"]


def played(search, key, losses=loss, upto=10**6):
    """All batches that a search proposes, each answered by the losses of its candidates."""
    proposals, batches = search.propose(SPACE, key), []
    batch = next(proposals)
    while len(batches) < upto:
        batches.append(batch)
        try:
            batch = proposals.send([losses(candidate) for candidate in batch])
        except StopIteration:
            break
    return batches


def test_independent_candidates_are_drawn_at_once_and_do_not_look_at_losses():
    search = Independent(Trials(8.0))
    key = RunKey.from_text("search test")
    (batch,) = played(search, key)
    assert [batch] == played(search, key, losses=lambda candidate: 1.0)
    assert [batch] != played(search, RunKey.from_text("another"))
    assert len({str(candidate) for candidate in batch}) == len(batch)


def test_the_number_of_independent_candidates_is_distributed_as_is_counted():
    search = Independent(Trials(4.0))
    numbers = [len(played(search, RunKey.from_text(str(n)))[0]) for n in range(2000)]
    assert np.mean(numbers) == pytest.approx(4.0, abs=0.35)
    assert np.mean(np.array(numbers) == 1) == pytest.approx(0.25, abs=0.04)
    assert search.released([]) == search.tuning == CountedSweep(Trials(4.0))


def test_an_adaptive_search_replays_what_it_proposed_and_learns():
    pytest.importorskip("optuna")
    search, key = Adaptive(30, 2), RunKey.from_text("search test")
    batches = played(search, key)
    assert [len(batch) for batch in batches] == [2] * 15
    assert played(search, key) == batches
    assert played(search, key, upto=5) == batches[:5]
    assert played(Adaptive(31, 2), key)[:15] == batches
    others = played(search, key, losses=lambda candidate: -loss(candidate))
    assert others[:5] == batches[:5]
    tried = [candidate for batch in batches for candidate in batch]
    assert np.mean([loss(c) for c in tried[-10:]]) < np.mean([loss(c) for c in tried[:10]])
    assert np.mean([loss(c) for c in tried[-10:]]) < np.mean([loss(c) for b in others[-5:] for c in b])
    assert played(search, key, losses=lambda candidate: float("inf"))


def test_an_adaptive_search_says_what_all_runs_came_to():
    one = setting_of(config("uls"), SHAPE)
    found = Adaptive(3).released([one] * 3)
    assert isinstance(found, UncountedSweep)
    assert found.runs == 3
    assert found.together[0] > one.curve().epsilon(one.delta)
    assert Adaptive(3).tuning is UNTUNED


def test_without_optuna_it_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(InputError, match=r"pip install 'confide\[tune\]'"):
        next(Adaptive(3).propose(SPACE, RunKey.from_text("x")))


@pytest.mark.parametrize(
    ("changes", "agrees"),
    [({"clip_norm": 0.3}, True), ({"rows_per_unit": 2}, True), ({"batch": 5.0}, False)],
)
def test_independent_candidates_must_cost_the_same(changes, agrees):
    own, other = config("uls"), config("uls", **changes)
    assert Independent(Trials(8.0)).agrees(own, other, SHAPE) == agrees
    assert Adaptive(8).agrees(own, other, SHAPE)


def test_a_candidate_that_cannot_run_on_the_data_is_refused_by_both():
    other = check(config("uls").model_dump(mode="json") | {"train": {"batch": 11.0, "steps": 6}})
    for search in (Independent(Trials(8.0)), Adaptive(8)):
        with pytest.raises(InputError, match=r"train\.batch"):
            search.agrees(config("uls"), other, SHAPE)
