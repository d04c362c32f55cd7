"""Check that a calling program's model can be trained."""

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from confide.models.adapters import refuse_embeddings
from confide.models.base import refuse_outliers, refuse_torchao
from confide.models.dora import use_own_dora
from confide.models.loading import check_length, drop_nothing, inner_of, trainable
from confide.models.sound import refuse_unsound
from confide.utils.errors import InputError

if TYPE_CHECKING:
    from confide.config.schema import Config


def ready_model(model: nn.Module, config: "Config", classes: int | None, vocabulary: int) -> nn.Module:
    """Check a calling program's model, and remove dropout; it trains as it is, with the adapter that it has.

    Raises:
        InputError: none of its parameters requires grad, one is not float32 or not finite, it is no transformers
            model for the task, it has fewer embeddings than the tokenizer has entries, or rows are longer than it
            can read.
    """
    settings: Any = getattr(model, "config", None)
    if not hasattr(settings, "to_json_string") or not hasattr(model, "save_pretrained"):
        raise InputError(f"model: {type(model).__name__} has no config as the models of transformers have")
    if (classes is None) == ("Classification" in type(inner_of(model)).__name__):
        raise InputError(f"model: {type(inner_of(model)).__name__} is not for task {config.task}")
    if classes is not None and (settings.num_labels < classes or settings.pad_token_id is None):
        raise InputError(
            f"model: it needs num_labels of {classes} at least, and a pad_token_id, to tell the {classes} classes"
        )
    if getattr(settings, "return_dict", True) is False:
        raise InputError("model: its config says return_dict: false; confide reads logits by name")
    if coarse := sorted({str(p.dtype) for p in trainable(model).values() if p.dtype != torch.float32}):
        raise InputError(
            f"model: parameters that train are {coarse[0]}: load it in float32 (dtype), or call .float() on them; "
            "train.precision: bf16, which is bf16 of TrainingArguments, computes in bf16"
        )
    if not trainable(model):
        raise InputError(
            "model: none of the parameters of the given model requires grad: nothing would train"
        )
    _refuse_prompts(model)
    refuse_embeddings(model)
    refuse_outliers(model)
    refuse_torchao(model)
    inner = inner_of(model)
    embeddings = inner.get_input_embeddings() if hasattr(inner, "get_input_embeddings") else None
    if embeddings is not None and embeddings.weight.shape[0] < vocabulary:
        raise InputError(
            f"model: the given model has {embeddings.weight.shape[0]:,} embeddings, and its tokenizer {vocabulary:,} "
            "entries: call model.resize_token_embeddings(len(tokenizer)) first"
        )
    check_length(settings, config)
    refuse_unsound(dict(model.named_parameters()), "model: the weights of the given model are damaged,")
    for module in model.modules():
        drop_nothing(module)
    use_own_dora(model)
    return model


def _refuse_prompts(model: Any) -> None:
    """Refuse adapters that train a prompt: the model's output then has more positions than its rows have tokens.

    Raises:
        InputError: names the kind of adapter.
    """
    for settings in getattr(model, "peft_config", {}).values():
        if getattr(settings, "is_prompt_learning", False):
            kind = str(getattr(settings.peft_type, "value", settings.peft_type)).lower().replace("_", " ")
            raise InputError(
                f"model: {kind} trains a prompt before the rows, not layers that the rows run through, and confide "
                "cannot tell each row's gradient of it: use LoRA (peft.LoraConfig, or adapter.kind: lora)"
            )
