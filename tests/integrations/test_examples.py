"""The examples of both trainers run, and differ from the usual script in the three places that they mark."""

import importlib.util
import json
import re
import subprocess
import sys

import pytest

import confide
from tests.command import environment
from tests.integrations.world import made, rows, tokenizer
from tests.places import ROOT


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    folder = tmp_path_factory.mktemp("base")
    made().save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return folder


def example(name):
    path = ROOT / "examples" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"example_{name}", path)
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    assert re.findall(r"# \((\d)\)", path.read_text()) == ["1", "2", "3"]
    return found


def written(path, found):
    path.write_text("".join(json.dumps(row) + "\n" for row in found))
    return path


def test_the_trainers_example_runs(base, tmp_path, capsys):
    text = written(tmp_path / "text.jsonl", rows(number=80, authors=40))
    example("trainer").main(str(base), str(text), str(tmp_path / "out"), 2)
    assert "epsilon = " in capsys.readouterr().out
    assert confide.Guarantee.load(tmp_path / "out" / "guarantee.json").steps == 2


def test_the_sft_example_runs(base, tmp_path, capsys):
    pytest.importorskip("trl")
    talk = [
        {"messages": [{"role": "user", "content": row["text"]}], "customer": row["author"]}
        for row in rows(number=80, authors=40)
    ]
    example("sft").main(str(base), str(written(tmp_path / "talk.jsonl", talk)), str(tmp_path / "out"), 2)
    assert "epsilon = " in capsys.readouterr().out
    assert (tmp_path / "out" / "adapter_model.safetensors").is_file()
    assert confide.Guarantee.load(tmp_path / "out" / "guarantee.json").steps == 2


def test_the_benchmark_compares_the_same_run():
    options = "--steps 2 --batch 4 --rounds 1 --width 16 --layers 1 --json".split()
    command = [sys.executable, str(ROOT / "benchmarks" / "trainer.py"), *options]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(), timeout=300, check=True)
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["furthest apart"] < 1e-6
    assert found["ratio of the processor's time"] > 0
    assert len(found["seconds"]["trainer steps"]) == 1
