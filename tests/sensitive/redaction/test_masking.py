"""Sensitive characters to masks and back, and the tokens that tell of them, by three real tokenizers and two more."""

import random

import numpy as np
import pytest
from tokenizers import AddedToken
from transformers import AutoTokenizer, BertTokenizerFast, GPT2TokenizerFast

from confide.models.names import location
from confide.sensitive.detectors.spans import Span
from confide.sensitive.redaction.masking import covered, masked, merged, outside
from tests.models.test_loading import llama_tokenizer
from tests.places import SHARED
from tests.test_tagged_rows import unigram

NAMES = ("gpt2", "bert", "llama", "bundled", "unigram")
# Sensitive characters, and what any tokenizer may make of them, stand nowhere else.
MARKERS = "qzQŹ7³ΩжЖ鬱🦊ｑ"
TOLD = set("qz73ωжΩЖ鬱🦊Q")
PIECES = (
    "the printer on floor five is out of paper Ärger naïve İstanbul e\u0301a n\u0303 a\u0301\u0323".split(),
    "日本語 한국어 漢字 ภาษา नमस्ते".split(),
    ["😀", "👩‍👩‍👧", "🎉", "ﬁ", "①", "…", "’", "´", "\u00ad", "\u200b", "\ufeff"],
    ["\x07", "\x1b", "\x01", "\u2028", "\x7f"],
    list(".,;:!?()[]{}<>|#@_-"),
    ["<mask>", "[MASK]", "<|endoftext|>", "</s>", "[SEP]"],
)


def tokenizer_of(name: str, folder) -> object:
    """A real tokenizer with a mask token; skipped where the shared ones are not there."""
    if name in ("gpt2", "bert", "llama") and not (SHARED / "models/tokenizers").is_dir():
        pytest.skip("../shared/models is not there: the tokenizers of GPT-2, BERT and Llama are left out")
    place = SHARED / "models/tokenizers"
    if name == "bert":
        return BertTokenizerFast(vocab=str(place / "bert-base-uncased/vocab.txt"))
    if name == "unigram":
        return unigram()
    if name == "gpt2":
        made = GPT2TokenizerFast(
            vocab=str(place / "gpt2/vocab.json"), merges=str(place / "gpt2/merges.txt"), trim_offsets=True
        )
    elif name == "llama":
        made = AutoTokenizer.from_pretrained(llama_tokenizer(SHARED, folder / "llama"))
    else:
        return AutoTokenizer.from_pretrained(location("bundled"))
    made.add_special_tokens({"mask_token": AddedToken("<mask>", normalized=False, special=True)})
    return made


def skeleton(generator: random.Random, pieces: int = 12) -> list[str | None]:
    """Ordinary text in parts; None where something sensitive is to stand, never two side by side."""
    parts: list[str | None] = []
    for _ in range(generator.randint(1, pieces)):
        if generator.random() < 0.25 and (not parts or parts[-1] is not None):
            parts.append(None)
        else:
            parts.append(generator.choice(generator.choice(PIECES)))
            parts.append(generator.choice([" ", " ", " ", "", "  ", "\n", "\t", "\u00a0"]))
            parts = [part for part in parts if part != ""]
    return parts


def filled(parts, fill) -> tuple[str, list[tuple[int, int]]]:
    """The text with `fill()` where parts are None, and where it stands."""
    text, places = "", []
    for part in parts:
        own = fill() if part is None else part
        if part is None:
            places.append((len(text), len(text) + len(own)))
        text += own
    return text, places


def marked(generator: random.Random) -> tuple[str, list[tuple[int, int]]]:
    return filled(skeleton(generator), lambda: "".join(generator.choices(MARKERS, k=generator.randint(1, 8))))


def expected(offsets, places, length) -> list[bool]:
    """The tokens of every sensitive character: those that hold it, or else the nearest on both sides."""
    found = [False] * len(offsets)
    holding: list[list[int]] = [[] for _ in range(length)]
    for token, (start, stop) in enumerate(offsets):
        for place in range(start, stop):
            holding[place].append(token)
    for place in (place for start, end in places for place in range(start, end)):
        for token in holding[place]:
            found[token] = True
        if not holding[place]:
            before = max((t for p in range(place) for t in holding[p]), default=-1)
            after = min((t for p in range(place + 1, length) for t in holding[p]), default=len(offsets))
            for token in range(max(before, 0), min(after + 1, len(offsets))):
                found[token] = True
    return found


@pytest.mark.parametrize("name", NAMES)
def test_every_sensitive_character_is_inside_a_masked_token(name, tmp_path):
    """On 10,000 random documents; and no other token is one but a neighbour of a character that was dropped."""
    tokenizer, generator = tokenizer_of(name, tmp_path), random.Random(7)
    documents = [marked(generator) for _ in range(10_000)]
    encoded = tokenizer(
        [text for text, _ in documents], add_special_tokens=False, return_offsets_mapping=True
    )
    sensitive, shown = 0, []
    for (text, places), offsets, ids in zip(
        documents, encoded["offset_mapping"], encoded["input_ids"], strict=True
    ):
        found = covered(text, offsets, places)
        assert found.tolist() == expected(offsets, places, len(text)), (text, places, offsets)
        sensitive += sum(found)
        shown += [i for i, hidden in zip(ids, found, strict=True) if not hidden]
    assert sensitive > 10_000
    left = set(tokenizer.decode(shown, clean_up_tokenization_spaces=False))
    assert not left & TOLD
    assert left >= set("floor")


def test_without_the_masks_the_markers_are_seen(tmp_path):
    """The search above can fail."""
    tokenizer, generator = tokenizer_of("bundled", tmp_path), random.Random(7)
    text = " ".join(marked(generator)[0] for _ in range(500))
    assert set(tokenizer.decode(tokenizer(text)["input_ids"])) >= TOLD - {"3", "ω"}


@pytest.mark.parametrize(
    ("offsets", "places", "found"),
    [
        ([(0, 2), (3, 5)], [(0, 1)], [True, False]),
        ([(0, 2), (3, 5)], [(2, 3)], [True, True]),  # a space that no token holds
        ([(0, 2), (3, 5)], [(1, 3)], [True, True]),
        ([(0, 1), (0, 1), (1, 5)], [(0, 1)], [True, True, False]),  # bytes of one character
        ([(0, 0), (0, 5), (0, 0)], [(0, 5)], [False, True, False]),  # a row's first and last token
        ([(0, 0), (1, 5), (0, 0)], [(0, 1)], [True, True, False]),
        ([(0, 2), (3, 3), (4, 5)], [(2, 4)], [True, True, True]),  # a token whose space was trimmed off
        ([(0, 2), (2, 5)], [], [False, False]),
        ([(0, 2), (2, 5)], [(2, 3), (4, 5)], [False, True]),
        ([], [(0, 5)], []),
        ([(0, 0)], [(3, 5)], [True]),  # all was dropped
        ([(0, 3)], [(4, 5)], [True]),
    ],
)
def test_covered(offsets, places, found):
    assert covered("abcde", offsets, places).tolist() == found


@pytest.mark.parametrize(
    ("spans", "places"),
    [
        ([], []),
        ([(3, 5), (0, 2)], [(0, 2), (3, 5)]),
        ([(0, 2), (2, 4)], [(0, 4)]),
        ([(0, 9), (2, 4), (8, 10)], [(0, 10)]),
        ([(0, 2), (0, 2)], [(0, 2)]),
        ([(4, 4), (5, 6)], [(5, 6)]),
    ],
)
def test_spans_that_overlap_or_touch_are_one_place(spans, places):
    assert merged(Span(start, end, "X") for start, end in spans) == places


def test_parts_of_spans_outside_places_are_their_characters_less_those():
    generator = random.Random(5)
    for _ in range(2000):
        spans = [Span(a, a + generator.randint(1, 9), "XY"[a % 2]) for a in generator.sample(range(40), 4)]
        places = merged(Span(a, a + generator.randint(1, 6), "") for a in generator.sample(range(40), 3))
        inside = {i for start, end in places for i in range(start, end)}
        for kind in "XY":
            whole = {i for span in spans if span.kind == kind for i in range(span.start, span.end)}
            found = [span for span in outside(spans, places) if span.kind == kind]
            assert {i for span in found for i in range(span.start, span.end)} == whole - inside
            assert all(span.start < span.end for span in found)


def test_a_redacted_text_leads_back_to_the_original():
    text = "call Ann at 555 now"
    redacted, origin = masked(text, [(5, 8), (12, 15)], ["<mask>", "<mask>"])
    assert redacted == "call <mask> at <mask> now"
    assert [redacted[start:end] for start, end in origin.masks] == ["<mask>", "<mask>"]
    assert {p: origin.of(p) for p in (0, 5, 11, 13, 15, 21, 25)} == {
        0: 0, 5: 5, 11: 8, 13: 10, 15: 12, 21: 15, 25: 19}  # fmt: skip
    for inside in (6, 10, 16, 20):
        with pytest.raises(ValueError, match="inside a mask"):
            origin.of(inside)


def test_what_lies_between_the_masks_is_the_original_text():
    generator = random.Random(3)
    for _ in range(2000):
        text, places = marked(generator)
        redacted, origin = masked(text, places, ["<mask>"] * len(places))
        bounds = [0, *np.ravel(origin.masks).tolist(), len(redacted)]
        for start, end in zip(bounds[::2], bounds[1::2], strict=True):
            assert redacted[start:end] == text[origin.of(start) : origin.of(end)]
        assert not set(redacted) & set(MARKERS)


@pytest.mark.parametrize("places", [[(2, 2)], [(0, 2), (2, 3)], [(3, 4), (0, 2)], [(0, 6)], [(-1, 2)]])
def test_places_that_are_none_are_refused(places):
    with pytest.raises(ValueError, match="merge places first"):
        masked("abcde", places, ["<mask>"] * len(places))
