"""What keys of a config cannot mean together, each of which is valid by itself."""

import difflib
from collections.abc import Iterator

from pydantic import BaseModel

from confide.config import registry, yaml_text
from confide.config.condition_faults import condition_faults
from confide.config.data_section import Data
from confide.config.model_sections import model_faults
from confide.config.schema import Config
from confide.config.train_section import Average


def combination_faults(config: Config) -> Iterator[tuple[str, str]]:
    """Yield (key, reason) for what keys of several sections, or several keys of one, cannot mean together."""
    data, train, adapter = config.data, config.train, config.adapter
    has_classes = registry.task_facts(config.task).has_classes
    if has_classes and data.label is None:
        yield "data.label", f"task: {config.task} needs the field that holds the class"
    if not has_classes and data.label is not None:
        yield (
            "data.label",
            f"task: {config.task} has no classes; set task: classification or remove the label",
        )
    if adapter.kind == "lora" and config.model.endswith(".json"):
        yield (
            "adapter.kind",
            "an adapter to a model from scratch is no use without its random weights: use full",
        )
    yield from model_faults(adapter, config.base, train.distributed == "fsdp")
    if adapter.kind == "modules" and adapter.targets == "all-linear":
        yield "adapter.targets", "kind: modules needs the names of the modules to train"
    if train.warmup > train.steps:
        yield "train.warmup", f"{train.warmup} warm-up steps are more than the {train.steps} steps of the run"
    if train.distributed == "fsdp" and train.optimizer == "adafactor":
        yield (
            "train.optimizer",
            "adafactor needs whole parameters: use another optimizer with train.distributed: fsdp",
        )
    if train.momentum and train.optimizer != "sgd":
        yield "train.momentum", f"is an option of sgd, not of {train.optimizer}"
    if train.patience and not train.eval_every:
        yield "train.patience", "counts evaluations between steps: set train.eval_every"
    if train.patience and data.eval is None:
        yield "train.patience", "watches the loss on held-out text of others: set data.eval"
    if train.average.kind == "none" and train.average.share != Average().share:
        yield "train.average.share", "is of a mean of the weights: set train.average.kind to ema or tail"
    if data.clean == "enron" and data.unit is None:
        yield "data.unit", "clean: enron is for mail: name the unit, usually `unit: from`"
    if data.unit == []:
        yield "data.unit", "an empty list names no unit: give a field, or null for each document"
    if data.unit is None and data.without_unit != "refuse":
        yield "data.without_unit", "is of documents whose unit is empty, and data.unit names none"
    yield from _of_rows_held_out(data)
    yield from _of_wording(config)
    yield from condition_faults(config)
    yield from _of_the_mechanism(config)


def _of_rows_held_out(data: Data) -> Iterator[tuple[str, str]]:
    """Yield faults in how rows are held out within units."""
    if data.eval_within is None:
        if data.eval_within_most != Data.model_fields["eval_within_most"].default:
            yield "data.eval_within_most", "is of data.eval_within, which is not set"
        return
    if data.eval is not None:
        yield "data.eval", "data.eval_within holds out rows in place of it: set data.eval to null"
    if not isinstance(data.unit, str):
        yield "data.eval_within", "holds out rows of each unit: name one field in data.unit"


def _of_wording(config: Config) -> Iterator[tuple[str, str]]:
    """Yield faults in how chats and completions are described."""
    data, chosen = config.data, config.train.loss_on
    worded = "messages" if data.messages is not None else "completion"
    if (data.prompt is None) != (data.completion is None):
        lacking, there = ("completion", "prompt") if data.completion is None else ("prompt", "completion")
        yield f"data.{lacking}", f"data.{there} is given, and the two go together"
    if data.messages is not None and data.completion is not None:
        yield "data.messages", "give messages, or prompt and completion, not both"
    if data.messages is None and data.tools is not None:
        yield "data.tools", "is of messages, and data.messages names none"
    if config.chat_template is not None and data.messages is None and data.completion is None:
        yield "chat_template", "is of conversations: name their field in data.messages"
    if data.messages is None and data.completion is None:
        if chosen not in (None, "all"):
            need = "data.messages" if chosen == "assistant" else "data.messages or data.completion"
            yield "train.loss_on", f"{chosen} needs {need}: of a plain text every token is learnt"
        return
    if data.text != Data.model_fields["text"].default:
        yield "data.text", f"data.{worded} is in place of it: remove one of the two"
    if not registry.task_facts(config.task).is_causal:
        yield f"data.{worded}", f"is for task causal-lm, and this is {config.task}"
    if data.strip_quotes or data.clean != "none":
        key = "strip_quotes" if data.strip_quotes else "clean"
        yield f"data.{key}", f"is for mails, and data.{worded} is another way to make the text"
    if data.messages is None and chosen == "assistant":
        yield "train.loss_on", "assistant needs data.messages; of a prompt and its completion say completion"


def _of_the_mechanism(config: Config) -> Iterator[tuple[str, str]]:
    name = config.privacy.mechanism
    if name not in registry.MECHANISMS:
        near = difflib.get_close_matches(name[:99], registry.MECHANISMS, 1, 0.4)
        hint = f", did you mean {near[0]}?" if near else ""
        known = ", ".join(registry.MECHANISMS)
        yield "privacy.mechanism", f"{yaml_text.shown(name)} is not one of {known}{hint}"
        return
    yield from registry.mechanism(name).all_validation_errors(config)
    yield from _foreign(config)


def _foreign(config: Config) -> Iterator[tuple[str, str]]:
    """Yield faults for settings of another mechanism, which nobody would read."""
    name = config.privacy.mechanism
    reads = registry.mechanism(name).reads
    for key in registry.SPECIAL_KEYS:
        section, _, name_in_it = key.rpartition(".")
        part: BaseModel = getattr(config, section) if section else config
        default = type(part).model_fields[name_in_it].get_default(call_default_factory=True)
        if key not in reads and getattr(part, name_in_it) != default:
            owners = [other for other in registry.MECHANISMS if key in registry.mechanism(other).reads]
            yield (
                key,
                f"is for mechanism {', '.join(owners)}, and this is {name}: remove it, or choose {owners[0]}",
            )
