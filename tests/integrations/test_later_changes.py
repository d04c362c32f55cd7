"""What a caller does between making a trainer and training with it, or does a second time."""

import logging
from types import SimpleNamespace

import pytest
from transformers import TrainerCallback

from confide.integrations.refusals import senders
from confide.utils.errors import InputError
from tests.integrations.test_eval_units import BEST, OTHERS
from tests.integrations.test_trainer import trainer
from tests.integrations.world import arguments, dataset, rows


@pytest.fixture
def warnings(caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("transformers"), "propagate", True)
    return lambda words: [each.getMessage() for each in caplog.records if words in each.getMessage()]


def made(tmp_path, **given):
    settings = given.pop("settings", {})
    return trainer(tmp_path / "out", args=arguments(tmp_path / "out", max_steps=2, **settings), **given)


def test_an_evaluation_set_that_is_set_later_is_compared(tmp_path, warnings):
    found = made(tmp_path, eval_dataset=OTHERS, settings=BEST)
    found.eval_dataset = dataset(number=6)
    with pytest.raises(InputError, match="6 of its 6 units also train, and load_best"):
        found.train()
    assert len(warnings("6 of its 6 units also train")) == 1


def test_an_evaluation_set_that_is_set_later_is_read_as_the_first(tmp_path):
    found = made(tmp_path)
    found.eval_dataset = OTHERS
    later = found.evaluate()["eval_loss"]
    assert later == made(tmp_path / "b", eval_dataset=OTHERS).evaluate()["eval_loss"]


def test_rows_that_are_evaluated_by_hand_are_compared(tmp_path, warnings):
    found = made(tmp_path)
    found.evaluate(OTHERS)
    assert not warnings("also train")
    found.evaluate(dataset(number=6))
    assert len(warnings("6 of its 6 units also train")) == 1


def test_other_rows_to_train_on_are_refused(tmp_path):
    """Whoever takes out an objector's rows would believe that nobody trained on them."""
    found = made(tmp_path)
    found.train_dataset = dataset(number=60)
    with pytest.raises(InputError, match="train_dataset: it was replaced"):
        found.train()


def test_other_arguments_are_refused(tmp_path):
    found = made(tmp_path)
    found.args.learning_rate = 1e-4
    with pytest.raises(InputError, match=r"args: they were changed .*train\.learning_rate"):
        found.train()
    found = made(tmp_path / "a")
    found.train()
    found.args.max_steps = 4
    with pytest.raises(InputError, match=r"args: they were changed .*train\.steps"):
        found.train(resume_from_checkpoint=True)
    found = made(tmp_path / "b")
    found.args.neftune_noise_alpha = 5.0
    with pytest.raises(InputError, match=r"args\.neftune_noise_alpha"):
        found.train()


def sending() -> TrainerCallback:
    """Return what stands for a callback of transformers that reports to a server."""
    return type(
        "WandbCallback", (TrainerCallback,), {"__module__": "transformers.integrations.integration_utils"}
    )()


@pytest.mark.parametrize("when", ["given", "added", "derived"])
def test_losses_are_not_sent_past_report_to(tmp_path, when):
    found = made(tmp_path, callbacks=[sending()] if when == "given" else [])
    if when == "added":
        found.add_callback(sending())
    if when == "derived":
        found.add_callback(type("Own", (type(sending()),), {})())
    with pytest.raises(InputError, match=r"callbacks: (WandbCallback|Own) would be sent losses"):
        found.train()


def test_a_callback_that_sees_no_losses_is_no_sender():
    kind = type("CodeCarbonCallback", (), {"__module__": "transformers.integrations.integration_utils"})
    assert senders(SimpleNamespace(report_to=["codecarbon", "tensorboard"]), [kind()]) == []
    assert senders(SimpleNamespace(report_to=["wandb"]), [sending()]) == ["wandb", "WandbCallback"]


def test_what_is_sent_stands_in_the_guarantee(tmp_path):
    found = made(tmp_path, callbacks=[sending()], log_private=False)
    found.train()
    assert any("report_to" in line for line in found.guarantee.not_covered)


def test_steps_that_are_taken_again_are_told_of(tmp_path, warnings):
    made(tmp_path).train()
    assert not warnings("if they have led to a model")
    made(tmp_path).train()
    assert len(warnings("if they have led to a model")) == 1


def test_where_nobody_may_know_how_many_there_are_an_epoch_does_not_tell(tmp_path):
    claim = {
        "mechanism": "uls",
        "noise_multiplier": 1.0,
        "published_key": "x",
        "adjacency": "add-or-remove",
        "delta": 1e-4,
    }
    privacy = {
        "privacy": claim,
        "data": {"train": "-", "unit": "author", "max_length": 64},
        "train": {"sampling_rate": 0.25, "divisor": 8},
    }
    epochs = []
    for number in (32, 33):
        text = dataset(number=99, authors=number)
        found = made(tmp_path / str(number), data=text, privacy=privacy, settings={"logging_steps": 1})
        found.train()
        epochs.append([entry["epoch"] for entry in found.state.log_history])
    assert epochs[0] == epochs[1]
    assert epochs[0][0] == 0.25


def test_a_list_of_rows_is_compared(tmp_path, warnings):
    made(tmp_path, eval_dataset=rows(number=6))
    assert len(warnings("6 of its 6 units also train")) == 1
