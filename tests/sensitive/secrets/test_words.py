"""Every place where a listed word stands is found, whatever the case, accents and white space."""

import random
import re
import sys
import unicodedata

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from confide.data.readers.documents import Document
from confide.sensitive.secrets import folding, words
from confide.sensitive.secrets.words import Words
from confide.utils.errors import InputError

UNSPACED = "東京ก한"


def document(text, number=0):
    return Document(text, ("u",), None, f"line {number}", {}, number)


def listed(folder, *lines, name="list.txt"):
    path = folder / name
    path.write_text("\n".join(lines), encoding="utf-8")
    return Words(path)


def found(finder, *texts):
    mentions = finder.find([document(text, number) for number, text in enumerate(texts)])
    return [[(m.secret, m.start, m.end) for m in own] for own in mentions]


@pytest.mark.parametrize(
    ("word", "text", "spans"),
    [
        ("falcon", "Falcon, FALCON's “falcon” falcons gyrfalcon falcon_1", [(0, 6), (8, 14), (18, 24)]),
        ("a", "a-a (a) aa", [(0, 1), (2, 3), (5, 6)]),
        ("Project X", "project  x\nProject\n\tX projectx project-x", [(0, 10), (11, 21)]),
        ("a a", "a a a", [(0, 3), (2, 5)]),
        ("O'Brien", "o’brien O‘BRIEN o'brien", [(0, 7), (8, 15), (16, 23)]),
        ("Jean-Luc", "jean‑luc JEAN‐LUC", [(0, 8), (9, 17)]),
        ("C++", "C++17, c++, abc++", [(0, 3), (7, 10)]),
        (".env", "a.env .envy .env", [(1, 5), (12, 16)]),
        ("café", "CAFÉ cafe\u0301 cafe cafés cafe\u0301s", [(0, 4), (5, 10)]),
        ("cafe\u0301", "xx café", [(3, 7)]),
        ("cafe", "cafe\u0301 café cafe", [(11, 15)]),
        ("ǰa", "J\u030ca ǰA", [(0, 3), (4, 6)]),
        ("İstanbul", "i̇stanbul I\u0307STANBUL İSTANBUL istanbul", [(0, 9), (10, 19), (20, 28), (29, 37)]),
        ("ΟΔΟΣ", "οδος ΟΔΟΣ οδοσ", [(0, 4), (5, 9), (10, 14)]),
        ("東京", "これは東京都です", [(3, 5)]),
        ("한국", "한국에서 \u1112\u1161\u11ab\u1100\u116e\u11a8", [(0, 2), (5, 11)]),
        ("हिन्दी", "यह हिन्दी है", [(3, 9)]),
        (
            "apollo",
            "apol\u00adlo apol\u200blo apol\x01lo Ａpollo x\u200bapollo",
            [(0, 7), (8, 15), (16, 23), (24, 30), (33, 39)],
        ),
        ("fish", "ﬁsh ﬁshy", [(0, 3)]),
        ("O'Brien", "OʼBrien", [(0, 7)]),
        ("hermes", "Hermes™ hermes² Hermes\u00a0x", [(0, 6), (16, 22)]),
        ("$$ 😀", "$$$ 😀 $$\u2003😀!", [(1, 5), (6, 10)]),
        ("# 1", "# 1 #1", []),  # a comment: see the list below
        ("a" * 40, "A" * 40 + " " + "a" * 39, [(0, 40)]),
        ("x", "\ud800x x\0x", [(1, 2), (3, 4), (5, 6)]),
    ],
)
def test_mentions(tmp_path, word, text, spans):
    finder = listed(tmp_path, "never", word)
    assert found(finder, text) == [[("words:2", *span) for span in spans]]
    # The neighbours in a block, and a text that is not ASCII among them, change nothing.
    assert found(finder, "é " + word[:1], text, word[-1:])[1] == [("words:2", *span) for span in spans]


def test_overlapping_and_equal_entries_all_count_in_order(tmp_path):
    finder = listed(tmp_path, "new york", "York City", "", "# note", "city", "NEW  YORK")
    assert finder.ids == ("words:1", "words:2", "words:5", "words:6")
    assert found(finder, "in new york city", "York\n city") == [
        [("words:1", 3, 11), ("words:6", 3, 11), ("words:2", 7, 16), ("words:5", 12, 16)],
        [("words:2", 0, 10), ("words:5", 6, 10)],
    ]


def test_no_phrase_reaches_into_the_next_document(tmp_path):
    assert found(listed(tmp_path, "new york", "newyork"), "new", "york", "", "new york") == [
        [], [], [], [("words:1", 0, 8)],
    ]  # fmt: skip


def test_a_table_names_its_own_ids_and_spellings_share_one(tmp_path):
    text = [
        "\ufeffword,id,prior",
        "falcon,bird:1,1e-6",
        '"peregrine, the",bird:1,',
        "hawk,,",
        "",
        "kite,bird:2,",
    ]
    finder = listed(tmp_path, *text, name="list.csv")
    assert finder.ids == ("bird:1", "words:4", "bird:2")
    assert found(finder, "a falcon, Peregrine,  the hawk") == [
        [("bird:1", 2, 8), ("bird:1", 10, 25), ("words:4", 26, 30)]
    ]


ALPHABET = "aAbBİiIΣςσßçÇЖж_1٣²'’‘ʼ-‐. ,\t\n\u00a0\u2003😀𝒜Ⅷﬁfi２\u00ad\u200b\x01" + UNSPACED
MARKS = "aeiAEIΣ \u0301\u0316\u0307\u0327İçé\u1100\u1161\u11a8\u212b\u0345_."


def slow_form(text):
    lower = "".join("i" if c == "İ" else c.lower() for c in text)
    for same in ("ςσ", "’'", "‘'", "ʼ'", "‐-", "‑-"):
        lower = lower.replace(*same)
    return unicodedata.normalize("NFC", lower).replace("i\u0307", "i")


def slow_plain(text):
    """Without what nobody sees, compatible letters as plain ones; and the place of each character left."""
    pieces = []
    for character in text:
        piece = character
        if unicodedata.category(character) in ("Cc", "Cf") and not character.isspace():
            piece = ""
        elif re.match(r"\w", character) and character != "_":
            compatible = unicodedata.normalize("NFKC", character)
            piece = character if compatible == unicodedata.normalize("NFC", character) else compatible
        pieces.append(piece)
    return "".join(pieces), [place for place, piece in enumerate(pieces) for _ in piece]


def slow_spans_of(text, word):
    """In the text as it stands, and in the plain one."""
    word = slow_plain(word)[0]
    plain, places = slow_plain(text)
    spans = {(places[start], places[end - 1] + 1) for start, end in slow_spans(plain, word)}
    return spans | set(slow_spans(text, word))


def slow_spans(text, word):
    """By the definition, on the composed text: try every place."""
    text, word = slow_form(text), " ".join(slow_form(word).split())
    inner = r"\s+".join(re.escape(part) for part in word.split(" "))
    inside = rf"(?:(?![{UNSPACED}\u1100-\u11ff\uac00-\ud7a3])\w)"
    left = rf"(?<!{inside})" if re.match(inside, word) else ""
    left = rf"(?<!\w)|(?<=[{UNSPACED}\u1100-\u11ff\uac00-\ud7a3])" if left else ""
    right = rf"(?!{inside})" if re.match(inside, word[-1]) else ""
    expression = re.compile(rf"(?:{left}){inner}{right}")
    matches = (expression.match(text, place) for place in range(len(text)))
    return [match.span() for match in matches if match]


def lines(alphabet):
    one = st.text(alphabet.replace("\n", ""), min_size=1, max_size=5)
    readable = one.filter(
        lambda w: (
            slow_form(slow_plain(w)[0]).strip()
            and w.strip()[0] != "#"
            and not unicodedata.combining(slow_form(w).strip()[0])
            and not "\u1160" < slow_form(w).strip()[0] < "\u1200"
        )
    )
    return st.lists(readable, min_size=1, max_size=6)


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_finds_what_a_slow_search_finds(tmp_path_factory, data):
    entries = data.draw(lines(ALPHABET))
    texts = data.draw(st.lists(st.text(ALPHABET, max_size=30), min_size=1, max_size=4))
    # Half of the texts hold something that is listed.
    texts += [f"{entries[0]}{' ' * n}{entries[-1].upper()}" for n in range(2)]
    finder = listed(tmp_path_factory.getbasetemp(), *entries)
    for own, text in zip(found(finder, *texts), texts, strict=True):
        slow = [
            (f"words:{n}", *span) for n, word in enumerate(entries, 1) for span in slow_spans_of(text, word)
        ]
        assert sorted(own) == sorted(slow)
        assert [m[1:] for m in own] == sorted(m[1:] for m in own)


@settings(max_examples=300, deadline=None)
@given(lines(MARKS), st.text(MARKS, max_size=30), st.sampled_from(["NFC", "NFD"]))
def test_composition_hides_no_mention(tmp_path_factory, entries, text, form):
    finder = listed(tmp_path_factory.getbasetemp(), *entries)
    text += " ".join(unicodedata.normalize(form, word) for word in entries)
    (own,) = found(finder, text)
    for number, word in enumerate(entries, 1):
        spans = [span for secret, *span in own if secret == f"words:{number}"]
        assert len(spans) == len(slow_spans(text, word))
        for start, end in spans:
            inner = " ".join(slow_form(text[start:end]).split())
            assert " ".join(slow_form(word).split()) in inner


def test_a_long_list_on_a_long_text(tmp_path, monkeypatch):
    generator = random.Random(0)
    letters = "abcdefghijklmnop"
    vocabulary = ["".join(generator.choices(letters, k=generator.randint(1, 20))) for _ in range(20_000)]
    secrets = generator.sample(vocabulary, 5_000)
    texts = [" ".join(generator.choices(vocabulary, k=generator.randint(0, 400))) for _ in range(100)]
    texts[7] += " é"  # its block is searched by code points
    texts[8] = " ".join(texts[:60])
    monkeypatch.setattr(folding, "PIECE", 4_000)
    monkeypatch.setattr(words, "PIECE", 10_000)
    number = {}
    for line, word in enumerate(secrets, 1):
        number.setdefault(word, []).append(f"words:{line}")
    expected = [
        [(secret, *m.span()) for m in re.finditer(r"\w+", text) for secret in number.get(m.group(), ())]
        for text in texts
    ]
    assert found(listed(tmp_path, *secrets), *texts) == expected


def test_folding_keeps_every_place_and_knows_word_characters():
    every = "".join(map(chr, range(sys.maxunicode + 1)))
    folded = folding.fold(every)
    assert len(folded) == len(every)
    lowered = [c.lower() for c in every]
    differ = {c for c, a, b in zip(every, folded, lowered, strict=True) if a != b}
    assert differ == set("İς‘’ʼ‐‑")
    codes = folding._tables().code
    assert [bool(code) for code in codes] == [bool(re.match(r"\w", c)) for c in every]
    assert folding.fold(folded) == folded
    # A character that is called stable is never changed, nor absorbed by what stands before it.
    stable = {c for c in folded if not folding._tables().unstable[ord(c)]}
    spaced = " ".join(stable)
    assert unicodedata.normalize("NFC", spaced) == spaced
    tails = {part for c in every for part in unicodedata.normalize("NFD", c)[1:]}
    assert not tails & stable
    assert not any(unicodedata.combining(c) for c in stable)


def test_equal_words_have_equal_keys_wherever_they_stand():
    texts = ["Word", "x word é", "wor\u0301d word."]
    keys = [dict(zip(split_words(t), t.keys.tolist(), strict=True)) for t in map(folding.split, texts)]
    assert len({key["word"] for key in keys}) == 1
    assert len(np.unique(folding.split("ab ba abc a b aabb " + "a" * 17 + " " + "a" * 18).keys)) == 8


def split_words(tokens):
    return [tokens.folded[a:b] for a, b in zip(tokens.starts, tokens.ends, strict=True)]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("list.txt", b"", "lists no word"),
        ("list.txt", b"# only a note\n\n", "lists no word"),
        ("list.txt", b"fine\nsecretword \xff\n", "line 2 is not UTF-8"),
        ("list.txt", b"fine\n\xcc\x81secretword\n", "line 2 holds no word"),
        ("list.txt", b"fine\nsecret\0word\n", "line 2 holds no word"),
        ("list.csv", b"secretword\nother\n", "no column 'word'"),
        ("list.csv", b"word,id\nfine,1\n,secretword\n", "line 3 holds no word"),
        ("list.csv", b"word,id\nSecretword,secretword\n", "line 2 has the word itself in its id"),
        ("list.csv", b"word,id\nsecretword,1,2\n", "line 2 has more cells"),
        ("list.csv", b'word,id\nfine,1\n"secretword,2\n', "line 3: not valid CSV"),
        ("list.csv", b"word,id,id\nsecretword,1,2\n", "two columns of one name"),
    ],
)
def test_bad_lists_are_refused_without_a_word_of_them(tmp_path, name, content, message):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(InputError, match=message) as caught:
        Words(path)
    assert "secrets.words" in str(caught.value)
    assert "ecretword" not in str(caught.value)
    with pytest.raises(InputError, match="No such file"):
        Words(tmp_path / "absent.txt")


def test_no_repr_shows_a_word(tmp_path):
    finder = listed(tmp_path, "falcon", "project falcon")
    entries = words.read_words(tmp_path / "list.txt")
    shown = repr((finder, entries, finder._long["project", "falcon"], found(finder, "project falcon")))
    assert "falcon" not in shown
