"""Add to a model what a config trains of it, and tell which parameters these are."""

import re
import warnings
from typing import TYPE_CHECKING, Any

from torch import nn

from confide.config import registry
from confide.models.dora import use_own_dora
from confide.utils.errors import InputError

if TYPE_CHECKING:
    from confide.config.model_sections import Adapter

_MIXTURE = re.compile(r"Moe(?![a-z])|MoE|MOE|Experts?(?![a-z])|SparseMLP|Router(?![a-z])")
_OF_EXPERTS = {"gate", "w1", "w2", "w3", "gate_proj", "up_proj", "down_proj", "gate_up_proj"}
# Kernels of these take out_proj's weight past its layer.
_FUSED = {"mamba", "mamba2", "falcon_mamba", "falcon_h1", "nemotron_h"}
# Layers that DeBERTa runs once for all rows, over its relative positions, and not beside each row.
_SHARED = {"deberta": {"pos_proj", "pos_q_proj"}, "deberta-v2": {"pos_key_proj", "pos_query_proj"}}


def in_head(model: Any, name: str) -> bool:
    """Return True if a parameter or module lies outside the base model: in a head for classes or tokens."""
    prefix = model.base_model_prefix
    return bool(prefix) and not name.startswith(f"{prefix}.")


def wanted(model: Any, adapter: "Adapter", task: str) -> set[str]:
    """Return the names of the parameters that a config says to train, of a model loaded and adapted by it."""
    names = [name for name, _ in model.named_parameters()]
    if adapter.kind == "lora":
        return {name for name in names if ".lora_" in name or ".modules_to_save." in name}
    chosen = set(names)
    if adapter.kind == "bias":
        chosen = {name for name in names if name.endswith("bias")}
    elif adapter.kind == "matrices":
        chosen = _matrices(model)
    elif adapter.kind == "modules":
        chosen = {name for name in names if any(_holds(target, name) for target in _targets(adapter))}
    if registry.task_facts(task).has_classes:  # an untrained fresh head is useless
        chosen |= {name for name in names if in_head(model, name)}
    return chosen - unused(model)


def _matrices(model: nn.Module) -> set[str]:
    """Return the names of weights with two dimensions or more, without embeddings of anything but tokens."""
    tokens = {id(parameter) for parameter in of_tokens(model)}
    layers = {
        id(parameter): module for module in model.modules() for parameter in module.parameters(recurse=False)
    }
    return {
        name
        for name, parameter in model.named_parameters()
        if parameter.ndim >= 2
        and (id(parameter) in tokens or not isinstance(layers[id(parameter)], nn.Embedding))
    }


def of_tokens(model: nn.Module) -> list[nn.Parameter]:
    """Return the parameters of the token embeddings; none if the model does not tell of them."""
    try:
        found: Any = model.get_input_embeddings()  # type: ignore[operator]
    except (AttributeError, NotImplementedError):  # transformers raises the latter for a model without any
        return []
    # a program's own model may return anything
    return list(found.parameters()) if isinstance(found, nn.Module) else []


def _targets(adapter: "Adapter") -> list[str]:
    return [adapter.targets] if isinstance(adapter.targets, str) else adapter.targets


def _holds(target: str, name: str) -> bool:
    """Return True if a parameter's dotted name has `target` as a run of its parts."""
    return f".{target}." in f".{name}."


def unused(model: nn.Module) -> set[str]:
    """Return the unused bias that masked-LM heads like BERT's hold besides their decoder's own.

    The two are one parameter if the decoder is tied to the embeddings.
    """
    found: set[str] = set()
    for name, module in model.named_modules():
        own, decoder = module._parameters.get("bias"), getattr(module, "decoder", None)
        if own is not None and isinstance(decoder, nn.Linear) and decoder.bias is not own:
            found.add(f"{name}.bias")
    return found


def adapt(model: nn.Module, adapter: "Adapter", task: str) -> nn.Module:
    """Leave requires_grad only on what `adapter` trains."""
    if adapter.kind == "lora":
        return _lora(model, adapter, task)
    chosen = wanted(model, adapter, task)
    if adapter.kind == "modules":
        names = [name for name, _ in model.named_parameters()]
        missing = [t for t in _targets(adapter) if not any(_holds(t, name) for name in names)]
        if missing:
            raise InputError(f"adapter.targets: the model has no module named {', '.join(missing)}")
    if not chosen:
        raise InputError(f"adapter.kind: {adapter.kind} leaves nothing to train in this model")
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name in chosen)
    return model


def _lora(model: Any, adapter: "Adapter", task: str) -> nn.Module:
    from peft import LoraConfig, TaskType, get_peft_model

    facts = registry.task_facts(task)
    # An untrained fresh head is useless, so it trains whole, as part of the adapter.
    head = {name.split(".")[0] for name, _ in model.named_parameters() if in_head(model, name)}
    known = {name.rpartition(".")[2] for name, _ in model.named_modules()} | dict(
        model.named_modules()
    ).keys()
    if missing := [name for name in adapter.modules_to_save if name not in known]:
        raise InputError(f"adapter.modules_to_save: the model has no module named {', '.join(missing)}")
    if twice := sorted({*_targets(adapter)} & {*adapter.modules_to_save}):
        raise InputError(
            f"adapter.modules_to_save: {twice[0]} trains whole then, and takes no LoRA factors: leave it out of "
            "adapter.targets, or out of adapter.modules_to_save"
        )
    settings = LoraConfig(
        r=adapter.rank,
        lora_alpha=adapter.lora_alpha,
        use_rslora=adapter.rslora,
        use_dora=adapter.dora,
        target_modules=_linear(model, facts.has_classes)
        if adapter.targets == "all-linear"
        else adapter.targets,
        lora_dropout=0.0,
        bias="none",
        task_type=facts.adapter_type and TaskType[facts.adapter_type],
        modules_to_save=sorted({*(head if facts.has_classes else ()), *adapter.modules_to_save}) or None,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it says that it transposes Conv1D weights, and does
        try:
            wrapped: nn.Module = get_peft_model(model, settings)
        except ValueError as error:
            reason = str(error).strip().splitlines()[0][:200]
            raise InputError(f"adapter.targets: {adapter.targets!r} cannot be adapted: {reason}") from error
    refuse_embeddings(wrapped)
    use_own_dora(wrapped)
    return wrapped


def refuse_embeddings(model: nn.Module) -> None:
    """Refuse LoRA factors of an embedding: peft keeps them outside of any layer that could be watched.

    Raises:
        InputError: names the embedding.
    """
    for name, module in model.named_modules():
        if getattr(module, "lora_embedding_A", None):
            own = name.rpartition(".")[2]
            raise InputError(
                f"adapter.targets: {name} is an embedding, and peft multiplies its LoRA factors outside of any layer, "
                f"where a row's gradient cannot be told: leave it out, or train it whole by adapter.modules_to_save: "
                f"[{own}]"
            )


def _linear(model: Any, classifies: bool = False) -> str | list[str]:
    """Return the linear layers that an adapter can be added to, by name if these are not all.

    In a mixture of experts, only layers that every token passes through qualify: peft takes "all-linear", and
    names of an expert's layers, for its experts' stacked weights as well.
    """
    left = _OF_EXPERTS if routes(model) else set()
    left = left | not_called(model) | _SHARED.get(model.config.model_type, set())
    if getattr(
        model.config, "share_att_key", False
    ):  # DeBERTa-v3 uses its rows' layers for its positions, too
        left = left | {"query_proj", "key_proj"}
    if not left:
        return "all-linear"
    head = model.get_output_embeddings()
    linear = {
        name.rpartition(".")[2]
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear)
        and module is not head
        and not (classifies and in_head(model, name))
        and not _MIXTURE.search(type(module).__name__)
    }
    return sorted(linear - left)


def not_called(model: Any) -> set[str]:
    """Return the names of linear layers whose weight the model itself takes, past the layer."""
    return {"out_proj"} if model.config.model_type in _FUSED else set()


def routes(model: nn.Module) -> bool:
    """Return True if a model is a mixture of experts, judged by its classes' names."""
    return any(_MIXTURE.search(type(module).__name__) for module in model.modules())
