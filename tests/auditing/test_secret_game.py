"""Canaries under secret protection: each is a secret of its own, which holds one of two numbers."""

import numpy as np
import pytest

from confide.auditing import attack
from confide.auditing.fdp import f_dp_least_correct
from confide.auditing.game import ALPHA, Claim
from confide.auditing.options import Options
from confide.config.loading import check
from confide.data.unit_graph import UnitGraph
from confide.privacy.accounting import MixtureOfGaussians, between
from confide.privacy.mechanisms.values import VALUE, Aggregation
from confide.privacy.mechanisms.weighted import WeightedRows
from confide.runs.canaries import Canary, Manifest
from confide.runs.folder import Run
from confide.runs.job import Job
from confide.runs.loop import fine_tune
from confide.runs.preparation import load
from confide.utils.console import Console
from tests.test_resume import config as resumable

QUIET = Console(quiet=True)
COUNT = 25
CLAIM = Options(attacks=("claim",))


def protected(folder, **canaries) -> Run:
    raw = resumable(folder).model_dump(mode="json")
    raw["data"] |= {"unit": None, "max_length": 32}
    raw["privacy"] = {"mechanism": "secret", "delta": 1e-3, "published_key": "secret canaries"}
    raw["secrets"] = {
        "patterns": {"floor": "floor printer"},
        "prior": 0.01,
        "posterior": 0.012,
        "recall": 1.0,
    }
    raw["canaries"] = {"count": COUNT, "digits": 2, "guesses": 20} | canaries
    raw["train"] |= {"steps": 60, "batch": 60.0, "learning_rate": 0.02, "schedule": "constant"}
    return Run(check(raw))


def test_each_canary_is_a_secret_of_its_rows(tmp_path):
    run = protected(tmp_path / "a", count=24, insertions=[1, 3], template="Our floor printer is {}.")
    job = Job.of(run, QUIET)
    graph = job.prepared.train
    names = list(graph.unit_names())
    rows = [graph.rows_of(unit) for unit in job.manifest().units(graph)]
    assert [len(own) for own in rows] == [1, 3] * 12
    # what else the template holds is still found
    other = set(graph.rows_of(names.index("floor:0")) if "floor:0" in names else graph.rows_of(0))
    assert all(set(own) <= other for own in rows)
    assert job.prepared.facts["canaries"] == {"count": 24, "missed": 0}
    assert set(job.mechanism.targets(graph.shape()).unit) == set(range(graph.n_units))


def test_a_run_that_keeps_its_claim_and_one_without_noise(tmp_path, monkeypatch):
    kept = protected(tmp_path / "kept", insertions=3)
    fine_tune(kept, QUIET)
    found = attack.audit(Job.of(kept, QUIET), CLAIM).to_json()
    assert found["game"] == "value"
    assert found["verdict"] == "consistent"
    assert "one text against another" in found["games"][0]["words"]

    def bare(self, parameters, noise_multiplier):
        return Aggregation(self.clip_norm, 0.0, 1 / parameters.divisor / self.clip_norm)

    monkeypatch.setattr(WeightedRows, "aggregation", bare)
    broken = protected(tmp_path / "broken", insertions=3)
    fine_tune(broken, QUIET)
    found = attack.audit(Job.of(broken, QUIET), CLAIM).to_json()
    assert found["verdict"] == "violation"


def test_numbers_of_another_length_in_tokens_play_no_game(tmp_path):
    """How many tokens a mention has is public, so two texts that differ in it are no two worlds."""
    run = protected(tmp_path / "a")
    contents = ("My ID is 12.", "My ID is 123.")
    canary = Canary("c", contents, 0, 1, ("12", "123"))
    made = Manifest("00", VALUE, "digits", "{}", (canary,) * 2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Manifest, "draw", classmethod(lambda cls, *given: made))
        Job.of(run, QUIET)
    prepared = load(run.config, run.data, run.data_key())
    assert prepared is not None
    assert prepared.facts["canaries"]["missed"] == 2
    assert UnitGraph.open(run.data / "canaries").n_units == 2


# the curve of two texts ----------------------------------------------------------------------------------------
@pytest.mark.parametrize("mu", [0.2, 1.0, 4.0])
def test_two_texts_on_either_side_of_none_are_twice_as_far_apart(mu):
    """Of Gaussians the exact curve is known: N(mu) and N(-mu), each against N(0), are 2 mu apart."""
    zeroed = MixtureOfGaussians.bernoulli(1.0, 1).curve(1 / mu)
    exact = MixtureOfGaussians.bernoulli(1.0, 1).curve(1 / (2 * mu))
    found = between(zeroed)
    for epsilon in np.linspace(-2 * mu, 4 * mu + 2 * mu**2, 40):
        assert found.delta(epsilon) >= exact.delta(epsilon) - 1e-9
    for delta in (1e-2, 1e-5):
        # composition of trade-off functions is exact for Gaussians
        assert exact.epsilon(delta) * (1 - 1e-6) <= found.epsilon(delta) <= 1.02 * exact.epsilon(delta)


def test_a_claim_for_zero_out_is_held_against_the_wider_curve():
    """Guesses of texts at +mu and -mu refute zero-out's own curve more often than may be, and not the one of texts."""
    mu, coins = 0.6, 300
    curve = MixtureOfGaussians.bernoulli(1.0, 1).curve(1 / mu)
    claim = Claim("a secret", "zero-out", 1.0, 1e-5, curve, one_row=False, game=VALUE)
    presence = Claim("a secret", "zero-out", 1.0, 1e-5, curve, one_row=False)
    guesses, trials = 40, 2000
    generator = np.random.default_rng(0)
    correct = []
    for _ in range(trials):
        bits = generator.random(coins) < 0.5
        order = np.argsort(generator.normal(size=coins) + np.where(bits, mu, -mu))
        correct.append(bits[order[-guesses // 2 :]].sum() + (~bits[order[: guesses // 2]]).sum())
    alarms = {}
    for name, own in (("texts", claim), ("presence", presence)):
        needed = f_dp_least_correct(own.played, coins, guesses, ALPHA)
        alarms[name] = np.mean(np.array(correct) >= (guesses + 1 if needed is None else needed))
    assert alarms["texts"] <= ALPHA + 2 * np.sqrt(ALPHA * (1 - ALPHA) / trials)
    assert alarms["presence"] > 0.2
