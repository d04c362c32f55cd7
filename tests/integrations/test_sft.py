"""TRL's SFTTrainer with confide's step."""

import numpy as np
import pytest

pytest.importorskip("trl")

from datasets import Dataset
from peft import LoraConfig
from transformers import GPT2LMHeadModel
from trl import SFTConfig, SFTTrainer

from confide.data.loss_mask import ids_of, is_predicted
from confide.integrations import PrivateSFTTrainer, PrivateTrainer
from confide.utils.errors import InputError
from tests.integrations.world import PRIVACY, arguments, dataset, furthest, made, rows, tokenizer


def sft(folder, data=None, own=None, **given):
    changes = given.pop("args", {})
    return PrivateSFTTrainer(
        model=made(),
        args=arguments(folder, SFTConfig, **{"max_length": 64, "bf16": False, "report_to": "none"} | changes),
        train_dataset=dataset() if data is None else data,
        processing_class=own or tokenizer(),
        privacy={key: value for key, value in PRIVACY.items() if key != "max_length"},
        **given,
    )


def test_it_trains_on_what_trl_prepares(tmp_path):
    found = sft(
        tmp_path / "out",
        eval_dataset=dataset(number=6, seed=9),
        args={"eval_strategy": "steps", "eval_steps": 2},
    )
    prepared = SFTTrainer(
        model=made(),
        args=arguments(tmp_path / "plain", SFTConfig, max_length=64, bf16=False),
        train_dataset=dataset(),
        processing_class=tokenizer(),
    ).train_dataset
    assert [row["input_ids"] for row in found.rows] == list(prepared["input_ids"])
    assert found.train().global_step == 4
    found.save_model()
    assert furthest(made().state_dict(), found.model.state_dict()) > 1e-3
    assert (tmp_path / "out" / "guarantee.txt").read_text().splitlines() == found.guarantee.sentences()
    evaluated = [line for line in found.state.log_history if "eval_loss" in line]
    assert [line["step"] for line in evaluated] == [2, 4]
    assert "eval_mean_token_accuracy" in evaluated[0]
    # The same token ids, in transformers' own Trainer: the same weights.
    args = arguments(tmp_path / "other")
    other = PrivateTrainer(
        model=made(), args=args, train_dataset=prepared, processing_class=tokenizer(), privacy=PRIVACY
    )
    other.confide_config = other.confide_config.model_copy(update={"train": found.confide_config.train})
    other.train()
    assert furthest(other.model.state_dict(), found.model.state_dict()) < 1e-6


def test_dialogues_adapters_and_resuming(tmp_path):
    own = tokenizer()
    own.chat_template = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    talk = [
        {
            "messages": [
                {"role": "user", "content": row["text"]},
                {"role": "assistant", "content": "thank you"},
            ],
            "author": row["author"],
        }
        for row in rows()
    ]
    ends = []
    for name, stops in (("whole", [4]), ("cut", [2, 4])):
        for stop in stops:
            adapter = LoraConfig(r=2, target_modules="all-linear", task_type="CAUSAL_LM")
            found = sft(tmp_path / name, Dataset.from_list(talk), own, peft_config=adapter)
            found.add_callback(stopping(stop))
            found.train(resume_from_checkpoint=True if stop > stops[0] else None)
        ends.append(found.model.state_dict())
    assert own.decode(found.rows[0]["input_ids"]).startswith("user: ")
    assert furthest(*ends) == 0
    adapter = tmp_path / "whole" / "checkpoint-4"
    assert (adapter / "adapter_model.safetensors").is_file()
    assert (adapter / "guarantee.json").is_file()
    assert "Privacy" in (adapter / "README.md").read_text()


def stopping(at):
    from transformers import TrainerCallback

    class Stopping(TrainerCallback):
        def on_step_end(self, args, state, control, **_):
            control.should_training_stop = state.global_step >= at

    return Stopping()


REFUSED = [
    ("packing", True, "holds text of several users"),
    ("padding_free", True, "one long row of a batch"),
    ("eval_packing", True, "the row before"),
    ("loss_type", "dft", "one for each row"),
    ("activation_offloading", True, "what the clipping reads"),
    ("router_aux_loss_coef", 0.1, "mixes the rows of a batch"),
    ("use_liger_kernel", True, "fused loss"),
]


@pytest.mark.parametrize(("name", "value", "why"), REFUSED, ids=[name for name, _, _ in REFUSED])
def test_what_it_cannot_honour_is_refused(tmp_path, name, value, why):
    args = arguments(tmp_path / "out", SFTConfig, max_length=64, bf16=False)
    object.__setattr__(args, name, value)
    with pytest.raises(InputError, match=rf"^args\.{name}: .*{why}"):
        PrivateSFTTrainer(
            model=made(), args=args, train_dataset=dataset(), processing_class=tokenizer(), privacy=PRIVACY
        )


def test_prompts_that_trl_leaves_out_of_the_loss_are_read_alone(tmp_path):
    pairs = [
        {"prompt": "what is broken?", "completion": row["text"], "author": row["author"]} for row in rows()
    ]
    plain, own = tokenizer(), sft(tmp_path / "out", Dataset.from_list(pairs))
    for row, pair in zip(own.rows, pairs, strict=True):
        known = is_predicted(np.array(row["input_ids"]))
        said = plain.decode(ids_of(np.array(row["input_ids"]))[known])
        assert said.removesuffix(plain.eos_token).strip() == pair["completion"].strip()
        assert 0 < known.sum() < len(known)
    assert own.train().global_step == 4
    found = sft(tmp_path / "all", Dataset.from_list(pairs), args={"completion_only_loss": False})
    assert all(min(row["input_ids"]) >= 0 for row in found.rows)
    assert found.train().global_step == 4
    assert furthest(own.model.state_dict(), found.model.state_dict()) > 1e-4


def test_other_arguments_than_an_sft_config_are_refused(tmp_path):
    with pytest.raises(InputError, match="args: give an SFTConfig"):
        PrivateSFTTrainer(
            model=made(), args=arguments(tmp_path / "out"), train_dataset=dataset(), privacy=PRIVACY
        )


def test_the_saved_model_loads_without_trl(tmp_path):
    found = sft(tmp_path / "out")
    found.train()
    found.save_model()
    loaded = GPT2LMHeadModel.from_pretrained(tmp_path / "out")
    assert furthest(loaded.state_dict(), found.model.state_dict()) == 0
