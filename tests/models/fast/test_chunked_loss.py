"""The loss in chunks of tokens: the losses and clipped gradients of whole logits, without their memory."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM, LlamaConfig

from confide.clipping import ClippedSum
from confide.config import registry
from confide.config.model_sections import Adapter
from confide.models import adapters
from confide.models import loading as models
from confide.models.fast import chunked_loss
from confide.models.fast.chunked_loss import chunk_of
from confide.randomness.streams import RunKey
from confide.utils import memory
from tests import small

CPU = torch.device("cpu")


@pytest.fixture
def on_this_device(monkeypatch):
    """Chunks are for GPUs; here they are tried on a CPU."""
    monkeypatch.setattr(chunked_loss, "_LOGITS", {"cpu": 3 * small.TOKENS})


def adapted(kind: str, dtype=torch.float32, **changes):
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(small.family(kind, **changes), dtype=dtype)
    for module in model.modules():
        models.drop_nothing(module)
    model = adapters.adapt(model, Adapter(kind="lora", rank=2), "causal-lm")
    for name, values in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(values, std=0.05)
        if values.requires_grad:
            values.data = values.data.float()
    return model


def task_of(model, autocast=False, chunk=0, packs=False):
    extra = frozenset({"position_ids"})
    made = registry.task("causal-lm")(1, None, small.TOKENS, (0, 1), extra, autocast, CPU, packs, True)
    return replace(made, chunk=chunk)


def rows(number=5, marked=False):
    draws = np.random.default_rng(3)
    found = [draws.integers(2, small.TOKENS, draws.integers(3, 20)).astype(np.int32) for _ in range(number)]
    if marked:  # the first half of each row is only read
        found = [np.concatenate([~row[: len(row) // 2], row[len(row) // 2 :]]) for row in found]
    return found


def clipped(model, task, batch, units):
    summed = ClippedSum(model, task.packed_loss, 0.05)
    norms = summed.add(batch, torch.tensor(units), torch.ones(len(units)))
    return summed.take(), norms


@pytest.mark.parametrize("kind", ["gpt2", "llama", "qwen2"])
@pytest.mark.parametrize("marked", [False, True])
def test_losses_and_clipped_gradients_are_those_of_whole_logits(kind, marked, on_this_device):
    model = adapted(kind)
    chunk = chunk_of(model, CPU)
    assert chunk == 3
    whole, pieces = task_of(model), task_of(model, chunk=chunk)
    batch, units = whole.collate(rows(marked=marked)), [0, 0, 1, 2, 2]
    assert torch.allclose(pieces.row_loss(model, batch), whole.row_loss(model, batch), rtol=1e-6)
    expected, norms = clipped(model, whole, batch, units)
    found, same = clipped(model, pieces, batch, units)
    assert torch.allclose(norms, same, rtol=1e-5)
    assert (norms > 0.05).all()
    for name, values in expected.items():
        assert float((found[name] - values).norm()) <= 1e-5 * float(values.norm()) + 1e-9, name


@pytest.mark.parametrize("autocast", [False, True])
def test_evaluations_are_those_of_whole_logits(autocast, on_this_device):
    model = adapted("llama")
    whole, pieces = task_of(model, autocast), task_of(model, autocast, chunk=3)
    batch = whole.collate(rows(marked=True))
    with torch.no_grad():
        for expected, found in (
            (whole.token_losses(model, batch), pieces.token_losses(model, batch)),
            (whole.token_statistics(model, batch), pieces.token_statistics(model, batch)),
        ):
            for one, other in zip(expected, found, strict=True):
                assert torch.allclose(one.double(), other.double(), atol=1e-5)
        assert whole.token_losses(model, batch)[1].any()


@pytest.mark.parametrize("kind", ["bert", "roberta"])
def test_a_masked_model_makes_logits_of_hidden_tokens_alone(kind, on_this_device):
    torch.manual_seed(0)
    model = AutoModelForMaskedLM.from_config(small.family(kind))
    for module in model.modules():
        models.drop_nothing(module)
    model = adapters.adapt(model, Adapter(kind="lora", rank=2), "masked-lm")
    extra = frozenset({"token_type_ids"}) if kind == "bert" else frozenset()
    whole = registry.task("masked-lm")(1, 2, small.TOKENS, (0, 1), extra, False, CPU)
    pieces = replace(whole, chunk=chunk_of(model, CPU))
    assert pieces.chunk == 3
    hide = [RunKey.from_text("test").stream("test", "hide", i) for i in range(5)]
    batch = whole.collate([(row + 3) % small.TOKENS for row in rows()], hide=hide)
    assert (batch["labels"] >= 0).sum() > 3
    assert torch.allclose(pieces.row_loss(model, batch), whole.row_loss(model, batch), rtol=1e-5)
    with torch.no_grad():
        for one, other in zip(*(task.token_losses(model, batch) for task in (whole, pieces)), strict=True):
            assert torch.allclose(one.double(), other.double(), atol=1e-5)


def test_rows_that_share_lines(on_this_device):
    model = adapted("llama")
    whole, pieces = task_of(model, packs=True), task_of(model, chunk=2, packs=True)
    batch = whole.collate_lines([rows(3), rows(2)], [np.ones(3), np.ones(2)])
    assert torch.allclose(pieces.row_loss(model, batch), whole.row_loss(model, batch), rtol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_in_bf16_the_logits_are_rounded_as_whole_ones_are(dtype, on_this_device):
    model = adapted("llama", dtype)
    whole, pieces = task_of(model, autocast=True), task_of(model, autocast=True, chunk=3)
    batch = whole.collate(rows())
    assert torch.equal(pieces.row_loss(model, batch), whole.row_loss(model, batch))
    expected, _ = clipped(model, whole, batch, [0, 1, 2, 3, 4])
    found, _ = clipped(model, pieces, batch, [0, 1, 2, 3, 4])
    for name, values in expected.items():
        assert float((found[name] - values).norm()) <= 2e-2 * float(values.norm()), name


def test_a_row_that_predicts_nothing_and_a_batch_of_such_rows(on_this_device):
    model = adapted("llama")
    task = task_of(model, chunk=3)
    assert task.row_loss(model, task.collate([~rows()[0], rows()[1]])).tolist()[0] == 0
    batch = task.collate([~rows()[0], rows()[1][:1]])
    found, norms = clipped(model, task, batch, [0, 1])
    assert norms.tolist() == [0, 0]
    assert not any(values.any() for values in found.values())


def test_where_logits_are_whole(on_this_device, monkeypatch):
    assert chunk_of(adapted("gemma2"), CPU) == 0  # a soft cap follows the output layer
    full = AutoModelForCausalLM.from_config(small.family("gpt2"))
    assert chunk_of(full, CPU) == 0  # it trains: its gradient is clipped too
    scaled = AutoModelForCausalLM.from_config(small.family("llama"))
    honest = scaled.forward

    def in_place(*args, **given):
        output = honest(*args, **given)
        output.logits.mul_(0.5)
        return output

    scaled.requires_grad_(False)
    for module in scaled.modules():
        models.drop_nothing(module)
    assert chunk_of(scaled, CPU) == 3
    monkeypatch.setattr(scaled, "forward", in_place)
    assert chunk_of(scaled, CPU) == 0
    monkeypatch.undo()
    assert chunk_of(adapted("llama"), CPU) == 0  # on a CPU


def test_logits_that_are_scaled_in_training_alone_are_whole(on_this_device, monkeypatch):
    model = adapted("llama")
    inner = model.get_base_model()
    honest = inner.forward

    def scaled(*args, **given):
        output = honest(*args, **given)
        if inner.training and output.logits.shape[-1] == small.TOKENS:
            output.logits = output.logits * 0.5
        return output

    monkeypatch.setattr(inner, "forward", scaled)
    assert chunk_of(model, CPU) == 0


def test_the_output_layer_is_as_it_was(on_this_device):
    model = adapted("llama")
    task, batch = task_of(model, chunk=3), task_of(model).collate(rows())
    before = task.logits(model, batch)
    task.row_loss(model, batch).sum().backward()
    assert torch.equal(task.logits(model, batch), before)
    assert "forward" not in vars(model.get_output_embeddings())


def test_the_memory_of_a_step_is_a_fraction_of_that_of_whole_logits():
    """4,096 tokens of a vocabulary of 128,256: their logits are 2.1 GB."""
    vocabulary, tokens = 128_256, 4_096
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = AutoModelForCausalLM.from_config(
        LlamaConfig(vocab_size=vocabulary, tie_word_embeddings=True, **sizes)
    )
    model = adapters.adapt(model, Adapter(kind="lora", rank=2), "causal-lm")
    made = registry.task("causal-lm")(1, None, vocabulary, (), frozenset(), False, CPU, False, True, 256)
    draws = np.random.default_rng(0)
    batch = made.collate([draws.integers(2, vocabulary, 512) for _ in range(tokens // 512)])
    units = list(range(tokens // 512))
    clipped(model, made, made.collate([np.arange(2, 40)]), [0])  # allocates what is allocated once
    peak = memory.peak(CPU, lambda: clipped(model, made, batch, units))
    before = memory.peak(CPU, lambda: None)
    if peak is None or before is None:
        pytest.skip("this system does not tell the peak of a process")
    assert peak - before <= 4 * vocabulary * tokens / 4
