"""Ranks from the trie equal brute force, and exposure is what they say; estimates are in test_exposure_estimates.py."""

import json
import math

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import Split
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedTokenizerFast,
)

from confide.auditing import exposure, trie
from confide.auditing.candidates import END, Candidates
from confide.auditing.exposure import (
    combined,
    exact,
    exceeds,
    extrapolated,
    most,
    null_mean,
    sampled,
)
from confide.auditing.likelihood import totals
from confide.auditing.skewnormal import SkewNormal
from confide.auditing.trie import Trie, search
from confide.config.data_section import Data
from confide.config.schema import Canaries, Config
from confide.models import loading as models
from confide.utils.errors import CheckFailed, Diverged, InputError

LETTERS = list("0123456789. abcdeIDMy")
MERGES = [("1", "2"), ("4", "4"), ("44", "4"), ("7", "."), ("7", " "), ("b", "c")]


def tokenizer(start: bool = True):
    """Of single characters, some digits merged with each other and with what comes after them."""
    pieces = ["<s>", *LETTERS, *("".join(pair) for pair in MERGES)]
    inner = Tokenizer(BPE({piece: i for i, piece in enumerate(pieces)}, MERGES))
    inner.pre_tokenizer = Split("\n", "isolated")  # the whole text is one word to the merges
    special = {"bos_token": "<s>"} if start else {}
    return PreTrainedTokenizerFast(tokenizer_object=inner, **special)


VOCABULARY = len(LETTERS) + len(MERGES) + 1
SIZES = {"vocab_size": VOCABULARY, "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}
LAYERS = {
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 48,
}


def model(kind: str = "gpt2", seed: int = 0):
    """A random model in float64, in which ranks do not hang on rounding; its logits tell texts well apart."""
    torch.manual_seed(seed)
    if kind == "gpt2":
        made = GPT2LMHeadModel(GPT2Config(**SIZES, n_positions=48, n_embd=16, n_layer=2, n_head=2))
    elif kind == "llama":
        made = LlamaForCausalLM(LlamaConfig(**SIZES, **LAYERS))
    else:
        made = MistralForCausalLM(MistralConfig(**SIZES, **LAYERS, sliding_window=4))
    with torch.no_grad():
        for weights in made.parameters():
            if weights.dim() > 1:
                weights.mul_(8)
    return made.double().eval()


def forgetful():
    """A model that keeps nothing of what it read."""
    made = model()
    original = made.forward

    def forward(*arguments, **named):
        output = original(*arguments, **{**named, "use_cache": False})
        output.past_key_values = None
        return output

    made.forward = forward
    return made


def brute(made, space: Candidates, own) -> np.ndarray:
    """float64[|R|]: each text alone, by the tokenizer and plain log-probabilities."""
    texts = [own(space.text(number), add_special_tokens=False)["input_ids"] for number in range(space.size)]
    found = np.zeros(space.size)
    for length in {len(text) for text in texts}:
        numbers = [number for number, text in enumerate(texts) if len(text) == length]
        ids = torch.tensor([[0, *texts[number]] for number in numbers])
        with torch.no_grad():
            each = made(input_ids=ids[:, :-1]).logits.log_softmax(-1)
        found[numbers] = each.gather(2, ids[:, 1:, None]).sum((1, 2))
    return found


def ranks(scores: np.ndarray) -> np.ndarray:
    return np.array([(scores >= own).sum() for own in scores])


# the search ----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("kind", "template", "digits"),
    [
        ("gpt2", "My ID {}.", 3),
        ("gpt2", "My ID {}", 2),
        ("llama", "{} abc.", 2),
        ("llama", "a{}. bcd 44712", 2),
        ("mistral", "abcde {}. b", 2),
    ],
)
def test_all_ranks_equal_brute_force(kind, template, digits):
    space, own, made = Candidates.digits(template, digits), tokenizer(), model(kind)
    assert space.size == 10**digits
    lengths = {len(own(space.text(number))["input_ids"]) for number in range(space.size)}
    assert len(lengths) > 1  # candidates' tokens differ in number
    scores = brute(made, space, own)
    found = exact(made, Trie.of(space, own), np.arange(space.size))
    assert [each.rank for each in found] == ranks(scores).tolist()
    assert found[7].exposure == pytest.approx(math.log2(space.size) - math.log2(ranks(scores)[7]))
    assert {each.method for each in found} == {"exact"}


def test_scores_are_those_of_plain_passes_whatever_the_batch(monkeypatch):
    space, own, made = Candidates.digits("My {} b", 2), tokenizer(), model("llama")
    wanted = brute(made, space, own)
    tree = Trie.of(space, own)
    for widest in (3, 512):
        monkeypatch.setattr(trie, "_WIDEST", widest)
        found = search(made, tree)
        np.testing.assert_allclose(found.totals, wanted, rtol=0, atol=1e-10)
    np.testing.assert_allclose(totals(made, tree.rows(np.arange(100))), wanted, rtol=0, atol=1e-10)


def test_a_model_without_a_cache_reads_whole_paths():
    space, own = Candidates.digits("My ID {}.", 2), tokenizer()
    tree = Trie.of(space, own)
    found, cached = search(forgetful(), tree), search(model(), tree)
    np.testing.assert_allclose(found.totals, cached.totals, rtol=0, atol=1e-10)
    assert found.positions > 4 * cached.positions


def test_beginnings_and_duplicates_are_candidates_like_others():
    # "a" begins "ab" and "abc"; an unknown letter is dropped, so "a?" has the tokens of "a".
    space = Candidates.among("My {}", ["abc", "a", "ab", "a?", "e"])
    own, made = tokenizer(), model()
    scores = brute(made, space, own)
    found = exact(made, Trie.of(space, own), np.arange(5))
    assert scores[1] == scores[3]
    assert [each.rank for each in found] == ranks(scores).tolist()


def test_positions_are_the_nodes_that_have_something_to_predict():
    rows = np.array([[0, 5, *map(int, f"{i:04d}")] for i in range(10_000)])
    tree = Trie.of_rows(rows)
    assert search(model(), tree).positions == 2 + 10 + 100 + 1000
    assert tree.plain_positions == 60_000
    longer = Trie.of_rows(np.pad(rows[:100, 2:], ((0, 0), (1, 1)), constant_values=9))
    assert search(model(), longer).positions == 3 + 10 + 100  # the shared 9 00, then the digits


def test_pruning_keeps_ranks_and_saves_passes():
    space, own, made = Candidates.digits("My ID {}.", 3), tokenizer(), model()
    tree = Trie.of(space, own)
    scores = search(made, tree).totals
    order = np.argsort(-scores)
    several = exact(made, tree, order[[0, 40, 700]])
    for place, together in zip((0, 40, 700), several, strict=True):
        (alone,) = exact(made, tree, [order[place]])
        assert alone.rank == together.rank == place + 1
    assert exact(made, tree, [order[0]])[0].positions < several[0].positions / 3


def test_a_floor_drops_nothing_that_reaches_it():
    space, own, made = Candidates.digits("{} b", 3), tokenizer(), model("llama")
    tree = Trie.of(space, own)
    whole = search(made, tree).totals
    floor = float(np.median(whole))
    found = search(made, tree, floor).totals
    assert np.array_equal(np.isfinite(found), whole >= floor)
    np.testing.assert_allclose(found[whole >= floor], whole[whole >= floor], rtol=0, atol=1e-10)


def test_progress_tells_of_every_candidate():
    told = []
    space, own = Candidates.digits("My {}.", 3), tokenizer()
    exact(model(), Trie.of(space, own), [500], progress=told.append)
    assert sum(told) == 1000
    assert min(told) >= 0


def test_a_bound_is_above_the_exposure_and_saves_passes():
    space, own, made = Candidates.digits("My ID {}.", 3), tokenizer(), model()
    tree = Trie.of(space, own)
    order = np.argsort(-search(made, tree).totals)
    places = [0, 30, 600, 900]
    certain = exact(made, tree, order[places])
    found = exact(made, tree, order[places], least=3.0)
    assert [each.method for each in found] == ["exact", "exact", "bounded", "bounded"]
    assert [each.rank for each in found[:2]] == [1, 31]
    for bound, true in zip(found[2:], certain[2:], strict=True):
        assert true.exposure <= bound.exposure <= 3.0
        assert bound.interval == (0.0, bound.exposure)
        assert bound.p_value == 1.0
    assert found[0].positions < certain[0].positions


def test_a_cache_that_lies_is_found_out(monkeypatch):
    original = trie._cut
    monkeypatch.setattr(trie, "_cut", lambda cache, rows: original(cache, rows * 0))
    with pytest.raises(CheckFailed, match="cache"):
        exact(model(), Trie.of(Candidates.digits("My ID {}.", 3), tokenizer()), np.arange(0, 1000, 90))


@pytest.mark.parametrize("template", ["My ID is {}", "My ID is {}."])
def test_the_bundled_model_equals_brute_force(template):
    settings = Config(model="bundled", data=Data(train="x", max_length=2))
    own = models.load_tokenizer(settings)
    made = models.load_model(settings, vocabulary=len(own)).double()
    tree = Trie.of(Candidates.digits(template, 3), own)
    plain = totals(made, tree.rows(np.arange(1000)))
    found = exact(made, tree, np.arange(1000))
    assert [each.rank for each in found] == ranks(plain).tolist()
    if template == Canaries().template:  # where the number stands last, whichever it is
        (last,) = exact(made, tree, [int(np.argmin(plain))])
        assert last.rank == 1000
        assert last.plain_positions >= 40 * last.positions


# exposure ------------------------------------------------------------------------------------------------------
def vectors(shared):
    return json.loads((shared / "vectors" / "audit.json").read_text())["exposure"]


def test_greatest_exposure_and_its_mean_by_chance_meet_the_vectors(shared):
    assert most(10**6) == pytest.approx(vectors(shared)["max_six_digits"], abs=1e-9)
    assert null_mean(10**6) == pytest.approx(vectors(shared)["null_mean"], abs=1e-6)


def test_mean_exposure_over_all_secrets_is_that_of_chance():
    space, own, made = Candidates.digits("My {}", 3), tokenizer(), model()
    found = exact(made, Trie.of(space, own), np.arange(1000))
    assert np.mean([each.exposure for each in found]) == pytest.approx(null_mean(1000), abs=1e-9)
    assert combined(found).mean == pytest.approx(combined(found).null_mean)


def test_a_model_that_learnt_one_secret_by_heart_exposes_it_fully():
    space, own, made = Candidates.digits("My ID {}.", 3), tokenizer(), model().float()
    tree, secret = Trie.of(space, own), 844
    before = exact(made, tree, [secret])[0]
    assert before.rank > 1
    ids = torch.from_numpy(tree.rows(np.array([secret]))[0])[None]
    optimizer = torch.optim.Adam(made.parameters(), lr=3e-3)
    for _ in range(60):
        loss = made(input_ids=ids, labels=ids).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    after = exact(made, tree, [secret, 17])
    assert after[0].rank == 1
    assert after[0].exposure == most(1000)
    assert after[0].p_value == 1 / 1000
    assert after[1].rank > 1
    assert made.training is False


def test_what_exceeds_all_others_is_found_without_reading_them_all(monkeypatch):
    """As by brute force over every number; a text that ties with another, as with itself, is not above."""
    made, space, own = model(seed=3), Candidates.digits("a {} b", 2), tokenizer()
    order = np.argsort(-brute(made, space, own))

    def rows(places):
        return [row[row != END] for row in space.tokens(own, places)]

    for places, is_above in (
        (order[:1], True),
        (order[[50, 0]], True),
        (order[1:3], False),
        (order[-1:], False),
    ):
        others = Trie.of(space, own, np.setdiff1d(np.arange(100), places))
        assert exceeds(made, rows(places), others) == is_above
    everything = Trie.of(space, own)
    assert not exceeds(made, rows(order[:1]), everything)
    positions, real = [], exposure.search

    def watched(*arguments):
        positions.append((found := real(*arguments)).positions)
        return found

    monkeypatch.setattr(exposure, "search", watched)
    exceeds(made, rows(order[:1]), Trie.of(space, own, order[1:]))  # nothing is as likely
    exceeds(made, rows(order[-1:]), everything)  # the first others are more so already
    assert max(positions) < everything.plain_positions / 4


def test_ties_count_against_the_secret():
    made = model()
    with torch.no_grad():
        made.transformer.wte.weight.zero_()  # every token is as probable as any other
    space, own = Candidates.among("My {}", ["a", "b", "c", "d"]), tokenizer()
    found = exact(made, Trie.of(space, own), np.arange(4))
    assert [each.rank for each in found] == [4] * 4
    assert {each.exposure for each in found} == {0.0}
    assert {each.p_value for each in found} == {1.0}


# faults of the user --------------------------------------------------------------------------------------------
def test_candidates_that_cannot_be_ranked_are_refused():
    with pytest.raises(InputError, match="template"):
        Candidates.digits("My ID", 3)
    with pytest.raises(InputError, match="template"):
        Candidates.digits("{} {}", 3)
    with pytest.raises(InputError, match="twice"):
        Candidates.among("My {}", ["a", "b", "a"])
    space = Candidates.digits("My ID {}.", 3)
    for secret in ("12", "12a", "1234", "١٢٣"):
        with pytest.raises(InputError, match="not among"):
            space.numbers([secret])
    assert space.numbers(["007", "999"]).tolist() == [7, 999]
    with pytest.raises(InputError, match="put text before it"):
        Trie.of(Candidates.digits("{}.", 2), tokenizer(start=False))
    with pytest.raises(InputError, match="48"):
        search(model(), Trie.of(Candidates.digits("My ID {}" + " a" * 30, 2), tokenizer()))


def test_a_model_that_diverged_is_refused():
    made = model()
    with torch.no_grad():
        made.transformer.wte.weight[12] = torch.nan
    with pytest.raises(Diverged, match="not numbers"):
        search(made, Trie.of(Candidates.digits("My ID {}.", 2), tokenizer()))


def test_samples_that_cannot_be_drawn_are_refused():
    space, own, made = Candidates.digits("My ID {}.", 2), tokenizer(), model()
    generator = np.random.default_rng(0)
    with pytest.raises(InputError, match="100 others"):
        sampled(made, own, space, [1], 100, generator)
    with pytest.raises(InputError, match="at least 100"):
        extrapolated(made, own, space, [1], 50, generator)
    with pytest.raises(InputError, match="same loss"):
        SkewNormal.fit(np.full(200, 7.0))
    with pytest.raises(InputError, match="none to combine"):
        combined([])


def test_a_text_without_a_start_token_is_scored_from_its_second_token():
    space = Candidates.digits("My ID {}.", 2)
    with_start = Candidates.tokens(space, tokenizer())
    without = Candidates.tokens(space, tokenizer(start=False))
    assert np.array_equal(with_start[:, 1:], without)
    assert (with_start[:, 0] == 0).all()
    assert (without[12] == END).sum() == 1  # "12" is one token
