"""Ray reads the parts of a source, or gets their texts: the bytes are those of one process."""

import json

import pytest

from confide.runs import kept_parts
from confide.utils.workers import Crew
from tests.command import confide, files_below
from tests.places import ROOT
from tests.runs.test_crews import prepared
from tests.runs.test_parts import config, small, source  # noqa: F401
from tests.runs.test_redact_parts import PATTERNS, redact  # noqa: F401

ray = pytest.importorskip("ray", reason="ray is not installed")
pytestmark = pytest.mark.subprocess  # started by what is tested


@pytest.fixture(scope="module")
def cluster():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", f"{ROOT / 'src'}:{ROOT}")
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
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


def test_ray_tags_and_redacts_as_one_process(tmp_path, redact, monkeypatch, cluster):  # noqa: F811
    monkeypatch.setattr(kept_parts, "WORTH", 1)
    changes = {
        "data": {"train": redact.train, "unit": None, "eval": None},
        "privacy": {"mechanism": "secret"},
        "secrets": {"patterns": PATTERNS, "column": "user", "prior": 1e-3, "posterior": 0.5},
    }
    crews = {"once": ("--processes", "1"), "nodes": ("--ray", "local")}
    tagged = []
    for name, options in crews.items():
        done = confide("secrets", "tag", redact.written(name, changes), "--json", *options)
        assert done.code == 0, done
        tagged.append((done.out, files_below(tmp_path / name / "data")))
    assert tagged[0] == tagged[1]
    assert json.loads(tagged[0][0])["classes"]["user"]["secrets"] > 3
    for more in ((), ("--sample", "0.4")):
        once, nodes = (redact(f"{name}{len(more)}", *options, *more) for name, options in crews.items())
        assert once == nodes
    assert not list(tmp_path.rglob(".*.parts"))
