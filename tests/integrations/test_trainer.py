"""A Trainer with confide's step: the weights of `confide train`, and what users of Trainer expect around it."""

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from datasets import Dataset
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertForSequenceClassification,
    EarlyStoppingCallback,
    GPT2LMHeadModel,
    TrainerCallback,
    default_data_collator,
)

import confide
from confide.integrations import PrivateTrainer
from confide.utils.errors import InputError
from tests.command import confide as command
from tests.command import environment
from tests.integrations.world import (
    PRIVACY,
    arguments,
    dataset,
    furthest,
    made,
    rows,
    tokenizer,
    tokens,
    weights,
)


def trainer(folder, data=None, privacy=PRIVACY, model=None, **given):
    args = given.pop("args", None) or arguments(folder)
    return PrivateTrainer(
        model=made() if model is None else model,
        args=args,
        train_dataset=dataset() if data is None else data,
        processing_class=tokenizer(),
        privacy=privacy,
        **given,
    )


def measurements(folder):
    text = (folder.with_name(f"{folder.name}.private") / "metrics.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


class Seen(TrainerCallback):
    """Notes what it was told, and the weights after each step."""

    def __init__(self, stop: int | None = None):
        self.told, self.weights, self.gradients, self.stop = [], [], [], stop

    def __getattribute__(self, name):
        if name.startswith("on_") and name not in ("on_step_end", "on_pre_optimizer_step"):
            return lambda args, state, control, **_: self.told.append((name, state.global_step))
        return super().__getattribute__(name)

    def on_pre_optimizer_step(self, args, state, control, model, **_):
        self.gradients.append(float(sum(p.grad.square().sum() for p in model.parameters())))

    def on_step_end(self, args, state, control, model, **_):
        self.told.append(("on_step_end", state.global_step))
        self.weights.append(weights(model))
        if state.global_step == self.stop:
            control.should_training_stop = True


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run that was not interrupted, with everything around it."""
    folder = tmp_path_factory.mktemp("finished") / "out"
    seen = Seen()
    found = trainer(
        folder,
        args=arguments(folder, eval_strategy="steps", eval_steps=2),
        eval_dataset=dataset(number=12, seed=9),
        callbacks=[seen],
    )
    found.outcome = found.train()
    found.save_model()
    return found, seen, folder


def test_its_weights_are_those_of_confide_train(finished, tmp_path):
    found, _, folder = finished
    text, base = tmp_path / "text.jsonl", tmp_path / "base"
    text.write_text("".join(json.dumps(row) + "\n" for row in rows()))
    made().save_pretrained(base)
    tokenizer().save_pretrained(base)
    config = tmp_path / "config.yaml"
    # The model of the fixture has no folder. A published key's binding leaves a folder's name out, not another name.
    own = trainer(tmp_path / "own", model=GPT2LMHeadModel.from_pretrained(base))
    own.train()
    raw = own.confide_config.model_dump(mode="json")
    raw["data"]["train"], raw["run"] = str(text), str(tmp_path / "run")
    config.write_text(json.dumps(raw))
    assert command("train", config).code == 0
    released = GPT2LMHeadModel.from_pretrained(tmp_path / "run" / "release").state_dict()
    assert furthest(own.model.state_dict(), released) < 1e-6
    assert furthest(made().state_dict(), released) > 1e-3
    assert found.confide_config.train.batch == 8
    theirs = confide.Guarantee.load(tmp_path / "run" / "release" / "guarantee.json")
    ours = confide.Guarantee.load(folder / "guarantee.json")
    names = "notion unit epsilon delta noise_multiplier clip_norm steps curve public_facts randomness"
    for name in names.split():
        assert getattr(ours, name) == getattr(theirs, name), name


@pytest.mark.parametrize("mechanism", ["uls", "dp-sgd"])
def test_token_ids_train_as_confide_trains_the_same_documents(tmp_path, mechanism):
    privacy = PRIVACY | {"mechanism": mechanism}
    found = trainer(tmp_path / "out", tokens(), privacy)
    found.train()
    assert (tmp_path / "out.private" / "ledger.jsonl").read_text().count("\n") == 5
    padded = tokens().map(
        lambda row: {
            "attention_mask": [0, 0] + [1] * len(row["input_ids"]),
            "labels": [-100, -100] + row["input_ids"],
            "input_ids": [1, 1] + row["input_ids"],
        }
    )
    other = trainer(tmp_path / "padded", padded, privacy)
    other.train()
    assert furthest(found.model.state_dict(), other.model.state_dict()) == 0
    assert "came as token ids" in found.guarantee.rows_cut


def test_the_guarantee_is_beside_the_model(finished):
    found, _, folder = finished
    for place in (folder, folder / "checkpoint-2", folder / "checkpoint-4"):
        stated = confide.Guarantee.load(place / "guarantee.json")
        assert stated.epsilon <= 8
        assert stated.steps == int(place.name.partition("-")[2] or 4)
        assert (place / "guarantee.txt").read_text().splitlines() == stated.sentences()
        assert "log_history" in (place / "guarantee.txt").read_text()
        assert "eval_dataset" in (place / "README.md").read_text()
        assert GPT2LMHeadModel.from_pretrained(place) is not None
    assert furthest(GPT2LMHeadModel.from_pretrained(folder).state_dict(), found.model.state_dict()) == 0
    private = Path(found.confide_config.run)
    assert private.stat().st_mode & 0o077 == 0


def test_logs_and_evaluations_have_the_usual_keys(finished):
    found, _, folder = finished
    history = found.state.log_history
    losses = [line for line in history if "loss" in line]
    assert [line["step"] for line in losses] == [2, 4]
    assert all({"learning_rate", "epoch"} <= set(line) for line in losses)
    # 30 authors, 8 a step: an epoch is 4 steps.
    assert [line["epoch"] for line in losses] == [0.5, 1.0]
    assert [line["step"] for line in history if "eval_loss" in line] == [2, 4]
    assert {"train_loss", "train_runtime", "train_steps_per_second"} <= set(history[-1])
    assert found.outcome.global_step == 4
    assert math.isfinite(found.outcome.training_loss)
    measured = measurements(folder)
    taken = [line["loss"] for line in measured if "step" in line]
    assert losses[0]["loss"] == pytest.approx(sum(taken[:2]) / 2)
    again = found.evaluate()
    assert {"eval_loss", "eval_runtime", "eval_samples_per_second"} <= set(again)
    own = found.evaluate(dataset(number=12, seed=9), metric_key_prefix="test")
    assert own["test_loss"] == pytest.approx(again["eval_loss"])
    assert again["eval_loss"] == pytest.approx(
        [line for line in history if "eval_loss" in line][-1]["eval_loss"]
    )


def test_callbacks_are_called_in_trainers_order(finished):
    _, seen, _ = finished
    step = [name for name, at in seen.told if name in ("on_step_begin", "on_optimizer_step", "on_step_end")]
    assert step == ["on_step_begin", "on_optimizer_step", "on_step_end"] * 4
    order = [name for name, _ in seen.told]
    assert order[:4] == ["on_init_end", "on_train_begin", "on_epoch_begin", "on_step_begin"]
    end = order.index("on_train_end")
    assert order[end - 2 : end] == ["on_epoch_end", "on_log"]
    assert [at for name, at in seen.told if name == "on_save"] == [2, 4]
    assert [at for name, at in seen.told if name == "on_evaluate"][:2] == [2, 4]
    assert len(seen.gradients) == 4
    assert min(seen.gradients) > 0


@pytest.mark.parametrize("new_process", [True, False])
def test_a_resumed_run_is_the_same_to_the_bit(finished, tmp_path, new_process):
    whole, _, _ = finished
    folder = tmp_path / "out"
    how = {
        "args": arguments(folder, eval_strategy="steps", eval_steps=2),
        "eval_dataset": dataset(number=12, seed=9),
    }
    cut = trainer(folder, callbacks=[Seen(stop=3)], **how)
    assert cut.train().global_step == 3
    assert cut.guarantee.steps == 3
    # The callback stopped it with the weights and an evaluation in sight, so all planned steps are counted.
    assert cut.guarantee.epsilon == whole.guarantee.epsilon
    if new_process:
        cut = trainer(folder, **how)
    else:
        with pytest.raises(InputError, match="has taken 3 steps already"):
            cut.train()
        cut.pop_callback(Seen)
    assert cut.train(resume_from_checkpoint=True).global_step == 4
    assert furthest(cut.model.state_dict(), whole.model.state_dict()) == 0
    assert cut.guarantee == whole.guarantee
    keys = ("loss", "eval_loss", "learning_rate", "epoch", "step")
    # The end of the first part is not logged again, but its history is in the checkpoint.
    ours, theirs = (
        [
            {key: line[key] for key in keys if key in line}
            for line in each.state.log_history
            if "epoch" in line
        ]
        for each in (cut, whole)
    )
    assert ours[:4] == theirs[:4]
    assert [line["step"] for line in ours] == [2, 2, 4, 4, 4]


def test_a_checkpoint_of_another_run_is_refused(finished, tmp_path):
    _, _, folder = finished
    other = trainer(tmp_path / "out", args=arguments(tmp_path / "out", learning_rate=2e-2))
    other.train()
    other = trainer(tmp_path / "out", args=arguments(tmp_path / "out", learning_rate=2e-2))
    with pytest.raises(InputError, match="damaged, or not what this run saved"):
        other.train(resume_from_checkpoint=str(folder / "checkpoint-2"))
    (tmp_path / "checkpoint-2").mkdir()
    with pytest.raises(InputError, match=r"resume_from_checkpoint: .* holds no whole checkpoint"):
        trainer(tmp_path / "out2").train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))


def test_a_run_does_not_go_on_with_other_rows_or_settings(tmp_path):
    folder = tmp_path / "out"
    trainer(folder, callbacks=[Seen(stop=2)]).train()
    with pytest.raises(InputError, match=r"train_dataset: .* began with other rows"):
        trainer(folder, dataset(seed=3)).train()
    with pytest.raises(InputError, match=r"another config \(differs in train.learning_rate\)"):
        trainer(folder, args=arguments(folder, learning_rate=1e-3)).train()
    with pytest.raises(InputError, match="a model as it was before the first step"):
        trainer(folder, model=made(seed=5)).train()
    trainer(folder).train()  # from the start, the same steps are the same


def test_an_empty_draw_is_a_step(tmp_path):
    seen = Seen()
    folder = tmp_path / "out"
    args = arguments(folder, per_device_train_batch_size=1, max_steps=6, logging_steps=1, save_strategy="no")
    found = trainer(folder, args=args, callbacks=[seen])
    assert found.train().global_step == 6
    empty = [line["step"] for line in measurements(folder) if line.get("units") == 0]
    assert empty
    assert [line["step"] for line in found.state.log_history if "learning_rate" in line] == [1, 2, 3, 4, 5, 6]
    assert {
        line["step"] for line in found.state.log_history if "learning_rate" in line and "loss" not in line
    } == {at + 1 for at in empty}
    for at in empty:
        before = seen.weights[at - 1] if at else made().state_dict()
        assert furthest(before, seen.weights[at]) > 0  # by noise alone


def test_private_losses_reach_nobody_if_so_asked(tmp_path):
    folder = tmp_path / "out"
    found = trainer(folder, log_private=False)
    assert math.isnan(found.train().training_loss)
    assert not any("loss" in key for line in found.state.log_history for key in line)
    assert not any("log_history" in text for text in found.guarantee.not_covered)
    assert "loss" not in (folder / "checkpoint-4" / "trainer_state.json").read_text()


def test_early_stopping_and_the_best_model(tmp_path):
    folder = tmp_path / "out"
    args = arguments(
        folder, max_steps=6, eval_strategy="steps", eval_steps=2, load_best_model_at_end=True, learning_rate=0.5,
        metric_for_best_model="eval_loss",
    )  # fmt: skip
    held_out = dataset(number=6).map(lambda row: {"author": f"b{row['author']}"})
    found = trainer(folder, args=args, eval_dataset=held_out, callbacks=[EarlyStoppingCallback(1)])
    found.train()
    best = found.state.best_model_checkpoint
    assert found.state.global_step >= 4
    assert furthest(GPT2LMHeadModel.from_pretrained(best).state_dict(), found.model.state_dict()) == 0
    assert found.guarantee.steps == found.state.global_step  # all of them were taken to choose it


def test_a_checkpoint_claims_all_planned_steps_since_somebody_may_choose_it(tmp_path):
    """A callback may evaluate by itself, save, stop and take the stop back: what it looked at is not known."""
    trainer(tmp_path / "out").train()
    stated = [
        confide.Guarantee.load(tmp_path / "out" / place / "guarantee.json") for place in ("checkpoint-2", ".")
    ]
    assert [each.steps for each in stated] == [2, 4]
    assert stated[0].epsilon == stated[1].epsilon
    alone = confide.train(trainer(tmp_path / "b").confide_config.model_copy(deep=True), documents=rows(), until=2,
        model=made(), tokenizer=tokenizer())  # fmt: skip
    assert alone.guarantee.epsilon < stated[0].epsilon * 0.95


def test_schedules_and_optimisers_without_a_name_in_the_config(tmp_path):
    args = arguments(tmp_path / "a", lr_scheduler_type="cosine_with_restarts", logging_steps=1, optim="sgd")
    found = trainer(tmp_path / "a", args=args)
    found.train()
    rates = [line["learning_rate"] for line in found.state.log_history if "learning_rate" in line]
    assert rates[0] == 1e-2
    assert rates[-1] < rates[1] < 1e-2
    args = arguments(tmp_path / "b", logging_steps=1)
    own = (torch.optim.Adagrad, {"lr": 0.1})
    found = trainer(tmp_path / "b", args=args, optimizer_cls_and_kwargs=own)
    found.train()
    assert isinstance(found.optimizer, torch.optim.Adagrad)
    rates = [line["learning_rate"] for line in found.state.log_history if "learning_rate" in line]
    assert rates == pytest.approx([0.1, 0.075, 0.05, 0.025])


def test_gradient_checkpointing_gives_the_same_weights(finished, tmp_path):
    whole, _, _ = finished
    args = arguments(tmp_path / "out", save_strategy="no")
    args.activation_checkpointing = True
    found = trainer(tmp_path / "out", args=args)
    found.train()
    assert found.confide_config.train.gradient_checkpointing
    assert furthest(found.model.state_dict(), whole.model.state_dict()) < 1e-5


def test_a_whole_config_is_taken_and_says_nothing_twice(tmp_path):
    raw = {
        "privacy": {"mechanism": "uls", "epsilon": 8, "published_key": "for a test"},
        "data": {"train": "x", "unit": "author", "max_length": 64, "eval": None},
        "train": {"average": {"kind": "tail", "share": 0.5}},
    }
    found = trainer(tmp_path / "a", privacy=raw)
    found.train()
    mean = weights(GPT2LMHeadModel.from_pretrained(tmp_path / "a" / "checkpoint-4"))
    assert furthest(mean, found.model.state_dict()) > 1e-5  # the saved one is the mean
    config = confide.load_config(raw | {"train": {"batch": 16}})
    with pytest.raises(InputError, match=r"train\.batch: the config says 16.*TrainingArguments say 8"):
        trainer(tmp_path / "b", privacy=config)
    assert (
        trainer(tmp_path / "c", privacy=confide.load_config(raw)).confide_config.train.average.kind == "tail"
    )


def test_noise_may_be_correlated_over_the_steps_of_epochs(tmp_path):
    args = arguments(tmp_path / "out", max_steps=-1, num_train_epochs=2)
    correlated = PRIVACY | {"sampling": "bins", "bands": 3}
    found = trainer(tmp_path / "out", args=args, privacy=correlated).confide_config
    assert found.train.steps > 3
    with pytest.raises(InputError, match="more than the"):
        trainer(tmp_path / "out", args=args, privacy=correlated | {"bands": 99})


def test_epochs_are_steps_in_which_everybody_is_drawn_once_on_average(tmp_path):
    args = arguments(tmp_path / "out", max_steps=-1, num_train_epochs=2)
    assert trainer(tmp_path / "out", args=args).confide_config.train.steps == 8  # 2 * 30 / 8
    rows_drawn = PRIVACY | {"mechanism": "dp-sgd"}
    assert (
        trainer(tmp_path / "out", args=args, privacy=rows_drawn).confide_config.train.steps == 23
    )  # 2 * 90 / 8


def test_importing_confide_imports_no_trl():
    code = (
        "import sys, confide, confide.integrations; from confide.integrations import PrivateTrainer; "
        "print('trl' in sys.modules, 'PrivateSFTTrainer' in dir(confide.integrations))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment(), check=True
    )
    assert done.stdout.split() == ["False", "True"]


def test_classes_keep_the_numbers_that_the_model_has(tmp_path):
    """Class 1 is met first; it stays class 1, as Trainer's evaluation has it."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    config = BertConfig(vocab_size=8192, max_position_embeddings=64, pad_token_id=1, num_labels=3, **sizes)
    words = (["printer", "paper"], ["key", "room"])
    data = Dataset.from_list(
        [
            {"text": " ".join(words[(at + 1) % 2]), "label": (at + 1) % 2, "author": f"a{at}"}
            for at in range(40)
        ]
    )
    privacy = {key: value for key, value in PRIVACY.items() if key != "epsilon"} | {"noise_multiplier": 1e-4}
    own = tokenizer()
    tokenised = data.map(lambda row: own(row["text"])).rename_column("label", "labels")
    args = arguments(tmp_path / "out", max_steps=20, per_device_train_batch_size=40, learning_rate=0.05)
    found = PrivateTrainer(
        model=BertForSequenceClassification(config), args=args, train_dataset=tokenised, eval_dataset=tokenised,
        processing_class=own, privacy=privacy,
        compute_metrics=lambda seen: {"right": float((seen.predictions.argmax(-1) == seen.label_ids).mean())},
    )  # fmt: skip
    found.train()
    assert found.confide_config.task == "classification"
    assert found.evaluate()["eval_right"] > 0.9


def test_a_masked_language_model_trains(tmp_path):
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    model = BertForMaskedLM(BertConfig(vocab_size=8192, max_position_embeddings=64, pad_token_id=1, **sizes))
    own = tokenizer()
    own.add_special_tokens({"mask_token": own.convert_ids_to_tokens(5)})
    found = PrivateTrainer(
        model=model,
        args=arguments(tmp_path / "out"),
        train_dataset=tokens(),
        processing_class=own,
        privacy=PRIVACY | {"mechanism": "dp-sgd"},
    )
    assert found.confide_config.task == "masked-lm"
    before = weights(model)
    assert found.train().global_step == 4
    assert furthest(before, weights(model)) > 1e-3


def test_longer_rows_are_evaluated_in_the_pieces_that_are_trained_on(tmp_path):
    """The model reads 64 tokens; half of the tokens are read alone, by their labels."""
    ids = [token for row in tokens(number=12, seed=9) for token in row["input_ids"]][:150]
    labels = [token if at % 2 else -100 for at, token in enumerate(ids)]
    given = Dataset.from_list([{"input_ids": ids, "attention_mask": [1] * 150, "labels": labels}])
    found = trainer(tmp_path / "out", eval_dataset=given)
    measured = found.evaluate()["eval_loss"]
    model, losses = found.model.eval(), []
    for start in (0, 64, 128):
        piece = ids[start : start + 64]
        scores = torch.log_softmax(model(input_ids=torch.tensor([piece])).logits[0].double(), dim=1)
        places = [at for at in range(1, len(piece)) if labels[start + at] != -100]
        losses += [-scores[at - 1, piece[at]].item() for at in places]
    assert measured == pytest.approx(sum(losses) / len(losses), abs=1e-5)


def test_rows_that_confide_cuts_are_evaluated_with_a_collator_that_only_stacks(tmp_path):
    held_out = dataset(number=12, seed=9)
    plain = trainer(tmp_path / "a", eval_dataset=held_out).evaluate()["eval_loss"]
    stacks = trainer(tmp_path / "b", eval_dataset=held_out, data_collator=default_data_collator)
    assert stacks.evaluate()["eval_loss"] == plain


def test_a_model_in_bf16_trains_in_float32(tmp_path):
    """transformers loads a model in the precision of its file."""
    made().bfloat16().save_pretrained(tmp_path / "base")
    coarse = GPT2LMHeadModel.from_pretrained(tmp_path / "base")
    assert coarse.dtype == torch.bfloat16
    fine = GPT2LMHeadModel.from_pretrained(tmp_path / "base", dtype="float32")
    one = trainer(tmp_path / "one", model=coarse)
    other = trainer(tmp_path / "other", model=fine)
    for each in (one, other):
        each.train()
    assert furthest(weights(coarse), weights(fine)) == 0
    assert coarse.dtype == torch.float32


def test_a_model_of_which_a_part_trains_in_bf16_is_refused(tmp_path):
    model = made().bfloat16()
    model.transformer.wte.requires_grad_(False)
    with pytest.raises(InputError, match=r"^model: parameters that train are torch\.bfloat16: "):
        trainer(tmp_path / "run", model=model).train()
