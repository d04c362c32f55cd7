"""Histograms of a run, from the text to the corpus: counted as the text says, released once, drawn by, and verified."""

import json
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from transformers import AutoTokenizer

from confide.config.loading import load
from confide.data.conditions import Conditions, Counted
from confide.data.documents import side_of
from confide.data.lengths import BOUNDS, Lengths
from confide.data.unit_graph import UnitGraph
from confide.models.names import location
from confide.privacy import histograms
from confide.privacy.guarantee import Guarantee
from confide.privacy.histograms import GRID, Histograms, each_vector
from confide.runs import histograms as files
from confide.runs import verify_histograms
from confide.runs.folder import Run
from confide.runs.job import Job
from confide.synthesis.sampling import Asked, Batch
from confide.utils.console import Console
from tests.command import World, confide, refused

KINDS = ["bad", "good", "unheard"]
COUNTED = {"of": ["conditions", "lengths"], "noise_multiplier": 0.5}
DATA = {"condition": "kind", "conditions": KINDS, "max_length": 8, "max_documents": 35, "eval": 0.3}


def settings(**privacy) -> dict:
    return {f"data__{key}": value for key, value in DATA.items()} | {
        "privacy__histograms": COUNTED,
        **{f"privacy__{key}": value for key, value in privacy.items()},
    }


def world_of(folder: Path, model: Path, **privacy) -> World:
    """A world whose texts have several lengths, some of a kind that the list lacks."""
    world = World(folder, model).set(**settings(**privacy))
    rows = [json.loads(line) for line in world.text.read_text().splitlines()]
    for number, row in enumerate(rows):
        row["text"] = " ".join([row["text"]] * (1 + number % 3))
        row["kind"] = "foreign" if number % 4 == 3 else row["kind"]
    return world.write("".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture(scope="module")
def counted(tmp_path_factory, model) -> World:
    world = world_of(tmp_path_factory.mktemp("counted"), model, noise_multiplier=0.3)
    world.set(train__learning_rate=0.2)
    assert confide("train", world.path).code == 0
    return world


@pytest.fixture(scope="module")
def by_row(tmp_path_factory, model) -> World:
    world = world_of(tmp_path_factory.mktemp("by row"), model, mechanism="dp-sgd")
    world.drop("privacy", "rows_per_unit").set(privacy__histograms={"of": ["conditions"]})
    assert confide("prepare", world.path).code == 0
    return world


def job_of(world: World) -> Job:
    return Job.of(Run(load(world.path)), Console(quiet=True))


def told(world: World) -> list[tuple[str, str, int]]:
    """User, kind and tokens of each document that trains, as the text file has them."""
    tokenizer = AutoTokenizer.from_pretrained(location("bundled"))
    found = []
    for line in world.text.read_text().splitlines()[: DATA["max_documents"]]:
        row = json.loads(line)
        if side_of((row["user"],), DATA["eval"]) == "train":
            prefix = f"kind: {row['kind']}\n\n" if row["kind"] in KINDS else ""
            tokens = len(tokenizer(prefix + row["text"], add_special_tokens=False)["input_ids"])
            found.append((row["user"], row["kind"], tokens + 1))  # and the token that ends it
    return found


def exact(graph: UnitGraph, name: str, by_user: bool) -> np.ndarray:
    cells = {"conditions": len(KINDS), "lengths": len(BOUNDS)}[name]
    return sum(each.sum(axis=0) for each in each_vector(graph, name, cells, by_user)) / GRID


def expected(documents: list[tuple[str, str, int]], by_user: bool) -> tuple[np.ndarray, np.ndarray]:
    of_user = Counter(user for user, _, _ in documents)
    kinds, lengths = np.zeros(len(KINDS)), np.zeros(len(BOUNDS))
    for user, kind, tokens in documents:
        share = 1 / of_user[user] if by_user else 1
        if kind in KINDS:
            kinds[KINDS.index(kind)] += share
        lengths[next(at for at, bound in enumerate(BOUNDS) if tokens <= bound)] += share
    return kinds, lengths


def test_what_is_counted_is_what_the_text_says(counted, by_row):
    for world, by_user in ((counted, True), (by_row, False)):
        graph = UnitGraph.open(world.run / "data" / "train")
        documents = told(world)
        assert graph.n_rows > 1.5 * len(documents)  # documents of several rows
        kinds, lengths = expected(documents, by_user)
        assert exact(graph, "conditions", by_user) == pytest.approx(kinds, abs=1e-6)
        if by_user:
            assert exact(graph, "lengths", by_user) == pytest.approx(lengths, abs=1e-6)
            assert np.count_nonzero(lengths) >= 2


def test_the_release_has_noised_counts_and_the_claim_covers_them(counted):
    release = counted.run / "release"
    conditions, lengths = Conditions.load(release), Lengths.load(release)
    graph = UnitGraph.open(counted.run / "data" / "train")
    for found, name in ((conditions.counted, "conditions"), (lengths.counted, "lengths")):
        assert found.unit == "user"
        assert found.deviation == pytest.approx(0.5 * 2**0.5)
        gap = np.array(found.counts) - exact(graph, name, True)
        assert 0 < np.abs(gap).max() < 6
    claim = Guarantee.load(release / "guarantee.json")
    assert (
        "counts of how often each condition of the list occurs and of how long documents"
        in claim.protected_output
    )
    mechanism = Histograms(("conditions", "lengths"), 0.5)
    assert claim.epsilon > mechanism.pair("zero-out").curve(0.5).epsilon(
        claim.delta
    )  # more than the counts alone
    assert "which epsilon covers too" in (release / "README.md").read_text()
    (first, *_) = (counted.run / "ledger.jsonl").read_text().splitlines()
    assert json.loads(first)["histograms"] == COUNTED
    assert "released with the model: counts of conditions and lengths" in confide("plan", counted.path).out


def test_to_release_again_draws_no_new_noise(counted, tmp_path):
    world = shutil.copytree(counted.run, tmp_path / "run")
    before = {name: (world / "release" / name).read_bytes() for name in ("conditions.json", "lengths.json")}
    shutil.rmtree(world / "release")
    again = World.__new__(World)
    again.folder, again.path, again.raw, again.run = tmp_path, tmp_path / "c.yaml", counted.raw, world
    again.set(run=str(world))
    assert confide("train", again.path).code == 0
    assert {name: (world / "release" / name).read_bytes() for name in before} == before


def test_a_twin_counts_nothing(counted, tmp_path):
    assert confide("train", counted.path, "--twin").code == 0
    assert job_of(counted).mechanism.histograms is not None
    twin = Job.of(Run(load(counted.path), twin=True), Console(quiet=True))
    assert twin.mechanism.histograms is None
    assert not list(counted.run.glob("twin/**/lengths.json"))


def test_rows_that_tell_no_documents_are_prepared_again(tmp_path, model):
    world = world_of(tmp_path, model)
    world.set(privacy__histograms={"of": []})
    assert confide("prepare", world.path).code == 0
    assert UnitGraph.open(world.run / "data" / "train").documents is None
    world.set(privacy__histograms=COUNTED)
    assert confide("prepare", world.path).code == 0
    assert UnitGraph.open(world.run / "data" / "train").documents is not None


def test_documents_are_drawn_by_shares_and_lengths_that_were_counted(counted, tmp_path):
    release = Path(shutil.copytree(counted.run / "release", tmp_path / "alone"))
    (release / "conditions.json").write_text(
        json.dumps(Conditions.load(release).with_counts(Counted("user", 0.7, (-3, 9, 3))).to_json())
    )
    (release / "lengths.json").write_text(
        json.dumps(Lengths((4, 16, 64), Counted("user", 0.7, (50, 50, -1))).to_json())
    )
    out = tmp_path / "s.jsonl"
    drawn = confide(
        "synthesize", release, "--documents", "40", "--seed", "5", "--temperature", "5", "--out", out
    )
    assert drawn.code == 0, drawn
    found = [json.loads(line) for line in out.read_text().splitlines()]
    assert Counter(each["kind"] for each in found) == {"good": 30, "unheard": 10}
    tokenizer = AutoTokenizer.from_pretrained(location("bundled"))
    sizes = [len(tokenizer(each["text"])["input_ids"]) for each in found if each["ended"] == "max-new-tokens"]
    assert sum(size <= 6 for size in sizes) >= 8  # a text may have other tokens when it is read again
    assert sum(8 < size <= 20 for size in sizes) >= 8
    card = out.with_suffix(".md").read_text()
    assert "The shares were counted in the private text, with noise. The claim covers them." in card
    assert "Where a document would have been longer, it is cut." in card
    assert "the released model and the counts beside it alone" in card


def test_a_release_that_lost_a_list_or_whose_shares_were_edited_is_refused(counted, tmp_path):
    for name, option in (("conditions.json", "--prompts"), ("lengths.json", "--max-new-tokens")):
        release = Path(shutil.copytree(counted.run / "release", tmp_path / name / "alone"))
        found = json.loads((release / name).read_text())
        shares = found["conditions"] if name == "conditions.json" else found["shares"]
        if name == "conditions.json":
            shares[0]["share"] += 0.25
        else:
            shares[0] += 0.25
        (release / name).write_text(json.dumps(found))
        out = tmp_path / f"{name}.jsonl"
        refused(confide("synthesize", release, "--out", out), "its shares are not those of its counts")
        (release / name).unlink()
        refused(confide("synthesize", release, "--out", out), f"is missing, and the claim says.*{option}")


def test_counts_that_may_be_noise_alone_are_named():
    vague = Counted("user", 20.0, (100, 30, 35, -5))
    said = vague.doubt("kinds", ["a", "b", "c", "d"])
    assert "standard deviation of 20" in said
    assert "3 of 4 counts are below twice that" in said
    assert f"{65 / 165:.0%} of the documents" in said
    assert said.endswith("never drawn: d")
    assert Counted("user", 20.0, (1000, 30, 35, 41)).doubt("kinds", ["a", "b", "c", "d"]) == ""


def test_a_plan_warns_of_noise_as_large_as_what_is_counted(counted):
    assert "of 0.707: what is counted will be noise for the most part" in confide("plan", counted.path).out
    asked = Histograms(("conditions", "lengths"), 20.0)
    few, many = list(asked.doubts(79, 3)), list(asked.doubts(100_000, 3))
    assert len(few) == 2
    assert "26.4 in each of the 3 counts of conditions on average" in few[0]
    assert "standard deviation of 28.2" in few[0]
    assert many == []


def test_each_document_draws_its_bound():
    asked = Asked(documents=9, bounds=(4, 8, 16), bound_shares=(0.5, 0.0, 0.5), seed=3)
    drawn = [asked.most_tokens(Batch(number, 0, 50)) for number in range(40)]
    assert asked.most_tokens(Batch(7, 0, 50)) == drawn[7]
    counts = Counter(bound for each in drawn for bound in each)
    assert set(counts) == {4, 16}
    assert abs(counts[4] - 1000) < 150
    assert Asked(documents=9).most_tokens(Batch(0, 0, 5)) == ()


def test_counts_below_zero_are_no_shares_and_none_above_it_says_nothing():
    assert Counted("user", 1.0, (-4, 3, 1)).shares == (0, 0.75, 0.25)
    assert Counted("user", 1.0, (-4, 0)).shares == (0.5, 0.5)


def test_a_damaged_histogram_is_refused(tmp_path):
    good = Lengths(BOUNDS, Counted("row", 2.0, (1,) * len(BOUNDS))).to_json()
    (tmp_path / "lengths.json").write_text(json.dumps(good))
    assert Lengths.load(tmp_path).counted.unit == "row"
    for damaged in (good | {"bounds": [0] * len(BOUNDS)}, good | {"bounds": [4]}, {}, []):
        (tmp_path / "lengths.json").write_text(json.dumps(damaged))
        with pytest.raises(Exception, match="is damaged"):
            Lengths.load(tmp_path)


def test_a_table_that_states_shares_is_refused(tmp_path, model):
    (tmp_path / "list.csv").write_text("kind,share\ngood,2\nbad,6\n")
    world = World(tmp_path, model).set(**settings() | {"data__conditions": str(tmp_path / "list.csv")})
    refused(confide("prepare", world.path), "list.csv: states a share, and privacy.histograms counts")


# verify ----------------------------------------------------------------------------------------------------------
def seen(job: Job) -> list[str]:
    """The names of the checks that fail."""
    return [name for name, ok, _ in verify_histograms.histogram_checks(job) if not ok]


def no_noise(patch):
    patch.setattr(Histograms, "noised", lambda self, sums, key: {n: each / GRID for n, each in sums.items()})


def noise_of_one_histogram(patch):
    patch.setattr(Histograms, "deviation", property(lambda self: self.noise_multiplier))


def fresh_noise(patch):
    noised, generator = Histograms.noised, np.random.default_rng(0)
    patch.setattr(
        Histograms, "noised", lambda self, sums, key: noised(self, sums, key.bound_to(generator.bytes(8)))
    )


def every_document_counts(patch):
    vectors = histograms.vectors_of

    def unbounded(graph, name, cells, by_user, low, high):
        found = vectors(graph, name, cells, by_user, low, high)
        return found * np.diff(graph.unit_offsets)[low:high, None]

    patch.setattr(histograms, "vectors_of", unbounded)
    patch.setattr(verify_histograms, "vectors_of", unbounded)


SEEN_BY = [
    (no_noise, "noise of the histograms of the stated size"),
    (noise_of_one_histogram, "noise of the histograms of the stated size"),
    (fresh_noise, "a second release has the same noise"),
    (every_document_counts, "no unit moves the histograms further than is accounted"),
]


def test_all_is_well(counted, by_row):
    for world in (counted, by_row):
        job = job_of(world)
        found = list(verify_histograms.histogram_checks(job))
        assert len(found) == 4
        assert all(ok for _, ok, _ in found), found
        bare = replace(job, mechanism=replace(job.mechanism, histograms=None))
        assert not list(verify_histograms.histogram_checks(bare))
        assert files.counted(bare.mechanism, job.prepared.train, job.key, None) == (None, None)


@pytest.mark.parametrize(("fault", "by"), SEEN_BY, ids=[fault.__name__ for fault, _ in SEEN_BY])
def test_a_fault_is_seen(counted, monkeypatch, fault, by):
    job = job_of(counted)
    fault(monkeypatch)
    assert by in seen(job)


def test_a_list_that_changed_is_not_released(tmp_path, model):
    world = world_of(tmp_path, model, noise_multiplier=0.3)
    table = tmp_path / "kinds.csv"
    table.write_text("kind\n" + "\n".join(KINDS) + "\n")
    world.set(data__conditions=str(table))
    assert confide("train", world.path).code == 0
    shutil.rmtree(world.run / "release")
    table.write_text("kind\n" + "\n".join(reversed(KINDS)) + "\nJohn Smith\n")
    found = confide("train", world.path)
    assert found.code == 2
    assert not (world.run / "release").exists()
    assert "differs in conditions" in found.err
