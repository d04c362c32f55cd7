"""The white-box audit: evidence of noised sums, and readings that leave training as it is."""

import math
from dataclasses import replace
from types import MappingProxyType

import numpy as np
import pytest
import torch

from confide.clipping import ClippedSum
from confide.data.unit_graph import GraphWriter, UnitGraph
from confide.privacy.sampling import Draw
from confide.randomness.seal import Seal
from confide.randomness.streams import RunKey
from confide.training import white_box
from confide.training.evidence_of_sums import evidence
from confide.training.white_box import Readings
from tests import small

MANY, WIDTH = 60, 4000


def overlapping(generator):
    """Unit vectors with a large part that all share."""
    own = generator.standard_normal((MANY, WIDTH)) / WIDTH**0.5
    common = generator.standard_normal(WIDTH) / WIDTH**0.5
    vectors = own + generator.uniform(1.0, 2.0, (MANY, 1)) * common
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def told_apart(scores, present):
    """The probability that one who is present scores higher than one who is not."""
    return float((scores[present][:, None] > scores[~present]).mean())


def played(noise, times=1.0, rate=0.2, steps=20, seed=0):
    """Sum the evidence of some steps, beside what inner products with the sum tell by themselves."""
    generator = np.random.default_rng(seed)
    vectors = overlapping(generator)
    products, present = vectors @ vectors.T, generator.random(MANY) < 0.5
    found, plain = np.zeros(MANY), np.zeros(MANY)
    for _ in range(steps):
        counts = times * (present & (generator.random(MANY) < rate))
        total = counts @ vectors + noise * generator.standard_normal(WIDTH)
        along = vectors @ total
        found += evidence(products, along, float(total @ total), WIDTH, rate, stated=9.0)
        plain += along - along.mean()
    return told_apart(found, present), told_apart(plain, present)


def test_without_noise_those_who_took_part_are_told_although_all_are_alike():
    found, plain = played(noise=0.0)
    assert found > 0.97  # some are never drawn
    assert plain < 0.8


def test_gradients_that_were_not_clipped_are_told():
    assert played(noise=1.0, times=30.0)[0] > 0.97


def test_noise_hides_them():
    found = [played(noise=noise, seed=seed)[0] for noise in (0.1, 8.0) for seed in range(5)]
    assert np.mean(found[:5]) > 0.9
    assert 0.35 < np.mean(found[5:]) < 0.65


def test_evidence_is_the_ratio_of_likelihoods_where_gradients_do_not_overlap():
    """One gradient, one step: it is in the sum with the given probability, or never."""
    rate, noise, seen, rest = 0.3, 0.5, 0.8, 200_001
    square = seen**2 + noise**2 * (rest - 1)
    (found,) = evidence(np.eye(1), np.array([seen]), square, rest, rate, stated=9.0)
    ratio = np.exp(-((seen - 1) ** 2) / 2 / noise**2) / np.exp(-(seen**2) / 2 / noise**2)
    assert found == pytest.approx(np.log(1 - rate + rate * ratio), rel=1e-3)


def test_a_gradient_of_zero_tells_nothing():
    products = np.diag([1.0, 0.0])
    found = evidence(products, np.array([0.9, 0.0]), 100.0, 1000, 0.5, stated=9.0)
    assert found[1] == 0
    assert np.isfinite(found).all()
    assert not evidence(np.zeros((2, 2)), np.zeros(2), 100.0, 1000, 0.5, stated=9.0).any()


@pytest.mark.parametrize("dimensions", [MANY + 20, MANY + 1, MANY, MANY - 20])
def test_where_few_dimensions_are_left_the_noise_is_the_stated_one(dimensions):
    """There is no part of the sum without gradients: what remains is rounding, and is not taken for no noise."""
    generator = np.random.default_rng(0)
    vectors = generator.standard_normal((MANY, dimensions)) / dimensions**0.5
    total = vectors[:5].sum(0) + 2.0 * generator.standard_normal(dimensions)
    found = evidence(vectors @ vectors.T, vectors @ total, float(total @ total), dimensions, 0.1, stated=2.0)
    assert np.abs(found).max() < 4


def test_gradients_that_are_alike_and_a_sum_of_nothing_stay_finite():
    alike = np.ones((3, 3))
    for dimensions in (3, 10**9):
        found = evidence(alike, np.zeros(3), 0.0, dimensions, 0.2, stated=0.0)
        assert np.abs(found).max() <= 50


def readings(folder, clip_norm=0.5):
    model, task = small.gpt2(), small.task()
    rows = [np.array([2, 5, 7, 3]), np.array([4, 9, 6, 8, 3]), np.array([11, 2, 2, 6])]
    with GraphWriter(folder / "contents", small.VOCABULARY) as writer:
        for number, row in enumerate(rows):
            writer.add(row, [f"canary {number}"])
    contents, seal = UnitGraph.open(folder / "contents"), Seal(RunKey.from_text("x"))
    units = np.arange(3)
    made = Readings(
        model, task, folder / "evidence", 2, units, contents, units, seal, clip_norm, 1.0, 0.1, rate=0.5
    )
    return made, rows


def gradient(model, task, row, clip_norm, scales=MappingProxyType({})):
    model.zero_grad()
    task.row_loss(model, task.collate([row]))[0].backward()
    found = {n: scales.get(n, 1.0) * p.grad for n, p in model.named_parameters() if p.grad is not None}
    model.zero_grad(set_to_none=True)
    norm = float(sum(vector.double().square().sum() for vector in found.values()) ** 0.5)
    return {name: vector * min(1.0, clip_norm / norm) for name, vector in found.items()}


@pytest.mark.parametrize("together", [16, 1])
def test_a_canary_that_is_in_the_sum_has_more_evidence_than_others(tmp_path, monkeypatch, together):
    """Also where gradients are so large that each takes a pass of its own."""
    monkeypatch.setattr(white_box, "LARGEST", together * 8000)
    made, rows = readings(tmp_path)
    model = made.model
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    model.train()
    own = gradient(model.eval(), made.task, rows[1], 0.5)
    model.train()
    known = {name: torch.full_like(vector, 0.3) for name, vector in own.items()}
    total = {name: known[name] + 0.1 * vector for name, vector in own.items()}
    state = torch.get_rng_state()
    for step in range(2):
        made.read(step, known, total)
    assert torch.equal(torch.get_rng_state(), state)
    assert model.training
    assert all(torch.equal(p, before[name]) for name, p in model.named_parameters())
    scores = made.scores(2)
    assert scores[1] > 1 > 0 > max(scores[0], scores[2])
    assert made.scores(1)[1] == pytest.approx(scores[1] / 2)


def test_the_gradients_of_canaries_are_multiplied_as_those_of_training_are(tmp_path):
    scales = {"transformer.wte.weight": 5.0, "transformer.wpe.weight": 0.2}
    made, rows = readings(tmp_path)
    each = [gradient(made.model.eval(), made.task, row, 0.5, scales) for row in rows]
    products, along = replace(made, scales=scales)._products(each[1])
    wanted = [[float(sum((a[name] * b[name]).sum() for name in a)) for a in each] for b in each]
    # Norms are rounded up, so that clipped gradients are a little shorter.
    assert products == pytest.approx(np.array(wanted), rel=5e-3)
    assert along == pytest.approx(np.array(wanted[1]), rel=5e-3)
    without, _ = made._products(each[1])
    assert not np.allclose(without, np.array(wanted), rtol=0.05)


def test_a_canary_whose_gradient_is_not_finite_tells_nothing_and_ends_nothing(tmp_path, monkeypatch):
    made, rows = readings(tmp_path)
    own = gradient(made.model.eval(), made.task, rows[1], 0.5)
    add = ClippedSum.add

    def overflowing(self, batch, unit, weight, begun):
        norms = add(self, batch, unit, weight, begun)
        for vector in begun[2].values():
            vector.fill_(math.nan)
        norms[2] = math.inf
        return norms

    monkeypatch.setattr(ClippedSum, "add", overflowing)
    nothing = {name: torch.zeros_like(vector) for name, vector in own.items()}
    made.read(0, nothing, {name: 0.1 * vector for name, vector in own.items()})
    scores = made.scores(1)
    assert scores[2] == 0
    assert np.isfinite(scores).all()
    assert scores[1] > 0


def test_who_is_unknown_and_what_nobody_kept(tmp_path):
    made, _ = readings(tmp_path)
    draw = Draw([], np.zeros(0, np.int64), np.zeros(0, np.float32), unit_ids=np.array([7, 2]))
    assert made.unknown(draw).tolist() == [False, True]
    with pytest.raises(Exception, match="missing, so the steps cannot be audited"):
        made.scores(1)
