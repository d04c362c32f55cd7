"""Held-out loss, perplexity and accuracy against a direct computation."""

import math

import numpy as np
import pytest
import torch

from confide.data.unit_graph import GraphWriter, UnitGraph
from confide.randomness.streams import RunKey
from confide.training import evaluation
from confide.training.tasks import IGNORE, Task
from confide.training.tasks.classification import Classification
from confide.training.tasks.masked_lm import MaskedLM
from confide.utils.errors import InputError
from tests import small


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    return small.graph(tmp_path_factory.mktemp("graph") / "g", [1, 3, 2, 5, 1, 4])


def masked_task():
    return MaskedLM(0, 1, small.VOCABULARY, (0, 1), frozenset(), False, torch.device("cpu"))


def bert(seed=0):
    from transformers import BertForMaskedLM

    torch.manual_seed(seed)
    return BertForMaskedLM(small.family("bert", vocab_size=small.VOCABULARY, pad_token_id=0))


def test_loss_is_weighted_by_tokens(graph):
    """Not the mean of row means: a long row counts for as many tokens as it has."""
    model, task = small.gpt2(), small.task()
    total = tokens = hits = 0.0
    for i in range(graph.n_rows):
        ids = torch.from_numpy(graph.fetch(np.array([i]))[0].astype(np.int64))[None]
        with torch.no_grad():
            logits = model(input_ids=ids).logits[0].double().log_softmax(-1)
        for t in range(ids.shape[1] - 1):
            total -= logits[t, ids[0, t + 1]].item()
            hits += float(logits[t].argmax() == ids[0, t + 1])
            tokens += 1
    found = evaluation.evaluate(model, task, graph)
    assert found["loss"] == pytest.approx(total / tokens, rel=1e-5)
    assert found["perplexity"] == pytest.approx(math.exp(total / tokens), rel=1e-5)
    assert found["accuracy"] == pytest.approx(hits / tokens)
    assert (found["tokens"], found["rows"], found["units"]) == (tokens, graph.n_rows, 6)
    assert found["tokens"] == graph.n_tokens - graph.n_rows


@pytest.mark.parametrize("make", [lambda: (small.gpt2(), small.task()), lambda: (bert(), masked_task())])
def test_micro_batches_change_nothing(graph, make):
    model, task = make()
    whole = evaluation.row_losses(model, task, graph)
    for micro_tokens in (1, 13, 40):
        parts = evaluation.row_losses(model, task, graph, micro_tokens)
        assert np.allclose(whole[0], parts[0], atol=1e-5)
        assert np.array_equal(whole[1], parts[1])
        assert np.array_equal(whole[2], parts[2])


def test_batches_are_full_and_of_rows_of_like_length():
    """As few passes over as little padding as rows in the order of their length allow."""
    lengths = np.random.default_rng(0).integers(4, 129, 2000)
    found = list(evaluation.batches(lengths, 4096))
    assert sorted(np.concatenate(found)) == list(range(2000))
    padded = [len(places) * lengths[places].max() for places in found]
    assert max(padded) <= 4096
    assert sum(padded) < 1.05 * lengths.sum()
    assert len(found) < 1.1 * lengths.sum() / 4096


def scarce(most, asked):
    """`Task.token_losses` where more than `most` tokens run out of memory; what was asked for, in tokens."""
    honest = Task.token_losses

    def token_losses(self, model, batch):
        asked.append(batch["input_ids"].numel())
        if asked[-1] > most:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return honest(self, model, batch)

    return token_losses


def test_where_memory_runs_out_fewer_rows_are_taken(tmp_path, monkeypatch):
    model, task, asked = small.gpt2(), small.task(), []
    graph = small.graph(tmp_path / "g", [4] * 8)
    whole = evaluation.row_losses(model, task, graph)
    monkeypatch.setattr(Task, "token_losses", scarce(40, asked))
    for all_rows, parts in zip(whole, evaluation.row_losses(model, task, graph, 70), strict=True):
        assert np.allclose(all_rows, parts, atol=1e-5)
    assert sum(size > 40 for size in asked) == 1, "and are from then on: what failed once is not tried again"
    assert len(asked) > 4


def test_not_even_one_row_fits(graph, monkeypatch):
    monkeypatch.setattr(Task, "token_losses", scarce(3, []))
    with pytest.raises(InputError, match="not even one row of"):
        evaluation.row_losses(small.gpt2(), small.task(), graph, 200)


def test_a_split_models_pass_is_not_taken_again(graph, monkeypatch):
    """The other ranks are in the middle of it."""
    monkeypatch.setattr(evaluation, "is_sharded", lambda model: True)
    monkeypatch.setattr(Task, "token_losses", scarce(3, []))
    with pytest.raises(InputError, match="memory ran out with"):
        evaluation.row_losses(small.gpt2(), small.task(), graph, 200)


def test_perplexities_are_each_rows_own(graph):
    model, task = small.gpt2(), small.task()
    found = evaluation.perplexities(model, task, graph, micro_tokens=20)
    with torch.no_grad():
        for i in range(graph.n_rows):
            alone = task.row_loss(model, task.collate(graph.fetch(np.array([i]))))
            assert found[i] == pytest.approx(math.exp(alone.item()), rel=1e-4)


def test_two_models_are_asked_for_the_same_hidden_tokens(graph, monkeypatch):
    """Else a difference of losses would be one of questions."""
    seen = []
    collate = Task.collate

    def spy(self, *args):
        seen.append(collate(self, *args))
        return seen[-1]

    monkeypatch.setattr(Task, "collate", spy)
    counts = []
    for seed in (0, 1):
        seen.clear()
        counts.append(evaluation.row_losses(bert(seed), masked_task(), graph)[1])
        if seed == 0:
            first = list(seen)
    assert np.array_equal(*counts)
    for a, b in zip(first, seen, strict=True):
        assert torch.equal(a["input_ids"], b["input_ids"])
        assert torch.equal(a["labels"], b["labels"])
    assert sum(int((b["labels"] != IGNORE).sum()) for b in seen) == counts[0].sum()


def test_accuracy_and_loss_of_classes(tmp_path):
    rows = [np.array([5, 6]), np.array([7, 8, 9]), np.array([4]), np.array([3, 3])]
    with GraphWriter(tmp_path / "g", vocabulary=small.VOCABULARY) as writer:
        for i, row in enumerate(rows):
            writer.add(row, [f"u{i % 2}"], label=i % 3)

    class Fixed(torch.nn.Module):
        """Prefers class 1 whatever it reads."""

        def __init__(self):
            super().__init__()
            self.w = torch.nn.Parameter(torch.tensor([0.0, 1.0, 0.0]))

        def forward(self, input_ids, attention_mask):
            return type("Output", (), {"logits": self.w.expand(len(input_ids), 3)})

    task = Classification(0, 1, small.VOCABULARY, (), frozenset(), False, torch.device("cpu"))
    found = evaluation.evaluate(Fixed(), task, UnitGraph.open(tmp_path / "g"))
    logs = torch.tensor([0.0, 1.0, 0.0]).log_softmax(0)
    assert found["loss"] == pytest.approx(-(2 * logs[0] + logs[1] + logs[2]).item() / 4)
    assert found["accuracy"] == 1 / 4
    assert set(found) == {"loss", "accuracy", "rows", "units"}  # a class is no token, and has no perplexity
    assert found["rows"] == 4


def test_the_mode_of_the_model_is_as_before(graph):
    model = small.gpt2().train()
    evaluation.evaluate(model, small.task(), graph)
    assert model.training
    model.eval()
    evaluation.evaluate(model, small.task(), graph)
    assert not model.training


def test_rows_that_predict_nothing_are_said(tmp_path):
    with GraphWriter(tmp_path / "g", vocabulary=small.VOCABULARY) as writer:
        writer.add(np.array([5]), ["a"])
    with pytest.raises(InputError, match=r"data\.eval"):
        evaluation.evaluate(small.gpt2(), small.task(), UnitGraph.open(tmp_path / "g"))


def test_streams_of_the_evaluation_are_not_those_of_a_run():
    """A run's own hidden tokens must stay as secret as its key."""
    own, run = evaluation._HIDE.stream("evaluation", "hide", 0), RunKey.from_text("run")
    assert not np.array_equal(own.uniform(8), run.stream("evaluation", "hide", 0).uniform(8))
