"""What a program hands to a run, in place of what the config would have it load."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any

from torch import nn

from confide.config.schema import Config
from confide.data.readers import Record
from confide.models import loading as models
from confide.training.step import OptimizerOf, SchedulerOf
from confide.training.tasks import Loss
from confide.utils.errors import InputError


@dataclass(frozen=True)
class Given:
    """Objects of the caller. What is None is made as the config says.

    Attributes:
        model: trains as it is: its parameters that require grad move. Its dropout is set to 0.
        tokenizer: as `transformers` has them.
        documents: mappings with the fields that `data.text` and `data.unit` name, such as the rows of a data set. They
            take the place of what `data.train` names, and are read more than once: no iterator.
        optimizer: called with the list of parameters. Its learning rate is its own.
        scheduler: called with the optimiser; stepped after every step.
        loss: called with model and batch; returns float[B], a loss for each row that depends on that row alone.
    """

    model: nn.Module | None = None
    tokenizer: Any = None
    documents: Iterable[Mapping[str, Any]] | None = None
    optimizer: OptimizerOf | None = None
    scheduler: SchedulerOf | None = None
    loss: Loss | None = None

    def names(self) -> dict[str, str]:
        """What decides the course of a run, by name: a run that was begun with other objects does not go on with these.

        Of a model, a tokenizer and documents, the digests of weights and rows say more.
        """
        return {
            name: _described(value)
            for name in ("optimizer", "scheduler", "loss")
            if (value := getattr(self, name)) is not None
        }

    def __bool__(self) -> bool:
        return any(getattr(self, field.name) is not None for field in fields(self))

    def records(self) -> Iterator[Record]:
        assert self.documents is not None
        if isinstance(self.documents, Iterator):
            raise InputError(
                "documents: an iterator can be read once, and they are read again: pass a list or a data set"
            )
        for at, fields_of in enumerate(self.documents):
            yield Record(fields_of, f"document {at}")


def tokenizer_of(config: Config, given: Given) -> Any:
    """The tokenizer that was given, or that of the config."""
    if given.tokenizer is None:
        return models.load_tokenizer(config)
    return models.ready_tokenizer(given.tokenizer, config)


def model_of(config: Config, given: Given, classes: int | None, vocabulary: int) -> nn.Module:
    """The model that was given, or that of the config, with its adapter."""
    if given.model is None:
        return models.load_model(config, classes, vocabulary)
    return models.ready_model(given.model, config, vocabulary)


def _described(value: Callable[..., Any]) -> str:
    """A name of a function that is the same in another process; with what `functools.partial` holds."""
    if isinstance(value, functools.partial):
        held = ", ".join([*map(repr, value.args), *(f"{k}={v!r}" for k, v in sorted(value.keywords.items()))])
        return f"{_described(value.func)}({held})"
    name = getattr(value, "__qualname__", type(value).__qualname__)
    return f"{getattr(value, '__module__', '')}.{name}"
