"""Hold the objects that a calling program passes to a run, in place of what the config would load."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import TYPE_CHECKING, Any

from confide.config.schema import Config
from confide.data.readers import Record
from confide.utils.errors import InputError

if TYPE_CHECKING:  # a run's folder is read without torch, which takes seconds to import
    from torch import nn

    from confide.models.sharded import Stored
    from confide.training.optimisation import OptimizerOf, SchedulerOf
    from confide.training.tasks import Loss


@dataclass(frozen=True)
class Given:
    """Objects of the caller. A field that is None is made as the config says.

    Attributes:
        model: trained as it is: its parameters that require grad move. Its dropout is set to 0.
        tokenizer: as `transformers` has them; a copy is used.
        documents: mappings with the fields that `data.text` and `data.unit` name, such as the rows of a data set.
            They replace what `data.train` names. They are read more than once, so an iterator will not do. A run
            that was begun keeps the rows that it began with.
        token_field: the field of the documents that holds token ids. They are then rows as they are, cut at
            `data.max_length`, and `data.text` is not read.
        classes: how many classes there are, if their labels are the numbers 0, 1 ...; else they are numbered as they
            are met.
        optimizer: called with the list of parameters. It sets its own learning rate.
        scheduler: called with the optimiser; stepped after every step.
        loss: called with model and batch; returns float[B], a loss for each row that depends on that row alone.

    Raises:
        InputError: one of them is of the wrong kind.
    """

    model: nn.Module | None = None
    tokenizer: Any = None
    documents: Iterable[Mapping[str, Any]] | None = None
    optimizer: OptimizerOf | None = None
    scheduler: SchedulerOf | None = None
    loss: Loss | None = None
    token_field: str | None = None
    classes: int | None = None

    def __post_init__(self) -> None:
        if self.model is not None:
            _check_module(self.model)
        if self.tokenizer is not None and not hasattr(self.tokenizer, "all_special_ids"):
            raise InputError(
                f"tokenizer: give one as transformers has them, not a {type(self.tokenizer).__name__}"
            )
        if isinstance(self.documents, str | bytes | Mapping | Iterator):
            raise InputError(
                "documents: give a list of mappings or a data set, which can be read twice, not a "
                f"{type(self.documents).__name__}"
            )
        for name, example in (
            ("optimizer", "AdamW, lr=1e-3"),
            ("scheduler", "StepLR, step_size=10"),
            ("loss", ""),
        ):
            value = getattr(self, name)
            if value is not None and not callable(value):
                how = f", as in functools.partial({example})" if example else ""
                raise InputError(f"{name}: give a function{how}, not a {type(value).__name__}")

    def __bool__(self) -> bool:
        return any(getattr(self, field.name) is not None for field in fields(self))

    def which(self) -> list[str]:
        """Return the names of the given objects."""
        found = [field.name for field in fields(self) if getattr(self, field.name) is not None]
        return [name for name in found if name not in ("token_field", "classes")]

    @cached_property
    def names(self) -> dict[str, str]:
        """Digests of the given objects that decide the course of a run.

        A run that was begun with other objects does not resume with these, and has other noise. Weights and rows
        are not included: they have digests of their own.
        """
        from confide.runs import fingerprints

        found = {
            name: fingerprints.of_function(name, value)
            for name in ("optimizer", "scheduler", "loss")
            if (value := getattr(self, name)) is not None
        }
        if self.model is not None:
            found["model"] = fingerprints.of_model(self.model)
        if self.tokenizer is not None:
            found["tokenizer"] = fingerprints.of_tokenizer(self.tokenizer)
        return found

    def source(self) -> dict[str, str]:
        """Return the part of it that decides which rows there are."""
        found = {"tokenizer": self.names["tokenizer"]} if self.tokenizer is not None else {}
        found |= {"tokens": self.token_field} if self.token_field is not None else {}
        found |= {"classes": str(self.classes)} if self.classes is not None else {}
        return found | ({"documents": "given"} if self.documents is not None else {})

    def records(self) -> Iterator[Record]:
        assert self.documents is not None
        for at, values in enumerate(self.documents):
            if not isinstance(values, Mapping):
                raise InputError(
                    f"documents: document {at} is a {type(values).__name__}, and each is to be a mapping of fields"
                )
            where = f"document {at}"
            yield Record(values, where, self._tokens(values, where))

    def _tokens(self, values: Mapping[str, Any], where: str) -> list[int] | None:
        if self.token_field is None:
            return None
        found: Any = values.get(self.token_field)
        found = found.tolist() if hasattr(found, "tolist") else found
        if not isinstance(found, Sequence) or not all(type(token) is int for token in found):
            raise InputError(f"{self.token_field}: {where} holds no list of token ids there")
        return list(found)


def _check_module(model: object) -> None:
    from torch import nn

    if not isinstance(model, nn.Module):
        raise InputError(f"model: give a torch module, not a {type(model).__name__}")


def tokenizer_of(config: Config, given: Given) -> Any:
    """Return the tokenizer that was given, or that of the config."""
    from confide.models import loading as models

    if given.tokenizer is None:
        return models.load_tokenizer(config)
    return models.ready_tokenizer(copy.deepcopy(given.tokenizer), config)


def model_of(
    config: Config, given: Given, classes: int | None, vocabulary: int, to_split: bool = False
) -> tuple[nn.Module, dict[str, Stored]]:
    """Return the model that was given, or that of the config, with its adapter.

    Args:
        to_split: the ranks will share one model among them.

    Returns:
        The model, and its weights that still lie in files: only if it is to be split, and was not given.
    """
    from confide.models import loading as models
    from confide.models.ready import ready_model

    if given.model is not None:
        return ready_model(given.model, config, classes, vocabulary), {}
    if to_split:
        return models.load_to_split(config, classes, vocabulary)
    return models.load_model(config, classes, vocabulary), {}
