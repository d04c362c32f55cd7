"""Layers that run once for all rows: a row has no gradient of its own there, so they are left out, or named."""

import pytest
import torch
from peft import PromptTuningConfig, TaskType, get_peft_model
from torch import nn
from torch.nn import functional
from transformers import AutoModelForMaskedLM, AutoTokenizer, DebertaConfig, DebertaV2Config

from confide.clipping import ClippedSum
from confide.models.names import location
from confide.utils.errors import InputError
from tests import small
from tests.command import World, confide, refused

_SIZES = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 48,
    "max_position_embeddings": 64,
    "relative_attention": True,
    "position_biased_input": False,
    "type_vocab_size": 0,
    "pos_att_type": ["p2c", "c2p"],
    "pad_token_id": 0,
}
DEBERTAS = {
    "v1": (DebertaConfig, {}),
    "v2": (DebertaV2Config, {}),
    "v3": (
        DebertaV2Config,
        {"share_att_key": True, "position_buckets": 16, "norm_rel_ebd": "layer_norm"},
    ),
}


@pytest.fixture(scope="module")
def debertas(tmp_path_factory):
    folder = tmp_path_factory.mktemp("debertas")
    tokenizer = AutoTokenizer.from_pretrained(location("bundled"))
    tokenizer.add_special_tokens({"mask_token": "<mask>"})
    for name, (kind, more) in DEBERTAS.items():
        torch.manual_seed(0)
        model = AutoModelForMaskedLM.from_config(kind(vocab_size=len(tokenizer), **_SIZES, **more))
        model.save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)
    return folder


@pytest.mark.parametrize("task", ["masked-lm", "classification"])
@pytest.mark.parametrize("name", DEBERTAS)
def test_lora_leaves_out_what_deberta_runs_over_its_positions(debertas, tmp_path, name, task):
    world = World(tmp_path, debertas / name).set(
        tokenizer=None, task=task, adapter={"kind": "lora", "rank": 2}
    )
    if task == "classification":
        world.set(data__label="kind")
    assert confide("verify", world.path).code == 0  # its sums beside plain autograd's


def test_a_deberta_trained_whole_is_refused_in_one_sentence(debertas, tmp_path):
    world = World(tmp_path, debertas / "v3").set(tokenizer=None, task="masked-lm")
    refused(  # which layer comes first depends on whether the drawn rows divide the 32 positions
        confide("verify", world.path),
        r"module deberta\.encoder.*(_proj \(Linear\) runs once for all rows, and|"
        r"LayerNorm \(LayerNorm\) ran on a tensor of shape \(32, 32\), whose first axis is not the batch's)",
    )
    world.set(adapter={"kind": "lora", "rank": 2, "targets": ["query_proj"]})
    refused(
        confide("train", world.path),
        r"query_proj.* runs once for all rows, .*leave it out of adapter\.targets",
    )


def _loss(model, batch):
    rows = batch["input_ids"]
    logits = model(input_ids=rows, attention_mask=torch.ones_like(rows)).logits[:, -rows.shape[1] :]
    return functional.cross_entropy(logits[:, :-1].transpose(1, 2), rows[:, 1:], reduction="none").mean(1)


def test_prompt_tuning_is_refused_in_one_sentence(tmp_path):
    from transformers import AutoModelForCausalLM

    prompts = PromptTuningConfig(task_type=TaskType.CAUSAL_LM, num_virtual_tokens=4)
    model = get_peft_model(AutoModelForCausalLM.from_pretrained(small.saved(tmp_path / "m", "gpt2")), prompts)
    batch = {"input_ids": torch.arange(24).reshape(3, 8)}
    with pytest.raises(InputError, match=r"^module prompt_encoder.*\(Embedding\) runs once for all rows"):
        ClippedSum(model, _loss, 0.5).add(batch, torch.arange(3), torch.ones(3))


def test_a_fault_of_a_model_itself_is_not_put_down_to_its_layers():
    def loss(model, batch):
        model(batch["x"])
        raise RuntimeError("of its own")

    clipped = ClippedSum(nn.Linear(2, 2), loss, 0.5)
    with pytest.raises(RuntimeError, match="of its own"):
        clipped.add({"x": torch.ones(3, 2)}, torch.arange(3), torch.ones(3))
