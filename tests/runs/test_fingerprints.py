"""Two trainings share their noise only if nothing that decides a sum tells them apart."""

import pytest
from peft import LoraConfig, get_peft_model

from confide.runs.fingerprints import of_model
from tests import small


def lora(**changes):
    settings = {"r": 4, "lora_alpha": 8, "target_modules": ["c_attn"], "task_type": "CAUSAL_LM"}
    return get_peft_model(small.gpt2(), LoraConfig(**settings | changes))


def test_the_same_adapter_is_recognised():
    assert of_model(lora()) == of_model(lora())


@pytest.mark.parametrize(
    "changes", [{"lora_alpha": 32}, {"use_rslora": True}, {"r": 8}, {"target_modules": ["c_proj"]}]
)
def test_another_adapter_has_other_noise(changes):
    assert of_model(lora()) != of_model(lora(**changes))


def test_a_factor_that_was_changed_by_hand_is_seen():
    other = lora()
    for module in other.modules():
        if isinstance(getattr(module, "scaling", None), dict):
            module.scaling["default"] *= 2
    assert of_model(lora()) != of_model(other)


def test_where_the_base_model_lies_does_not_matter():
    other = lora()
    other.peft_config["default"].base_model_name_or_path = "/elsewhere"
    assert of_model(lora()) == of_model(other)
