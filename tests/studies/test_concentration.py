"""The concentration study: what is measured and what follows, in its tables and its picture."""

import numpy as np
import pytest
from studies.concentration import filter_noise, sampling_noise

from confide.planning.nearness import USERS, Nearness
from confide.privacy.accounting.concentration import Filtered
from studies import concentration
from tests.studies.test_suggestion import data  # noqa: F401  # a fixture


def test_its_tables_tell_what_was_measured_and_where_the_noises_cross(tmp_path, data, monkeypatch):  # noqa: F811
    monkeypatch.setattr(concentration, "DRAWN_KS", (100, 64))  # 10 and 16 users of some forty a step
    monkeypatch.setattr(concentration, "EPSILONS", (1.0, 8.0))
    asked = []

    def nearness(job, k, key):
        asked.append((k, key, job.mechanism.rows_per_unit))
        vectors = np.random.default_rng(k).normal(size=(USERS, 8)) * k
        return Nearness(
            k, np.linalg.norm(vectors, axis=1), np.linalg.norm(vectors[:, None] - vectors, axis=-1)
        )

    monkeypatch.setattr(concentration, "nearness", nearness)
    found = concentration.run(data, tmp_path)
    assert [(k, key) for k, key, _ in asked] == [(k, concentration.KEY) for k in (1, 4, 16)]
    first, second = found["noise"]
    users, delta = first["users"], first["delta"]
    assert 30 < users < 40
    assert first["filter"] == Filtered(users, 100, 1.0, delta).noise_multiplier / users
    assert second["filter"] < first["filter"]
    noise = sampling_noise(users, 1024 / 64, 100, 8.0, delta)
    assert second["sampling"][64] == noise
    assert second["crossing"][64] == pytest.approx(noise / second["filter"])
    measured, noises = (table.splitlines() for table in found["markdown"].split("\n\n"))
    assert len(measured) == 2 + 3
    assert len(noises) == 2 + 2
    row = found["distances"][2]
    cells = [cell.strip() for cell in measured[-1].strip("|").split("|")]
    assert cells[0] == "16"
    assert float(cells[5]) == pytest.approx(row["tau"], rel=0.01)
    assert float(cells[6]) == pytest.approx(row["tau"] / row["median_norm"], abs=0.006)
    assert len(noises[-1].strip("|").split("|")) == len(noises[0].strip("|").split("|"))
    assert "<svg" in (tmp_path / "concentration.svg").read_text()


@pytest.mark.parametrize(("epsilon", "part"), [(1.0, 1), (8.0, 1), (3.0, 8)])
def test_the_filter_gains_only_below_a_tenth_of_the_clip_norm(epsilon, part):
    """Chua et al. 2024, Figures 3 and 7; where a user is left out instead of replaced, the crossing is lower still."""
    users, steps, delta = 2000, 100, 1e-5
    noise = filter_noise(users, steps, epsilon, delta)
    replaced = sampling_noise(users, users / part, steps, epsilon, delta)
    left_out = sampling_noise(users, users / part, steps, epsilon, delta, "zero-out")
    assert 0.02 < left_out / noise < 0.75 * replaced / noise < 0.1
