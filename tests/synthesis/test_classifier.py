"""The quick classifier of texts, on labels that words decide and on labels that nothing does."""

import numpy as np
import pytest

from confide.synthesis.classifier import features, predictions, rarity, weighed


def drawn(seed: int, count: int) -> tuple[list[str], list[str]]:
    generator = np.random.default_rng(seed)
    common = [f"word{number}" for number in range(50)]
    own = {"mail": ["stamp", "letter"], "phone": ["ring", "call"], "web": ["page", "click"]}
    labels = generator.choice(list(own), count).tolist()
    texts = [
        " ".join([*generator.choice(common, 12), generator.choice(own[label]), *generator.choice(common, 6)])
        for label in labels
    ]
    return texts, labels


def test_words_that_decide_are_learnt_and_chance_is_not():
    texts, labels = drawn(1, 150)
    asked, right = drawn(2, 200)
    found = predictions(texts, labels, asked)
    assert np.mean(np.array(found) == right) > 0.85
    assert found == predictions(texts, labels, asked)
    shuffled = np.random.default_rng(4).permutation(labels).tolist()
    assert np.mean(np.array(predictions(texts, shuffled, asked)) == right) < 0.55


def test_rare_words_weigh_more_and_rows_have_length_one():
    found = features(["one two", "one three", "one", ""])
    heavy = weighed(found, rarity(found))
    norms = np.sqrt(np.asarray(heavy.multiply(heavy).sum(axis=1)).ravel())
    assert norms == pytest.approx([1, 1, 1, 0])
    assert rarity(found)[found[[0]].indices].max() > rarity(found)[found[[2]].indices].max()


def test_one_label_needs_no_training_and_no_text_is_refused():
    assert predictions(["a"], ["x"], ["b", "c"]) == ["x", "x"]
    with pytest.raises(ValueError, match="nothing"):
        predictions([], [], ["a"])
