"""Adapters that a calling program made: what cannot be told apart row by row gets a plain sentence."""

from __future__ import annotations

import peft
import pytest
import torch
from transformers import AutoModelForCausalLM, DebertaV2Config, DebertaV2ForMaskedLM

import confide
from confide.clipping import ClippedSum
from confide.config.model_sections import Adapter
from confide.models import adapters
from confide.models import loading as models
from confide.models.ready import ready_model
from tests import small
from tests.models.bases import NEEDS_TORCHAO, error, settings, shaken
from tests.models.test_loading import batch_of, task_of


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return small.saved(tmp_path_factory.mktemp("given") / "llama", "llama", "causal-lm")


def given(path, how):
    model = peft.get_peft_model(AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32), how)
    return ready_model(model, settings(path), None, small.TOKENS)


@pytest.mark.parametrize(
    ("how", "name"),
    [
        (peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=4), "prompt tuning"),
        (peft.PrefixTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=4), "prefix tuning"),
        (peft.PromptEncoderConfig(task_type="CAUSAL_LM", num_virtual_tokens=4), "p tuning"),
    ],
)
def test_a_trained_prompt_is_refused_by_name(path, how, name):
    with pytest.raises(confide.InputError, match=f"^model: {name} trains a prompt before the rows"):
        given(path, how)


def test_lora_of_an_embedding_is_refused_by_name(path):
    how = peft.LoraConfig(task_type="CAUSAL_LM", r=2, target_modules=["embed_tokens", "q_proj"])
    with pytest.raises(confide.InputError, match="embed_tokens is an embedding"):
        given(path, how)


def test_dora_of_a_program_is_exact(path):
    how = peft.LoraConfig(task_type="CAUSAL_LM", r=2, use_dora=True, target_modules="all-linear")
    model = shaken(given(path, how))
    assert error(model, task_of(model)) < 1e-5


@NEEDS_TORCHAO
def test_weights_that_a_program_holds_by_torchao_are_refused_by_name(path):
    from torchao.quantization import Int8WeightOnlyConfig
    from transformers import TorchAoConfig

    how = TorchAoConfig(Int8WeightOnlyConfig(set_inductor_config=False))
    model = AutoModelForCausalLM.from_pretrained(path, quantization_config=how)
    lora = peft.LoraConfig(task_type="CAUSAL_LM", r=2, target_modules="all-linear")
    with pytest.raises(
        confide.InputError, match=r"^model: .*q_proj\.base_layer\.weight is a Int8Tensor of torchao"
    ):
        ready_model(peft.get_peft_model(model, lora), settings(path), None, small.TOKENS)


@pytest.mark.parametrize(
    "how",
    [
        peft.IA3Config(task_type="CAUSAL_LM", target_modules=["q_proj"], feedforward_modules=[]),
        peft.LoHaConfig(task_type="CAUSAL_LM", r=2, target_modules=["q_proj"]),
        peft.AdaLoraConfig(task_type="CAUSAL_LM", target_modules=["q_proj"], total_step=10),
    ],
    ids=lambda how: type(how).__name__,
)
def test_other_adapters_are_refused_by_the_parameter_that_no_rule_covers(path, how):
    with pytest.raises(confide.InputError, match=r"parameter .* is trainable, but its layer"):
        ClippedSum(given(path, how), lambda model, batch: batch["loss"], 1.0)


def deberta(adapter: str):
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
    torch.manual_seed(0)
    model = DebertaV2ForMaskedLM(
        DebertaV2Config(
            vocab_size=small.TOKENS,
            pad_token_id=1,
            max_position_embeddings=64,
            relative_attention=True,
            position_buckets=8,
            norm_rel_ebd="layer_norm",
            share_att_key=True,
            pos_att_type=["p2c", "c2p"],
            position_biased_input=False,
            type_vocab_size=0,
            **sizes,
        )
    )
    models.drop_nothing(model.config)
    for module in model.modules():
        models.drop_nothing(module)
    return shaken(adapters.adapt(model, Adapter(kind=adapter, rank=2), "masked-lm"))


def clipped(model) -> dict[str, torch.Tensor]:
    task = task_of(model, "masked-lm")
    found = ClippedSum(model, task.row_loss, 0.5)
    found.add(batch_of(task), torch.arange(3), torch.ones(3))
    return found.take()


def test_deberta_v3_trains_by_lora():
    assert all(bool(values.any()) for values in clipped(deberta("lora")).values())


def test_deberta_v3_in_full_is_refused_with_a_sentence():
    with pytest.raises(
        confide.InputError, match=r"no row has a gradient of its own|used outside its own layer"
    ):
        clipped(deberta("full"))
