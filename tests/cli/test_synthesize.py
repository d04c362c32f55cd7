"""`confide synthesize`: documents from a release alone, the same however they were drawn, drawn as the model says."""

import json
import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as some
from pyarrow import parquet
from scipy import stats

from confide.data.unit_graph import UnitGraph
from confide.models.names import location
from confide.models.released import load_alone
from confide.privacy.guarantee import Guarantee
from confide.runs.generate import Options, Prompter, Voice
from confide.synthesis import corpus
from confide.synthesis.rules import Rules, repeats
from confide.synthesis.sampling import Asked, Sampling, planned, seed_of
from confide.utils.console import Console
from confide.utils.workers import Crew
from tests.cli.conftest import finished
from tests.command import World, confide, refused

FEW = ("--documents", "11", "--max-new-tokens", "7", "--batch", "4", "--seed", "3", "--temperature", "5")


def documents(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


@pytest.fixture
def alone(whole, tmp_path) -> Path:
    """What was released, in a place where nothing else of the run is."""
    return Path(shutil.copytree(whole.run / "release", tmp_path / "elsewhere" / "handed on"))


# from the release alone ------------------------------------------------------------------------------------------
def test_a_release_alone_is_enough_and_its_claim_goes_along(whole, alone, tmp_path):
    done = confide("synthesize", alone, *FEW, "--out", tmp_path / "of release.jsonl")
    assert done.code == 0, done
    found = documents(tmp_path / "of release.jsonl")
    assert len(found) == 11
    assert len({each["text"] for each in found}) == 11
    card = (tmp_path / "of release.md").read_text()
    for line in Guarantee.load(alone / "guarantee.json").sentences():
        assert line in card
    assert "11 documents" in card
    rows = [line.strip("| ").split(" | ") for line in card.splitlines() if line.startswith("| ")]
    number = {what: int(value) for what, value in rows if value.isdigit()}
    left = sum(n for what, n in number.items() if what.startswith(("left out", "not needed")))
    assert number["samples that were drawn"] == number["documents"] + left
    assert number["documents"] == 11 == sum(n for what, n in number.items() if what.startswith("of these"))
    assert confide("synthesize", whole.run, *FEW, "--out", tmp_path / "of run.jsonl").code == 0
    assert documents(tmp_path / "of run.jsonl") == found


def test_an_adapter_needs_its_base_and_nothing_else(bundled, adapted, tmp_path):
    release = Path(shutil.copytree(bundled.run / "release", tmp_path / "release"))
    assert confide("synthesize", release, *FEW, "--out", tmp_path / "one.jsonl").code == 0
    own = Path(shutil.copytree(adapted.run / "release", tmp_path / "own"))
    refused(confide("synthesize", own, *FEW, "--out", tmp_path / "two.jsonl"), "--base")
    given = ("--base", location(adapted.raw["model"]))
    assert confide("synthesize", own, *FEW, *given, "--out", tmp_path / "two.jsonl").code == 0


def test_processes_and_interruptions_change_nothing(alone, tmp_path, monkeypatch):
    asked = Asked(
        documents=11, prompts=("the printer", "a key"), max_new_tokens=7, temperature=5.0, seed=3, batch=3
    )
    quiet = Console(quiet=True)
    one, two, three = (tmp_path / f"{name}.jsonl" for name in ("one", "two", "three"))
    whole = corpus.synthesize(alone, asked, one, Crew(), quiet)
    corpus.synthesize(alone, asked, two, Crew(2), quiet)
    assert one.read_bytes() == two.read_bytes()
    assert {each["prompt"] for each in documents(one)} == {"the printer", "a key"}

    ready = Sampling.ready

    def dies(self):
        drawn, batches = ready(self), []

        def draw(number):
            if len(batches) == 2:
                raise KeyboardInterrupt
            batches.append(number)
            return drawn(number)

        return draw

    monkeypatch.setattr(Sampling, "ready", dies)
    with pytest.raises(KeyboardInterrupt):
        corpus.synthesize(alone, asked, three, Crew(), quiet)
    assert not three.exists()
    assert len(list((tmp_path / ".three.jsonl.parts").glob("0*.json"))) == 2
    again = corpus.synthesize(
        alone, asked, three, Crew(), quiet
    )  # two batches more, and that is all it takes
    assert three.read_bytes() == one.read_bytes()
    assert again.documents == whole.documents
    assert not list(tmp_path.glob(".*parts"))


def test_an_interrupted_command_keeps_its_seed(alone, tmp_path, monkeypatch):
    asked = Asked(documents=11, max_new_tokens=7, temperature=5.0, seed=77, batch=4)
    corpus._parts(tmp_path / "s.jsonl", alone, asked)
    options = (*FEW[:6], *FEW[8:], "--out", tmp_path / "s.jsonl")
    assert confide("synthesize", alone, *options).code == 0
    assert "| seed | 77 |" in (tmp_path / "s.md").read_text()


@pytest.mark.parametrize("damaged", ["", "[1]", '["", {"seed": "x"}]', "[", "{}", '["", null]', "\x80"])
def test_what_an_interrupted_command_left_may_be_damaged(alone, tmp_path, damaged):
    parts = corpus._parts(tmp_path / "s.jsonl", alone, Asked(documents=3))
    (parts / "asked.json").write_bytes(damaged.encode("latin-1"))
    options = (*FEW[:6], *FEW[8:], "--out", tmp_path / "s.jsonl")
    refused(confide("synthesize", alone, *options), "asked.json is damaged: remove the folder")


def test_a_batch_may_be_damaged(alone, tmp_path):
    parts = corpus._parts(tmp_path / "s.jsonl", alone, Asked(documents=3, seed=3))
    (parts / "00000000.json").write_text("[{")
    options = ("--documents", "3", "--seed", "3", "--out", tmp_path / "s.jsonl")
    refused(confide("synthesize", alone, *options), "00000000.json is damaged: remove the folder")


def test_parquet_and_json(alone, tmp_path):
    done = confide("synthesize", alone, *FEW, "--out", tmp_path / "s.parquet", "--json")
    told = json.loads(done.out)
    assert told["documents"] == 11 <= told["drawn"]
    assert sum(told["ended"].values()) == 11
    assert parquet.read_table(tmp_path / "s.parquet").column_names == ["prompt", "text", "ended"]


def test_prompts_get_their_shares_however_few_documents_there_are(alone, tmp_path):
    (tmp_path / "p.txt").write_text("a key\nthe printer\nnobody\nagain\n")
    options = (*FEW, "--prompts", tmp_path / "p.txt", "--out", tmp_path / "s.jsonl")
    assert confide("synthesize", alone, *options).code == 0
    found = [each["prompt"] for each in documents(tmp_path / "s.jsonl")]
    assert Counter(found) == {"a key": 3, "the printer": 3, "nobody": 3, "again": 2}
    assert found != sorted(found, key=found.index)  # those of a prompt do not stand together


@pytest.mark.parametrize(
    ("documents", "shares", "quotas"),
    [
        (10, (1, 1, 1), [4, 3, 3]),
        (7, (0.5, 0.25, 0.25), [3, 2, 2]),
        (1, (1, 3), [0, 1]),
        (100, (0.1, 0.2, 0.7), [10, 20, 70]),
        (3, (), [2, 1]),
    ],
)
def test_quotas_add_up_and_are_nearest_to_the_shares(documents, shares, quotas):
    asked = Asked(documents, prompts=("a",) * (len(shares) or 2), shares=shares)
    assert asked.quotas() == quotas


@given(some.lists(some.integers(0, 40), min_size=1, max_size=5), some.integers(1, 9))
def test_a_plan_has_every_document_once(missing, most):
    plan = planned(missing, 7, most)
    assert [batch.number for batch in plan] == list(range(7, 7 + len(plan)))
    assert all(1 <= batch.size <= most for batch in plan)
    for prompt, count in enumerate(missing):
        assert sum(batch.size for batch in plan if batch.prompt == prompt) == count


# as the model says -----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("temperature", [1.0, 2.0])  # below 1 few tokens are left to compare
def test_samples_follow_the_models_own_distribution(alone, temperature):
    """The first token after a prompt, against the exact probabilities (chi-square)."""
    model, tokenizer = load_alone(alone)
    options = Options(max_new_tokens=1, temperature=temperature, top_p=1.0, chat=False)
    voice = Voice("it", model, Prompter(tokenizer, options))
    ids = voice.prompter("the printer")
    drawn = np.concatenate([voice._new_tokens(ids, seed_of(5, number), 500) for number in range(8)]).ravel()
    with torch.inference_mode():
        logits = model(torch.tensor([ids])).logits[0, -1].double() / temperature
    expected = len(drawn) * logits.softmax(-1).numpy()
    found = np.bincount(drawn, minlength=len(expected))
    often = expected >= 5
    cells = [np.append(each[often], each[~often].sum()) for each in (found, expected)]
    assert often.sum() >= 3
    assert stats.chisquare(*cells).pvalue > 1e-3


def test_texts_of_a_batch_end_each_for_itself(alone):
    model, tokenizer = load_alone(alone)
    # So hot that a model which was noised into one word says others too.
    voice = Voice("it", model, Prompter(tokenizer, Options(max_new_tokens=6, temperature=100.0, chat=False)))
    end = voice.ends[0]
    assert voice._until_end([5, 6, end, end, 7]) == [5, 6, end]
    assert voice._until_end([5, 6]) == [5, 6]
    one = voice.several("a key", 5, 9)
    assert one == voice.several("a key", 5, 9)
    assert one != voice.several("a key", 5, 10)
    assert len({each.text for each in one}) > 1


# what is left out ------------------------------------------------------------------------------------------------
def test_blank_repeated_and_degenerate_samples_are_left_out_and_counted():
    rules = Rules()
    words = "one two three four five six seven eight nine ten".split()
    assert rules.keeps(" ".join(words))
    assert not rules.keeps("  ".join(words))
    assert not rules.keeps(" \n ")
    assert not rules.keeps("so it goes on " * 10)
    assert rules.left_out == {Rules.TWICE: 1, Rules.BLANK: 1, Rules.DEGENERATE: 1}
    assert repeats(" ".join(words)) == 0
    assert repeats("no " * 19) == 0  # too short to tell
    assert repeats("no " * 20) == pytest.approx(16 / 17)


def test_a_model_that_always_says_the_same_is_told(alone, tmp_path, monkeypatch):
    monkeypatch.setattr(
        Sampling,
        "ready",
        lambda self: lambda batch: [{"prompt": "", "text": "ha", "ended": "end of text"}] * 4,
    )
    refused(
        confide("synthesize", alone, *FEW, "--out", tmp_path / "s.jsonl"),
        "of 152 samples only 1 can be kept .151 exact duplicate.: a higher --temperature",
    )


# what is refused -------------------------------------------------------------------------------------------------
def test_what_cannot_be_is_one_sentence(whole, alone, tmp_path):
    unfinished = tmp_path / "unfinished"
    unfinished.mkdir()
    (unfinished / "config.yaml").write_text("")
    (tmp_path / "there.jsonl").write_text("")
    (tmp_path / "empty.txt").write_text("\n \n")
    for options, words in (
        ((alone, "--out", tmp_path / "there.jsonl"), "there.jsonl: is there already"),
        ((alone, "--out", tmp_path / "s.csv"), "ends in .jsonl or .parquet"),
        ((tmp_path, "--out", tmp_path / "s.jsonl"), "holds no released model"),
        ((tmp_path / "nowhere", "--out", tmp_path / "s.jsonl"), "nowhere: no such folder"),
        ((whole.path, "--out", tmp_path / "s.jsonl"), "is a file: give the run folder"),
        ((unfinished, "--out", tmp_path / "s.jsonl"), "has released nothing yet"),
        ((alone, "--out", tmp_path / "s.jsonl", "--prompts", tmp_path / "empty.txt"), "holds no prompt"),
        (
            (alone, "--out", tmp_path / "s.jsonl", "--prompts", tmp_path / "none.txt"),
            "none.txt: no such file",
        ),
        ((alone, "--out", tmp_path / "s.jsonl", "--chat"), "no chat template"),
        ((alone, "--out", tmp_path / "s.jsonl", "--base", "bundled"), "a whole model, which needs none"),
    ):
        refused(confide("synthesize", *options), words)
    parts = corpus._parts(tmp_path / "s.jsonl", alone, Asked(documents=3))
    (parts / "00000000.json").write_text("[]")
    refused(
        confide("synthesize", alone, *FEW, "--out", tmp_path / "s.jsonl"),
        "of a command that was interrupted, with documents 3, max-new-tokens 256, .*: give the same command to go on",
    )


# public conditions -----------------------------------------------------------------------------------------------
KINDS = [{"kind": "good", "share": 3}, {"kind": "bad", "share": 1}]


@pytest.fixture(scope="module")
def conditioned(tmp_path_factory, model):
    return finished(
        tmp_path_factory.mktemp("conditioned"),
        model,
        data__condition="kind",
        data__conditions=KINDS,
        data__max_length=24,
    )


def test_conditions_are_learnt_released_and_drawn_by_their_shares(conditioned, tmp_path):
    tokens = UnitGraph.open(conditioned.run / "data" / "train")
    tokenizer = load_alone(conditioned.run / "release")[1]
    texts = [
        tokenizer.decode(row, skip_special_tokens=True) for row in tokens.fetch(np.arange(tokens.n_rows))
    ]
    assert {text.split("\n\n")[0] for text in texts if text.startswith("kind: ")} == {
        "kind: good",
        "kind: bad",
    }
    alone = Path(shutil.copytree(conditioned.run / "release", tmp_path / "alone"))
    assert confide("synthesize", alone, *FEW, "--out", tmp_path / "s.jsonl").code == 0
    found = documents(tmp_path / "s.jsonl")
    assert Counter(each["kind"] for each in found) == {"good": 8, "bad": 3}
    assert all(each["prompt"] == f"kind: {each['kind']}\n\n" for each in found)
    card = (tmp_path / "s.md").read_text()
    assert "one of 2 kinds (kind)" in card
    assert "The claim does not cover the prompts" not in card


def test_the_claim_says_that_the_list_was_stated(conditioned):
    claim = Guarantee.load(conditioned.run / "release" / "guarantee.json")
    assert any("the list of conditions" in fact for fact in claim.public_facts)
    assert any("the list of conditions" in item for item in claim.not_covered)


def test_prompts_of_a_file_take_the_place_of_conditions(conditioned, tmp_path):
    (tmp_path / "p.txt").write_text("a key\n")
    options = (*FEW, "--prompts", tmp_path / "p.txt", "--out", tmp_path / "s.jsonl")
    assert confide("synthesize", conditioned.run, *options).code == 0
    assert all(list(each) == ["prompt", "text", "ended"] for each in documents(tmp_path / "s.jsonl"))


def test_a_list_that_no_document_meets_is_refused(model, tmp_path):
    world = World(tmp_path, model).set(data__condition="kind", data__conditions=["Good", "Bad"])
    refused(confide("prepare", world.path), "no document of .* has the values of an entry")
