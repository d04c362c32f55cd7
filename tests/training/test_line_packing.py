"""Rows of a unit that share a line: fewer tokens of padding, and the same sums as rows that stand alone."""

import time
from dataclasses import replace

import numpy as np
import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st

from confide.clipping import ClippedSum
from confide.distributed.ranks import Ranks
from confide.models import loading as models
from confide.privacy.mechanisms.values import Aggregation
from confide.privacy.sampling import Draw
from confide.runs.folder import Run
from confide.runs.job import Job
from confide.training import memory_fit as physical
from confide.training import row_isolation as isolation
from confide.training import tasks
from confide.training.line_packing import WORTH, shared
from confide.training.microbatch import micro_batch
from confide.training.packing import pack
from confide.training.row_isolation import detect_packing_support
from confide.training.tasks import IGNORE, Task
from confide.training.tasks.causal_lm import CausalLM
from confide.utils.console import Console
from tests import small
from tests.test_resume import config
from tests.training.test_step import KEY, expected_move, lifted, moved, snapshot, step_of

LONGEST = 16


@given(st.lists(st.integers(1, 40), min_size=1, max_size=60), st.integers(1, 120))
def test_lines_hold_every_row_once_are_no_wider_than_they_may_be_and_worth_it(lengths, widest):
    found = shared(lengths, widest)
    assert sorted(row for line in found for row in line) == list(range(len(lengths)))
    widths = [sum(lengths[row] for row in line) for line in found]
    assert max(widths) <= max(widest, max(lengths))
    if len(found) < len(lengths):
        assert len(found) * max(widths) < WORTH * len(lengths) * max(lengths)


@pytest.mark.parametrize("k", [2, 4, 8, 16])
@pytest.mark.parametrize("kind", ["uniform", "log-normal"])
def test_users_of_ragged_rows_are_hardly_padded(k, kind):
    """Without it 1.3 to 2.9 times the tokens: benchmarks/padding.py."""
    generator = np.random.default_rng(0)
    sizes = generator.integers(8, 129, 4096) if kind == "uniform" else generator.lognormal(3.4, 0.9, 4096)
    rows = [np.zeros(n, np.int64) for n in np.clip(sizes, 4, 128).astype(int)]
    draw = Draw(rows, np.arange(4096) // k, np.ones(4096, np.float32))

    def tokens(shares: bool) -> int:
        return sum(
            len(part.lines) * max(sum(len(rows[i]) for i in line) for line in part.lines)
            for part in pack(draw, 8192, shares)
        )

    total = sum(map(len, rows))
    assert tokens(False) > 1.25 * total
    assert tokens(True) < 1.12 * total


def test_rows_of_one_length_stay_alone():
    assert shared([64] * 8, 128) == [[i] for i in range(8)]
    assert shared([64] * 7 + [60], 128) == [[i] for i in range(8)]


def of_family(kind: str, **changes) -> tuple[torch.nn.Module, Task]:
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(small.family(kind, **changes))
    for module in model.modules():
        models.drop_nothing(module)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model.eval(), task_of(model)


def task_of(model) -> Task:
    extra = frozenset(models.accepted(model))
    return CausalLM(1, None, small.TOKENS, (), extra, False, torch.device("cpu"))


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("kind", ["gpt2", "llama", "qwen2", "gemma2"])
def test_models_that_keep_rows_apart_are_seen_to(kind, attention):
    if kind == "gemma2" and attention == "sdpa":
        pytest.skip("Gemma 2 has eager attention only")
    model, task = of_family(kind, attn_implementation=attention)
    model.train()
    assert detect_packing_support(task, model, LONGEST, Ranks()).packs_rows
    assert model.training


def test_a_line_may_be_wider_than_the_positions_that_a_model_has():
    model, task = of_family("gpt2")
    assert detect_packing_support(task, model, model.config.n_positions, Ranks()).packs_rows
    with pytest.raises(IndexError):
        task.logits(model, task.collate([np.ones(model.config.n_positions + 1, np.int64)]))


KEEPS = {"Mistral": {"num_key_value_heads": 1, "sliding_window": 8}, "Phi": {}}
OTHERS = {
    "OPT": {"ffn_dim": 32, "word_embed_proj_dim": 16, "do_layer_norm_before": True},  # gives itself a mask
    "Bloom": {"n_layer": 2, "n_head": 2},  # takes no positions
    "Falcon": {},  # does not look at them
    "Mamba": {"state_size": 4},  # a recurrence runs through the line
}


@pytest.mark.parametrize("kind", KEEPS | OTHERS)
def test_of_further_families_it_is_seen_too(kind):
    sizes = {
        "vocab_size": small.TOKENS,
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "max_position_embeddings": 66,
        "pad_token_id": 1,
    }
    torch.manual_seed(0)
    config = getattr(transformers, kind + "Config")(**(sizes | (KEEPS | OTHERS)[kind]))
    model = transformers.AutoModelForCausalLM.from_config(config)
    assert detect_packing_support(task_of(model), model, LONGEST, Ranks()).packs_rows == (kind in KEEPS)


class Leak(torch.nn.Module):
    """A model that is right but for one thing."""

    def __init__(self, model, how):
        super().__init__()
        self.model, self.how, self.config = model, how, model.config

    def forward(self, input_ids, position_ids, use_cache=None):
        if self.how == "attends":  # with ones for a mask, positions are not looked at
            return self.model(input_ids, position_ids=position_ids, attention_mask=torch.ones_like(input_ids))
        if self.how == "counts on":
            position_ids = torch.arange(input_ids.shape[1]).expand(input_ids.shape) % 64
            position_ids = position_ids + (position_ids == 0)
        assert self.how != "narrow" or input_ids.shape[1] <= LONGEST  # as nanoGPT says it
        result = self.model(input_ids, position_ids=position_ids, use_cache=False)
        if self.how == "a little":  # what the row before ends with, faintly
            result.logits[:, 1:] += 1e-4 * torch.tanh(result.logits[:, :-1])
        return result


@pytest.mark.parametrize("how", ["attends", "counts on", "narrow", "a little"])
def test_a_leak_is_seen(how):
    model, task = of_family("gpt2")
    assert detect_packing_support(task, Leak(model, "not at all"), LONGEST, Ranks()).packs_rows
    assert not detect_packing_support(task, Leak(model, how), LONGEST, Ranks()).packs_rows


def test_other_tasks_share_nothing():
    for kind in ("masked-lm", "classification"):
        assert not detect_packing_support(small.task(kind), small.gpt2(), LONGEST, Ranks()).packs_rows


class Second:
    """The second of several ranks, of which the first has seen a leak."""

    first = False

    def any(self, failed: bool) -> bool:
        assert not failed
        return True


def test_ranks_share_lines_together_or_not_at_all_and_the_first_looks_for_all():
    model, task = of_family("gpt2")
    model.forward = None  # it takes no pass of its own
    assert not detect_packing_support(task, model, LONGEST, Second()).packs_rows


@pytest.mark.parametrize("lengths", [[64] * 20_000, [1, 2] * 10_000, list(range(1, 2001))])
def test_lines_of_a_huge_unit_are_found_at_once(lengths):
    began = time.process_time()
    shared(lengths, 2 * max(lengths))
    assert time.process_time() - began < 3


@pytest.mark.parametrize("shares", [False, True])
def test_memory_is_measured_on_lines_as_wide_as_any(shares):
    batch = physical._made_up(replace(small.task(), packs_rows=shares), 8, LONGEST)
    assert tuple(batch["input_ids"].shape) == ((4, 2 * LONGEST) if shares else (8, LONGEST))


@pytest.mark.parametrize("apart", [True, False])
def test_a_run_looks_and_says_where_lines_are_not_shared(tmp_path, capsys, monkeypatch, apart):
    if not apart:
        monkeypatch.setattr(isolation, "_keeps_apart", lambda *asked: False)
    job = Job.of(Run(config(tmp_path)), Console())
    assert job.task.packs_rows == apart
    assert ("rows of a unit get a line each" in capsys.readouterr().err) != apart
    assert not Job.of(Run(config(tmp_path, privacy__mechanism="els")), Console()).task.packs_rows
    assert "a line each" not in capsys.readouterr().err


def ragged(seed: int = 0) -> Draw:
    generator = np.random.default_rng(seed)
    lengths = [[4, 13, 3, 5], [12], [6, 6, 2, 9, 3], [2, 2], [3, 11]]
    rows = [generator.integers(2, small.VOCABULARY, n) for unit in lengths for n in unit]
    group = np.repeat(np.arange(len(lengths)), [len(unit) for unit in lengths])
    return Draw(rows, group, generator.uniform(0.1, 1, len(rows)).astype(np.float32))


def sharing_task() -> Task:
    return replace(small.task(), packs_rows=True)


@pytest.mark.parametrize("mask", [None, 7])
def test_losses_in_lines_are_those_of_rows_alone(mask):
    """Padding, a row of one token that predicts nothing, and masks that are not predicted, included."""
    model, task, draw = small.gpt2(), replace(sharing_task(), mask=mask), ragged()
    rows = [*draw.rows, np.array([3])]
    alone = torch.cat([task.row_loss(model, task.collate([row])) for row in rows])
    by_line = [[0, 1], [2], list(range(3, 8)), [*range(8, 14), 14]]
    batch = task.collate_lines(
        [[rows[i] for i in line] for line in by_line], [np.ones(len(line)) for line in by_line]
    )
    losses = task.row_loss(model, batch)
    assert losses.shape == (4, 7)
    assert torch.allclose(tasks.each_row(losses, batch), alone, atol=1e-5)
    assert losses[0, 2:].eq(0).all()
    predicted = sum(max(0, len(row) - 1 - sum(row[1:] == mask)) for row in rows)
    assert int((task.targets(batch) != IGNORE).sum()) == predicted


@pytest.mark.parametrize("clip", [0.05, 0.8, None])
@pytest.mark.parametrize("micro_tokens", [8192, 20, 14])
def test_a_step_is_the_formula(clip, micro_tokens):
    """As for rows alone, with weights that differ; micro_tokens 20 and 14 cut units into parts."""
    draw, noise = ragged(), 0.7 if clip else 0.0
    parts = list(pack(draw, micro_tokens, packs_rows=True))
    assert any(len(line) > 1 for part in parts for line in part.lines)
    assert any(part.parts for part in parts) == (micro_tokens < 100)
    expected = expected_move(small.gpt2(), draw, clip, noise, scale=0.25)
    model = small.gpt2()
    before = snapshot(model)
    step = step_of(
        model, [draw], Aggregation(clip, noise, 0.25), micro_tokens=micro_tokens, task=sharing_task()
    )
    report = step(0)
    for name, got in moved(before, model).items():
        assert torch.allclose(got, expected[name], atol=2e-6 + lifted(clip), rtol=1e-4), name
    plain = step_of(small.gpt2(), [draw], Aggregation(clip, noise, 0.25))(0)
    assert report.rows == plain.rows == len(draw.rows)
    assert report.loss == pytest.approx(plain.loss, rel=1e-5)
    assert report.clipped == plain.clipped


def test_a_unit_moves_the_sum_by_its_own_gradient_alone_however_it_is_laid_out():
    """Sensitivity: with lines shared, a unit more changes the sum by at most C, and no other unit's part."""
    draw, sums = ragged(), []
    for wanted in (np.ones(5, bool), np.arange(5) != 2):
        model = small.gpt2()
        step = step_of(model, [draw.only(wanted)], Aggregation(0.05, 0.0, 1.0), task=sharing_task())
        before = snapshot(model)
        step(0)
        sums.append(torch.cat([v.flatten() for v in moved(before, model).values()]))
    assert float((sums[0] - sums[1]).norm()) <= 0.05 * (1 + 1e-4)


def test_lines_of_a_model_with_checkpoints():
    model, task = of_family("llama", attention_dropout=0.0)
    model.gradient_checkpointing_enable({"use_reentrant": False})
    model.train()
    draw = ragged()
    sums = []
    for shares in (False, True):
        own = replace(task, packs_rows=shares)
        total = ClippedSum(model, own.packed_loss, 0.5)
        for part in pack(draw, 8192, shares):
            batch, weight = micro_batch(own, draw, part, KEY.stream)
            total.add(batch, torch.from_numpy(part.units), weight)
        sums.append(torch.cat([v.flatten() for v in total.take().values()]))
    assert torch.allclose(*sums, atol=1e-5)
