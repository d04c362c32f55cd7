"""What is planted: fair coins that follow from a sealed seed, units that count, rows that predict nothing."""

import itertools
import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from confide.config import registry
from confide.config.loading import check
from confide.data.unit_graph import UnitGraph
from confide.models import loading as models
from confide.randomness.streams import RunKey
from confide.runs.canaries import FILE, GRAPH, Manifest, _rare_tokens, blank
from confide.runs.folder import Run
from confide.runs.generated_canaries import _evenly, buckets
from confide.runs.job import Job
from confide.runs.loop import fine_tune
from confide.utils.console import Console
from confide.utils.errors import InputError
from tests import small
from tests.test_resume import config as resumable

COUNT = 40


def planted(folder, mechanism="uls", **canaries):
    """A config with canaries among the users of the resume tests."""
    raw = resumable(folder).model_dump(mode="json")
    raw["canaries"] = {"count": COUNT} | canaries
    raw["privacy"] |= {"mechanism": mechanism, "published_key": "canaries"}
    raw["train"] |= {"batch": 8.0}
    if mechanism == "dp-sgd":
        raw["data"]["unit"] = None
    return check(raw)


@pytest.fixture(scope="module")
def tokenizer():
    return models.load_tokenizer(
        check({"data": {"train": "?"}, "privacy": {"epsilon": 1, "mechanism": "dp-sgd"}})
    )


def drawn(tokenizer, key="a key", **canaries) -> Manifest:
    settings = check(
        {
            "data": {"train": "?"},
            "privacy": {"epsilon": 1, "mechanism": "dp-sgd"},
            "canaries": {"count": COUNT} | canaries,
        }
    )
    return Manifest.draw(settings, tokenizer, RunKey.from_text(key))


def test_a_manifest_follows_from_the_run_key_alone(tokenizer):
    assert drawn(tokenizer) == drawn(tokenizer)
    assert drawn(tokenizer).commitment == drawn(tokenizer).commitment
    assert drawn(tokenizer).commitment != drawn(tokenizer, "another key").commitment


def test_coins_are_fair(tokenizer):
    heads = sum(drawn(tokenizer, f"key {i}").coins.sum() for i in range(25))
    assert abs(heads - 500) < 4 * np.sqrt(1000 / 4)


def test_numbers_are_all_different_and_stand_in_the_template(tokenizer):
    manifest = drawn(tokenizer, template="Code: {}!", digits=3)
    texts = {canary.contents[0] for canary in manifest.canaries}
    assert len(texts) == COUNT
    assert all(text.startswith("Code: ") and len(text) == len("Code: 123!") for text in texts)


def test_rare_tokens_are_as_many_as_asked_for_and_come_back_as_they_went(tokenizer):
    for canary in drawn(tokenizer, family="rare-tokens", tokens=9).canaries:
        assert (
            9 <= len(tokenizer(canary.contents[0])["input_ids"]) <= 18
        )  # a word may be cut otherwise beside others


def test_rare_tokens_are_the_last_of_the_vocabulary(tokenizer):
    special = set(tokenizer.all_special_ids)
    plain = [i for i in range(len(tokenizer)) if i not in special]
    later = {tokenizer.decode([i]).strip() for i in plain[len(plain) // 2 :]}
    words = _rare_tokens(tokenizer)
    assert len(words) > 500
    assert {word.strip() for word in words} <= later


def test_generated_texts_are_the_models_own_and_as_many_of_each_perplexity(tokenizer):
    """The perplexity that is kept is that of the text, and evenly spaced where those of samples are not."""
    found = drawn(tokenizer, family="generated", count=12, tokens=5)
    assert found == drawn(tokenizer, family="generated", count=12, tokens=5)
    assert len({canary.contents[0] for canary in found.canaries}) == 12
    config = check({"data": {"train": "?"}, "privacy": {"epsilon": 1, "mechanism": "dp-sgd"}})
    model = models.load_model(config, None, len(tokenizer)).eval()
    for canary in found.canaries:
        ids = torch.tensor([[tokenizer.bos_token_id, *tokenizer(canary.contents[0])["input_ids"]]])
        if len(ids[0]) == 6:  # a text may be cut otherwise than it was written
            with torch.no_grad():
                again = math.exp(model(input_ids=ids, labels=ids).loss)
            assert canary.perplexity == pytest.approx(again, rel=0.2)  # a space in front is not kept
    means = np.sort([math.log(canary.perplexity) for canary in found.canaries])
    assert np.diff(means).max() < (means[-1] - means[0]) / 3
    samples = [(mean, "") for mean in np.sort(np.random.default_rng(0).normal(size=400))]
    taken = np.array([mean for mean, _ in _evenly(samples, 100)])
    inside = np.abs(taken - taken.mean()) < np.ptp(taken) / 4
    assert inside.mean() < 0.75 < np.mean(np.abs([mean for mean, _ in samples]) < np.ptp(taken) / 4)


def test_what_was_learnt_is_told_by_perplexity():
    generator = np.random.default_rng(0)
    perplexity, planted = np.exp(generator.normal(size=40)), np.arange(40) % 2 == 0
    learnt = planted * perplexity
    found = buckets(perplexity, learnt, planted)
    assert [bucket.planted + bucket.others for bucket in found] == [10] * 4
    assert all(one.high <= next_one.low for one, next_one in itertools.pairwise(found))
    assert all(bucket.low <= bucket.learnt <= bucket.high and bucket.by_chance == 0 for bucket in found)
    assert buckets(perplexity[:2], learnt[:2], np.ones(2, bool))[0].by_chance is None


def test_too_few_digits_for_so_many_canaries_are_refused(tokenizer):
    with pytest.raises(InputError, match=r"canaries\.digits"):
        drawn(tokenizer, digits=1)


def test_a_manifest_comes_back_from_disk_as_it_was(tokenizer, tmp_path):
    manifest = drawn(tokenizer)
    manifest.write(tmp_path)
    assert Manifest.load(tmp_path) == manifest
    (tmp_path / FILE).write_text("{}")
    with pytest.raises(InputError, match="damaged"):
        Manifest.load(tmp_path)


@pytest.mark.parametrize("kind", ["causal-lm", "masked-lm"])
def test_a_blank_row_has_no_loss_and_no_gradient(kind, tokenizer):
    model = small.gpt2()
    model.resize_token_embeddings(len(tokenizer))
    task = registry.task(kind).of(model, tokenizer)
    hide = [RunKey.from_text("x").stream("a", "b")] if kind == "masked-lm" else None
    if kind == "masked-lm":
        task = replace(task, mask=1)
    loss = task.row_loss(model, task.collate([blank(tokenizer)], None, hide))
    loss.sum().backward()
    assert float(loss.detach().sum()) == 0
    assert all(p.grad is None or not p.grad.any() for p in model.parameters())


@pytest.mark.parametrize(("mechanism", "insertions"), [("uls", 1), ("els", 3), ("dp-sgd", 1)])
def test_every_canary_is_a_unit_that_counts_whatever_its_coin(tmp_path, mechanism, insertions):
    run = Run(planted(tmp_path / "a", mechanism, insertions=insertions))
    job = Job.of(run, Console(quiet=True))
    manifest, graph = job.manifest(), job.prepared.train
    without = Job.of(Run(resumable(tmp_path / "b")), Console(quiet=True)).prepared.train
    assert graph.n_units - (without.n_units if mechanism != "dp-sgd" else without.n_rows) in (
        COUNT,
        COUNT - 0,
    ) or (mechanism == "dp-sgd")
    units = manifest.units(graph)
    assert len(set(units.tolist())) == COUNT
    for canary, unit in zip(manifest.canaries, units.tolist(), strict=True):
        lengths = graph.lengths_of(graph.rows_of(unit))
        if canary.is_planted:
            assert len(lengths) == insertions
            assert (lengths > 1).all()
        else:
            assert (lengths == 1).all()
            assert len(lengths) == insertions
    contents = UnitGraph.open(run.data / GRAPH)
    assert contents.n_units == COUNT


def test_an_absent_canary_moves_nothing(tmp_path):
    """The sum is the same whether an absent canary is drawn or its group is left out."""
    run = Run(planted(tmp_path / "a"))
    job = Job.of(run, Console(quiet=True))
    step = job._steps(job.phases()[0], lambda text: None)
    absent = job.manifest().units(job.prepared.train)[job.manifest().coins == 1]
    draws = (step.sampler.draw(number) for number in range(24))
    draw = next(each for each in draws if 0 < np.isin(each.unit_ids, absent).sum() < len(each.unit_ids))
    is_absent = np.isin(draw.unit_ids, absent)
    step.gradients.add(draw, 0)
    whole = step.gradients.take()
    step.gradients.add(draw.only(~is_absent), 0)
    rest = step.gradients.take()
    # the two pack their rows differently, which moves last bits; a unit that counts moves the sum by up to 1
    moved = math.sqrt(sum(float((whole[name] - rest[name]).square().sum()) for name in whole))
    assert moved < 1e-5
    counted = draw.only(np.isin(draw.unit_ids, draw.unit_ids[~is_absent][:1], invert=True))
    step.gradients.add(counted, 0)
    without = step.gradients.take()
    assert math.sqrt(sum(float((whole[name] - without[name]).square().sum()) for name in whole)) > 1e-3


def test_the_ledger_is_sealed_with_the_manifest_before_the_first_step(tmp_path):
    run = Run(planted(tmp_path / "a"))
    fine_tune(run, Console(quiet=True), until=1)
    header = json.loads(run.ledger_path.read_text().splitlines()[0])
    assert header["canaries"] == Manifest.load(run.data).commitment


@pytest.mark.parametrize(
    ("canaries", "message"),
    [
        ({"digits": 3}, "canaries.digits: there are no canaries"),
        ({"count": 5, "template": "no place"}, "canaries.template: must hold"),
        ({"count": 5, "family": "generated", "template": "a {}"}, "canaries.template: is an option"),
        ({"count": -1}, "canaries.count"),
        ({"count": 5, "insertions": []}, "canaries.insertions"),
        ({"count": 5, "insertions": [1, 3]}, "a random chunk would run over several rows"),
        ({"count": 5, "guesses": 6}, "canaries.guesses"),
    ],
)
def test_impossible_canaries_are_refused(tmp_path, canaries, message):
    raw = resumable(tmp_path / "a").model_dump(mode="json")
    with pytest.raises(InputError, match=message):
        check(raw | {"canaries": canaries})


def test_a_draw_of_some_groups_is_numbered_anew():
    from confide.privacy.sampling import Draw

    rows = [np.array([i]) for i in range(5)]
    draw = Draw(rows, np.array([0, 0, 1, 2, 2]), np.arange(5, dtype=np.float32), unit_ids=np.array([7, 8, 9]))
    some = draw.only(np.array([True, False, True]))
    assert [int(row[0]) for row in some.rows] == [0, 1, 3, 4]
    assert some.group.tolist() == [0, 0, 1, 1]
    assert some.weight.tolist() == [0, 1, 3, 4]
    assert some.unit_ids is not None
    assert some.unit_ids.tolist() == [7, 9]
