"""Windows lose nothing: a recogniser finds in windows what it finds in whole texts, random and real."""

import json
import math
import random
import re
import time

import pytest

from confide.sensitive.detectors import Recognisers, Span
from confide.sensitive.detectors.patterns import _OWN, _UPPER, _least_digits, _silent
from confide.sensitive.detectors.windows import Windows, search

pytest.importorskip("presidio_analyzer", reason="Presidio is not installed")

# What each recogniser's matches and their surroundings are made of.
_ANY = (
    " ",
    " ",
    "\n",
    "\t",
    "a",
    "é",
    "ſ",
    "K",
    "٣",
    "_",
    ".",
    "-",
    ",",
    "word ",
    "10",
    "7",
    "(",
    ")",
    '"',
    "'",
    "中",
)
PARTS = {
    "EMAIL_ADDRESS": ("@", "@", "ann", ".", "..", "-", "--", "@b.co", "x@y.z", "!#", "+", "é", "@x", "@1.2", "_"),
    "PHONE_NUMBER": (
        "+", "+49 ", "0", "30", "123", "4567", "212-555-5555", "-", "/", " ext ", "x", "#", ";ext=", ":30", "(0)",
        "[", "2001-12-13 07", "12/13/2000", "\u2011", "\u00a0", "~", "$", "é", "（", "extensión", "2025550123", "16412",
    ),
    "CREDIT_CARD": ("4", "4012", "8888", "1881", "4012888888881881", "5555555555554444", " ", "-", "3", "1", "٤"),
    "IBAN_CODE": (
        "DE89 3704 0044 0532 0130 00", "gb82west12345698765432", "DE", "89", "3704", "ab12", "CH93", " ", "-", "0", "ß",
    ),
    "US_SSN": ("536", "90", "4399", "536-90-4399", "536904399", "-", ".", " ", "000", "1", "x", "12345-6789", "٣"),
    "IP_ADDRESS": (
        "10.0.0.1", "::", ":", "::1", "fe80::1", "ffff", "2001:db8", ".", "/24", "%eth0", "1", "255", "0", "::ffff:",
        "1:2:3:4:5:6:7:8", "g", "%", "ſ",
    ),
    "MAC_ADDRESS": ("00:1A:2B:3C:4D:5E", "00-1a-2b-3c-4d-5e", "0012.3456.789A", "00", ":", "-", ".", "aB", "0", "g"),
    "CRYPTO": (
        "1BvBMSEYstWetqTFn5Au4m4GFg7xJaNVN2", "bc1qw508d6qejxtdg4y5r3zarvary0c5xw7kv8f3t4", "1", "3", "bc1", "B" * 25,
        "x" * 40, "ſ", "İ", "ı", "l", "-",
    ),
    "URL": (
        "http://", "https://", "www.", "www9.", "example", ".com", ".co", ".community", ".", "-", "/a/b", "/", "?q=1",
        '"', "'", "x" * 130, "a.de", ".ſh", "://", "e.g.", "end.It", "İ",
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def everything():
    return Recognisers("all")


def random_texts(kind, count):
    chance = random.Random(kind)
    parts = PARTS[kind]
    for _ in range(count):
        chosen = parts if chance.random() < 0.5 else parts + _ANY
        yield "".join(chance.choices(chosen, k=chance.randint(1, 40)))


def whole(recognisers, kind, texts):
    """What Presidio finds, and our own expression, each in whole texts."""
    found = []
    recogniser = recognisers._recognisers[kind]
    with _silent("key"):
        for text in texts:
            read = text.translate(_UPPER) if kind == "IBAN_CODE" else text
            spans = {(result.start, result.end) for result in recogniser.analyze(read, [kind], None)}
            found.append(spans | (set(_OWN[kind][0](text)) if kind in _OWN else set()))
    return found


def windowed(recognisers, kind, texts):
    found = [set() for _ in texts]
    with _silent("key"):
        for name, windows, find in recognisers._searches:
            if name == kind:
                for number, start, end in search(texts, windows, find):
                    found[number].add((start, end))
    return found


def characters(spans):
    return {place for start, end in spans for place in range(start, end)}


def real_texts(shared):
    rows = json.loads((shared / "data/presidio-research/synth_dataset_v2.json").read_text(encoding="utf-8"))
    return [row["full_text"] for row in rows]


@pytest.mark.parametrize("kind", PARTS)
@pytest.mark.parametrize("source", ["random", "real"])
def test_windows_lose_nothing_and_add_nothing(everything, shared, kind, source):
    count = 400 if kind == "PHONE_NUMBER" else 2000  # Presidio alone takes a millisecond a number
    texts = list(random_texts(kind, count)) if source == "random" else real_texts(shared)[: count // 2]
    found, expected = windowed(everything, kind, texts), whole(everything, kind, texts)
    if source == "random":
        assert sum(map(bool, expected)) > count / 20
    for text, ours, theirs in zip(texts, found, expected, strict=True):
        if kind == "PHONE_NUMBER":  # Presidio is not asked for what ours covers
            assert characters(ours) == characters(theirs), text
            assert ours <= theirs, text
        else:
            assert ours == theirs, text


def test_the_windows_are_few(everything, shared):
    """Else nothing is gained: in ordinary text a tenth of the characters is searched, in windows of all kinds."""
    text = "\n".join(real_texts(shared))
    size = sum(end - start for _, windows, _ in everything._searches for start, end in windows(text))
    assert size < 0.7 * len(text)


def test_windows_show_a_character_on_either_side_and_do_not_overlap():
    windows = Windows("b", "[abc]")
    assert list(windows("xxabcxxacxbb")) == [(1, 6), (9, 12)]
    assert list(windows("bxb")) == [(0, 2), (1, 3)]
    assert list(Windows("b", "[^x]")("xabx")) == [(0, 4)]
    found = search(["xabx", "", "ab b"], windows, lambda text: (m.span() for m in re.finditer("b", text)))
    assert sorted(found) == [(0, 2, 3), (2, 1, 2), (2, 3, 4)]


def test_a_country_has_numbers_as_short_as_any_with_its_code():
    assert _least_digits("DE") == 4
    assert _least_digits("US") == _least_digits("CA") <= 10


@pytest.mark.parametrize(
    ("name", "unit"),
    [
        ("letters", "a"),
        ("digits", "1"),
        ("spaced digits", "1 "),
        ("dotted", "a."),
        ("hosts", "aa.co."),
        ("at", "a.@"),
        ("mails", "a@b.co"),
        ("colons", "::"),
        ("hex", "0a:"),
        ("hyphens", "-"),
        ("dates", "12/13/2000 "),
        ("slashes", "//"),
        ("schemes", "://a"),
        ("tokens", "eyJ"),
        ("begins", "BEGIN PRIVATE KEY\n"),
        ("quotes", "'"),
        ("brackets", "(1)"),
        ("keys", "key=AKIA"),
        ("authTokens", "//:_authToken="),
    ],
)
def test_no_text_takes_quadratic_time(everything, name, unit):
    everything.find([unit])

    def takes(size: int) -> float:
        text = unit * (size // len(unit))
        began = time.process_time()
        everything.find([text])
        return time.process_time() - began

    def grows(size: int) -> tuple[float, float]:
        small = large = math.inf
        for _ in range(4):  # side by side, as another's work on the same core slows both
            small, large = min(small, takes(size)), min(large, takes(4 * size))
            if large < max(0.5, 8 * small):
                break
        return small, large

    size = 15_000 if takes(3_000) < 0.2 else 3_000
    small, large = grows(size)
    if large >= max(0.5, 8 * small):  # within a window the time may grow so, but not over several windows
        small, large = grows(4 * size)
    assert large < max(0.5, 8 * small), (name, small, large)


def test_joined_texts_are_found_apart(everything, shared):
    texts = [
        *real_texts(shared)[:300],
        "",
        "\n",
        *(text for kind in PARTS for text in random_texts(kind, 60)),
        "10.0.0.1",
    ]
    assert everything.find(texts) == [everything.find([text])[0] for text in texts]


def test_spans_are_where_they_are_in_any_batch(everything):
    texts = ["mail ann@example.org", "", "from 10.0.0.1 or\n10.0.0.2", "card 4012 8888 8888 1881."]
    together = everything.find(texts)
    assert together == [everything.find([text])[0] for text in texts]
    assert Span(5, 20, "EMAIL_ADDRESS") in together[0]
    assert Span(17, 25, "IP_ADDRESS") in together[2]
