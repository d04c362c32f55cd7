"""`confide synthesize --evaluate --leaks`: what a corpus is worth, what it tells, and where neither can be asked."""

import json
import os
import random
import shutil
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest

from confide.data.documents import side_of
from confide.privacy.guarantee import Guarantee
from confide.runs.canaries import Manifest
from confide.synthesis import quality, students
from confide.synthesis.leaks import bound, counted
from confide.synthesis.private_text import PrivateText
from confide.synthesis.remembered import PRIVATE, PUBLIC
from confide.utils.rounding import percent_at_most
from tests.cli.conftest import finished
from tests.command import WORDS, World, confide, refused

FEW = ("--documents", "24", "--max-new-tokens", "12", "--seed", "3", "--temperature", "3")


def mails(path: Path, users: int = 90) -> Path:
    """Documents whose words are mostly their unit's own, with a topic that other words tell."""
    generator = random.Random(5)
    with open(path, "w") as stream:
        for user in range(users):
            for _ in range(2):
                topic = generator.choice(["paper", "keys"])
                said = [f"own{user}x{generator.randrange(9)}" for _ in range(6)]
                text = " ".join([*generator.choices(WORDS, k=4), *said, f"about-{topic}"])
                stream.write(json.dumps({"user": f"person{user}", "text": text, "topic": topic}) + "\n")
    return path


@pytest.fixture(scope="module")
def world(tmp_path_factory, model) -> World:
    """A finished run with canaries, on documents that tell units apart."""
    folder = tmp_path_factory.mktemp("texts")
    text = mails(folder / "mails.jsonl")
    changes = {"data__train": str(text), "data__eval": 0.4, "data__max_length": 32, "train__steps": 2}
    return finished(folder, model, **changes, canaries={"count": 24, "family": "digits"})


def records(world: World, side: str) -> list[dict]:
    lines = map(json.loads, Path(world.raw["data"]["train"]).read_text().splitlines())
    return [line for line in lines if side_of((line["user"],), 0.4) == side]


def corpus(path: Path, texts: list[dict]) -> Path:
    path.write_text(
        "".join(json.dumps({"topic": each["topic"], "text": each["text"]}) + "\n" for each in texts)
    )
    return path


def looked(world: World, path: Path, *options: str) -> dict:
    done = confide("synthesize", world.run, "--out", path, *options, "--json")
    assert done.code == 0, done
    return json.loads(done.out)


# leaks -----------------------------------------------------------------------------------------------------------
def test_a_corpus_that_copies_is_caught_and_one_that_copies_others_is_not(world, tmp_path):
    copied = looked(world, corpus(tmp_path / "a.jsonl", records(world, "train")), "--leaks")["leaks"]
    for rates in copied["membership"].values():
        assert rates["auroc"]["low"] > 0.9
    assert copied["nearer"]["low"] > 0.5
    assert copied["all_trained"]["median"] == 11
    assert copied["longest"][0] | {"document": 0} == {"document": 0, "words": 11, "trained": 1, "held_out": 0}

    others = looked(world, corpus(tmp_path / "b.jsonl", records(world, "eval")), "--leaks")["leaks"]
    for rates in others["membership"].values():
        assert rates["auroc"]["high"] < 0.1
    assert others["longest"][0]["trained"] == 0 or others["longest"][0]["words"] < 11
    assert others["nearer"]["high"] < 0.5


def test_both_sides_have_about_as_many_words(world, tmp_path):
    found = looked(world, corpus(tmp_path / "a.jsonl", records(world, "train")[:30]), "--leaks")["leaks"]
    assert found["trained"]["words"] == pytest.approx(found["held_out"]["words"], rel=0.6)
    assert found["all_trained"]["texts"] == len(records(world, "train"))
    assert found["held_out"]["texts"] == len(records(world, "eval"))


def test_the_guarantee_says_nothing_of_a_file_that_the_run_did_not_write(world, tmp_path):
    run = Path(shutil.copytree(world.run, tmp_path / "run", ignore=shutil.ignore_patterns("texts*.json")))
    foreign = corpus(tmp_path / "foreign.jsonl", records(world, "train"))
    done = confide("synthesize", run, "--out", foreign, "--leaks")
    assert done.code == 0, done
    assert "does not remember writing this file" in done.out
    assert "says it rightly of at most" not in done.out
    own = tmp_path / "own.jsonl"
    assert "says it rightly of at most" in confide("synthesize", run, *FEW, "--out", own, "--leaks").out
    page = tmp_path / "open.html"
    assert confide("report", run, "--out", page).code == 0
    text = page.read_text()
    assert "foreign.jsonl" not in text  # the page that may be handed on
    page = tmp_path / "private.html"
    assert confide("report", run, "--private", "--out", page).code == 0
    text = page.read_text()
    assert "What was measured of foreign.jsonl, which this run does not remember writing</h3>" in text
    assert "What was measured of own.jsonl</h3>" in text


def test_options_of_sampling_are_refused_where_nothing_is_sampled(world, tmp_path):
    out = corpus(tmp_path / "s.jsonl", records(world, "eval"))
    refused(
        confide("synthesize", world.run, "--out", out, "--leaks", "--documents", 60),
        "--documents: .* nothing is sampled",
    )


def test_planted_canaries_are_counted_beside_those_that_were_not(world, tmp_path):
    canaries = Manifest.load(world.run / "data").canaries
    inside = [each.secrets[0] for each in canaries if each.is_planted]
    outside = [each.secrets[0] for each in canaries if not each.is_planted]
    assert len(inside) > 2
    assert outside
    said = [{"topic": "x", "text": f"My ID is {mark}. Bye"} for mark in [*inside[:2], outside[0]]]
    found = looked(world, corpus(tmp_path / "a.jsonl", [*said, *records(world, "eval")]), "--leaks")["leaks"]
    planted = found["planted"]
    assert (planted["planted"], planted["found"]) == (len(inside), 2)
    assert (planted["absent"], planted["found_absent"]) == (len(outside), 1)
    assert planted["rate"]["low"] < 2 / len(inside) < planted["rate"]["high"]


def test_a_canary_is_found_as_a_word_of_its_own():
    found = counted(
        ["so 1234567, and", "id 7654321 it is", "x 5555555"], ["1234567", "765432"], ["5555555", "1"]
    )
    assert (found.found, found.found_absent) == (1, 1)
    assert found.p_value > 0.5
    many = counted([" ".join(map(str, range(100, 120)))], [str(n) for n in range(100, 120)], ["77"] * 20)
    assert many.p_value < 1e-6
    assert counted(["a"], [], ["b"]) is None


def test_the_bound_is_of_the_units_of_the_claim(world):
    claim = Guarantee.load(world.run / "release" / "guarantee.json")
    assert percent_at_most(claim.true_positive_rate) in bound(claim)
    of_rows = bound(claim, of_units=False)
    assert "does not bound these" in of_rows
    assert "rightly of at most" not in of_rows
    assert "nothing bounds" in bound(SimpleNamespace(notion="none"))


# what it is worth ------------------------------------------------------------------------------------------------
def test_real_text_is_worth_as_much_as_real_text_and_noise_is_not(world, tmp_path, monkeypatch):
    monkeypatch.setattr(students, "TAUGHT", 4000)
    real = looked(world, corpus(tmp_path / "real.jsonl", records(world, "train")), "--evaluate")["evaluation"]
    assert real["covered"] is False
    assert real["units"] == len({each["user"] for each in records(world, "eval")})
    generator = random.Random(1)
    noise = [
        {"topic": topic, "text": " ".join(f"n{generator.randrange(999)}" for _ in range(30))}
        for topic in generator.choices(["paper", "keys"], k=60)
    ]
    bad = looked(world, corpus(tmp_path / "noise.jsonl", noise), "--evaluate")["evaluation"]
    of = [{each["what"]: each for each in found["measures"]} for found in (real, bad)]
    assert list(of[0]) == list(of[1])
    for what, measure in of[0].items():
        if measure["kind"] == "models":
            continue
        other, better = of[1][what], measure["better"]
        if better == "lower" and "shares" not in what:
            assert other["of_corpus"]["value"] > measure["of_corpus"]["value"], what
        if better == "higher":
            assert other["of_corpus"]["value"] < measure["of_corpus"]["value"], what
    accuracy = of[0]["accuracy on real text of a classifier of topic"]
    assert accuracy["of_corpus"]["value"] > 0.95
    assert abs(accuracy["difference"]["value"]) < 0.05


def test_what_is_printed_and_remembered(world, tmp_path):
    out = tmp_path / "s.jsonl"
    run = Path(shutil.copytree(world.run, tmp_path / "run", ignore=shutil.ignore_patterns("texts*.json")))
    done = confide("synthesize", run, *FEW, "--out", out, "--evaluate", "--leaks")
    assert done.code == 0, done
    for words in (
        "24 documents of",
        "perplexity of held-out text: the released model",
        "not measured, labels: the corpus has no field",
        "longest run of words in common",
        "canaries found: 0 of",
        "told by the nearest document: AUROC",
        "says it rightly of at most",
        "The guarantee does not cover these figures",
    ):
        assert words in done.out, words
    public, private = (json.loads((run / name).read_text()) for name in (PUBLIC, PRIVATE))
    (facts,), (measured,) = public["corpora"].values(), private["corpora"].values()
    assert list(public["corpora"]) == list(private["corpora"])
    assert facts["documents"] == 24
    assert facts["asked"]["temperature"] == 3
    assert not {"evaluation", "leaks"} & set(facts)
    assert {"evaluation", "leaks"} <= set(measured)
    assert (run / PRIVATE).stat().st_mode & 0o077 == 0
    before = out.read_bytes()
    again = confide("synthesize", run, "--out", out, "--leaks")  # looks at what is there, and writes nothing
    assert again.code == 0, again
    assert "documents of" not in again.out
    assert out.read_bytes() == before


def test_held_out_text_of_units_that_trained_is_left_out(world, tmp_path):
    private = PrivateText.of(world.run, str(world.raw["data"]["train"]))
    found = list(private.held_out())
    assert {text.unit for text in found} == {each["user"] for each in records(world, "eval")}
    assert private.dropped == len(records(world, "train"))


# what is refused -------------------------------------------------------------------------------------------------
def test_without_the_private_text_nothing_is_measured(world, tmp_path):
    alone = Path(shutil.copytree(world.run / "release", tmp_path / "alone"))
    out = tmp_path / "s.jsonl"
    for option in ("--evaluate", "--leaks"):
        refused(confide("synthesize", alone, "--out", out, option), "a release alone knows nothing of it")
    refused(
        confide("synthesize", world.run, "--out", out, "--held-out", out), "--held-out: it is text to compare"
    )
    run = Path(shutil.copytree(world.run, tmp_path / "run"))
    text = Path(world.raw["data"]["train"])
    kept, when = text.read_text(), text.stat()
    try:
        text.write_text(kept + "\n")
        refused(confide("synthesize", run, "--out", out, "--leaks"), "has changed, or is gone")
        text.unlink()
        refused(confide("synthesize", run, "--out", out, "--leaks"), "has changed, or is gone")
    finally:
        text.write_text(kept)
        os.utime(text, ns=(when.st_atime_ns, when.st_mtime_ns))
    assert not out.exists()


def test_a_run_that_held_nothing_out_needs_a_file(world, tmp_path):
    run = Path(shutil.copytree(world.run, tmp_path / "run"))
    path = run / "config.yaml"
    path.write_text(path.read_text().replace("eval: 0.4", "eval: null"))
    refused(
        confide("synthesize", run, "--out", tmp_path / "s.jsonl", "--leaks"), "give some with --held-out FILE"
    )
    others = tmp_path / "others.jsonl"
    others.write_text(
        "".join(json.dumps(each | {"user": "x" + each["user"]}) + "\n" for each in records(world, "eval"))
    )
    out = corpus(tmp_path / "s.jsonl", records(world, "eval"))
    done = confide("synthesize", run, "--out", out, "--leaks", "--held-out", others, "--json")
    assert json.loads(done.out)["leaks"]["held_out"]["texts"] == len(records(world, "eval"))


def test_files_that_are_no_corpus_are_one_sentence(world, tmp_path):
    out = tmp_path / "s.jsonl"
    for content, words in (
        ("", "holds no document"),
        ("not json\n", "is no corpus"),
        ('{"body": "x"}\n', "document 1: has no field text"),
        ('{"text": "x"}\n' * 3, "takes 20 texts on each side"),
    ):
        out.write_text(content)
        refused(confide("synthesize", world.run, "--out", out, "--evaluate"), words)


def test_samples_of_a_stream_are_even():
    assert quality._sample(iter(range(10)), 20) == list(range(10))
    found = quality._sample(iter(range(100_000)), 100)
    assert len(found) == 100
    steps = {b - a for a, b in pairwise(found)}
    assert max(steps) <= 2 * min(steps)
    assert found[-1] > 95_000


def test_the_report_tells_of_the_text_and_only_a_private_one_of_what_was_measured(world, tmp_path):
    run = Path(shutil.copytree(world.run, tmp_path / "run", ignore=shutil.ignore_patterns("texts*.json")))
    pages = {"open": tmp_path / "open.html", "private": tmp_path / "private.html"}
    assert confide("report", run, "--out", pages["open"]).code == 0
    assert "Text that was written" not in pages["open"].read_text()
    assert confide("synthesize", run, *FEW, "--out", tmp_path / "handed.jsonl", "--leaks").code == 0
    assert confide("report", run, "--out", pages["open"]).code == 0
    assert confide("report", run, "--private", "--out", pages["private"]).code == 0
    text = {name: path.read_text() for name, path in pages.items()}
    for page in text.values():
        assert "Text that was written from this model" in page
        assert "handed.jsonl" in page
        assert "computed from what was released: the model. So the claim holds of it" in page
        assert str(tmp_path) not in page.split("The settings of the run")[0]
    for words in (
        "What was measured of",
        "AUROC",
        "canaries that were planted and found",
        "longest run of words",
    ):
        assert words not in text["open"]
        assert words in text["private"]
    told = json.loads(confide("report", run, "--json").out)
    assert "leaks" not in json.dumps(told["texts"])
