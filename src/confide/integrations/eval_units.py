"""Tell whether rows of `eval_dataset` are of units that train, and refuse to choose a model by them."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from transformers import EarlyStoppingCallback

from confide.config.schema import Config
from confide.integrations.rows import Rows
from confide.privacy import mechanisms
from confide.privacy.mechanisms.held_out_rules import (
    EVAL_DATASET,
    Choice,
    Shared,
    secret_errors,
    shared_error,
)
from confide.utils.errors import InputError


def shared_units(
    trained: Rows, parameters: Mapping[str, Any], dataset: Any, config: Config
) -> dict[str, Shared]:
    """Compare whose rows evaluation sets hold with whose rows train: by the name of the set, those who share.

    Names of units are compared. Without `unit`, or without that column, only the training set itself is recognised. A
    set that cannot be read by rows is taken as text of others.

    Args:
        parameters: what the trainer was given, before another kind of trainer has tokenised it.
        dataset: one evaluation set, whose name is "", or several by name.
    """
    mechanism = mechanisms.find(config.privacy.mechanism)
    if dataset is None or isinstance(dataset, str) or mechanism.notion == "none":
        return {}
    found, given = {}, _by_name(parameters.get("eval_dataset"))
    names: set[str] | None = None  # of those who train; to read them takes a pass over all rows
    for name, each in _by_name(dataset).items():
        if given.get(name) is parameters.get("train_dataset"):
            found[name] = Shared(len(trained), len(trained), "rows")
        elif config.data.unit is not None:
            held_out = _owners(each, config.data.unit)
            if held_out and names is None:
                names = trained.owners(config.data.unit)
            if both := held_out & (names or set()):
                found[name] = Shared(len(both), len(held_out), is_of_rows=not mechanism.needs.named_unit)
    return found


def warning(shared: Shared) -> str:
    """Return what a user should know before he reads losses of such a set."""
    return f"{shared.sentence(EVAL_DATASET)}: their loss says little about text of others, and no noise covers it"


def refuse_choice(shared: Mapping[str, Shared], config: Config, args: Any, callbacks: Sequence[Any]) -> None:
    """Refuse to let losses of text that may be protected decide which model is kept, or when to stop.

    `privacy/mechanisms/held_out_rules.py` says why, for each kind of mechanism.

    Raises:
        InputError: an argument or a callback does that.
    """
    metric = (args.metric_for_best_model or "loss").removeprefix("eval_")
    deciding = [each for name, each in shared.items() if not name or metric.startswith(f"{name}_")]
    for chooser in _choosers(args, callbacks):
        choice = Choice(chooser, f"{chooser} chooses the model by", EVAL_DATASET)
        for key, sentence in secret_errors(mechanisms.find(config.privacy.mechanism), choice):
            raise InputError(f"{key}: {sentence}")
        for each in deciding:
            raise InputError(shared_error(each, choice))


def _by_name(dataset: Any) -> dict[str, Any]:
    return dataset if isinstance(dataset, dict) else {"": dataset}


def _owners(dataset: Any, unit: str | list[str]) -> set[str]:
    """Return the units that own a row of an evaluation set; none if it has no such column or cannot be read."""
    columns = getattr(dataset, "column_names", None)
    if not columns or not hasattr(dataset, "__len__"):
        return set()
    try:
        rows = Rows(dataset, "eval_dataset")
        return set() if rows.lacking(unit) else rows.owners(unit)
    except InputError:
        return set()


def _choosers(args: Any, callbacks: Sequence[Any]) -> Iterator[str]:
    """Yield what decides by evaluation losses."""
    if args.load_best_model_at_end:
        yield "load_best_model_at_end"
    if getattr(args.save_strategy, "value", args.save_strategy) == "best":
        yield "save_strategy='best'"
    if any(isinstance(each, EarlyStoppingCallback) for each in callbacks):
        yield "EarlyStoppingCallback"
