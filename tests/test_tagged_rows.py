"""Which rows list a secret: all whose tokens can tell of a character of it, and none far away.

The judge is the tokenizer itself: other characters are put in a mention's place, and every row whose tokens change
must list it. Only texts with the same boundaries of rows are compared: these are public.
"""

import json
import random
import string
import unicodedata
from itertools import pairwise

import numpy as np
import pytest
from tokenizers import Tokenizer, normalizers, pre_tokenizers
from tokenizers.models import Unigram
from tokenizers.trainers import UnigramTrainer
from transformers import (
    AutoTokenizer,
    BertTokenizerFast,
    ByT5Tokenizer,
    GPT2TokenizerFast,
    PreTrainedTokenizerFast,
)

from confide.config.loading import check
from confide.config.schema import Secrets
from confide.data.cutting import Cutter
from confide.data.readers import Document
from confide.data.spans import Mention
from confide.data.unit_graph import UnitGraph
from confide.models.names import location
from confide.runs import preparation
from confide.sensitive.secrets.finders import finders
from tests.models.test_loading import llama_tokenizer
from tests.places import SHARED

ALWAYS = ("bundled", "unigram")
SHARED_ONES = ("gpt2", "bert", "llama")
WORDS = "the printer on floor three is out of paper and nobody has a key internationalisation Zürich".split()
CHINESE, KOREAN, EMOJI = "日本語漢字", "한국어", "😀👩👧🎉"
LETTERS = (
    string.ascii_letters,
    string.digits,
    "éüñçÅÉßøİ",
    CHINESE + KOREAN,
    EMOJI + "\u200d",
    "e\u0301n\u0303i\u0308",
    "ﬁ①½…",
    ".,;:'’-!?#_",
    " \t\n  ",
)
PRINTABLE = string.ascii_lowercase + string.digits


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory):
    made = {"bundled": AutoTokenizer.from_pretrained(location("bundled")), "unigram": unigram()}
    if (SHARED / "models/tokenizers").is_dir():
        folder = SHARED / "models/tokenizers"
        gpt2 = {
            name: str(folder / "gpt2" / f"{name}.{end}")
            for name, end in (("vocab", "json"), ("merges", "txt"))
        }
        made["gpt2"] = GPT2TokenizerFast(**gpt2)
        made["bert"] = BertTokenizerFast(vocab=str(folder / "bert-base-uncased/vocab.txt"))
        place = llama_tokenizer(SHARED, tmp_path_factory.mktemp("llama") / "llama")
        made["llama"] = AutoTokenizer.from_pretrained(place)
    return made


def unigram() -> PreTrainedTokenizerFast:
    """As SentencePiece makes them for T5 and XLM-R: composed characters, spaces as parts of words."""
    generator = random.Random(0)
    tokenizer = Tokenizer(Unigram())
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    special = ["<pad>", "</s>", "<unk>", "<mask>"]
    trainer = UnigramTrainer(
        vocab_size=300, special_tokens=special, unk_token="<unk>", initial_alphabet=list(PRINTABLE)
    )
    tokenizer.train_from_iterator([document(generator) for _ in range(300)], trainer)
    names = {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>", "mask_token": "<mask>"}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names)


@pytest.fixture
def tokenizer(request, tokenizers):
    if request.param not in tokenizers:
        pytest.skip("../shared/models is not there: the tokenizers of GPT-2, BERT and Llama are left out")
    return tokenizers[request.param]


def document(generator: random.Random) -> str:
    parts = []
    for _ in range(generator.randint(4, 25)):
        kind = generator.random()
        if kind < 0.5:
            parts.append(generator.choice(WORDS))
        elif kind < 0.8:
            letters = [generator.choice(generator.choice(LETTERS)) for _ in range(generator.randint(1, 10))]
            parts.append("".join(letters))
        else:  # a long string without a break, as of a key or a path
            parts.append("".join(generator.choices(PRINTABLE, k=generator.randint(12, 40))))
        parts.append(generator.choice([" ", " ", " ", "  ", "\n", "\t", "\r\n\n", ""]))
    return "".join(parts) if "".join(parts).strip() else document(generator)


def cut(tokenizer, text: str, length: int, task: str = "causal-lm"):
    return Cutter(tokenizer, task == "causal-lm", length, places=True).rows([text])[0]


def boundaries(tokenizer, text: str, length: int, task: str = "causal-lm"):
    """Where rows end, by the tokenizer's own places: of the tokens on both sides of each cut, the characters that they
    stand for, and how many tokens of one character are left of it."""
    if task == "causal-lm":
        places = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
        if tokenizer.bos_token_id is not None or tokenizer.eos_token_id is not None:
            places = [(0, 0), *places]
    else:
        encoded = tokenizer(text, truncation=True, max_length=length, return_offsets_mapping=True)
        # without the tokenizer's own first and last
        places = [place for place in encoded["offset_mapping"] if place != (0, 0)]
    found = []
    for cut_at in [*range(length, len(places), length), len(places)]:
        alike = next((k for k in range(cut_at) if places[cut_at - 1 - k] != places[cut_at - 1]), cut_at)
        found.append((places[cut_at - 1], alike, places[cut_at] if cut_at < len(places) else None))
    return len(places), found


def listing(rows, start: int, end: int) -> set[int]:
    return {i for i, row in enumerate(rows) if row.secrets([Mention("word:1", start, end)])}


def telling(tokenizer, text, start, end, length, task, others) -> set[int]:
    """Rows whose tokens are others where one of `others` stands in [start, end), with boundaries as they were."""
    rows, found = cut(tokenizer, text, length, task), set()
    for other in others:
        changed = text[:start] + other + text[end:]
        if boundaries(tokenizer, changed, length, task) == boundaries(tokenizer, text, length, task):
            pairs = enumerate(zip(rows, cut(tokenizer, changed, length, task), strict=True))
            found |= {i for i, (a, b) in pairs if a.tokens.tolist() != b.tokens.tolist()}
    return found


def like(mention: str, generator: random.Random) -> str:
    """Other characters of the same kinds, so that words keep their bounds; some stay as they are."""
    keep = generator.choice([0, 0, 0.5])
    return "".join(c if generator.random() < keep else generator.choice(kind(c)) for c in mention)


def kind(character: str) -> str:
    for letters in (CHINESE, KOREAN, EMOJI):
        if character in letters:
            return letters
    if unicodedata.combining(character):
        return "\u0301\u0303"
    return PRINTABLE if character.isalnum() else ".,;:!?" if character.isprintable() else "\t\n"


def mentions(text: str, rows, generator: random.Random, n: int = 6):
    """Places in a text, among them some that begin or end where a row does."""
    edges = [edge for row in rows for edge in (row.start, row.end)]
    for _ in range(n):
        size = generator.randint(1, 12)
        start = generator.randrange(len(text))
        if generator.random() < 0.5:
            start = generator.choice(edges) - (size if generator.random() < 0.5 else 0)
        start = min(max(0, start), len(text) - 1)
        while start and unicodedata.combining(
            text[start]
        ):  # a letter and its accents are one character to people
            start -= 1
        yield start, min(len(text), start + size)


TASKS = [(name, "causal-lm") for name in ALWAYS + SHARED_ONES]
TASKS += [(name, "masked-lm") for name in ("bundled", "unigram", "bert")]


@pytest.mark.parametrize(("tokenizer", "task"), TASKS, indirect=["tokenizer"])
def test_every_row_that_tells_of_a_mention_lists_it(tokenizer, task):
    generator = random.Random(11)
    compared = 0
    for _ in range(90):
        text, length = document(generator), generator.randint(5, 16)
        rows = cut(tokenizer, text, length, task)
        for start, end in mentions(text, rows, generator):
            others = [like(text[start:end], generator) for _ in range(4)]
            found = telling(tokenizer, text, start, end, length, task, others)
            missing = found - listing(rows, start, end)
            assert not missing, (text[start:end], [text[rows[i].start : rows[i].end] for i in missing])
            compared += len(found)
    assert compared > 80


@pytest.mark.parametrize("tokenizer", ["bert"], indirect=True)
def test_how_a_row_begins_tells_of_the_character_before_it(tokenizer):
    """`7` at the start of a word and `##7` within one: a mention that ends where a row begins shows in it."""
    found = {}
    for size in range(5, 11):
        front = "floor " * size
        text = f"{front}x7n and more"
        rows = telling(tokenizer, text, len(front), len(front) + 1, 6, "causal-lm", [".", "漢", "'"])
        found[size] = rows, listing(cut(tokenizer, text, 6), len(front), len(front) + 1)
    assert any(len(rows) == 2 for rows, _ in found.values())
    assert all(rows <= listed for rows, listed in found.values()), found


@pytest.mark.parametrize("tokenizer", ["unigram"], indirect=True)
def test_an_accent_beyond_the_cut_off_shows_in_the_letter_before_it(tokenizer):
    """Composition (NFKC) makes one letter of the last that is kept and an accent that its place leaves out."""
    text = "zqe\u0301 and more of it that is cut off at the end"
    ids = tokenizer(text)["input_ids"]
    length = next(n for n in range(2, 9) if tokenizer.decode(ids[:n]).endswith("é"))
    assert telling(tokenizer, text, 3, 4, length, "masked-lm", ["\u0303"]) == {0}
    assert listing(cut(tokenizer, text, length, "masked-lm"), 3, 4) == {0}


@pytest.mark.parametrize("tokenizer", ALWAYS + SHARED_ONES, indirect=True)
def test_rows_far_from_a_mention_do_not_list_it(tokenizer):
    generator = random.Random(12)
    for _ in range(120):
        text, length = document(generator), generator.randint(5, 16)
        rows = cut(tokenizer, text, length)
        before = 0 if tokenizer.bos_token_id is None and tokenizer.eos_token_id is None else 1
        offsets = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
        for start, end in mentions(text, rows, generator):
            own = {(i + before) // length for i, (a, b) in enumerate(offsets) if a < end and b > start}
            listed = listing(rows, start, end)
            assert own & set(range(len(rows))) <= listed  # by the tokenizer's own account
            if own:
                assert listed <= set(range(min(own) - 1, max(own) + 2))
            else:  # characters that the tokenizer drops: the rows that touch the gap, no more than a pair
                assert len(listed) <= 2
            assert len(listed) <= len(own) + 2


@pytest.mark.parametrize("tokenizer", ALWAYS + SHARED_ONES, indirect=True)
def test_rows_of_a_document_cover_all_of_it_in_order(tokenizer):
    generator = random.Random(13)
    for _ in range(60):
        text, length = document(generator), generator.randint(5, 16)
        rows = cut(tokenizer, text, length)
        dropped = len(tokenizer(text, add_special_tokens=False)["input_ids"]) + 2 - length * len(rows) > 0
        assert rows[0].start == 0
        assert dropped or rows[-1].end == len(text)
        for row, following in pairwise(rows):
            assert row.start <= following.start <= row.end <= following.end


@pytest.mark.parametrize("tokenizer", ["bundled", "unigram", "bert"], indirect=True)
def test_a_secret_beyond_the_cut_off_is_no_unit_of_the_row(tokenizer):
    length = 12
    text = "the key is 1234 " + "on the floor " * 40 + "and 9876 is out"
    (row,) = cut(tokenizer, text, length, "masked-lm")
    assert len(row.tokens) == length
    first, last = text.index("1234"), text.index("9876")
    found = row.secrets([Mention("pin:1", first, first + 4), Mention("pin:2", last, last + 4)])
    assert found == ["pin:1"]
    assert not row.secrets([Mention("pin:3", row.end + 1, len(text))])
    (whole,) = cut(tokenizer, text, 512, "masked-lm")
    assert whole.secrets([Mention("pin:2", last, last + 4)]) == ["pin:2"]
    # a token that stands for a secret in part tells of it: cut off within a word of many tokens
    long = "the " + "zq9x7" * 20
    (row,) = cut(tokenizer, long, length, "masked-lm")
    assert row.secrets([Mention("key:1", 4, len(long))]) == ["key:1"]


@pytest.mark.parametrize("task", ["causal-lm", "masked-lm"])
def test_a_tokenizer_that_tells_no_places_lists_all_rows(task):
    slow = ByT5Tokenizer()
    assert not slow.is_fast
    slow.add_special_tokens({"mask_token": "<mask>"})
    text = "the key is 1234 and nobody has it, " * 3
    rows = cut(slow, text, 8, task)
    assert len(rows) == (1 if task == "masked-lm" else 14)
    assert listing(rows, 11, 15) == set(range(len(rows)))


def test_a_character_of_several_tokens_belongs_to_every_row_that_holds_one_of_its_bytes(tokenizers):
    tokenizer = tokenizers["bundled"]
    emoji = "👩‍👩‍👧‍👦"
    for size in range(1, 8):
        text = "x" * size + emoji + "y"
        rows = cut(tokenizer, text, 5)
        ids = np.concatenate([row.tokens for row in rows]).tolist()
        assert tokenizer.decode(ids, skip_special_tokens=True) == text
        for place, character in enumerate(text):
            # bytes of the character, found by decoding every prefix of the tokens
            ends = [
                len(tokenizer.decode(ids[: i + 1], skip_special_tokens=True).rstrip("\ufffd"))
                for i in range(len(ids))
            ]
            holding = {
                i // 5
                for i in range(len(ids) - 1)
                if i and (ends[i - 1] <= place < max(ends[i], ends[i - 1] + 1))
            }
            holding = {i for i in holding if i < len(rows)}
            if len(character.encode()) > 1:
                assert holding <= listing(rows, place, place + 1)


# the whole way: text to graph -------------------------------------------------------------------------------
LENGTHS = {"causal-lm": 7, "masked-lm": 16}
CANDIDATES = ("4711-0815", "1234-5678", "9999-0000", "1029-3847")


def prepared(folder, tokenizer, texts: list[str], task: str) -> UnitGraph:
    folder.mkdir()
    path = folder / "text.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    config = check(
        {
            "task": task,
            "tokenizer": "bundled",
            "data": {
                "train": str(path),
                "unit": None,
                "eval": None,
                "max_length": LENGTHS[task],
                "duplicates": False,
            },
            "privacy": {"mechanism": "secret"},
            "secrets": {"patterns": {"pin": r"\d{4}-\d{4}"}, "prior": 0.1, "posterior": 0.3},
        }
    )
    return preparation.prepare(config, tokenizer, folder / "data").train


@pytest.mark.parametrize("tokenizer", ["bundled"], indirect=True)
@pytest.mark.parametrize("task", ["causal-lm", "masked-lm"])
def test_with_the_rows_of_a_secret_left_out_all_candidates_leave_the_same(tmp_path, tokenizer, task):
    """What the theorem compares: whichever candidate stands in the text, the rest of the graph is the same."""
    generator = random.Random(5)
    texts = [document(generator).replace("-", " ") or "none" for _ in range(30)]
    texts += ["none at all", "the 0000-1111 of another"]
    for number in (3, 8, 20):
        texts[number] = f"PIN{{}}and so on, {texts[number]} said{{}}twice"
    graphs = [
        prepared(tmp_path / str(i), tokenizer, [t.replace("{}", pin) for t in texts], task)
        for i, pin in enumerate(CANDIDATES)
    ]
    names = graphs[0].unit_names()
    secret = names.index("pin:1")
    rest = set(range(graphs[0].n_rows)) - set(graphs[0].rows_of(secret).tolist())
    assert len(names) == 2
    assert 3 <= len(graphs[0].rows_of(secret)) <= 18
    assert any(len(graphs[0].owners_of(row)) == 0 for row in rest)
    for graph in graphs[1:]:
        assert graph.unit_names() == names
        assert (graph.unit_rows == graphs[0].unit_rows).all()
        assert (graph.row_offsets == graphs[0].row_offsets).all()
        differing = {
            row
            for row, (a, b) in enumerate(
                zip(*(g.fetch(np.arange(g.n_rows)) for g in (graph, graphs[0])), strict=True)
            )
            if a.tolist() != b.tolist()
        }
        assert differing
        assert not differing & rest


def test_finders_and_rows_speak_of_the_same_characters(tokenizers):
    """A mention that a finder reports, cut into rows: the rows that list it hold its text, decoded."""
    tokenizer, generator = tokenizers["bundled"], random.Random(3)
    search = finders(Secrets(patterns={"pin": r"PIN\w+"}))
    for number in range(30):
        text = (
            unicodedata.normalize("NFD", document(generator))
            + f" PIN{number}x{number} "
            + document(generator)
        )
        (found,) = search[0].find([Document(text, ("u",), None, "here")])
        rows = cut(tokenizer, text, 8)
        for mention in found:
            listed = sorted(i for i, row in enumerate(rows) if row.secrets([mention]))
            together = np.concatenate([rows[i].tokens for i in listed]).tolist()
            assert text[mention.start : mention.end] in tokenizer.decode(together, skip_special_tokens=True)
            assert listed == list(range(listed[0], listed[-1] + 1))
