"""What one pass tells equals what generation does, and what the base model knows is taken off."""

import math

import numpy as np
import pytest
import torch
from scipy import stats
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.generation.logits_process import TemperatureLogitsWarper, TopKLogitsWarper

from confide.auditing.extraction import (
    Extraction,
    Sampling,
    compare,
    draw_rows,
    extract,
    share,
)
from confide.data.unit_graph import GraphWriter, UnitGraph
from confide.utils.errors import InputError
from tests import small

PREFIX, SUFFIX = 4, 3
LENGTH = PREFIX + SUFFIX


@pytest.fixture(scope="module")
def rows() -> np.ndarray:
    return np.random.default_rng(0).integers(2, small.VOCABULARY, size=(24, LENGTH + 2))


@pytest.fixture(scope="module")
def graph(tmp_path_factory, rows) -> UnitGraph:
    folder = tmp_path_factory.mktemp("rows") / "graph"
    with GraphWriter(folder, vocabulary=small.VOCABULARY) as writer:
        for number, row in enumerate(rows):
            writer.add(row, [f"user{number // 3}"])
        writer.add(rows[0, : LENGTH - 1], ["short"])
    return UnitGraph.open(folder)


def llama():
    torch.manual_seed(1)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=small.VOCABULARY,
            hidden_size=16,
            intermediate_size=32,
            num_hidden_layers=2,
            num_attention_heads=2,
            max_position_embeddings=32,
        )
    )


def learnt(made, rows: np.ndarray, steps: int = 60):
    """The model after it learnt some rows by heart."""
    optimizer = torch.optim.Adam(made.parameters(), lr=1e-2)
    ids = torch.from_numpy(rows)
    for _ in range(steps):
        loss = made(input_ids=ids, labels=ids).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return made.eval()


@pytest.fixture(scope="module", params=["gpt2", "llama"])
def tuned(request, rows):
    return learnt(small.gpt2() if request.param == "gpt2" else llama(), rows[:12])


def generated(made, rows: np.ndarray) -> np.ndarray:
    """bool[n]: what greedy generation gives, one row at a time."""
    found = []
    for row in rows:
        ids = torch.from_numpy(row[None, :PREFIX])
        out = made.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            min_new_tokens=SUFFIX,
            max_new_tokens=SUFFIX,
            eos_token_id=None,
            pad_token_id=0,
        )
        found.append(np.array_equal(out[0, PREFIX:].numpy(), row[PREFIX:LENGTH]))
    return np.array(found)


# one model -----------------------------------------------------------------------------------------------------
def test_greedy_is_what_generation_gives(tuned, graph, rows):
    found = extract(tuned, graph, np.arange(24), PREFIX, SUFFIX).greedy
    wanted = generated(tuned, rows)
    assert found.tolist() == wanted.tolist()
    assert found[:12].sum() >= 8
    assert not found.all()


def test_batches_do_not_matter(tuned, graph):
    order = np.random.default_rng(1).permutation(24)
    whole = extract(tuned, graph, np.arange(24), PREFIX, SUFFIX)
    part = extract(tuned, graph, order, PREFIX, SUFFIX, micro_tokens=5 * LENGTH)
    assert part.greedy.tolist() == whole.greedy[order].tolist()
    np.testing.assert_allclose(part.log_probability, whole.log_probability[order], rtol=0, atol=1e-4)


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(0.7), Sampling(1.5, 5), Sampling(top_k=1)])
def test_probability_is_that_of_transformers_sampling(tuned, graph, rows, sampling):
    found = extract(tuned, graph, np.arange(24), PREFIX, SUFFIX, sampling)
    for row, own in zip(rows, found.log_probability, strict=True):
        wanted = 0.0
        for end in range(PREFIX, LENGTH):
            ids = torch.from_numpy(row[None, :end])
            with torch.no_grad():
                scores = tuned(input_ids=ids).logits[:, -1]
            scores = TemperatureLogitsWarper(sampling.temperature)(ids, scores)
            if sampling.top_k is not None:
                scores = TopKLogitsWarper(sampling.top_k)(ids, scores)
            wanted += scores.log_softmax(-1)[0, row[end]].item()
        assert own == pytest.approx(wanted, abs=1e-4)
    if sampling.top_k == 1:  # which is greedy
        assert np.isfinite(found.log_probability).tolist() == found.greedy.tolist()
        np.testing.assert_allclose(found.chance(1), found.greedy)


def test_probabilities_of_all_continuations_add_up_to_one(tmp_path):
    made = small.gpt2().eval()
    with GraphWriter(tmp_path / "all", vocabulary=small.VOCABULARY) as writer:
        for first in range(small.VOCABULARY):
            for second in range(small.VOCABULARY):
                writer.add([3, 9, first, second], ["user"])
    everything = UnitGraph.open(tmp_path / "all")
    for sampling, possible in ((Sampling(0.8), 1600), (Sampling(0.8, 6), 36)):
        found = extract(made, everything, np.arange(1600), 2, 2, sampling)
        assert np.exp(found.log_probability).sum() == pytest.approx(1.0, abs=1e-5)
        assert np.isfinite(found.log_probability).sum() == possible
        assert found.greedy.sum() == 1


def test_a_continuation_that_is_sampled_is_discoverable_as_often_as_stated():
    p = np.array([0.0, 1e-12, 0.003, 0.2, 1.0])
    with np.errstate(divide="ignore"):
        found = Extraction(np.zeros(5, bool), np.log(p))
    np.testing.assert_allclose(found.chance(1), p, rtol=1e-9)
    np.testing.assert_allclose(found.chance(1000), [0, 1e-9, 1 - 0.997**1000, 1, 1], rtol=1e-6)
    times = np.random.default_rng(0).binomial(50, 0.003, size=100_000) > 0
    assert found.chance(50)[2] == pytest.approx(times.mean(), abs=4 * times.std() / math.sqrt(1e5))
    assert found.discoverable(1000, 0.9).tolist() == [False, False, True, True, True]
    assert found.discoverable(1, 0.2).tolist() == [False, False, False, True, True]


def test_a_model_is_left_as_it_was(tuned, graph):
    tuned.train()
    extract(tuned, graph, np.arange(3), PREFIX, SUFFIX)
    assert tuned.training
    tuned.eval()


def test_rows_that_cannot_be_asked_for_are_refused(tuned, graph):
    with pytest.raises(InputError, match="7 tokens"):
        extract(tuned, graph, np.array([0, 24]), PREFIX, SUFFIX)
    with pytest.raises(InputError, match="at least 1"):
        extract(tuned, graph, np.array([0]), 0, SUFFIX)
    with pytest.raises(InputError, match="temperature"):
        Sampling(0.0)
    with pytest.raises(InputError, match="top_k"):
        Sampling(1.0, 0)


# which rows ----------------------------------------------------------------------------------------------------
def test_one_row_of_each_unit_is_drawn(graph):
    generator = np.random.default_rng(2)
    found = draw_rows(graph, LENGTH, 100, generator)
    assert sorted(graph.owners_of(int(row))[0] for row in found) == list(range(8))
    assert len(draw_rows(graph, LENGTH, 5, generator)) == 5
    assert len(draw_rows(graph, LENGTH, 100, generator, per_unit=2)) == 16
    assert draw_rows(graph, LENGTH, 100, generator, per_unit=None).tolist() == list(range(24))
    with pytest.raises(InputError, match="no row"):
        draw_rows(graph, 40, 5, generator)
    drawn = np.concatenate([draw_rows(graph, LENGTH, 1, generator) for _ in range(300)])
    assert len(set(drawn.tolist())) == 24  # any row may be


def test_no_owner_of_a_shared_row_has_more_than_its_share(tmp_path):
    with GraphWriter(tmp_path / "shared", vocabulary=9) as writer:
        for owners in (["a", "b"], ["b", "c"], ["a"], ["c", "d"], ["d"]):
            writer.add([1, 2, 3], owners)
    shared = UnitGraph.open(tmp_path / "shared")
    for seed in range(20):
        found = draw_rows(shared, 3, 9, np.random.default_rng(seed))
        owners = [int(owner) for row in found for owner in shared.owners_of(int(row))]
        assert len(owners) == len(set(owners))


# two models ----------------------------------------------------------------------------------------------------
def test_what_the_base_model_gives_back_is_taken_off(graph, rows):
    base = learnt(small.gpt2(), rows[12:18])
    tuned = learnt(small.gpt2(1), rows[:18], steps=100)
    found = [extract(each, graph, np.arange(24), PREFIX, SUFFIX).greedy for each in (tuned, base)]
    result = compare(*found)
    assert result.base.share >= 5 / 24
    assert result.tuned.share > result.base.share
    assert result.difference.share == pytest.approx(result.tuned.share - result.base.share)
    assert 0 < result.difference.low < result.difference.share < result.difference.high
    assert result.only_tuned >= 8
    assert result.p_value < 0.01
    assert result.to_json()["base"]["share"] == result.base.share


def test_a_model_is_no_better_than_itself():
    same = np.arange(50) < 20
    result = compare(same, same)
    assert result.difference.share == 0
    assert result.difference.low < 0 < result.difference.high
    assert result.p_value == 1
    assert result.tuned == result.base == share(20, 50)


def test_nothing_seen_is_not_nothing():
    none = np.zeros(100, bool)
    result = compare(none, none)
    assert result.tuned.high == pytest.approx(1 - 0.025 ** (1 / 100))
    assert result.difference.high > 0.03
    assert result.p_value == 1


def test_the_exact_test_counts_rows_that_one_model_alone_gives_back():
    tuned, base = np.zeros(40, bool), np.zeros(40, bool)
    tuned[:25] = base[20:26] = True
    result = compare(tuned, base)
    assert (result.only_tuned, result.only_base) == (20, 1)
    assert result.p_value == pytest.approx(stats.binomtest(20, 21, alternative="greater").pvalue)
    known = stats.binomtest(25, 40).proportion_ci(0.95, "exact")
    assert (result.tuned.low, result.tuned.high) == pytest.approx((known.low, known.high))


@pytest.mark.parametrize(("both", "gain", "loss"), [(0.3, 0.1, 0.1), (0.0, 0.01, 0.0), (0.2, 0.3, 0.05)])
def test_intervals_hold_and_no_alarm_is_raised(both, gain, loss):
    trials, n = 2000, 60
    generator = np.random.default_rng(3)
    kinds = generator.choice(4, size=(trials, n), p=[both, gain, loss, 1 - both - gain - loss])
    results = [compare((row <= 1), (row == 0) | (row == 2)) for row in kinds]
    allowed = 0.05 + 2 * math.sqrt(0.05 * 0.95 / trials)
    missed = [not r.difference.low <= gain - loss <= r.difference.high for r in results]
    assert np.mean(missed) <= allowed
    missed = [not r.tuned.low <= both + gain <= r.tuned.high for r in results]
    assert np.mean(missed) <= allowed
    if gain <= loss:
        assert np.mean([r.p_value <= 0.05 for r in results]) <= allowed


def test_models_are_compared_on_the_same_rows():
    with pytest.raises(ValueError, match="same rows"):
        compare(np.zeros(3, bool), np.zeros(4, bool))
