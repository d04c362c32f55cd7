"""Tell whether rows of `eval_dataset` are of units that train, and refuse to choose a model by them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from transformers import EarlyStoppingCallback
from transformers.utils import logging

from confide.config.schema import Config
from confide.integrations.rows import TOKENS, Rows
from confide.privacy import mechanisms
from confide.privacy.mechanisms.held_out_rules import (
    EVAL_DATASET,
    Choice,
    Shared,
    secret_errors,
    shared_error,
)
from confide.utils.errors import InputError

logger = logging.get_logger(__name__)


@dataclass(frozen=True)
class Comparison:
    """Compares whose rows evaluation sets hold with whose rows train.

    Names of units are compared. Without `unit`, or without that column, the rows themselves are: a set of which half
    the rows train is recognised, since a few may be alike by chance. A set that cannot be read by rows is taken as text
    of others.

    Attributes:
        trained: the rows that train.
        given: the training set as the caller has it, before another kind of trainer has tokenised it.
        config: of the run.
    """

    trained: Rows
    given: Any
    config: Config
    _contents: dict[tuple[str, ...], set[int]] = field(default_factory=dict)

    def shared(self, dataset: Any, given: Any) -> dict[str, Shared]:
        """Return those who are on both sides, by the name of the set, and warn of them.

        Args:
            dataset: one evaluation set, whose name is "", or several by name.
            given: the same as the caller has them.
        """
        found = dict(self._shared(dataset, given))
        for each in found.values():
            logger.warning(
                f"{each.sentence(EVAL_DATASET)}: their loss says little about text of others, and no noise covers it"
            )
        return found

    def _shared(self, dataset: Any, given: Any) -> Iterator[tuple[str, Shared]]:
        mechanism, unit = mechanisms.find(self.config.privacy.mechanism), self.config.data.unit
        if dataset is None or isinstance(dataset, str) or mechanism.notion == "none":
            return
        as_given = _by_name(given)
        for name, each in _by_name(dataset).items():
            if self.given is not None and as_given.get(name) is self.given:
                yield name, Shared(len(self.trained), len(self.trained), "rows")
            elif (rows := _rows(each)) is None:
                continue
            elif unit is not None and (held_out := _owners(rows, unit)):
                if both := held_out & self._names:
                    yield name, Shared(len(both), len(held_out), is_of_rows=not mechanism.needs.named_unit)
            elif number := self._alike(rows, unit):
                yield name, Shared(number, len(rows), "rows")

    @cached_property
    def _names(self) -> set[str]:
        """The units that train; to read them takes a pass over all rows."""
        unit = self.config.data.unit
        return set() if unit is None else self.trained.owners(unit)

    def _alike(self, rows: Rows, unit: str | list[str] | None) -> int:
        """Return how many different rows also train; 0 if they are fewer than half of the set."""
        named = [unit] if isinstance(unit, str) else unit or []
        both = [each for each in rows.columns if each in self.trained.columns and each not in named]
        columns = (TOKENS,) if TOKENS in both else tuple(both)
        if not columns:
            return 0
        if columns not in self._contents:
            self._contents[columns] = self.trained.contents(columns)
        number = len(rows.contents(columns) & self._contents[columns])
        return number if 2 * number >= len(rows) else 0


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


def _rows(dataset: Any) -> Rows | None:
    """Return the rows of an evaluation set; None if it cannot be read by rows."""
    try:
        return Rows(dataset, "eval_dataset")
    except InputError:
        return None


def _owners(rows: Rows, unit: str | list[str]) -> set[str]:
    """Return the units that own a row of an evaluation set; none if it has no such column."""
    try:
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
