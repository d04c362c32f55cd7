"""Load what a run has released, for use: the whole model, or the base with its adapter."""

import copy
import json
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from confide.config import registry
from confide.config.model_sections import Adapter, Base
from confide.models import files as model_files
from confide.models import loading
from confide.models.names import is_adapter, location
from confide.utils.errors import InputError

if TYPE_CHECKING:
    from confide.config.schema import Config

_KEY = "release"


def load_tokenizer(folder: Path, config: "Config") -> Any:
    """Load the tokenizer of a released folder; nothing is asked of a hub."""
    from transformers import AutoTokenizer

    loading._quiet()
    model_files.check_tokenizer(folder, _KEY, str(folder))
    with model_files.said_plainly(_KEY, str(folder), "its tokenizer"):
        return AutoTokenizer.from_pretrained(
            folder, local_files_only=True, trust_remote_code=config.trust_remote_code
        )


def load_base(config: "Config", classes: int | None, vocabulary: int) -> Any:
    """Load the model that a run began with, in float32, with rows for the tokens that the config adds."""
    train = config.train.model_copy(update={"gradient_checkpointing": False})
    plain = config.model_copy(update={"adapter": Adapter(kind="full"), "base": Base(), "train": train})
    return loading.load_model(plain, classes, vocabulary).eval()


def load_released(folder: Path, config: "Config", classes: int | None, vocabulary: int) -> Any:
    """Load a released model in float32: whole, or as an adapter on the base that the config names."""
    import transformers

    loading._quiet()
    if is_adapter(folder):
        return _with_adapter(load_base(config, classes, vocabulary), folder)
    auto = getattr(transformers, registry.task_facts(config.task).model_class)
    with model_files.said_plainly(_KEY, str(folder)):
        model = auto.from_pretrained(
            folder,
            dtype=torch.float32,
            use_safetensors=True,
            local_files_only=True,
            trust_remote_code=config.trust_remote_code,
        )
    return model.eval()


def _with_adapter(base: nn.Module, folder: Path) -> Any:
    from peft import PeftModel

    with warnings.catch_warnings(), model_files.said_plainly(_KEY, str(folder)):
        warnings.simplefilter("ignore")  # it says that it transposes Conv1D weights, and does
        return PeftModel.from_pretrained(base, str(folder)).eval()


def merged(model: Any) -> Any:
    """Return a model with its adapter added into its weights; a whole model as it is."""
    if not hasattr(model, "peft_config"):
        return model
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return model.merge_and_unload()


def in_dtype(model: Any, dtype: torch.dtype) -> Any:
    """Convert a model's weights.

    Raises:
        InputError: a weight is beyond the range of the type.
    """
    largest = torch.finfo(dtype).max
    for name, values in model.named_parameters():
        if float(values.detach().abs().max()) > largest:
            raise InputError(f"--dtype {str(dtype).removeprefix('torch.')}: {name} is beyond its range")
    return model.to(dtype)


def save(model: Any, tokenizer: Any, folder: Path, name: str) -> None:
    """Save a whole model as safetensors with its tokenizer. `name` is that of its base, in public."""
    loading._quiet()
    model.config.name_or_path = name
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    loading.stop_at_turns(folder, tokenizer)


def longest(model: Any) -> int | None:
    """Return how many tokens a model can read and write together, if its config says so."""
    return loading.positions(loading.inner_of(model).config)


def generation_settings(model: Any) -> Any:
    """Return a copy of a model's own settings for generation."""
    return copy.deepcopy(loading.inner_of(model).generation_config)


def load_alone(folder: Path, base: str | None = None) -> tuple[Any, Any]:
    """Load a causal language model and its tokenizer from a released folder, with nothing else of the run at hand.

    Args:
        base: an adapter's base: a folder or a hub name; default: the one that the adapter names.

    Raises:
        InputError: the folder holds no such model, or the base is not to be found.
    """
    from transformers import AutoModelForCausalLM, AutoTokenizer

    loading._quiet()
    model_files.check_tokenizer(folder, _KEY, str(folder))
    _need_writer(folder)
    with model_files.said_plainly(_KEY, str(folder)):
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        if not is_adapter(folder):
            if base is not None:
                raise InputError(f"--base: {folder} holds a whole model, which needs none: leave it out")
            model = AutoModelForCausalLM.from_pretrained(
                folder, dtype=torch.float32, use_safetensors=True, local_files_only=True
            )
            return model.eval(), tokenizer
    name = base or _base_of(folder)
    place = model_files.place("--base", name, location(name), False)
    with model_files.said_plainly("--base", name):
        found = AutoModelForCausalLM.from_pretrained(place, dtype=torch.float32, use_safetensors=True)
    embeddings: Any = found.get_input_embeddings()
    if len(tokenizer) > embeddings.num_embeddings:
        found.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    return _with_adapter(found, folder), tokenizer


def _need_writer(folder: Path) -> None:
    """Refuse a classifier or a masked model: transformers would give it a head for text, of random weights."""
    name, key = (
        ("adapter_config.json", "task_type") if is_adapter(folder) else ("config.json", "architectures")
    )
    try:
        found = json.loads((folder / name).read_text("utf-8")).get(key)
    except (OSError, ValueError, AttributeError):
        return  # whoever loads it says what is wrong
    kinds = [str(each) for each in ([found] if isinstance(found, str) else found or [])]
    if kinds and not any(
        kind == "CAUSAL_LM" or kind.endswith(("ForCausalLM", "LMHeadModel")) for kind in kinds
    ):
        raise InputError(f"{folder}: holds a model that writes no text ({', '.join(kinds)})")


def _base_of(folder: Path) -> str:
    try:
        name = json.loads((folder / "adapter_config.json").read_text("utf-8"))["base_model_name_or_path"]
    except (OSError, ValueError, KeyError):
        name = None
    if not isinstance(name, str) or not name:
        raise InputError(f"{folder}: the adapter does not name its base: give --base, a folder or a hub name")
    return name
