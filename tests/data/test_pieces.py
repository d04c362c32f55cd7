"""A text of any length is the same tokens as whole, in bounded memory."""

import json
import os
import random
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from confide.data.cutting import Cutter
from confide.data.pieces import beginning, encoded
from confide.data.spans import Mention
from confide.models.names import location
from confide.utils.errors import InputError
from tests.command import World, confide, environment, refused, tiny_model

BITS = [
    "déjà ",
    "😀😀",
    "  \n\n",
    "\t",
    "12345678 ",
    "ab",
    "今日は",
    "</s>",
    "<s>",
    " ",
    "é",
    "word ",
    "'s",
    "of the ",
]


def text_of(number: int, seed: int = 1, spaces: bool = True) -> str:
    generator = random.Random(seed)
    text = "".join(generator.choice(BITS) for _ in range(number))
    return text if spaces else text.replace(" ", "_")


def trained(kind: str):
    """A tokenizer of another family, made on the spot."""
    from tokenizers import Tokenizer, decoders, normalizers, pre_tokenizers, trainers
    from tokenizers import models as kinds
    from transformers import PreTrainedTokenizerFast

    made = {
        "unigram": lambda: Tokenizer(kinds.Unigram()),
        "pieces without words": lambda: Tokenizer(kinds.BPE(unk_token="<unk>")),
        "words": lambda: Tokenizer(kinds.WordPiece(unk_token="<unk>")),
    }[kind]()
    trainer = {
        "unigram": lambda: trainers.UnigramTrainer(
            vocab_size=200, unk_token="<unk>", special_tokens=["<unk>"]
        ),
        "pieces without words": lambda: trainers.BpeTrainer(vocab_size=300, special_tokens=["<unk>"]),
        "words": lambda: trainers.WordPieceTrainer(vocab_size=300, special_tokens=["<unk>"]),
    }[kind]()
    made.normalizer = {
        "unigram": lambda: normalizers.NFKC(),
        "pieces without words": lambda: normalizers.Sequence(
            [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
        ),
        "words": lambda: normalizers.BertNormalizer(),
    }[kind]()
    if kind == "unigram":
        made.pre_tokenizer = pre_tokenizers.Metaspace()
        made.decoder = decoders.Metaspace()
    if kind == "words":
        made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.train_from_iterator([text_of(300, seed) for seed in range(10)], trainer)
    return PreTrainedTokenizerFast(tokenizer_object=made, unk_token="<unk>", eos_token="<unk>")


@pytest.fixture(scope="module")
def tokenizers():
    from transformers import AutoTokenizer

    found = {kind: trained(kind) for kind in ("unigram", "pieces without words", "words")}
    return found | {"bundled": AutoTokenizer.from_pretrained(location("bundled"))}


KINDS = ["bundled", "unigram", "pieces without words", "words"]


def same(tokenizer, text: str, piece: int) -> int:
    """How many pieces there were, which are seen to be those of the whole."""
    pieces = list(encoded(tokenizer, text, piece=piece))
    whole = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    assert np.concatenate([ids for ids, _ in pieces]).tolist() == whole["input_ids"]
    assert np.concatenate([places for _, places in pieces]).tolist() == [
        list(o) for o in whole["offset_mapping"]
    ]
    return len(pieces)


def same_or_refused(tokenizer, text: str, piece: int) -> None:
    try:
        same(tokenizer, text, piece)
    except InputError as error:
        if "no place where the tokenizer can begin anew" not in str(error):
            raise


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("spaces", [True, False])
def test_the_tokens_of_the_whole(tokenizers, kind, spaces):
    text = text_of(20_000, spaces=spaces)
    assert same(tokenizers[kind], text, 4096) > 10
    assert same(tokenizers[kind], text, 20_000) > 2


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32), st.integers(600, 3000), st.lists(st.text(max_size=8), min_size=1, max_size=6))
def test_any_text_is_the_tokens_of_the_whole_or_refused(seed, piece, bits):
    from transformers import AutoTokenizer

    if not _KEPT:
        _KEPT.append(AutoTokenizer.from_pretrained(location("bundled")))
    generator = random.Random(seed)
    text = "".join(generator.choice([*bits, *BITS]) for _ in range(1500))
    same_or_refused(_KEPT[0], text, piece)


_KEPT: list = []


@pytest.mark.parametrize("letter", ["a", " ", "\n", "7", "é", "😀"])
def test_one_letter_without_end(tokenizers, letter):
    same_or_refused(tokenizers["bundled"], letter * 30_000, 4096)


@pytest.mark.parametrize("length", [2, 16, 100])
@pytest.mark.parametrize("places", [False, True])
def test_the_rows_of_the_whole(tokenizers, length, places):
    text = text_of(6000, 3)
    tokenizer = tokenizers["bundled"]
    (whole,) = Cutter(tokenizer, True, length, places, piece=1 << 20).rows([text])
    short, found, last = Cutter(tokenizer, True, length, places, piece=3000).rows(
        ["ab cd ef", text, "gh ij kl"]
    )
    found, whole = list(found), list(whole)
    assert [row.tokens.tolist() for row in found] == [row.tokens.tolist() for row in whole]
    assert [(row.start, row.end) for row in found] == [(row.start, row.end) for row in whole]
    assert len(list(short)) >= 1
    assert len(list(last)) >= 1
    mention = Mention("it", 20_000, 20_010)
    if places:
        assert [row.secrets([mention]) for row in found] == [row.secrets([mention]) for row in whole]
        assert any(row.secrets([mention]) for row in found)


def test_a_row_that_is_cut_off_is_the_beginning_of_the_whole(tokenizers):
    text = text_of(20_000, 4)
    for tokenizer in tokenizers.values():
        for length in (16, 700, 5000):
            wanted = tokenizer([text], truncation=True, max_length=length)["input_ids"][0]
            ((row,),) = Cutter(tokenizer, False, length, piece=2000).rows([text])
            assert row.tokens.tolist() == wanted
            assert len(beginning(tokenizer, text, length, 2000)) < len(text) or length == 5000


def test_where_no_place_is_found_the_document_is_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    world = World(tmp_path, tiny_model(tmp_path))

    def nowhere(*_):
        return None

    monkeypatch.setattr("confide.data.pieces._meeting", nowhere)
    rows = [{"user": f"u{number}", "text": "some words here " * 9} for number in range(20)]
    rows.append({"user": "u1", "text": "word " * 100_000})
    world.write("".join(json.dumps(row) + "\n" for row in rows))
    refused(
        confide("prepare", world.path),
        r"text\.jsonl line 21: characters .* no place where the tokenizer can begin",
    )


MEASURED = """
import json, resource, sys
from pathlib import Path
from confide.models import loading as models
from confide.runs import preparation
from confide.config.loading import check

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

config = check(json.loads(sys.argv[1]))
tokenizer = models.load_tokenizer(config)
before = peak()
tokens = preparation.prepare(config, tokenizer, Path(sys.argv[2])).train.n_tokens
print(json.dumps([tokens, before, peak()]))
"""


def test_memory_of_a_long_text(tmp_path):
    """One line of 4 MB took 700 MiB beside what the libraries take; LONG_TEXT_MB sets another size."""
    size = int(os.environ.get("LONG_TEXT_MB", 4))
    generator = random.Random(2)
    letters = "abcdefghijklmnop"
    words = ["".join(generator.choices(letters, k=generator.randint(2, 9))) for _ in range(5000)]
    with open(tmp_path / "text.jsonl", "w") as stream:
        stream.write('{"user": "ann", "text": "a few words"}\n{"user": "bob", "text": "')
        for _ in range(size):
            stream.write(" ".join(generator.choices(words, k=160_000))[:1_000_000])
        stream.write('"}\n')
    raw = {
        "data": {"train": str(tmp_path / "text.jsonl"), "unit": "user", "eval": None, "max_length": 128},
        "privacy": {"noise_multiplier": 1.0, "mechanism": "els"},
    }
    command = [sys.executable, "-c", MEASURED, json.dumps(raw), str(tmp_path / "data")]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(), check=False)
    assert done.returncode == 0, done.stderr
    tokens, before, peak = json.loads(done.stdout.splitlines()[-1])
    print(f"{size} MB of text: {tokens:,} tokens, {before:.0f} MiB before, peak {peak:.0f} MiB")
    assert tokens > 2e5 * size
    assert peak < 1430
    assert peak - before < 250 + 10 * size
