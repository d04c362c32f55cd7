"""Adaptive DP with a scorer of its own: it reads as the base model would, and its identity counts."""

import shutil

import numpy as np
import pytest

from confide.data.unit_graph import GraphWriter, UnitGraph
from confide.distributed.ranks import Ranks
from confide.models import loading as models
from confide.models.names import location
from confide.privacy.mechanisms.none import NonPrivate
from confide.training import evaluation
from confide.training import perplexity as scoring
from confide.training.tasks.causal_lm import CausalLM
from confide.utils.errors import InputError
from tests import small
from tests.privacy.mechanisms.test_adaptive import ROWS, SHAPE, _probabilities, built, config, sampler


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    return small.graph(tmp_path_factory.mktemp("graph") / "g", [1] * ROWS)


@pytest.fixture(scope="module")
def scorer(tmp_path_factory):
    """A tiny GPT-2 that reads with the bundled tokenizer."""
    folder = small.saved(tmp_path_factory.mktemp("scorer"), "gpt2")
    for path in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(f"{location('bundled')}/{path}", folder)
    return folder


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    """Rows of text by the bundled tokenizer, and it."""
    tokenizer, folder = models.load_tokenizer(config()), tmp_path_factory.mktemp("texts") / "g"
    lines = ["the printer is out of paper", "nobody has a key", "a", "zzxqj 955320 my id is 31"]
    with GraphWriter(folder, len(tokenizer)) as writer:
        for number, text in enumerate(lines):
            ids = tokenizer(text, add_special_tokens=False)["input_ids"]
            writer.add(np.array([tokenizer.bos_token_id, *ids]), [f"u{number}"])
    return tokenizer, UnitGraph.open(folder)


def test_a_scorer_with_the_same_tokenizer_scores_as_the_base_model_would(scorer, texts):
    tokenizer, graph = texts
    found = scoring.perplexities(str(scorer), tokenizer, graph)
    made = config(model=str(scorer), data={"train": "x", "max_length": 32})
    model = models.load_model(made)
    task = CausalLM.of(model, tokenizer)
    expected = evaluation.perplexities(model, task, graph)
    np.testing.assert_allclose(found, expected, rtol=1e-4)


def test_ranks_score_the_rows_together(scorer, texts):
    tokenizer, graph = texts
    alone = scoring.perplexities(str(scorer), tokenizer, graph, micro_tokens=8)
    parts = []

    class Recorded(Ranks):
        def add_up(self, tensors):
            parts.append(tensors[0].numpy().copy())

    for number in range(3):
        scoring.perplexities(str(scorer), tokenizer, graph, micro_tokens=8, ranks=Recorded(number, 3))
    assert all(0 < np.count_nonzero(part) < graph.n_rows for part in parts)
    np.testing.assert_array_equal(sum(parts), alone)


def test_a_scorer_gives_the_vocabulary_and_tells_keys_apart(scorer, graph, tmp_path):
    mechanism = built({"scorer": str(scorer)})
    rho = _probabilities(mechanism, graph, np.full(ROWS, small.TOKENS**0.25))
    np.testing.assert_allclose(rho, 0.25)
    other = small.saved(tmp_path / "other", "gpt2", seed=1)
    assert built().key_binding(SHAPE) == b""
    assert mechanism.key_binding(SHAPE) != built({"scorer": str(other)}).key_binding(SHAPE)
    assert NonPrivate.twin(mechanism).scorer == str(scorer)


def test_a_scorer_that_is_none_is_refused_by_its_key(graph, texts):
    mechanism = built({"scorer": "/nowhere/model"})
    for act in (
        lambda: mechanism.key_binding(SHAPE),
        lambda: sampler(mechanism, graph),
        lambda: scoring.perplexities("/nowhere/model", *texts),
    ):
        with pytest.raises(InputError, match=r"adaptive\.scorer"):
            act()
