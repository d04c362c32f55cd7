"""Redacted rows, their number and boundaries tell nothing of a sensitive character; originals stay in their rows."""

import random

import numpy as np
import pytest
from tokenizers import AddedToken
from transformers import ByT5Tokenizer, PreTrainedTokenizerFast

from confide.sensitive.redaction.rows import Redactor
from confide.utils.errors import InputError
from tests.sensitive.redaction.test_masking import MARKERS, NAMES, filled, skeleton, tokenizer_of

SECRETS = [
    *("7", " ", "\n\n", "\x07", "\u0301", "é", "日本", "🦊🦊🦊", "Ann O'Hara", "x" * 90, "y z " * 40),
    *("<mask>", "[MASK]", "<|endoftext|>", "</s>", "<mask><mask>", " <mask> ", "<mas", "ask>", "▁", "##a"),
]


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory):
    found = {}

    def one(name):
        if name not in found:
            plain = name.removesuffix("-strip")
            found[name] = tokenizer_of(plain, tmp_path_factory.mktemp(name))
            if name != plain:  # as RoBERTa's, whose mask takes in the space before it
                found[name].add_special_tokens(
                    {"mask_token": AddedToken("<hidden>", lstrip=True, rstrip=True, special=True)}
                )
        return found[name]

    return one


def same(a, b) -> bool:
    return len(a) == len(b) and all(
        x.masked.tolist() == y.masked.tolist() and x.has_finding == y.has_finding
        for x, y in zip(a, b, strict=True)
    )


@pytest.mark.parametrize("task", ["causal-lm", "masked-lm"])
@pytest.mark.parametrize("name", [*NAMES, "gpt2-strip"])
def test_texts_that_differ_in_sensitive_characters_alone_have_equal_redacted_rows(name, task, tokenizers):
    """And a row without one is the same in both forms and in both texts."""
    tokenizer, generator = tokenizers(name), random.Random(11)
    compared = findings = 0
    for length, span in ((4, 1), (8, 3), (24, 2), (2, 3)):
        redactor = Redactor(tokenizer, task, length, span)
        parts = [skeleton(generator, 40) for _ in range(75)]
        pairs = [[filled(own, lambda: generator.choice(SECRETS)) for own in parts] for _ in range(2)]
        one, other = (redactor.many(*map(list, zip(*side, strict=True))) for side in pairs)
        for a, b in zip(one, other, strict=True):
            assert same(a, b)
            compared += len(a)
            for x, y in zip(a, b, strict=True):
                findings += x.has_finding
                for row in (x, y):
                    assert 1 <= len(row.tokens) <= length
                    assert 1 <= len(row.masked) <= length
                if not x.has_finding:
                    assert x.tokens.tolist() == y.tokens.tolist() == x.masked.tolist()
    assert compared > 250
    assert findings > 100


@pytest.mark.parametrize("name", NAMES)
def test_a_sensitive_character_moves_the_tokens_of_its_own_row_alone(name, tokenizers):
    redactor, generator = Redactor(tokenizers(name), "causal-lm", 8, 2), random.Random(5)
    moved = 0
    for _ in range(200):
        parts = skeleton(generator, 40)
        fill = [generator.choice(SECRETS) for part in parts if part is None]
        if not fill:
            continue
        changed = list(fill)
        changed[generator.randrange(len(fill))] = generator.choice(SECRETS)
        a, b = (redactor.rows(*filled(parts, iter(own).__next__)) for own in (fill, changed))
        assert same(a, b)
        differing = sum(x.tokens.tolist() != y.tokens.tolist() for x, y in zip(a, b, strict=True))
        assert differing <= 1
        moved += differing
    assert moved > 20


@pytest.mark.parametrize("task", ["causal-lm", "masked-lm", "classification"])
@pytest.mark.parametrize("name", [*NAMES, "gpt2-strip"])
def test_redacted_rows_hold_no_sensitive_character(name, task, tokenizers):
    tokenizer, generator = tokenizers(name), random.Random(2)
    redactor = Redactor(tokenizer, task, 16, 3)
    fill = lambda: "".join(generator.choices("qzQ鬱🦊", k=4))  # noqa: E731
    rows = [row for _ in range(300) for row in redactor.rows(*filled(skeleton(generator), fill))]
    text = {
        form: tokenizer.decode([i for row in rows for i in getattr(row, form)])
        for form in ("masked", "tokens")
    }
    assert not set(text["masked"]) & set(MARKERS)
    assert set(text["tokens"]) >= set("qz")


@pytest.mark.parametrize("name", ["bundled", "gpt2", "gpt2-strip"])
@pytest.mark.parametrize("span", [1, 3])
def test_the_originals_of_a_document_are_its_text(name, span, tokenizers):
    """Every character is in the row that its redacted form stands for, and in no other."""
    tokenizer, generator = tokenizers(name), random.Random(4)
    compared = 0
    for _ in range(500):
        text, places = filled(skeleton(generator, 40), lambda: generator.choice(SECRETS[:6]))
        rows = Redactor(tokenizer, "causal-lm", 32, span).rows(text, places)
        start, end = tokenizer.bos_token_id, tokenizer.eos_token_id
        ids = np.concatenate([row.tokens for row in rows]).tolist()
        alone = rows[-1].masked[-1] != end  # the separator had a row of its own, which predicts nothing
        if any(row.lost for row in rows) or alone or tokenizer.eos_token in text:
            continue
        assert ids[0] == rows[0].masked[0] == (start if start is not None else end)
        assert ids[-1] == end
        assert tokenizer.decode(ids[1:-1], clean_up_tokenization_spaces=False) == text
        compared += any(row.has_finding for row in rows) and len(rows) > 1
    assert compared > 30


@pytest.mark.parametrize("span", [1, 2, 5])
def test_a_mask_counts_as_many_tokens_where_rows_are_cut(span, tokenizers):
    tokenizer, length = tokenizers("bundled"), 12
    mask = tokenizer.mask_token_id
    text, places = filled(["my name is ", None, " and hers is ", None, ", "] * 20, lambda: "Zoë")
    rows = Redactor(tokenizer, "causal-lm", length, span).rows(text, places)
    weights = [len(row.masked) + (span - 1) * (row.masked == mask).sum() for row in rows]
    assert max(weights) <= length
    assert sum((row.masked == mask).sum() for row in rows) == 40
    assert {len(row.masked) for row in rows} - {length} if span > 1 else max(weights) == length
    assert all(row.has_finding == bool((row.masked == mask).any()) for row in rows)


def test_a_mask_larger_than_a_row_has_one_of_its_own(tokenizers):
    """Which predicts nothing, by itself, and is left out."""
    tokenizer = tokenizers("bundled")
    rows = Redactor(tokenizer, "causal-lm", 4, 9).rows("aXYZb", [(1, 4)])
    a, b = (tokenizer(letter)["input_ids"] for letter in "ab")
    assert [row.masked.tolist() for row in rows] == [
        [tokenizer.bos_token_id, *a],
        [*b, tokenizer.eos_token_id],
    ]
    assert not any(row.has_finding for row in rows)


def test_mask_text_of_the_document_itself_is_no_finding(tokenizers):
    tokenizer = tokenizers("bundled")
    redactor = Redactor(tokenizer, "causal-lm", 32, 3)
    (row,) = redactor.rows("it says <mask> here", [])
    assert (row.masked == tokenizer.mask_token_id).sum() == 1
    assert not row.has_finding
    (row,) = redactor.rows("it says <mask>X here", [(14, 15)])
    assert (row.masked == tokenizer.mask_token_id).sum() == 2
    assert row.has_finding
    assert (row.tokens == tokenizer.mask_token_id).sum() == 1


def test_what_has_no_room_is_cut_off_and_counted(tokenizers):
    tokenizer = tokenizers("bundled")
    secret = "9" * 50
    (row,) = Redactor(tokenizer, "causal-lm", 16, 3).rows(f"a {secret} b", [(2, 52)])
    whole = [tokenizer.bos_token_id, *tokenizer(f"a {secret} b")["input_ids"], tokenizer.eos_token_id]
    assert row.tokens.tolist() == whole[:16]
    assert row.lost == len(whole) - 16
    (row,) = Redactor(tokenizer, "masked-lm", 16, 3).rows(f"a {secret} b", [(2, 52)])
    assert (len(row.tokens), row.lost) == (16, len(whole) - 2 - 16)


def test_one_row_a_document_keeps_the_tokenizers_own_ends(tokenizers):
    tokenizer = tokenizers("bert")
    redactor = Redactor(tokenizer, "masked-lm", 8, 3)
    text = "ann " + "went to town and back " * 3
    (row,) = redactor.rows(text, [(0, 3)])
    for form in (row.tokens, row.masked):
        assert (form[0], form[-1], len(form)) == (tokenizer.cls_token_id, tokenizer.sep_token_id, 8)
    assert row.tokens.tolist() == tokenizer(text, truncation=True, max_length=8)["input_ids"]
    assert row.masked[1] == tokenizer.mask_token_id
    (row,) = redactor.rows(text, [(40, 44)])  # beyond what is kept
    assert not row.has_finding
    assert row.tokens.tolist() == row.masked.tolist()


def test_an_original_that_the_tokenizer_drops_is_still_a_row(tokenizers):
    """Had it no row, its number of rows would tell of it."""
    tokenizer = tokenizers("bert")
    redactor = Redactor(tokenizer, "causal-lm", 2, 1)
    secrets = ["\x07", "Ann"]
    found = [redactor.rows(f"{s}\u200b{s}", [(0, len(s)), (len(s) + 1, 2 * len(s) + 1)]) for s in secrets]
    assert same(*found)
    assert [len(rows) for rows in found] == [1, 1]
    assert found[0][0].tokens.tolist() == [tokenizer.mask_token_id]


def test_a_document_without_findings_is_cut_as_ever(tokenizers):
    tokenizer = tokenizers("bundled")
    text = "the printer on floor three is out of paper again " * 5
    ids = [tokenizer.bos_token_id, *tokenizer(text)["input_ids"], tokenizer.eos_token_id]
    rows = Redactor(tokenizer, "causal-lm", 16, 3).rows(text, [])
    assert [row.masked.tolist() for row in rows] == [ids[i : i + 16] for i in range(0, len(ids), 16)]


def test_several_documents_at_once_are_as_one_by_one(tokenizers):
    generator = random.Random(8)
    redactor = Redactor(tokenizers("bundled"), "causal-lm", 12, 2)
    texts, places = zip(*(filled(skeleton(generator, 30), lambda: "Zoë K.") for _ in range(50)), strict=True)
    together = redactor.many(texts, places)
    for text, own, rows in zip(texts, places, together, strict=True):
        alone = redactor.rows(text, own)
        assert [(a.tokens.tolist(), a.masked.tolist(), a.has_finding, a.lost) for a in alone] == [
            (b.tokens.tolist(), b.masked.tolist(), b.has_finding, b.lost) for b in rows
        ]
    assert redactor.many([], []) == []


def test_a_slow_tokenizer_and_one_without_a_mask_are_refused(tokenizers):
    with pytest.raises(InputError, match="is a slow one"):
        Redactor(ByT5Tokenizer(), "causal-lm", 16, 3)
    plain = PreTrainedTokenizerFast(tokenizer_object=tokenizers("bundled").backend_tokenizer)
    with pytest.raises(InputError, match="no mask token"):
        Redactor(plain, "causal-lm", 16, 3)


def test_a_tokenizer_that_takes_the_mask_apart_is_refused(tokenizers, tmp_path):
    tokenizer = tokenizer_of("bundled", tmp_path)
    tokenizer.add_special_tokens({"mask_token": AddedToken("<hide>", single_word=True, special=True)})
    redactor = Redactor(tokenizer, "causal-lm", 16, 3)
    assert redactor.rows("it was Ann !", [(7, 10)])
    with pytest.raises(InputError, match="takes the text of a mask, such as '<hide>', apart"):
        redactor.rows("it wasAnnx", [(6, 9)])


@pytest.mark.parametrize("task", ["causal-lm", "masked-lm", "classification"])
def test_a_long_document_in_pieces_has_the_rows_of_the_whole(task, tokenizers):
    """Its redacted text and a sensitive place are both longer than a piece."""
    generator, seen = random.Random(9), 0
    tokenizer = tokenizers("bundled")
    words = lambda n: " ".join(generator.choices(["the", "meeting", "was", "moved", "Zoë"], k=n))  # noqa: E731
    for length in (8, 64):
        for span in (1, 3):
            parts = [words(2), None, words(700), None, words(600)]
            text, places = filled(parts, iter([words(400), "Anna"]).__next__)
            whole = Redactor(tokenizer, task, length, span).rows(text, places)
            pieces = Redactor(tokenizer, task, length, span, piece=1000).rows(text, places)
            assert same(whole, pieces)
            for a, b in zip(whole, pieces, strict=True):
                assert (a.tokens.tolist(), a.lost) == (b.tokens.tolist(), b.lost)
                seen += a.lost > 0
    assert seen
