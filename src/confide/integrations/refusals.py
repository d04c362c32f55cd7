"""Refuse what a private step cannot honour, by the name that transformers and TRL give it."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from torch import nn

from confide.utils.errors import InputError

Refusal = tuple[str, Callable[[Any], bool], str]

_OPTIMIZERS = ("adamw_torch", "adamw_torch_fused", "sgd", "adafactor")
_SCHEDULES_OF_A_LOSS = ("reduce_lr_on_plateau", "greedy")
_OWN_LOSS = (
    "the loss must be one for each row, of that row alone: pass `loss=`, called with model and batch, which is tested "
    "before training"
)
_SEVERAL = (
    "PrivateTrainer trains in one process on one device: for several GPUs use `confide train` under torchrun, whose "
    "ranks share draws and noise"
)

# Of TrainingArguments: a name, when it is refused, and why. Fields that a version of transformers lacks are skipped.
_ARGUMENTS: tuple[Refusal, ...] = (
    (
        "fp16",
        bool,
        "a GradScaler looks at the gradients to choose its scale, before any noise: use bf16=True",
    ),
    (
        "gradient_accumulation_steps",
        lambda v: v != 1,
        "micro-batches are confide's affair: per_device_train_batch_size is the expected number of users or rows of a "
        "whole step, however many fit in memory at a time",
    ),
    (
        "max_grad_norm",
        lambda v: v not in (None, 0, 1.0),
        "clipping the sum of a batch protects nobody: each user's or row's gradient is clipped to privacy.clip_norm; "
        "leave max_grad_norm at its default",
    ),
    ("deepspeed", bool, f"ZeRO splits gradients before confide has clipped them. {_SEVERAL}"),
    ("fsdp", bool, f"it wraps the model, and the clipping no longer sees its layers. {_SEVERAL}"),
    ("parallelism_config", lambda v: v is not None, _SEVERAL),
    ("world_size", lambda v: v > 1, _SEVERAL),
    (
        "n_gpu",
        lambda v: v > 1,
        f"DataParallel would split each batch. {_SEVERAL}, or set CUDA_VISIBLE_DEVICES to one",
    ),
    (
        "device",
        lambda v: v.type not in ("cpu", "cuda"),
        "confide trains on a CPU or a CUDA GPU: pass use_cpu=True",
    ),
    (
        "train_sampling_strategy",
        lambda v: v not in (None, "random"),
        "who takes part in a step is drawn by the mechanism; rows of similar length are put together within the step",
    ),
    (
        "group_by_length",
        bool,
        "who takes part in a step is drawn by the mechanism; rows of similar length are put together within the step",
    ),
    ("label_smoothing_factor", lambda v: v != 0, _OWN_LOSS),
    ("use_liger_kernel", bool, "its fused loss goes past the layers whose gradients are clipped"),
    ("torch_compile", bool, "a compiled model hides the layers whose gradients are clipped"),
    (
        "neftune_noise_alpha",
        lambda v: v is not None,
        "it draws noise for a batch as a whole, and no row has its own",
    ),
    (
        "auto_find_batch_size",
        bool,
        "the expected batch is part of the guarantee and cannot follow memory; micro-batches follow memory by "
        "themselves",
    ),
    (
        "optim",
        lambda v: v not in _OPTIMIZERS,
        f"choose one of {', '.join(_OPTIMIZERS)}, or pass optimizer_cls_and_kwargs",
    ),
    ("optim_args", bool, "pass optimizer_cls_and_kwargs instead"),
    ("optim_target_modules", bool, "choose what trains by requires_grad or an adapter"),
    ("adam_epsilon", lambda v: v != 1e-8, "pass optimizer_cls_and_kwargs=(torch.optim.AdamW, {...}) instead"),
    (
        "lr_scheduler_type",
        lambda v: v in _SCHEDULES_OF_A_LOSS,
        "it follows a loss that no noise covers; choose a schedule of the step alone",
    ),
    (
        "include_num_input_tokens_seen",
        lambda v: v not in ("no", False),
        "the tokens of private rows that were drawn are a private number",
    ),
    (
        "push_to_hub",
        bool,
        "it uploads during training: upload output_dir afterwards, which holds the model, its guarantee and, in "
        "checkpoint-*, losses that no noise covers",
    ),
)

# Of SFTConfig.
_OF_SFT: tuple[Refusal, ...] = (
    ("packing", bool, "a packed row holds text of several users, and none of them could be clipped alone"),
    (
        "eval_packing",
        bool,
        "TRL would evaluate rows whose tokens read those of the row before, and none is trained so: leave it out",
    ),
    ("padding_free", bool, "it makes one long row of a batch, and no row could be clipped alone"),
    ("loss_type", lambda v: v != "nll", _OWN_LOSS),
    ("activation_offloading", bool, "it moves what the clipping reads; use gradient_checkpointing"),
    ("router_aux_loss_coef", bool, "a mixture of experts' balancing loss mixes the rows of a batch"),
)

# Arguments of Trainer itself.
_PARAMETERS: tuple[Refusal, ...] = (
    ("compute_loss_func", lambda v: v is not None, _OWN_LOSS),
    (
        "model_init",
        lambda v: v is not None,
        "pass the model: each training from it would cost privacy of its own",
    ),
    (
        "optimizers",
        lambda v: tuple(v) != (None, None),
        "pass optimizer_cls_and_kwargs=(class, settings) and args.lr_scheduler_type: a run that resumes makes its "
        "optimiser anew",
    ),
)

_STEERED_BY_CONFIDE = {
    "compute_loss": _OWN_LOSS,
    "training_step": "a step is confide's: draw, clip each user or row, sum, add noise, move",
    "_inner_training_loop": "the loop is confide's",
    "get_train_dataloader": "who takes part in a step is drawn by the mechanism, not by a data loader",
    "_get_train_sampler": "who takes part in a step is drawn by the mechanism, not by a sampler",
    "get_batch_samples": "who takes part in a step is drawn by the mechanism, not by a data loader",
    "create_optimizer": "pass optimizer_cls_and_kwargs=(class, settings)",
    "create_scheduler": "choose args.lr_scheduler_type",
    "create_optimizer_and_scheduler": "pass optimizer_cls_and_kwargs=(class, settings)",
}

_NO_LOSSES_SENT = {"tensorboard": "TensorBoardCallback", "codecarbon": "CodeCarbonCallback"}
"""Of what `report_to` names, by the class of the callback: the first writes files here, the second sees no losses."""

_ONE_CLASS = (
    "a row of PrivateTrainer has one class; give a model with num_labels of 2 or more and problem_type "
    "single_label_classification"
)

# Collators that only pad rows, mask tokens of each or stack them. None is called in training.
_COLLATORS = {
    "DataCollatorWithPadding",
    "DataCollatorForLanguageModeling",
    "DataCollatorForSeq2Seq",
    "DataCollatorForWholeWordMask",
    "DefaultDataCollator",
    "default_data_collator",
    "DataCollatorForTokenClassification",
}


def refuse(args: Any, parameters: Mapping[str, Any], model: Any, log_private: bool) -> None:
    """Refuse arguments that a private run cannot honour.

    Args:
        args: TrainingArguments or SFTConfig.
        parameters: the other arguments of the trainer, by name.
        log_private: whether losses of private rows reach the callbacks.

    Raises:
        InputError: names each, one a line.
    """
    found = [*_matching("args", args, _ARGUMENTS), *_matching("args", args, _OF_SFT if _is_sft(args) else ())]
    for name, is_refused, why in _PARAMETERS:
        if name in parameters and parameters[name] is not None and is_refused(parameters[name]):
            found.append(f"{name}: {why}")
    if isinstance(model, nn.DataParallel) or type(model).__name__ in (
        "DistributedDataParallel",
        "FullyShardedDataParallel",
    ):
        found.append(f"model: it is wrapped by {type(model).__name__}. {_SEVERAL}")
    kind = getattr(getattr(model, "config", None), "problem_type", None)
    if kind in ("regression", "multi_label_classification"):
        found.append(f"model.config.problem_type: {kind} is not built: {_ONE_CLASS}")
    collator = parameters.get("data_collator")
    name = getattr(collator, "__name__", type(collator).__name__)
    if collator is not None and (name not in _COLLATORS or _flattens(collator)):
        found.append(
            f"data_collator: {name} is not known to keep rows apart, and confide pads rows itself: put what it does "
            "into the data set, or leave it out"
        )
    if (told := senders(args)) and log_private:
        found.append(
            f"args.report_to: {', '.join(told)} would be sent losses of private rows, which no noise covers: pass "
            "log_private=False, which keeps them in the private folder, or report_to='none'"
        )
    if found:
        raise InputError("\n".join(found))


def senders(args: Any, callbacks: Sequence[Any] = ()) -> list[str]:
    """Return the names of those who are sent what Trainer logs."""
    found = [
        name for name in getattr(args, "report_to", None) or () if name not in (*_NO_LOSSES_SENT, "none")
    ]
    return found + [type(each).__name__ for each in callbacks if _sends(each)]


def refuse_senders(callbacks: Sequence[Any], log_private: bool) -> None:
    """Refuse a callback of transformers that sends losses of private rows, as `report_to` would.

    Raises:
        InputError: names it.
    """
    for each in callbacks:
        if log_private and _sends(each):
            raise InputError(
                f"callbacks: {type(each).__name__} would be sent losses of private rows, which no noise covers: pass "
                "log_private=False, which keeps them in the private folder, or leave it out"
            )


def _sends(callback: Any) -> bool:
    """Tell whether a callback is one of transformers' that report to a server, or of a class derived from one."""
    return any(
        kind.__module__.startswith("transformers.integrations")
        and kind.__name__ not in _NO_LOSSES_SENT.values()
        for kind in type(callback).__mro__
    )


def refuse_overrides(kind: type, ours: type) -> None:
    """Refuse a subclass of one of confide's trainers that changes the step.

    Raises:
        InputError: names the method.
    """
    for each in kind.__mro__[: kind.__mro__.index(ours)]:
        for name, why in _STEERED_BY_CONFIDE.items():
            if name in vars(each):
                raise InputError(f"{each.__name__}.{name}: {why}")


def _is_sft(args: Any) -> bool:
    return any(kind.__name__ == "SFTConfig" for kind in type(args).__mro__)


def _matching(where: str, args: Any, refusals: tuple[Refusal, ...]) -> Iterator[str]:
    for name, is_refused, why in refusals:
        value = getattr(args, name, None)
        value = getattr(value, "value", value)  # an enum's
        if value is not None and is_refused(value):
            yield f"{where}.{name}: {why}"


def _flattens(collator: Any) -> bool:
    return bool(getattr(collator, "padding_free", False))
