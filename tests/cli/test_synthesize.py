"""`confide synthesize`: documents from a release alone, the same however they were drawn, drawn as the model says."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from pyarrow import parquet
from scipy import stats

from confide.models.names import location
from confide.models.released import load_alone
from confide.privacy.guarantee import Guarantee
from confide.runs.generate import Options, Prompter, Voice
from confide.synthesis import corpus
from confide.synthesis.rules import Rules, repeats
from confide.synthesis.sampling import Asked, Sampling, seed_of
from confide.utils.console import Console
from confide.utils.workers import Crew
from tests.command import confide, refused

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


# as the model says -----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_samples_follow_the_models_own_distribution(alone, temperature):
    """The first two tokens after a prompt, against the exact probabilities (chi-square)."""
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
    assert often.sum() >= 5
    assert stats.chisquare(*cells).pvalue > 1e-3


def test_texts_of_a_batch_end_each_for_itself(alone):
    model, tokenizer = load_alone(alone)
    voice = Voice("it", model, Prompter(tokenizer, Options(max_new_tokens=6, chat=False)))
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
        lambda self: lambda number: [{"prompt": "", "text": "ha", "ended": "end of text"}] * 4,
    )
    refused(
        confide("synthesize", alone, *FEW, "--out", tmp_path / "s.jsonl"),
        "of 152 samples only 1 can be kept .151 exact duplicate.: a higher --temperature",
    )


# what is refused -------------------------------------------------------------------------------------------------
def test_what_cannot_be_is_one_sentence(alone, tmp_path):
    (tmp_path / "there.jsonl").write_text("")
    (tmp_path / "empty.txt").write_text("\n \n")
    for options, words in (
        ((alone, "--out", tmp_path / "there.jsonl"), "there.jsonl: is there already"),
        ((alone, "--out", tmp_path / "s.csv"), "ends in .jsonl or .parquet"),
        ((tmp_path, "--out", tmp_path / "s.jsonl"), "holds no released model"),
        ((alone, "--out", tmp_path / "s.jsonl", "--prompts", tmp_path / "empty.txt"), "holds no prompt"),
        ((alone, "--out", tmp_path / "s.jsonl", "--prompts", tmp_path / "none.txt"), "cannot be read"),
        ((alone, "--out", tmp_path / "s.jsonl", "--chat"), "no chat template"),
    ):
        refused(confide("synthesize", *options), words)
    parts = corpus._parts(tmp_path / "s.jsonl", alone, Asked(documents=3))
    (parts / "00000000.json").write_text("[]")
    refused(confide("synthesize", alone, *FEW, "--out", tmp_path / "s.jsonl"), "batches of another command")
