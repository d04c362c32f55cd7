"""Whose rows are evaluated: people who train must not choose the model by losses that no noise covers."""

import logging

import pytest
from datasets import Dataset
from transformers import EarlyStoppingCallback

from confide.utils.errors import InputError
from tests.integrations.test_trainer import trainer
from tests.integrations.world import arguments, dataset, rows, tokens

OTHERS = Dataset.from_list([row | {"author": f"b{row['author']}"} for row in rows(number=6)])
BEST = {"load_best_model_at_end": True, "eval_strategy": "steps", "eval_steps": 2}


@pytest.fixture
def said(caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("transformers"), "propagate", True)
    return lambda: [each.getMessage() for each in caplog.records if "also train" in each.getMessage()]


def made(tmp_path, held_out, callbacks=(), **settings):
    args = arguments(tmp_path / "out", **settings)
    return trainer(tmp_path / "out", args=args, eval_dataset=held_out, callbacks=list(callbacks))


@pytest.mark.parametrize(
    ("held_out", "words"),
    [
        (dataset(number=6), "6 of its 6 units also train"),
        (tokens(number=6), "6 of its 6 units also train"),
        ({"others": OTHERS, "some": dataset(number=3)}, "3 of its 3 units also train"),
        (OTHERS, None),
        (dataset(number=6).remove_columns("author"), "6 of its 6 rows also train"),
        (dataset(number=6, seed=2).remove_columns("author"), None),
        (dataset(number=6, seed=2).map(lambda row: {"author": " "}), None),
        (None, None),
    ],
    ids=["text", "tokens", "several", "others", "rows", "nobody named", "nobody's", "none"],
)
def test_people_on_both_sides_are_told_of(tmp_path, said, held_out, words):
    made(tmp_path, held_out)
    assert [words in each for each in said()] == ([] if words is None else [True])


def test_evaluation_alone_is_not_refused(tmp_path):
    made(tmp_path, dataset(number=6), eval_strategy="steps", eval_steps=2, max_steps=2).train()


@pytest.mark.parametrize(
    ("settings", "callbacks", "words"),
    [
        (BEST, [], "load_best_model_at_end chooses"),
        (BEST | {"load_best_model_at_end": False, "save_strategy": "best", "metric_for_best_model": "eval_loss"}, [],
         "save_strategy='best' chooses"),
        (BEST | {"load_best_model_at_end": False, "metric_for_best_model": "eval_loss"}, [EarlyStoppingCallback(1)],
         "EarlyStoppingCallback chooses"),
    ],
)  # fmt: skip
def test_they_do_not_choose_the_model(tmp_path, settings, callbacks, words):
    found = made(tmp_path, dataset(number=6), callbacks, **settings)
    with pytest.raises(InputError, match=words):
        found.train()
    made(tmp_path, OTHERS, callbacks, max_steps=2, **settings).train()


def test_another_set_may_choose(tmp_path):
    """Of several sets only the one that decides counts."""
    both = {"train": dataset(number=6), "valid": OTHERS}
    settings = BEST | {"max_steps": 2}
    made(tmp_path / "a", both, metric_for_best_model="eval_valid_loss", **settings).train()
    found = made(tmp_path / "b", both, metric_for_best_model="train_loss", **settings)
    with pytest.raises(InputError, match="6 of its 6 units also train, and load_best"):
        found.train()


def test_a_claim_of_rows_names_the_way_out(tmp_path):
    privacy = {"mechanism": "dp-sgd", "epsilon": 8, "unit": "author", "max_length": 64, "published_key": "x"}
    args = arguments(tmp_path / "out", **BEST)
    found = trainer(tmp_path / "out", args=args, eval_dataset=dataset(number=6), privacy=privacy)
    with pytest.raises(InputError, match="leave unit out"):
        found.train()


@pytest.mark.parametrize("column", ["position_ids", "seq_lengths"])
def test_a_set_that_is_not_read_by_rows_is_no_reason_to_refuse(tmp_path, said, column):
    made(tmp_path, tokens(number=6).map(lambda row: {column: [0, 1]}))
    assert said() == []


def test_a_callback_that_comes_later_is_seen(tmp_path):
    found = made(tmp_path, dataset(number=6), eval_strategy="steps", eval_steps=2)
    found.add_callback(EarlyStoppingCallback(1))
    with pytest.raises(InputError, match="split the data by whose it is"):
        found.train()


def test_the_training_set_is_recognised_where_no_unit_is_named(tmp_path, said):
    own = dataset()
    privacy = {"mechanism": "dp-sgd", "epsilon": 8, "max_length": 64, "published_key": "for a test"}
    trainer(tmp_path / "out", data=own, eval_dataset=own, privacy=privacy)
    assert ["90 of its 90 rows also train" in each for each in said()] == [True]


def test_without_privacy_nothing_is_compared(tmp_path, said):
    privacy = {"mechanism": "none", "unit": "author", "max_length": 64, "published_key": "for a test"}
    trainer(tmp_path / "out", eval_dataset=dataset(number=6), privacy=privacy)
    assert said() == []


def test_a_few_rows_that_are_alike_by_chance_are_no_reason_to_refuse(tmp_path, said):
    held_out = Dataset.from_list([*rows(number=2), *rows(number=4, seed=2)]).remove_columns("author")
    made(tmp_path, held_out)
    assert said() == []


def test_rows_of_nobody_that_train_do_not_choose_the_model(tmp_path):
    privacy = {"mechanism": "dp-sgd", "epsilon": 8, "max_length": 64, "published_key": "for a test"}
    args = arguments(tmp_path / "out", **BEST)
    held_out = dataset().select(range(40))
    found = trainer(tmp_path / "out", args=args, eval_dataset=held_out, privacy=privacy)
    with pytest.raises(InputError, match="40 of its 40 rows also train, and load_best"):
        found.train()
