"""The longest runs of words in common, against every pair of runs looked at one by one."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as some

from confide.synthesis.common_runs import Corpus

TEXTS = some.lists(some.lists(some.sampled_from("abc"), max_size=9).map(" ".join), max_size=6)


def runs_of(text: str) -> list[tuple[str, ...]]:
    words = text.split()
    return [
        tuple(words[first:last]) for first in range(len(words)) for last in range(first + 1, len(words) + 1)
    ]


def longest(text: str, others: list[str]) -> int:
    theirs = {run for other in others for run in runs_of(other)}
    return max((len(run) for run in runs_of(text) if run in theirs), default=0)


@given(TEXTS, TEXTS, some.sampled_from([1, 5, 1000]))
def test_every_text_gets_its_longest_run(corpus, others, block):
    found = Corpus(corpus).longest(iter(others), block)
    assert found.of_corpus.tolist() == [longest(text, others) for text in corpus]
    assert found.of_others.tolist() == [longest(text, corpus) for text in others]
    for text, words, at in zip(corpus, found.of_corpus, found.at, strict=True):
        run = tuple(text.split()[at : at + words])
        assert not words or any(run in runs_of(other) for other in others)


def test_a_long_run_among_many_words_is_found():
    generator = np.random.default_rng(1)
    words = [f"w{number}" for number in range(500)]
    texts = [" ".join(generator.choice(words, 200)) for _ in range(200)]
    copied = " ".join(texts[150].split()[20:90])
    found = Corpus(["nothing of that", f"and so {copied} it ended"]).longest(texts, block=3000)
    assert found.of_corpus.tolist() == [0, 70]
    assert found.at.tolist() == [0, 2]
    assert found.of_others.argmax() == 150


@pytest.mark.parametrize(("corpus", "others"), [([], ["a"]), (["a"], []), (["", "a"], [" "])])
def test_there_may_be_nothing_in_common(corpus, others):
    found = Corpus(corpus).longest(others)
    assert not found.of_corpus.any()
    assert len(found.of_corpus) == len(corpus)
    assert len(found.of_others) == len(others)
