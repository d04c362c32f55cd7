"""Ids by fastokens are those of the tokenizer, and it is left alone where they are not."""

import hashlib
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

from confide.data import token_ids
from confide.data.token_ids import TokenIds
from confide.models.names import location
from tests.data.test_pieces import BITS, KINDS, text_of, trained

TEXTS = ["It's a test.", "", "naïve 東京 12,345\n\n  x", *(text_of(40, seed) for seed in range(80))]


@pytest.fixture(autouse=True)
def _nothing_tried(monkeypatch):
    monkeypatch.setattr(token_ids, "_TRIED", {})


def bundled():
    return AutoTokenizer.from_pretrained(location("bundled"))


def own(tokenizer, texts):
    return list(tokenizer(list(texts), add_special_tokens=False)["input_ids"])


def same(found, wanted):
    return len(found) == len(wanted) and all(map(np.array_equal, found, wanted))


class Spoilt:
    """Stands for fastokens, and answers wrongly about texts with a mark in them."""

    def __init__(self, tokenizer, mark):
        self._tokenizer, self._mark, self.asked = tokenizer, mark, []

    def __call__(self, texts):
        self.asked += texts
        return [
            np.asarray([*ids, 7] if self._mark in text else ids)
            for text, ids in zip(texts, own(self._tokenizer, texts) if texts else [], strict=True)
        ]


@pytest.mark.parametrize("kind", KINDS)
def test_the_ids_are_those_of_the_tokenizer(kind):
    tokenizer = bundled() if kind == "bundled" else trained(kind)
    assert same(TokenIds(tokenizer)(TEXTS), own(tokenizer, TEXTS))


def test_fastokens_does_the_work_for_the_bundled_tokenizer():
    assert TokenIds(bundled()).is_quick


ALPHABET = st.text() | st.sampled_from([*BITS, "\u00a0", "\u2028", "ſ", "İ", "²", "\r\n"])


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(ALPHABET, max_size=30).map("".join), max_size=5))
def test_any_text_has_the_same_ids(texts):
    texts = [text.encode("utf-8", "replace").decode() for text in texts]
    assert same(IDS(texts), own(IDS._tokenizer, texts) if texts else [])


IDS = TokenIds(bundled())


def test_truncation_of_an_earlier_call_has_no_effect():
    tokenizer = bundled()
    tokenizer("many words of a text", truncation=True, max_length=2)
    assert same(TokenIds(tokenizer)(TEXTS), own(bundled(), TEXTS))


def test_texts_with_special_tokens_are_left_to_the_tokenizer(monkeypatch):
    tokenizer = bundled()
    special = tokenizer.eos_token
    fake = Spoilt(tokenizer, special)
    monkeypatch.setattr(token_ids, "_reader", lambda plain: fake)
    texts = ["plain", f"a {special} b", "plain too"]
    assert same(TokenIds(tokenizer)(texts), own(tokenizer, texts))
    assert "plain too" in fake.asked
    assert not any(special in text for text in fake.asked)


@pytest.mark.parametrize("mark", ["o'clock", "é"])
def test_another_answer_to_the_probe_ends_its_use(monkeypatch, mark):
    tokenizer = bundled()
    monkeypatch.setattr(token_ids, "_reader", lambda plain: Spoilt(tokenizer, mark))
    ids = TokenIds(tokenizer)
    assert not ids.is_quick
    assert same(ids(TEXTS), own(tokenizer, TEXTS))


def test_all_processes_try_the_same_texts():
    digest = hashlib.sha256("\0".join(token_ids._probe()).encode()).hexdigest()
    assert digest.startswith("786208eadd55bfd1")


def test_it_works_without_fastokens(monkeypatch):
    monkeypatch.setitem(sys.modules, "fastokens", None)
    ids = TokenIds(bundled())
    assert not ids.is_quick
    assert same(ids(TEXTS), own(bundled(), TEXTS))
