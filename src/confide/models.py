"""Models and tokenizers: loaded from a folder or a hub, adapted, and saved again.

Weights load from safetensors only, and code from a model's repository never runs unless the config says
so. Dropout is set to zero: the clipped gradient of a row is then a function of that row and the weights
alone, the same on one machine or many and after a resume.
"""

import contextlib
import inspect
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from confide.errors import InputError

if TYPE_CHECKING:
    from confide.config import Adapter, Config

BUNDLED = "bundled"
_AUTO = {
    "causal-lm": "AutoModelForCausalLM",
    "masked-lm": "AutoModelForMaskedLM",
    "classification": "AutoModelForSequenceClassification",
}
# These number positions from the padding id on, by themselves; an explicit 0..T-1 would be wrong.
_OWN_POSITIONS = {
    "roberta",
    "xlm-roberta",
    "camembert",
    "xlm-roberta-xl",
    "data2vec-text",
    "longformer",
    "esm",
}


def _quiet() -> None:
    """transformers warns of rows longer than a model before they are cut, and draws bars of its own."""
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()


def location(name: str) -> str:
    """Where a model of the config lies: the bundled folder, a local folder, or a hub name."""
    if name == BUNDLED:
        return str(resources.files("confide") / "bundled" / "base")
    path = Path(name).expanduser()
    if path.is_file() and path.name == "config.json":
        return str(path.parent)
    return str(path) if path.exists() else name


@contextlib.contextmanager
def _said_plainly(key: str, name: str) -> Iterator[None]:
    """Loading errors of the libraries, as one sentence that names the key."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        reason = str(error).strip().splitlines()[0][:200] if str(error).strip() else type(error).__name__
        kind = "folder" if Path(name).exists() else "model (no such folder, and not to be had from the hub)"
        raise InputError(f"{key}: {name!r} is not a {kind} that can be loaded: {reason}") from error


def load_tokenizer(config: "Config") -> Any:
    """The tokenizer of a config, with a padding token, checked to encode ordinary text.

    Raises:
        InputError: none can be loaded, it has no token to pad with, or it encodes text to nothing.
    """
    from transformers import AutoTokenizer

    _quiet()
    name = config.tokenizer or config.model
    key = "tokenizer" if config.tokenizer else "model"
    with _said_plainly(key, name):
        tokenizer = AutoTokenizer.from_pretrained(location(name), trust_remote_code=config.trust_remote_code)
    if tokenizer.pad_token_id is None:
        spare = tokenizer.eos_token or tokenizer.unk_token
        if spare is None:
            raise InputError(
                f"{key}: the tokenizer of {name!r} has no padding token, and no other to use instead"
            )
        tokenizer.pad_token = spare  # padded positions carry no loss and are never attended to
    if config.task == "masked-lm" and tokenizer.mask_token_id is None:
        raise InputError(f"{key}: task masked-lm needs a mask token, and the tokenizer of {name!r} has none")
    probe = tokenizer("The quick brown fox jumps over the lazy dog.", add_special_tokens=False)["input_ids"]
    if len(set(probe)) < 2:
        raise InputError(
            f"{key}: the tokenizer of {name!r} encodes a plain sentence to {len(probe)} tokens of one kind; "
            "it was saved or loaded the wrong way"
        )
    return tokenizer


def load_model(config: "Config", classes: int | None = None, vocabulary: int | None = None) -> nn.Module:
    """The model of a config, float32, without dropout, with its adapter; what trains requires grad.

    Args:
        classes: number of classes, for `task: classification`.
        vocabulary: entries of the tokenizer; a model with fewer embeddings is refused.
    """
    import transformers

    _quiet()
    auto = getattr(transformers, _AUTO[config.task])
    place = location(config.model)
    from_scratch = config.model.endswith(".json")
    torch.manual_seed(config.train.seed)
    with _said_plainly("model", config.model):
        settings = transformers.AutoConfig.from_pretrained(place, trust_remote_code=config.trust_remote_code)
        if classes is not None:
            settings.num_labels = classes
        _no_dropout(settings)
        if from_scratch:
            model: Any = auto.from_config(settings, trust_remote_code=config.trust_remote_code)
        else:
            model = auto.from_pretrained(
                place,
                config=settings,
                dtype=torch.float32,
                use_safetensors=True,
                trust_remote_code=config.trust_remote_code,
            )
    if getattr(settings, "pad_token_id", None) is None and config.task == "classification":
        raise InputError(
            f"model: {config.model!r} names no pad_token_id, which a classifier needs to find a row's end"
        )
    entries = model.get_input_embeddings().num_embeddings
    if vocabulary is not None and vocabulary > entries:
        raise InputError(
            f"tokenizer: it has {vocabulary} entries, but {config.model!r} has {entries} embeddings"
        )
    longest = getattr(settings, "max_position_embeddings", None) or getattr(settings, "n_positions", None)
    if longest is not None and config.data.max_length > longest:
        raise InputError(
            f"data.max_length: {config.data.max_length} is more than the {longest} of {config.model!r}"
        )
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    model = _adapt(model, config.adapter, config.task)
    if config.train.gradient_checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return model


def _no_dropout(settings: Any) -> None:
    for name, value in list(vars(settings).items()):
        if ("drop" in name) and isinstance(value, float):
            setattr(settings, name, 0.0)


def _adapt(model: nn.Module, adapter: "Adapter", task: str) -> nn.Module:
    """Leave requires_grad on what `adapter` trains."""
    if adapter.kind == "full":
        return model
    if adapter.kind == "lora":
        return _lora(model, adapter, task)
    targets = [adapter.targets] if isinstance(adapter.targets, str) else adapter.targets
    matched: set[str] = set()
    for name, parameter in model.named_parameters():
        hits = [t for t in targets if f".{t}." in f".{name}." or name.endswith("." + t)]
        matched.update(hits)
        wanted = name.endswith("bias") if adapter.kind == "bias" else bool(hits)
        # A fresh classification head is no use untrained.
        head = task == "classification" and name.split(".")[0] in ("score", "classifier")
        parameter.requires_grad_(wanted or head)
    missing = sorted(set(targets) - matched) if adapter.kind == "modules" else []
    if missing:
        raise InputError(f"adapter.targets: the model has no module named {', '.join(missing)}")
    if not any(p.requires_grad for p in model.parameters()):
        raise InputError(f"adapter.kind: {adapter.kind} leaves nothing to train in this model")
    return model


def _lora(model: Any, adapter: "Adapter", task: str) -> nn.Module:
    from peft import LoraConfig, TaskType, get_peft_model

    kinds = {"causal-lm": TaskType.CAUSAL_LM, "classification": TaskType.SEQ_CLS, "masked-lm": None}
    settings = LoraConfig(
        r=adapter.rank,
        lora_alpha=int(adapter.alpha or 2 * adapter.rank),
        target_modules=adapter.targets,
        lora_dropout=0.0,
        bias="none",
        task_type=kinds[task],
    )
    with _said_plainly("adapter.targets", str(adapter.targets)):
        wrapped: nn.Module = get_peft_model(model, settings)
    return wrapped


def accepted(model: Any) -> set[str]:
    """Which per-token inputs a model takes beside input_ids: position_ids, token_type_ids."""
    inner = model.get_base_model() if hasattr(model, "get_base_model") else model
    names = set(inspect.signature(inner.forward).parameters) & {"position_ids", "token_type_ids"}
    if inner.config.model_type in _OWN_POSITIONS:
        names.discard("position_ids")
    if getattr(inner.config, "type_vocab_size", 0) in (0, None):
        names.discard("token_type_ids")
    return names


def trainable(model: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters that move, by name; tied ones once."""
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def save(model: Any, tokenizer: Any, folder: Path, base: str) -> None:
    """Weights or adapter as safetensors, with the tokenizer, as `from_pretrained` reads them."""
    if hasattr(model, "peft_config"):
        for settings in model.peft_config.values():
            settings.base_model_name_or_path = base
    else:
        model.config.name_or_path = base
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
