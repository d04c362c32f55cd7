"""Turn TrainingArguments and a statement of privacy into a config of confide."""

import functools
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from confide.config import registry
from confide.config.data_section import Data
from confide.config.loading import check, load
from confide.config.schema import Config, Privacy
from confide.models.loading import positions
from confide.privacy.sampling import bins_of
from confide.utils.errors import InputError

_TEXTS = {"text", "messages", "tools", "prompt", "completion"}
_LONGEST = 1024  # tokens of a row, unless it is stated or the model reads fewer
_SCHEDULES = {
    "linear": "linear",
    "cosine": "cosine",
    "constant": "constant",
    "constant_with_warmup": "constant",
}
_OPTIMIZERS = {
    "adamw_torch": "adamw",
    "adamw_torch_fused": "adamw",
    "sgd": "sgd",
    "adafactor": "adafactor",
}


def config_of(
    privacy: Mapping[str, Any] | Config | str | Path | None,
    args: Any,
    model: Any,
    members: Callable[[Config], int],
    **data: Any,
) -> Config:
    """Return the config of a run.

    Args:
        privacy: keys of the `privacy` section, with those of `data` that say how rows are read (`unit`, `text`,
            `max_length` ...) and `loss_on`; or a whole config, as a value, a mapping or a file.
        args: TrainingArguments. They say how long and how fast it trains, and a config that says the same
            otherwise is refused.
        members: called with a config; returns how many users or rows there are to draw, for `num_train_epochs`.
        data: keys of the `data` section that follow from the data set, unless they are stated.

    Raises:
        InputError: a key is at fault, or said twice.
    """
    if privacy is None:
        raise InputError(
            "privacy: say what is protected and how far, as in "
            'privacy={"mechanism": "uls", "epsilon": 8, "unit": "author"}'
        )
    raw = sections_of(privacy)
    own = raw.get("data", {})
    if _TEXTS & set(own):  # it says where the text is, so the columns' names do not
        data = {key: value for key, value in data.items() if key not in _TEXTS}
    raw["data"] = data | {"train": "train_dataset of the calling program"} | own
    raw["data"].setdefault("eval", None)
    raw["data"].setdefault("max_length", longest_row(args, model))
    raw.setdefault("task", _task(model))
    raw.setdefault("model", getattr(getattr(model, "config", None), "name_or_path", "") or "given")
    raw.setdefault("adapter", {"kind": "lora" if hasattr(model, "peft_config") else "full"})
    raw.setdefault("run", f"{str(args.output_dir).rstrip('/')}.private")
    train = dict(raw.get("train", {}))
    decided = _of_arguments(args, 1)
    for key, value in decided.items():
        if key in train and key != "steps" and not _same(train[key], value):
            raise InputError(
                f"train.{key}: the config says {train[key]}, and TrainingArguments say {value}: say it in one place"
            )
    raw["train"] = {**train, **decided, "steps": 1, "warmup": 0, "eval_on_start": False}
    steps = _steps(args, raw, members)
    if "steps" in train and train["steps"] != steps:
        raise InputError(
            f"train.steps: the config says {train['steps']}, and TrainingArguments say {steps}: say it in one place"
        )
    raw["train"] |= _of_arguments(args, steps) | {"steps": steps}
    return check(raw, "privacy")


_MANY = 1_000_000  # steps, while their number is not known


def longest_row(args: Any, model: Any) -> int:
    """Return how many tokens a row may have: stated, or what the model can read, or 1,024.

    It is never taken from the rows, since the guarantee states it.
    """
    stated = getattr(args, "max_length", None)  # of SFTConfig
    reads = positions(getattr(model, "config", None))
    return int(min(stated or _LONGEST, reads or _LONGEST))


def scheduler_of(args: Any, steps: int, always: bool = False) -> Callable[..., Any] | None:
    """Return the scheduler of a type that confide's config has no name for; None if it has one, unless `always`."""
    kind = getattr(args.lr_scheduler_type, "value", args.lr_scheduler_type)
    if kind in _SCHEDULES and not args.lr_scheduler_kwargs and not always:
        return None
    from transformers import get_scheduler

    return functools.partial(
        get_scheduler,
        str(kind),
        num_warmup_steps=args.get_warmup_steps(steps),
        num_training_steps=steps,
        scheduler_specific_kwargs=dict(args.lr_scheduler_kwargs or {}),
    )


def _of_arguments(args: Any, steps: int) -> dict[str, Any]:
    kind = getattr(args.lr_scheduler_type, "value", args.lr_scheduler_type)
    optimizer = _OPTIMIZERS[getattr(args.optim, "value", args.optim)]
    # Trainer's `constant` has no warm-up, whatever warmup_steps says.
    warms_up = scheduler_of(args, steps) is None and kind != "constant"
    found: dict[str, Any] = {
        "batch": float(args.per_device_train_batch_size),
        "learning_rate": float(args.learning_rate),
        "schedule": _SCHEDULES.get(kind, "constant"),
        "warmup": min(args.get_warmup_steps(steps), steps) if warms_up else 0,
        "optimizer": optimizer,
        "weight_decay": float(args.weight_decay),
        "precision": "bf16" if args.bf16 else "float32",
        "gradient_checkpointing": bool(_checkpoints_activations(args)),
        "seed": int(args.seed),
    }
    if optimizer == "adamw":
        found["betas"] = [float(args.adam_beta1), float(args.adam_beta2)]
    return found


def _checkpoints_activations(args: Any) -> bool:
    return bool(
        getattr(args, "activation_checkpointing", None) or getattr(args, "gradient_checkpointing", None)
    )


def sections_of(privacy: Mapping[str, Any] | Config | str | Path) -> dict[str, Any]:
    """Return the stated keys as sections of a config."""
    if isinstance(privacy, str | Path):
        privacy = load(Path(privacy))
    if isinstance(privacy, Config):
        dumped: dict[str, Any] = privacy.model_dump(mode="json", exclude_unset=True)
        dumped["data"].pop("train", None)
        return dumped
    if {"privacy", "data", "train"} & set(privacy):
        return {key: dict(value) if isinstance(value, Mapping) else value for key, value in privacy.items()}
    of_data = set(Data.model_fields) - set(Privacy.model_fields)
    found: dict[str, dict[str, Any]] = {"privacy": {}, "data": {}, "train": {}}
    for key, value in privacy.items():
        found["train" if key == "loss_on" else "data" if key in of_data else "privacy"][key] = value
    return found


def _steps(args: Any, raw: Mapping[str, Any], members: Callable[[Config], int]) -> int:
    if args.max_steps > 0:
        return int(args.max_steps)
    # How many steps there are follows from this config: of so many, noise may be correlated over any number.
    config = check({**raw, "train": {**raw["train"], "steps": _MANY}}, "privacy")
    rate = config.train.sampling_rate or min(1.0, config.train.batch / max(1, members(config)))
    if config.privacy.sampling == "bins":  # an epoch has a whole number of steps
        rate = 1 / bins_of(rate)
    return max(1, math.ceil(float(args.num_train_epochs) / rate))


def _task(model: Any) -> str:
    """Return the task of a model, by its class."""
    inner = model.get_base_model() if hasattr(model, "get_base_model") else model
    name = type(inner).__name__
    for task in registry.TASKS:
        head = registry.task_facts(task).model_class.removeprefix("AutoModel")
        if head in name or (head == "ForCausalLM" and "LMHead" in name):
            return task
    raise InputError(
        f"model: {name} is trained for none of the tasks that confide knows: {', '.join(registry.TASKS)}"
    )


def _same(stated: Any, value: Any) -> bool:
    return list(stated) == list(value) if isinstance(value, list) else bool(stated == value)
