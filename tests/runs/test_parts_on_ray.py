"""Ray reads the parts of a source, or gets their texts: the bytes are those of one process."""

import pytest

from confide.runs import kept_parts
from confide.utils.workers import Crew
from tests.places import ROOT
from tests.runs.test_crews import prepared
from tests.runs.test_parts import config, small, source  # noqa: F401

ray = pytest.importorskip("ray", reason="ray is not installed")
pytestmark = pytest.mark.subprocess  # started by what is tested


@pytest.fixture
def cluster(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", f"{ROOT / 'src'}:{ROOT}")
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


@pytest.mark.parametrize("worth", [1, 1 << 30])
def test_ray_makes_the_bytes_of_one_process(tmp_path, model, monkeypatch, small, cluster, worth):  # noqa: F811
    monkeypatch.setattr(kept_parts, "WORTH", worth)
    train = source(tmp_path, "jsonl")
    once = prepared(config(tmp_path, model, "once", train), Crew())
    assert prepared(config(tmp_path, model, "nodes", train), Crew(cluster="local")) == once
    assert prepared(config(tmp_path, model, "driver", train), Crew(cluster="auto")) == once
    assert not list(tmp_path.rglob(".data.parts"))
