"""TRL's own training script runs privately after three changes, and its options work or are refused by name."""

import importlib.util
import json
import subprocess
import sys

import pytest

pytest.importorskip("trl")

import datasets
import trl
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

import confide
from confide.data.chat import CHATML
from confide.utils.errors import InputError
from tests.command import environment
from tests.integrations.world import made, rows, tokenizer

PRIVACY = '{"mechanism": "uls", "epsilon": 8, "unit": "customer"}'
# What stands in the script, and what takes its place: an import, the name of the class, one line more.
THREE = [
    (
        "    from trl import SFTTrainer, get_dataset,",
        "    from confide.integrations import PrivateSFTTrainer\n    from trl import get_dataset,",
    ),
    ("    trainer = SFTTrainer(\n", "    trainer = PrivateSFTTrainer(\n"),
    ("        args=training_args,\n", f"        args=training_args,\n        privacy={PRIVACY},\n"),
]


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """The changed script, a small chat model, and a folder of chats that `load_dataset` reads."""
    folder = tmp_path_factory.mktemp("world")
    path = importlib.util.find_spec("trl.scripts.sft").origin
    with open(path, encoding="utf-8") as stream:
        text = stream.read()
    for theirs, ours in THREE:
        assert text.count(theirs) == 1, f"TRL {trl.__version__} has other lines: {theirs}"
        text = text.replace(theirs, ours)
    (folder / "sft.py").write_text(text, "utf-8")
    own = tokenizer()
    own.chat_template = CHATML
    own.add_special_tokens({"additional_special_tokens": ["<|im_end|>"]})
    model = made()
    model.resize_token_embeddings(len(own))
    model.save_pretrained(folder / "base")
    own.save_pretrained(folder / "base")
    (folder / "chats").mkdir()
    for split, how in (("train", {"number": 60}), ("test", {"number": 6, "seed": 9})):
        chats = [
            {
                "messages": [
                    {"role": "user", "content": row["text"]},
                    {"role": "assistant", "content": row["text"]},
                ],
                "customer": row["author"],
            }
            for row in rows(**how)
        ]
        (folder / "chats" / f"{split}.jsonl").write_text("".join(json.dumps(chat) + "\n" for chat in chats))
    return folder


def options(world, out, *more: object) -> list[str]:
    given = {
        "model_name_or_path": world / "base",
        "dataset_name": world / "chats",
        "output_dir": out,
        "max_steps": 2,
        "per_device_train_batch_size": 4,
        "use_cpu": True,
    }
    return [str(part) for name, value in given.items() for part in (f"--{name}", value)] + list(
        map(str, more)
    )


def in_this_process(world, monkeypatch, *argv: str) -> None:
    """Call the script's parser and main as its last lines do."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", world / "cache")
    spec = importlib.util.spec_from_file_location("their_sft", world / "sft.py")
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    script.main(*script.make_parser().parse_args_and_config(list(argv)))


@pytest.mark.parametrize("more", [(), ("--use_peft",)], ids=["full", "adapter"])
def test_the_script_runs_as_its_users_run_it(world, tmp_path, more):
    done = subprocess.run(
        [sys.executable, world / "sft.py", *options(world, tmp_path / "out", *more)],
        capture_output=True,
        text=True,
        env=environment() | {"HF_DATASETS_CACHE": str(world / "cache")},
        cwd=tmp_path,
        timeout=500,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    guarantee = confide.Guarantee.load(tmp_path / "out" / "guarantee.json")
    assert (guarantee.epsilon, guarantee.steps) == (pytest.approx(8, abs=0.01), 2)
    assert guarantee.notion == "user-level DP"
    loaded = AutoModelForCausalLM.from_pretrained(world / "base" if more else tmp_path / "out")
    before = {name: values.clone() for name, values in loaded.state_dict().items()}
    if more:
        loaded = PeftModel.from_pretrained(loaded, tmp_path / "out")
        moved = [values for name, values in loaded.state_dict().items() if "lora_B" in name]
        assert moved
        assert all(values.abs().max() > 0 for values in moved)
    else:
        plain = AutoModelForCausalLM.from_pretrained(world / "base").state_dict()
        assert any((before[name] != plain[name]).any() for name in plain)
    AutoTokenizer.from_pretrained(tmp_path / "out")
    written = sorted(path.name for path in tmp_path.iterdir())
    assert written == ["out", "out.private"]


REFUSED = {
    "--packing": "args.packing",
    "--gradient_accumulation_steps 8": "args.gradient_accumulation_steps",
    "--push_to_hub": "args.push_to_hub",
    "--report_to wandb": "args.report_to",
    "--report_to trackio": "args.report_to",
    "--padding_free": "args.padding_free",
    "--eval_packing True --eval_strategy epoch": "args.eval_packing",
    "--neftune_noise_alpha 5": "args.neftune_noise_alpha",
    "--use_liger_kernel": "args.use_liger_kernel",
    "--torch_compile": "args.torch_compile",
    "--fp16": "args.fp16",
    "--optim adamw_8bit": "args.optim",
    "--max_grad_norm 0.5": "args.max_grad_norm",
    "--loss_type dft": "args.loss_type",
    "--activation_offloading": "args.activation_offloading",
    "--auto_find_batch_size": "args.auto_find_batch_size",
    "--dataset_streaming": "train_dataset",
}


@pytest.mark.parametrize("given", REFUSED)
def test_an_option_of_the_script_is_refused_by_name(world, tmp_path, monkeypatch, given):
    with pytest.raises(InputError, match=f"^{REFUSED[given]}: "):
        in_this_process(world, monkeypatch, *options(world, tmp_path / "out", *given.split()))
    assert not (tmp_path / "out" / "guarantee.json").exists()


def test_the_line_that_the_script_recommends_is_told_all_its_faults_at_once(world, tmp_path, monkeypatch):
    """The options of the LoRA example in TRL's own comment."""
    given = "--packing --gradient_accumulation_steps 8 --eos_token <|im_end|> --use_peft --lora_r 32 --push_to_hub"
    with pytest.raises(InputError) as caught:
        in_this_process(world, monkeypatch, *options(world, tmp_path / "out", *given.split()))
    assert {line.partition(":")[0] for line in str(caught.value).splitlines()} == {
        "args.packing", "args.gradient_accumulation_steps", "args.push_to_hub",
    }  # fmt: skip


WORKS = [
    # The chats are longer than the 64 tokens that the model reads, and TRL cuts at 1,024.
    "--eval_strategy steps --eval_steps 1 --eval_on_start",
    "--eval_strategy steps --eval_steps 1 --save_steps 1 --load_best_model_at_end --eos_token <|im_end|>",
    "--assistant_only_loss --dataset_num_proc 2 --shuffle_dataset --gradient_checkpointing False",
    "--use_peft --lora_r 32 --lora_target_modules all-linear --dtype bfloat16 --report_to tensorboard",
    "--dtype bfloat16 --eval_strategy epoch",
]


@pytest.mark.parametrize("given", WORKS)
def test_other_options_of_the_script_work(world, tmp_path, monkeypatch, given):
    in_this_process(world, monkeypatch, *options(world, tmp_path / "out", *given.split()))
    assert confide.Guarantee.load(tmp_path / "out" / "guarantee.json").steps == 2


def test_the_script_quantises_to_four_bits(world, tmp_path, monkeypatch):
    pytest.importorskip("bitsandbytes")
    given = "--load_in_4bit --use_peft --eval_strategy epoch".split()
    in_this_process(world, monkeypatch, *options(world, tmp_path / "out", *given))
    assert confide.Guarantee.load(tmp_path / "out" / "guarantee.json").steps == 2
    loaded = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(world / "base"), tmp_path / "out")
    moved = [values for name, values in loaded.state_dict().items() if "lora_B" in name]
    assert moved
    assert all(values.abs().max() > 0 for values in moved)
    eight = options(world, tmp_path / "other", "--load_in_8bit", "--use_peft")
    with pytest.raises(InputError, match=r"^model: .*8-bit"):
        in_this_process(world, monkeypatch, *eight)
