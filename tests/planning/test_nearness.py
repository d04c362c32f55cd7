"""How near users' gradients are, against plain vectors; and the tau that a plan names lets a run begin."""

import json

import numpy as np
import pytest

from confide.planning.nearness import Nearness, nearness
from confide.privacy.mechanisms.concentration import ConcentrationAggregation
from confide.randomness.streams import RunKey
from confide.runs.folder import Run
from confide.runs.job import Job
from confide.runs.loop import fine_tune
from confide.utils.console import Console
from tests.command import confide
from tests.training.test_unit_comparison import settings

KEY = RunKey.from_text("nearness test")


def of(vectors):
    gaps = np.linalg.norm(vectors[:, None] - vectors, axis=-1)
    return Nearness(2, np.linalg.norm(vectors, axis=1), gaps)


def test_tau_is_the_least_that_four_fifths_of_all_pairs_do_not_exceed():
    vectors = np.random.default_rng(0).normal(size=(9, 4)) * np.arange(1, 10)[:, None]
    found = of(vectors)
    near = [(found.distances <= limit).mean() for limit in (found.tau, found.tau * (1 - 1e-9))]
    assert near[0] >= 0.8 > near[1]
    clipped = vectors * np.minimum(1, found.norm / found.norms)[:, None]
    assert found.clipped_tau == pytest.approx(of(clipped).tau)
    assert found.clipped_tau < found.tau
    pairs = [np.linalg.norm(a - b) for i, a in enumerate(vectors) for b in vectors[:i]]
    assert found.quantiles([0.0, 1.0]) == pytest.approx([min(pairs) / found.norm, max(pairs) / found.norm])


def test_what_is_measured_is_what_a_step_compares(tmp_path):
    """With rows of every unit whole, a step by the same gradients passes at tau and not below."""
    job = Job.of(Run(settings(tmp_path, 1.0)), Console(quiet=True))
    users = job.setting.parameters.units
    found = nearness(job, 64, KEY)
    assert found.distances.shape == (users, users)  # there are fewer than 64

    def passes(tau):
        near = (found.distances <= tau).sum(0)
        return ConcentrationAggregation(None, 0.0, 1.0, tau, users, 1e9).passes(near, KEY, "main", 0)

    assert passes(found.tau)
    assert not passes(0.9 * found.tau)
    some = nearness(job, 64, KEY, users=5)
    assert len(some.norms) == 5
    assert all(np.isclose(found.norms, norm, rtol=1e-4).any() for norm in some.norms)


def test_a_plan_tells_the_tau_with_which_a_run_begins(tmp_path):
    config = settings(tmp_path, 1e-6, epsilon=60.0)
    path = tmp_path / "job.yaml"
    path.write_text(config.to_yaml())
    planned = json.loads(confide("plan", path, "--measure", "--json").out)
    found = planned["nearness"]
    assert found["tau"] == pytest.approx(found["ratio"] * found["median_norm"])
    job = Job.of(Run(config), Console(quiet=True))
    weights = sum(p.numel() for p in job.model.parameters())
    assert planned["gradients_bytes"] == 4 * job.setting.parameters.units * weights
    said = confide("plan", path, "--measure").out
    assert "for a gradient of every unit" in said
    assert "no guarantee covers a tau that is chosen from this" in said
    assert "nearness" not in json.loads(confide("plan", path, "--json").out)
    other = confide("plan", path, "--measure", "privacy.mechanism=els", "privacy.tau=null")
    assert other.code == 2
    assert "--measure is an option of --suggest, and of the mechanisms uls and concentration" in other.err
    assert fine_tune(Run(config)).halted is not None
    begun = fine_tune(Run(settings(tmp_path / "other", 2 * found["tau"])), until=1)
    assert (begun.steps, begun.halted) == (1, None)
