"""`verify` passes on models of every kind, leaves them as they were, and fails on every fault put in."""

import copy
import json
import random
from dataclasses import replace

import numpy as np
import pytest
import torch

from confide import clipping
from confide.clipping import ClippedSum, factors
from confide.clipping import products as products_of_factors
from confide.clipping.slot import Slot
from confide.config.loading import check
from confide.data.unit_graph import GraphWriter, UnitGraph
from confide.models import loading as models
from confide.models.expected_tokens import expects_now, keep_expected
from confide.models.fast import onednn as products
from confide.privacy.mechanisms import rows
from confide.privacy.mechanisms.rows import RowSampler
from confide.privacy.mechanisms.uls import UnitSampler, UserLevelSampling
from confide.privacy.mechanisms.values import Aggregation
from confide.privacy.mechanisms.weighted import WeightedRows
from confide.privacy.sampling import OwnRates, Sampling
from confide.privacy.selection import select
from confide.randomness.streams import RunKey
from confide.runs import verify
from confide.runs.folder import Run
from confide.runs.job import Job
from confide.runs.verify_draws import KEPT, Drawn, _period, _steps
from confide.training.step import PrivateStep
from confide.utils.console import Console
from tests import small
from tests.quick import everywhere, needs_onednn
from tests.runs.verify_faults import FAULTS, count_padding, divide_a_loss_by_the_tokens_of_the_batch

__all__ = ["everywhere"]

NAMES = {
    "clipping": "fast clipping equals a loop over units",
    "alone": "a row's loss is a function of that row alone",
    "coverage": "every trainable parameter is covered and moves",
    "step": "a step divides the clipped sum by a constant",
    "noise": "noise of the stated size",
    "empty": "an empty draw is a noise-only step",
    "draws": "draws are those that are accounted for",
}
ROWS_IN_USE = "no unit has more rows in use than are counted"  # where rows are drawn


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    root = tmp_path_factory.mktemp("verify")
    generator = random.Random(1)
    words = "the printer on floor three is out of paper again and nobody has a key to the store room".split()
    with open(root / "text.jsonl", "w") as stream:
        for user in range(12):
            for _ in range(generator.randint(1, 5)):
                text = " ".join(generator.choice(words) for _ in range(generator.randint(3, 30)))
                stream.write(
                    json.dumps({"user": f"u{user}", "text": text, "label": generator.choice("abc")}) + "\n"
                )

    def make(
        kind="gpt2",
        task="causal-lm",
        mechanism="uls",
        adapter=None,
        noise=0.8,
        private=None,
        anew=False,
        length=16,
        **train,
    ):
        folder = root / f"{kind}-{task}"
        if not folder.exists():
            small.saved(folder, kind, task, num_labels=3)
        data = {"train": str(root / "text.jsonl"), "unit": "user", "eval": None, "max_length": length}
        if task == "classification":
            data["label"] = "label"
        privacy = {
            "mechanism": mechanism,
            "rows_per_unit": 2,
            "published_key": "verify test",
            "clip_norm": 0.5,
        }
        privacy |= {"noise_multiplier": noise} if mechanism != "none" else {}
        raw = {
            "model": str(folder),
            "tokenizer": "bundled",
            "task": task,
            "adapter": adapter or {},
            "data": data,
            "privacy": privacy | (private or {}),
            "train": {"batch": 4.0, "steps": 5} | train,
            "run": str(root / f"run-{task}"),
        }
        key = json.dumps(raw, sort_keys=True)
        if anew or key not in made:
            made[key] = Job.of(Run(check(raw)), Console(quiet=True))
        return replace(made[key], model=copy.deepcopy(made[key].model))  # for faults

    made: dict[str, Job] = {}
    return make


LORA, BIAS = {"kind": "lora", "rank": 2}, {"kind": "bias"}
MODULES = {"kind": "modules", "targets": ["h.1", "ln_f"]}


@pytest.mark.parametrize(
    ("kind", "task", "mechanism", "adapter"),
    [
        ("gpt2", "causal-lm", "uls", {}),
        ("gpt2", "causal-lm", "els", LORA),
        ("gpt2", "causal-lm", "dp-sgd", BIAS),
        ("gpt2", "causal-lm", "group", MODULES),
        ("gpt2", "causal-lm", "none", {}),
        ("llama", "causal-lm", "els", {}),
        ("llama", "causal-lm", "uls", LORA),
        ("gemma2", "causal-lm", "uls", {}),
        ("qwen2", "causal-lm", "dp-sgd", BIAS),
        ("bert", "masked-lm", "uls", {}),
        ("bert", "masked-lm", "els", LORA),
        ("bert", "masked-lm", "dp-sgd", BIAS),
        ("bert", "masked-lm", "none", LORA),
        ("roberta", "classification", "uls", {}),
        ("roberta", "classification", "els", LORA),
        ("roberta", "classification", "dp-sgd", BIAS),
        ("gpt2", "classification", "uls", LORA),
    ],
)
def test_all_is_well(job, kind, task, mechanism, adapter):
    made = job(kind, task, mechanism, adapter)
    before = {name: p.detach().clone() for name, p in made.model.state_dict().items()}
    trains = [p.requires_grad for p in made.model.parameters()]
    made.model.eval()
    found = verify.verify(made)
    assert [(c["name"], c["detail"]) for c in found["checks"] if not c["ok"]] == []
    assert found["ok"]
    names = [c["name"] for c in found["checks"] if c["name"] != ROWS_IN_USE]
    assert names == list(NAMES.values())
    assert 0 < found["max_relative_error"] < 1e-5
    for name, value in made.model.state_dict().items():
        assert torch.equal(value, before[name]), name
    assert not made.model.training
    assert [p.requires_grad for p in made.model.parameters()] == trains
    assert all(p.grad is None for p in made.model.parameters())
    json.dumps(found, allow_nan=False)


@pytest.mark.parametrize(
    ("private", "train"),
    [
        ({"normalised": False}, {}),
        ({"noise": "fast"}, {"precision": "bf16"}),
        ({"noise_multiplier": 0.0}, {"divisor": 9.0, "sampling_rate": 0.5}),
        ({"sampling": "truncated"}, {"max_batch": 6}),
        ({"sampling": "bins"}, {}),
        ({"sampling": "bins", "bands": 2}, {}),
        ({"sampling": "bins", "buffers": 2}, {}),
        ({"scales": {"embeddings": 3.0, "h.0": 0.5}}, {}),
        ({"scales": {"embeddings": 2.0}, "common_tokens": 0.5}, {}),
        (
            {"sampling": "shuffle", "selection": "longest"},
            {"gradient_checkpointing": True, "micro_tokens": 20},
        ),
    ],
)
def test_all_is_well_with_other_settings(job, private, train):
    made = job(private=private, **train)
    keep_expected(made.model, expects_now(made.model))  # as `Job.of` does, which did not make this one
    found = verify.verify(made)
    assert [(c["name"], c["detail"]) for c in found["checks"] if not c["ok"]] == []


@pytest.mark.parametrize(("fault", "seen_by"), FAULTS, ids=lambda x: getattr(x, "__name__", ""))
def test_a_fault_is_seen(job, monkeypatch, fault, seen_by):
    made = job()
    assert made.task.packs_rows
    fault(monkeypatch)
    found = verify.verify(made)
    failed = {c["name"] for c in found["checks"] if not c["ok"]}
    assert not found["ok"]
    assert {NAMES[name] for name in seen_by} <= failed, found["checks"]


@pytest.mark.parametrize("off", [1.0, 0.9])
def test_products_of_bf16_that_are_off_are_seen(job, monkeypatch, off):
    """As a GPU's own may be, which a run in float32 never takes."""
    blocks = products_of_factors.blocks

    def odd(values, *dtype):
        wrong = off if values.dtype == torch.bfloat16 else 1.0
        return ((columns, block * wrong) for columns, block in blocks(values, *dtype))

    for module in (factors, products_of_factors):
        monkeypatch.setattr(module, "blocks", odd)
    checks = verify.verify(job(precision="bf16"))["checks"]
    assert [c["name"] for c in checks][:2] == [NAMES["clipping"], NAMES["clipping"] + ", in bf16"]
    failed = {c["name"] for c in checks if not c["ok"]}
    assert failed == ({NAMES["clipping"] + ", in bf16"} if off != 1.0 else set()), checks


@needs_onednn
@pytest.mark.parametrize("off", [1.0, 1.01])
def test_products_that_are_off_are_seen(job, everywhere, monkeypatch, off):
    taken = products.product
    monkeypatch.setattr(products, "product", lambda *factors: taken(*factors) * off)
    checks = verify.verify(job(anew=True))["checks"]  # layers are chosen as a model is loaded
    assert everywhere, "the test tries nothing"
    failed = {c["name"] for c in checks if not c["ok"]}
    assert failed == ({NAMES["clipping"], NAMES["step"]} if off != 1.0 else set()), checks


@pytest.mark.parametrize("fault", [divide_a_loss_by_the_tokens_of_the_batch, count_padding])
def test_a_loss_that_mixes_rows_is_seen_under_masked_lm_too(job, monkeypatch, fault):
    made = job("bert", "masked-lm")
    fault(monkeypatch)
    failed = {c["name"] for c in verify.verify(made)["checks"] if not c["ok"]}
    assert NAMES["alone"] in failed


@pytest.mark.parametrize("adapter", [{}, LORA])
def test_a_frozen_parameter_is_seen(job, adapter):
    made = job(adapter=adapter)
    name = sorted(models.trainable(made.model))[3]
    models.trainable(made.model)[name].requires_grad_(False)
    found = {c["name"]: c for c in verify.verify(made)["checks"]}
    assert not found[NAMES["coverage"]]["ok"]
    assert name in found[NAMES["coverage"]]["detail"]


def test_rows_too_short_for_attention_are_named(job):
    found = {c["name"]: c for c in verify.verify(job("llama", length=2))["checks"]}
    assert not found[NAMES["coverage"]]["ok"]
    assert "q_proj" in found[NAMES["coverage"]]["detail"]
    assert "the rows have at most 2 tokens" in found[NAMES["coverage"]]["detail"]


def test_a_rounding_error_beside_a_gradient_is_faint():
    """A unit may miss a parameter, such as those of an expert that none of its rows was sent to."""
    units = [{"whole": torch.tensor([1.0]), "rounded": torch.tensor([1e-8])}, {}, {"none": torch.zeros(1)}]
    assert verify._faint(units) == {"rounded", "none"}
    assert verify._faint([*units, {"rounded": torch.tensor([1e-3])}]) == {"none"}
    assert verify._faint([{}]) == set()


def test_a_parameter_that_should_rest_but_moves_is_seen(job):
    made = job(adapter=BIAS)
    made.model.transformer.ln_f.weight.requires_grad_(True)
    found = {c["name"]: c for c in verify.verify(made)["checks"]}
    assert "ln_f.weight" in found[NAMES["coverage"]]["detail"]
    assert not found[NAMES["coverage"]]["ok"]


def test_dropout_is_seen(job):
    made = job()
    made.model.transformer.drop.p = 0.5
    failed = {c["name"] for c in verify.verify(made)["checks"] if not c["ok"]}
    assert NAMES["alone"] in failed


def test_noise_where_none_is_claimed_is_seen(job, monkeypatch):
    made = job(mechanism="none")
    monkeypatch.setattr(
        type(made.mechanism), "aggregation", lambda self, parameters, s: Aggregation(0.5, 1.0, 1.0)
    )
    failed = {c["name"] for c in verify.verify(made)["checks"] if not c["ok"]}
    assert {NAMES["noise"], NAMES["empty"], NAMES["step"]} <= failed


def test_a_mechanism_that_clips_or_divides_otherwise_than_the_config_says_is_seen(job, monkeypatch):
    made = job()
    honest = UserLevelSampling.aggregation
    for changes in ({"clip_norm": 1.0}, {"scale": 0.1}, {"noise_multiplier": 0.7}):
        monkeypatch.setattr(
            UserLevelSampling,
            "aggregation",
            lambda self, parameters, s, changes=changes: replace(honest(self, parameters, s), **changes),
        )
        assert not verify.verify(made)["ok"], changes


def test_the_model_is_as_before_even_if_a_check_breaks(job, monkeypatch):
    made = job()
    before = copy.deepcopy(made.model.state_dict())

    def broken(*args):
        raise RuntimeError("out of memory")

    monkeypatch.setattr(verify, "noise_check", broken)
    with pytest.raises(RuntimeError):
        verify.verify(made)
    assert all(torch.equal(value, before[name]) for name, value in made.model.state_dict().items())


def test_a_fast_sum_over_a_large_unit_is_checked_too(job, monkeypatch):
    """A unit with more rows than fit a micro-batch takes another path, whose faults must show as well."""
    made = job(micro_tokens=16)
    assert verify.verify(made)["ok"]
    add_large = clipping.ClippedSum.add_large
    monkeypatch.setattr(
        clipping.ClippedSum, "add_large", lambda self, batches: add_large(self, list(batches)[:1])
    )
    assert not verify.verify(made)["ok"]


@pytest.mark.parametrize(
    ("factor", "ok"), [(0.99, False), (0.998, False), (1.0, True), (1.02, True), (1.05, False)]
)
def test_norms_may_be_rounded_up_a_little_and_not_down(job, monkeypatch, factor, ok):
    made = job()
    scale = clipping.ClippedSum._scale
    monkeypatch.setattr(clipping.ClippedSum, "_scale", lambda self, norms: scale(self, norms * factor))
    found = {c["name"]: c["ok"] for c in verify.verify(made)["checks"]}
    assert found[NAMES["clipping"]] is ok


def test_a_sum_that_is_off_by_more_than_scales_is_seen_where_norms_are_rounded_up(job, monkeypatch):
    made = job()
    scale, take = clipping.ClippedSum._scale, clipping.ClippedSum.take

    def crooked(self):
        sums = take(self)
        sums["transformer.h.1.mlp.c_fc.weight"] *= 0.999
        return sums

    monkeypatch.setattr(clipping.ClippedSum, "_scale", lambda self, norms: scale(self, norms * 1.01))
    monkeypatch.setattr(clipping.ClippedSum, "take", crooked)
    assert not verify.verify(made)["ok"]


# noise and draws -----------------------------------------------------------------------------------------------
def failed(made) -> set[str]:
    return {c["name"] for c in verify.verify(made)["checks"] if not c["ok"]}


def test_noise_that_comes_back_after_some_steps_is_seen(job, monkeypatch):
    """Steps 0 and 1 have noise of their own, and step 2 has that of step 0."""
    sources = PrivateStep._with_sources
    again = lambda self, vectors, step: sources(self, vectors, step % 2)  # noqa: E731
    monkeypatch.setattr(PrivateStep, "_with_sources", again)
    assert failed(job()) == {NAMES["noise"]}


def test_a_sampler_that_repeats_its_draws_is_seen(job, monkeypatch):
    draw = Sampling.draw
    monkeypatch.setattr(Sampling, "draw", lambda self, n, key, phase, step: draw(self, n, key, phase, 0))
    assert failed(job()) == {NAMES["draws"]}


def test_a_sampler_that_draws_more_than_is_accounted_for_is_seen(job, monkeypatch):
    draw = Sampling.draw
    more = lambda self, *a: draw(replace(self, rate=min(1.0, 1.6 * self.rate)), *a)  # noqa: E731
    monkeypatch.setattr(Sampling, "draw", more)
    assert failed(job()) == {NAMES["draws"]}


def test_units_with_more_rows_than_are_counted_are_seen(job, monkeypatch):
    some = lambda rule, graph, cap, *rest, **more: select(rule, graph, graph.n_rows, *rest, **more)[:count]  # noqa: E731
    made = job("gpt2", mechanism="els")
    count = made.setting.parameters.rows
    monkeypatch.setattr(rows, "select", some)
    assert failed(made) == {ROWS_IN_USE}


@pytest.mark.parametrize("rate", [0.25, 0.7, 1.0])
@pytest.mark.parametrize("sampling", ["poisson", "shuffle", "truncated", "bins", KEPT])
def test_sound_draws_of_every_kind_pass(tmp_path, sampling, rate):
    """Rates above one half are where a batch of `shuffle` takes some of the next order."""
    with GraphWriter(tmp_path / "graph", small.VOCABULARY) as writer:
        for row in range(600):
            writer.add(np.array([2, 3]), [f"unit {row // 2}"])
    graph = UnitGraph.open(tmp_path / "graph")
    in_bins = sampling in ("bins", KEPT)
    rate, cap = (
        1.0 if in_bins and rate > 0.5 else rate,
        round(300 * rate) if sampling == "truncated" else None,
    )
    chosen = Sampling("bins" if in_bins else sampling, rate, cap, 2 if sampling == KEPT else 1)
    sampler = UnitSampler(graph, chosen, RunKey.from_text("x"), "verify draws", 1, None)
    ids = {step: sampler.draw(step).unit_ids for step in _steps(64, _period(chosen))}
    drawn = Drawn(ids, np.full(300, chosen.mean_rate(300)), sampling, _period(chosen), "units")
    found = drawn.as_accounted()
    assert found.ok, found.detail


def test_a_bin_that_is_drawn_anew_is_seen_where_it_should_be_kept(job, monkeypatch):
    made = job("gpt2", private={"sampling": "bins", "bands": 2})
    assert failed(made) == set()
    monkeypatch.setattr(Sampling, "keeps_bins", property(lambda self: False))
    monkeypatch.setattr("confide.runs.verify_draws._kind", lambda sampling: KEPT)
    assert failed(made) == {NAMES["draws"]}


def test_sums_that_are_multiplied_after_they_were_clipped_are_seen(job, monkeypatch):
    made = job(private={"scales": {"embeddings": 3.0}})
    receive = Slot.receive
    shape = tuple(made.model.get_input_embeddings().weight.shape)

    def unscaled(self, use):
        receive(self, use.times(1 / 3.0) if tuple(self._shape) == shape else use)

    take = ClippedSum.take

    def late(self):
        return {n: v * 3.0 if tuple(v.shape) == shape else v for n, v in take(self).items()}

    monkeypatch.setattr(Slot, "receive", unscaled)
    monkeypatch.setattr(ClippedSum, "take", late)
    assert NAMES["clipping"] in failed(made)


def test_rows_that_are_listed_several_times_are_counted_as_often(job, monkeypatch):
    made = job("gpt2", mechanism="group", private={"resample": True, "rows_per_unit": 4})
    assert failed(made) == set()
    draw = Sampling.draw
    more = lambda self, *a: draw(replace(self, rate=min(1.0, 2 * self.rate)), *a)  # noqa: E731
    monkeypatch.setattr(Sampling, "draw", more)
    assert failed(made) == {NAMES["draws"]}


def test_rows_in_use_that_nobody_has_counted_are_seen_where_each_has_a_rate_of_its_own(job, monkeypatch):
    made = job("gpt2", mechanism="owners", private={"rows_per_unit": 1})

    def all_rates(self, graph, key, phase, score):
        rates = OwnRates(np.full(graph.n_rows, self.batch / graph.n_rows))
        return RowSampler(graph, np.arange(graph.n_rows), rates, key, phase)

    assert failed(made) == set()
    monkeypatch.setattr(WeightedRows, "sampler", all_rates)
    assert failed(made) == {ROWS_IN_USE}
