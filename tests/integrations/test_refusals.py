"""What a private step cannot honour is refused by the name that transformers gives it."""

import copy
import itertools

import pytest
import torch
from datasets import Dataset
from torch import nn
from transformers import (
    DataCollatorForLanguageModeling,
    DataCollatorWithFlattening,
    GPT2ForSequenceClassification,
    Trainer,
)

from confide.integrations import PrivateDPOTrainer, PrivateTrainer
from confide.utils.errors import InputError
from tests.integrations.world import PRIVACY, arguments, dataset, made, tokenizer, tokens


def trainer(folder, args=None, kind=PrivateTrainer, **given):
    given = {"train_dataset": dataset(number=12), "privacy": PRIVACY, "model": made()} | given
    return kind(args=args or arguments(folder), processing_class=tokenizer(), **given)


# Set on the finished arguments: some of them do not even begin on a CPU, or without a package.
ARGUMENTS = [
    ("fp16", True, "GradScaler"),
    ("gradient_accumulation_steps", 2, "expected number of users or rows of a whole step"),
    ("max_grad_norm", 0.5, "privacy.clip_norm"),
    ("deepspeed", {"zero_optimization": {"stage": 2}}, "ZeRO"),
    ("fsdp", True, "wraps the model"),
    ("_n_gpu", 2, "DataParallel would split"),
    ("train_sampling_strategy", "group_by_length", "drawn by the mechanism"),
    ("group_by_length", True, "drawn by the mechanism"),
    ("label_smoothing_factor", 0.1, "one for each row"),
    ("use_liger_kernel", True, "fused loss"),
    ("torch_compile", True, "compiled model"),
    ("neftune_noise_alpha", 5.0, "no row has its own"),
    ("auto_find_batch_size", True, "cannot follow memory"),
    ("optim", "adamw_8bit", "optimizer_cls_and_kwargs"),
    ("optim_args", "momentum=0.9", "optimizer_cls_and_kwargs"),
    ("adam_epsilon", 1e-6, "optimizer_cls_and_kwargs"),
    ("lr_scheduler_type", "reduce_lr_on_plateau", "a loss that no noise covers"),
    ("include_num_input_tokens_seen", "all", "a private number"),
    ("push_to_hub", True, "uploads during training"),
    ("report_to", ["wandb"], "log_private=False"),
]


@pytest.mark.parametrize(("name", "value", "why"), ARGUMENTS, ids=[name for name, _, _ in ARGUMENTS])
def test_an_argument_that_it_cannot_honour_is_refused(tmp_path, name, value, why):
    args = arguments(tmp_path / "out")
    if name == "_n_gpu":
        assert args.n_gpu <= 1  # sets it up
    object.__setattr__(args, name, value)
    with pytest.raises(InputError, match=rf"^args\.{name.removeprefix('_')}: .*{why}"):
        trainer(tmp_path / "out", args)
    assert not list(tmp_path.iterdir())


def test_a_device_that_confide_does_not_know_is_refused(tmp_path, monkeypatch):
    args = arguments(tmp_path / "out")
    monkeypatch.setattr(type(args), "device", torch.device("meta"))
    with pytest.raises(InputError, match=r"^args\.device: .*use_cpu=True"):
        trainer(tmp_path / "out", args)


def test_all_faults_are_told_at_once(tmp_path):
    args = arguments(tmp_path / "out")
    args.gradient_accumulation_steps, args.label_smoothing_factor = 4, 0.1
    with pytest.raises(InputError) as caught:
        trainer(tmp_path / "out", args, compute_loss_func=lambda *_, **__: None)
    assert [line.partition(":")[0] for line in str(caught.value).splitlines()] == [
        "args.gradient_accumulation_steps", "args.label_smoothing_factor", "compute_loss_func",
    ]  # fmt: skip


def test_what_it_ignores_may_stay_at_its_default(tmp_path):
    trainer(tmp_path / "out", arguments(tmp_path / "out", max_grad_norm=1.0))
    trainer(tmp_path / "out", arguments(tmp_path / "out", report_to="tensorboard"))


def mixes_rows(model, inputs, return_outputs=False, **_):
    raise AssertionError("never called")


PARAMETERS = {
    "compute_loss_func": (lambda: {"compute_loss_func": mixes_rows}, "one for each row"),
    "model_init": (lambda: {"model_init": made, "model": None}, "pass the model"),
    "optimizers": (
        lambda: {"optimizers": (torch.optim.SGD(made().parameters()), None)},
        "optimizer_cls_and_kwargs",
    ),
    "model": (lambda: {"model": nn.DataParallel(made())}, "wrapped by DataParallel"),
    "data_collator": (
        lambda: {"data_collator": DataCollatorWithFlattening()},
        "DataCollatorWithFlattening is not known to keep rows apart",
    ),
    "train_dataset": (lambda: {"train_dataset": None}, "nothing to train on"),
    "privacy": (lambda: {"privacy": None}, "say what is protected"),
}


@pytest.mark.parametrize("name", PARAMETERS)
def test_a_parameter_that_it_cannot_honour_is_refused(tmp_path, name):
    given, why = PARAMETERS[name]
    with pytest.raises(InputError, match=f"{name}: .*{why}"):
        trainer(tmp_path / "out", **given())


def test_a_collator_that_pads_rows_is_taken(tmp_path):
    trainer(tmp_path / "out", data_collator=DataCollatorForLanguageModeling(tokenizer(), mlm=False))


@pytest.mark.parametrize(
    "name",
    ["compute_loss", "training_step", "get_train_dataloader", "_get_train_sampler", "create_optimizer"],
)
def test_a_subclass_that_changes_the_step_is_refused(tmp_path, name):
    kind = type("Mine", (PrivateTrainer,), {name: getattr(Trainer, name)})
    with pytest.raises(InputError, match=f"^Mine.{name}: "):
        trainer(tmp_path / "out", kind=kind)
    trainer(tmp_path / "out", kind=type("Mine", (PrivateTrainer,), {"floating_point_ops": lambda *_: 0}))


def test_rows_must_say_whose_they_are(tmp_path):
    with pytest.raises(InputError, match=r"unit 'writer' is none of its columns \(text, author\)"):
        trainer(tmp_path / "a", privacy=PRIVACY | {"unit": "writer"})
    without = {key: value for key, value in PRIVACY.items() if key != "unit"}
    with pytest.raises(InputError, match=r"data\.unit: mechanism uls protects a unit"):
        trainer(tmp_path / "b", privacy=without)
    blank = Dataset.from_list([*dataset(number=12), {"text": "by nobody", "author": ""}])
    with pytest.raises(InputError, match=r"document 12: no unit"):
        trainer(tmp_path / "c", train_dataset=blank).train()


def test_rows_packed_of_several_users_are_refused(tmp_path):
    packed = tokens(number=12).map(lambda row: {"seq_lengths": [len(row["input_ids"])]})
    with pytest.raises(InputError, match="packed of several"):
        trainer(tmp_path / "out", train_dataset=packed)


def joined(length=16):
    """Rows as group_texts of run_clm.py makes them: joined, and cut into blocks of one length."""
    ids = list(itertools.chain(*tokens(number=40)["input_ids"]))
    return Dataset.from_dict(
        {"input_ids": [ids[at : at + length] for at in range(0, len(ids) // length * length, length)]}
    )


ROWS = {"mechanism": "dp-sgd", "epsilon": 8, "max_length": 64}


def test_texts_that_were_joined_and_cut_into_blocks_are_refused(tmp_path):
    """Nobody says whose a block is; or each letter of joined names would own some."""
    with pytest.raises(InputError, match=r"^train_dataset: unit 'author' is none of its columns"):
        trainer(tmp_path / "a", train_dataset=joined())
    with pytest.raises(InputError, match=r"^train_dataset: every row has 16 tokens, as if texts were joined"):
        trainer(tmp_path / "b", train_dataset=joined(), privacy=ROWS)
    found = joined()
    owners = [list("a1a12a3a4a5a6a7a")] * len(found)
    for privacy in (PRIVACY, PRIVACY | {"mechanism": "els", "rows_per_unit": 4}):
        with pytest.raises(InputError, match=r"^train_dataset: row 0 names an owner twice in 'author'"):
            trainer(tmp_path / "c", train_dataset=found.add_column("author", owners), privacy=privacy).train()


def test_rows_of_one_length_are_taken_if_a_column_says_whose_each_is(tmp_path):
    found = joined()
    found = found.add_column("author", [f"a{at % 20}" for at in range(len(found))])
    trainer(tmp_path / "a", train_dataset=found)
    trainer(tmp_path / "b", train_dataset=found, privacy=ROWS | {"unit": "author"})
    trainer(tmp_path / "c", train_dataset=tokens(number=12), privacy=ROWS)  # texts have lengths of their own


@pytest.mark.parametrize("kind", ["regression", "multi_label_classification"])
def test_a_model_that_gives_a_row_no_one_class_is_refused(tmp_path, kind):
    model = GPT2ForSequenceClassification(made().config)
    model.config.problem_type = kind
    with pytest.raises(InputError, match=rf"^model\.config\.problem_type: {kind} is not built"):
        trainer(tmp_path / "out", model=model)


def test_labels_of_other_tokens_are_refused(tmp_path):
    masked = tokens(number=12).map(lambda row: {"labels": [-100, 7, *row["input_ids"][2:]]})
    with pytest.raises(InputError, match="row 0 has labels that are neither its input_ids nor -100"):
        trainer(tmp_path / "out", train_dataset=masked).train()


def test_token_ids_that_are_none_are_refused(tmp_path):
    wrong = Dataset.from_dict({"input_ids": [[0.5, 1.0]] * 12, "author": ["a", "b"] * 6})
    with pytest.raises(InputError, match="input_ids: document 0 holds no list of token ids"):
        trainer(tmp_path / "a", train_dataset=wrong).train()
    beyond = Dataset.from_dict({"input_ids": [[5, 8192]] * 12, "author": ["a", "b"] * 6})
    with pytest.raises(InputError, match="token 8192, outside the vocabulary"):
        trainer(tmp_path / "b", train_dataset=beyond).train()


def test_a_mechanism_that_reads_text_refuses_token_ids(tmp_path):
    privacy = {
        "privacy": {"mechanism": "redacted"},
        "data": {"train": "x", "eval": None, "max_length": 64},
        "detector": {"expressions": {"key": "key"}},
    }
    with pytest.raises(InputError, match=r"mechanism redacted .* reads text"):
        trainer(tmp_path / "out", train_dataset=tokens(number=12), privacy=privacy)


def test_a_stream_and_unknown_keys_are_refused(tmp_path):
    with pytest.raises(InputError, match="a data set with a length"):
        trainer(tmp_path / "a", train_dataset=dataset(number=12).to_iterable_dataset())
    with pytest.raises(InputError, match=r"privacy\.epsilom"):
        trainer(tmp_path / "b", privacy=PRIVACY | {"epsilom": 8})


def test_what_would_go_past_confide_is_refused(tmp_path):
    found = trainer(tmp_path / "out")
    for name in ("get_train_dataloader", "hyperparameter_search", "push_to_hub"):
        with pytest.raises(InputError, match=f"^{name}: "):
            getattr(found, name)()


def test_a_loss_of_ones_own_is_tested(tmp_path):
    def row_loss(model, batch):
        logits = model(input_ids=batch["input_ids"]).logits[:, :-1]
        losses = nn.functional.cross_entropy(
            logits.transpose(1, 2), batch["input_ids"][:, 1:], reduction="none"
        )
        counted = batch["real"][:, 1:]
        return (losses * counted).sum(1) / counted.sum(1).clamp(min=1)

    found = trainer(tmp_path / "a", loss=row_loss)
    found.train()
    assert any("program's own loss" in text for text in found.guarantee.not_covered)
    assert "program's own loss" in " ".join(found.guarantee.sentences())
    with pytest.raises(InputError, match=r"loss: .*depends on the row beside it"):
        trainer(tmp_path / "b", loss=lambda m, b: row_loss(m, b) + row_loss(m, b).sum()).train()


def test_preference_pairs_are_refused_with_a_reason():
    with pytest.raises(InputError, match=r"not built.*unit of a pair.*reference model"):
        PrivateDPOTrainer(model=copy.copy(None))
