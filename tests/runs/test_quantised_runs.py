"""Runs beside a base in 8 or 4 bits: resumed to the bit, verified, released, and merged into the whole base."""

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from confide.config.loading import check
from confide.models.quantised import quantised
from confide.runs import export, fingerprints, verify
from confide.runs.folder import Run
from confide.runs.job import Job
from confide.runs.loop import fine_tune
from confide.runs.released import Released
from confide.utils.console import Console
from tests import small
from tests.models.bases import INT8, NF4, TORCHAO, TORCHAO_BF16, WIDE
from tests.test_resume import corpus

IDS = torch.tensor([[0, 5, 6, 7, 300, 41]])


@pytest.fixture(scope="module")
def common(tmp_path_factory):
    folder = tmp_path_factory.mktemp("quantised")
    corpus(folder / "text.jsonl", users=20)
    small.saved(folder / "llama", "llama", **WIDE)
    return folder


def run_of(common, folder, base) -> Run:
    raw = {
        "model": str(common / "llama"),
        "tokenizer": "bundled",
        "data": {"train": str(common / "text.jsonl"), "unit": "user", "eval": 0.2, "max_length": 16},
        "privacy": {"noise_multiplier": 0.8, "rows_per_unit": 2, "published_key": "quantised"},
        "train": {"steps": 4, "batch": 4.0, "checkpoint_every": 2, "learning_rate": 0.01},
        "adapter": {"kind": "lora", "rank": 3},
        "base": base,
        "run": str(folder),
    }
    return Run(check(raw))


def logits(model) -> torch.Tensor:
    with torch.no_grad():
        return model(IDS).logits


@pytest.mark.parametrize("base", [INT8, NF4, TORCHAO, TORCHAO_BF16])
def test_a_run_resumes_to_the_bit_and_its_release_works_beside_the_whole_base(common, tmp_path, base):
    whole, cut = run_of(common, tmp_path / "whole", base), run_of(common, tmp_path / "cut", base)
    fine_tune(whole)
    fine_tune(cut, until=3)
    fine_tune(cut)
    assert cut.ledger_path.read_bytes() == whole.ledger_path.read_bytes()
    ours, theirs = (load_file(run.release / "adapter_model.safetensors") for run in (cut, whole))
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert not any("scale" in name for name in ours)

    by = base.get("quantiser", "bitsandbytes")
    assert f"its linear layers in {base['quantise']} by {by}" in (whole.release / "README.md").read_text()
    plain = AutoModelForCausalLM.from_pretrained(common / "llama", dtype="float32")
    adapted = PeftModel.from_pretrained(plain, whole.release).eval()
    export.merge(Released.of(tmp_path / "whole"), tmp_path / "merged")
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "merged", dtype="float32").eval()
    untrained = AutoModelForCausalLM.from_pretrained(common / "llama", dtype="float32").eval()
    assert torch.allclose(logits(merged), logits(adapted), atol=1e-5)
    assert not torch.allclose(logits(merged), logits(untrained), atol=1e-3)


@pytest.mark.parametrize("base", [INT8, NF4, TORCHAO, TORCHAO_BF16])
def test_verify_passes_and_leaves_the_base_as_it_was(common, tmp_path, base):
    job = Job.of(run_of(common, tmp_path / "run", base), Console(quiet=True))
    before = fingerprints.of_weights(job.model)
    found = verify.verify(job)
    assert found["ok"], found
    assert fingerprints.of_weights(job.model) == before == job.base


@pytest.mark.parametrize("base", [TORCHAO])
def test_the_digest_of_the_base_sees_weights_and_scales(common, tmp_path, base):
    job = Job.of(run_of(common, tmp_path / "run", base), Console(quiet=True))
    seen = {fingerprints.of_weights(job.model)}
    _, layer = next(quantised(job.model))
    for values in (layer.weight, layer.scale):
        with torch.no_grad():
            values[0, 0] += 1
        seen.add(fingerprints.of_weights(job.model))
    assert len(seen) == 3
