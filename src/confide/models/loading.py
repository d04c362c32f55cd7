"""Load models and tokenizers from a folder or a hub, adapt them, and save them again.

Weights load from safetensors only, and code from a model's repository never runs unless the config says so.
Dropout is set to zero. The clipped gradient of a row is then a function of that row and the weights alone: the
same on one machine or many, and after a resume.
"""

import errno
import inspect
import json
import logging
import os
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError
from torch import nn
from torch.nn import functional

from confide.config import registry
from confide.config.schema import Policy
from confide.data.chat import end_mark, template_text
from confide.distributed.sharding import is_sharded, whole
from confide.models import files as model_files
from confide.models.adapters import adapt, in_head, of_tokens
from confide.models.adapters import unused as unused_of
from confide.models.base import how_to_load, ready_adapter, ready_base
from confide.models.fast.activations import install_fast_layers
from confide.models.names import location, public_name
from confide.models.sharded import Outline, Stored, outline
from confide.models.sound import refuse_diverged, refuse_unsound
from confide.utils.errors import InputError

if TYPE_CHECKING:
    from confide.config.schema import Config

MASK = "<mask>"  # added to a vocabulary that has no mask token of its own
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
    """Silence transformers: it warns of long rows before they are cut, and draws progress bars of its own.

    It imports torchao wherever that is installed, which tells of kernels that it lacks; nothing here calls them.
    """
    from transformers.utils import logging as of_transformers

    of_transformers.set_verbosity_error()
    of_transformers.disable_progress_bar()
    for name in ("torchao", "torch.utils._pytree"):
        logging.getLogger(name).setLevel(logging.ERROR)


def load_tokenizer(config: "Config") -> Any:
    """Load the tokenizer of a config, with a padding token, checked to encode ordinary text.

    It has the special tokens of the config. It has a mask token, its own or `<mask>`, if sensitive text is
    replaced by one.

    Raises:
        InputError: none can be loaded, it has no token to pad with, or it encodes text to nothing.
    """
    return ready_tokenizer(_plain_tokenizer(config), config)


def ready_tokenizer(tokenizer: Any, config: "Config") -> Any:
    """Prepare a tokenizer as `load_tokenizer` does, with the tokens that the config adds.

    Raises:
        InputError: see `load_tokenizer`.
    """
    name = config.tokenizer or config.model
    key = "tokenizer" if config.tokenizer else "model"
    if tokenizer.pad_token_id is None:
        spare = tokenizer.eos_token or tokenizer.unk_token
        if spare is None:
            raise InputError(
                f"{key}: the tokenizer of {name!r} has no padding token, and no other to use instead"
            )
        tokenizer.pad_token = spare  # padded positions carry no loss and are never attended to
    _add_tokens(tokenizer, config)
    if config.chat_template is not None:
        tokenizer.chat_template = template_text(config.chat_template)
    if registry.task_facts(config.task).hides_tokens and tokenizer.mask_token_id is None:
        raise InputError(
            f"{key}: task {config.task} needs a mask token, and the tokenizer of {name!r} has none"
        )
    probe = tokenizer("The quick brown fox jumps over the lazy dog.", add_special_tokens=False)["input_ids"]
    if len(set(probe)) < 2:
        raise InputError(
            f"{key}: the tokenizer of {name!r} encodes a plain sentence to {len(probe)} tokens of one kind; "
            "it was saved or loaded the wrong way"
        )
    return tokenizer


def _plain_tokenizer(config: "Config") -> Any:
    """Load the tokenizer as it was saved."""
    from transformers import AutoTokenizer

    _quiet()
    name = config.tokenizer or config.model
    key = "tokenizer" if config.tokenizer else "model"
    place = model_files.place(key, name, location(name), config.trust_remote_code)
    if Path(place).is_dir():
        model_files.check_tokenizer(Path(place), key, name)
    with model_files.said_plainly(key, name, "its tokenizer"):
        return AutoTokenizer.from_pretrained(place, trust_remote_code=config.trust_remote_code)


def _adds_tokens(config: "Config") -> bool:
    return bool(config.special_tokens) or config.detector != Policy()


def _add_tokens(tokenizer: Any, config: "Config") -> list[int]:
    """Add the config's tokens to a tokenizer. Return the new ids."""
    known = tokenizer.get_vocab()
    wanted = list(config.special_tokens)
    if any(not token.strip() for token in wanted):
        raise InputError("special_tokens: one of them is blank")
    meaning = {tokenizer.bos_token, tokenizer.eos_token, tokenizer.pad_token, tokenizer.unk_token}
    for kind, token in config.detector.masks.items():
        if not token.strip() or token in meaning:
            why = f"{token!r} means something else" if token.strip() else "it is blank"
            raise InputError(f"detector.masks: the token of {kind!r} cannot be used: {why}")
        wanted.append(token)
    if tokenizer.mask_token is None and (MASK in wanted or config.detector != Policy()):
        tokenizer.add_special_tokens({"mask_token": MASK})
        wanted.append(MASK)
    more = [token for token in dict.fromkeys(wanted) if token not in tokenizer.all_special_tokens]
    if more:
        tokenizer.add_special_tokens({"extra_special_tokens": more}, replace_extra_special_tokens=False)
    return sorted({tokenizer.convert_tokens_to_ids(token) for token in wanted if token not in known})


def load_model(config: "Config", classes: int | None = None, vocabulary: int | None = None) -> nn.Module:
    """Load the model of a config, without dropout, with its adapter; what trains is float32 and requires grad.

    Args:
        classes: number of classes, for a task that has them.
        vocabulary: entries of the tokenizer; a model with fewer embeddings is refused, except for tokens that the
            config adds: these start as the mean of all others.
    """
    return _load(config, classes, vocabulary, in_parts=False)[0]


def load_to_split(
    config: "Config", classes: int | None = None, vocabulary: int | None = None
) -> tuple[nn.Module, dict[str, Stored]]:
    """Load a model as `load_model` does, and leave its large weights in their files until it is split.

    Returns:
        The model, and where the weights lie that it has on the meta device, by the name of the parameter: none if this
        model can be loaded only whole. `sharded.fill` reads them.
    """
    return _load(config, classes, vocabulary, in_parts=True)


def _load(
    config: "Config", classes: int | None, vocabulary: int | None, in_parts: bool
) -> tuple[nn.Module, dict[str, Stored]]:
    import transformers

    _quiet()
    facts = registry.task_facts(config.task)
    auto = getattr(transformers, facts.model_class)
    place = model_files.place("model", config.model, location(config.model), config.trust_remote_code)
    from_scratch = config.model.endswith(".json")
    whole: set[str] = set()
    if Path(place).is_dir():
        whole = model_files.check_model(Path(place), config.model, from_scratch)
    settings = model_files.settings_of("model", config.model, place, config.trust_remote_code)
    with model_files.said_plainly("model", config.model):
        model_files.refuse_huge(auto, settings, config.model, config.trust_remote_code)
        torch.manual_seed(config.train.seed)
        if classes is not None:
            settings.num_labels = classes
        drop_nothing(settings)
        held: Outline | None = None
        if from_scratch:
            model: Any = auto.from_config(settings, trust_remote_code=config.trust_remote_code)
        else:
            how = how_to_load(auto, settings, config)
            if in_parts and not config.trust_remote_code and config.base.quantise == "none":
                held = outline(auto, settings, place, how["dtype"])
            if held is not None:
                model, report = held.model, held.report
            else:
                torch.manual_seed(config.train.seed)
                model, report = auto.from_pretrained(
                    place,
                    config=settings,
                    use_safetensors=True,
                    trust_remote_code=config.trust_remote_code,
                    ignore_mismatched_sizes=True,  # refused below, except for a classification head
                    output_loading_info=True,
                    **how,
                )
            _complete(model, report, config)
    if getattr(settings, "pad_token_id", None) is None and facts.has_classes:
        raise InputError(
            f"model: {config.model!r} names no pad_token_id, which a classifier needs to find a row's end"
        )
    if held is not None and _adds_tokens(config):
        held.read([values for values in _of_vocabulary(model) if isinstance(values, nn.Parameter)])
    _fit_vocabulary(model, config, vocabulary)
    check_length(settings, config)
    if found := sorted(whole & {name for name, _ in model.named_parameters()}):
        raise InputError(
            f"model: {config.model!r} stores {found[0]} as whole numbers, which is none of the ways that this kind of "
            "model keeps its weights: it is damaged or quantised, give the model that it was made from"
        )
    ready_base(model, config.model)
    loaded = {
        name: values
        for name, values in model.named_parameters()
        if held is None or not held.is_stand_in(values)
    }
    refuse_unsound(loaded, f"model: the weights of {config.model!r} are damaged,")
    for module in model.modules():
        drop_nothing(module)
    install_fast_layers(model)
    model = adapt(model, config.adapter, config.task)
    ready_adapter(model)
    if config.train.gradient_checkpointing:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # transformers is about to rename it
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    adapted: nn.Module = model
    return adapted, {} if held is None else held.detach(adapted)


def vocabulary_of(model: Any) -> int:
    """Return how many tokens a model has embeddings for.

    Raises:
        InputError: it does not say which its token embeddings are, or they do not say how many they are.
    """
    try:
        return int(model.get_input_embeddings().num_embeddings)
    except (AttributeError, NotImplementedError):  # as of Canine, which hashes characters, and of I-BERT
        raise InputError(
            f"model: {model.config.model_type} models do not say how many tokens they have embeddings for; choose one "
            "with a common table of token embeddings"
        ) from None


def positions(settings: Any) -> int | None:
    """Return how many tokens a model of this config can read, or None if that is not limited."""
    own = settings.get_text_config() if hasattr(settings, "get_text_config") else settings
    limit = getattr(own, "max_position_embeddings", None) or getattr(own, "n_positions", None)
    return int(limit) if limit is not None and limit > 0 else None


def check_length(settings: Any, config: "Config") -> None:
    """Refuse a `data.max_length` above what the model can read."""
    longest = positions(settings)
    if longest is not None and settings.model_type in _OWN_POSITIONS:
        longest -= (settings.pad_token_id or 0) + 1
    if longest is not None and config.data.max_length > longest:
        raise InputError(
            f"data.max_length: {config.data.max_length} tokens are more than the {longest} that {config.model!r} "
            f"reads: set {longest} or less"
        )


def drop_nothing(holder: Any) -> None:
    """Set every dropping rate of a config or module to 0: dropout, layer drop, drop path."""
    for name, value in list(vars(holder).items()):
        if "drop" in name and isinstance(value, float):
            setattr(holder, name, 0.0)
        elif hasattr(value, "model_type"):  # a nested config
            drop_nothing(value)
    if isinstance(holder, nn.modules.dropout._DropoutNd):
        holder.p = 0.0


def _complete(model: Any, report: dict[str, Any], config: "Config") -> None:
    """Refuse a checkpoint that lacks weights, which would silently start from random values.

    Weights outside the base model belong to a classifier's head, which is always fresh; so is a pooler.
    """
    lacking = {str(name) for name in report["missing_keys"]}
    lacking |= {str(name) for name, *_ in report["mismatched_keys"]}
    if registry.task_facts(config.task).has_classes:
        lacking = {name for name in lacking if not in_head(model, name) and ".pooler." not in name}
    if lacking:
        raise InputError(
            f"model: {config.model!r} has no fitting weights for {len(lacking)} parameters that task "
            f"{config.task} needs, among them {min(lacking)}: it is a model of another kind"
        )


def _fit_vocabulary(model: Any, config: "Config", vocabulary: int | None) -> None:
    """Make embeddings for the tokens that a config adds; refuse a tokenizer that had too many without them."""
    model.added_tokens = ()
    real: list[int] = []
    if _adds_tokens(config):
        tokenizer = _plain_tokenizer(config)
        real = sorted(set(tokenizer.get_vocab().values()))
        model.added_tokens = tuple(_add_tokens(tokenizer, config))
    entries, new = vocabulary_of(model), list(model.added_tokens)
    before = len(real) if vocabulary is None else vocabulary - len(new)
    before = max(before, *(last + 1 for last in real[-1:]), 0)
    if before > entries:
        key = "tokenizer" if config.tokenizer else "model"
        raise InputError(
            f"{key}: the tokenizer has {before} entries, and {config.model!r} has embeddings for {entries}: set "
            "`tokenizer` to the one that this model was trained with"
        )
    if not new:
        return
    unused = {name: model.get_parameter(name) for name in unused_of(model)}
    if new[-1] >= entries:  # the vocabularies of many models are padded, and have room
        model.resize_token_embeddings(new[-1] + 1, mean_resizing=False)
        for (
            name,
            old,
        ) in unused.items():  # this bias keeps its size, or becomes one with the bias that is used
            holder, _, own = name.rpartition(".")
            unused[name] = nn.Parameter(functional.pad(old.data, (0, new[-1] + 1 - len(old))))
            setattr(model.get_submodule(holder), own, unused[name])
    for weights in _of_vocabulary(model):
        _start_at_mean(weights, real, new)


def _of_vocabulary(model: Any) -> list[torch.Tensor]:
    """Return the weights that have an entry for each token: embeddings, and what the output layer has; each once."""
    inputs, output = model.get_input_embeddings(), model.get_output_embeddings()
    found = [inputs.weight, getattr(output, "weight", None), getattr(output, "bias", None)]
    found += [model.get_parameter(name) for name in unused_of(model)]
    return list({id(weights): weights for weights in found if weights is not None}.values())


@torch.no_grad()
def _start_at_mean(weights: torch.Tensor, real: list[int], new: list[int]) -> None:
    """Set entries of new tokens to the mean over the real ones, not over vocabulary padding. In place."""
    total = torch.zeros(weights.shape[1:], dtype=torch.float64)
    for ids in torch.tensor(real).split(4096):
        total += weights[ids].double().sum(0)
    weights[torch.tensor(new)] = (total / len(real)).to(weights.dtype)


def added_tokens(model: Any) -> tuple[int, ...]:
    """Return the ids that `load_model` added to the vocabulary of the base."""
    inner = model.get_base_model() if hasattr(model, "get_base_model") else model
    ids: tuple[int, ...] = getattr(inner, "added_tokens", ())
    return ids


def inner_of(model: Any) -> Any:
    """Return the base model inside an adapter, or the model itself."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def caches(model: Any) -> bool:
    """Return True if a model may cache keys and values, and can be told not to by `use_cache`."""
    return "use_cache" in inspect.signature(inner_of(model).forward).parameters


def accepted(model: Any) -> set[str]:
    """Return the per-token inputs of a model besides input_ids: position_ids, token_type_ids."""
    inner = inner_of(model)
    names = set(inspect.signature(inner.forward).parameters) & {"position_ids", "token_type_ids"}
    if inner.config.model_type in _OWN_POSITIONS:
        names.discard("position_ids")
    if getattr(inner.config, "type_vocab_size", 0) in (0, None):
        names.discard("token_type_ids")
    return names


def trainable(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return the parameters that move, by name; tied ones once."""
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def token_embeddings(model: nn.Module) -> frozenset[str]:
    """Return the names of the trained parameters that are token embeddings; none if the model does not tell of them."""
    own = {id(parameter) for parameter in of_tokens(model)}
    return frozenset(name for name, parameter in trainable(model).items() if id(parameter) in own)


def token_tables(model: nn.Module) -> frozenset[str]:
    """Return the names of the trained parameters with a row for each token: embeddings, and an output layer's own."""
    output = getattr(model, "get_output_embeddings", lambda: None)()
    own = [each for each in of_tokens(model) if each.dim() == 2]
    own += [
        each
        for each in [getattr(output, "weight", None)]
        if own and each is not None and len(each) == len(own[0])
    ]
    ids = {id(each) for each in own}
    return frozenset(name for name, parameter in trainable(model).items() if id(parameter) in ids)


def gathered(model: nn.Module, keep: bool) -> dict[str, torch.Tensor] | None:
    """Gather the weights of a split model on the CPU; None if it is not split, or for ranks that do not `keep` them.

    All ranks must call this together; those that do not use the weights do not keep them. Of a model with an adapter,
    only what is saved with that is gathered: what trains, and the base's embeddings if it got new tokens.
    """
    if not is_sharded(model):
        return None
    is_adapter = hasattr(model, "peft_config")
    also = {id(values) for values in _of_vocabulary(model)} if is_adapter and added_tokens(model) else set()
    weights: dict[str, torch.Tensor] = {}
    found: dict[int, torch.Tensor] = {}  # by parameter, so that tied ones stay one
    for name, values in model.state_dict(keep_vars=True).items():
        if is_adapter and not (values.requires_grad or id(values) in also):
            continue
        if id(values) not in found:
            values_whole = whole(values.detach())
            found[id(values)] = values_whole.cpu() if keep else values_whole.new_empty(0)
        weights[name] = found[id(values)]
    return weights if keep else None


def save(
    model: Any, tokenizer: Any, folder: Path, base: str, weights: dict[str, torch.Tensor] | None = None
) -> None:
    """Save weights or adapter as safetensors, with the tokenizer, as `from_pretrained` reads them.

    Args:
        base: the base model's name in the config; the saved files hold no path of this machine.
        weights: by name, if the model itself does not hold them whole.
    """
    _quiet()
    held = dict(model.named_parameters()) if weights is None else weights
    refuse_diverged(held)
    base = public_name(base)
    options: dict[str, Any] = {} if weights is None else {"state_dict": weights}
    if hasattr(model, "peft_config"):
        for settings in model.peft_config.values():
            settings.base_model_name_or_path = base
        # By itself, peft would ask the hub for a model of the base's name, to see whether its vocabulary has
        # grown.
        options["save_embedding_layers"] = bool(added_tokens(model))
    else:
        model.config.name_or_path = base
    try:
        model.save_pretrained(folder, **options)
        tokenizer.save_pretrained(folder)
        stop_at_turns(folder, tokenizer)
    except SafetensorError as error:
        if "No space left" in str(error):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder)) from error
        raise


def stop_at_turns(folder: Path, tokenizer: Any) -> None:
    """Let a saved model stop where its chat template ends a turn, if one token ends it: in generation_config.json."""
    path = folder / "generation_config.json"
    mark = end_mark(tokenizer)
    ids = tokenizer(mark, add_special_tokens=False)["input_ids"] if mark else []
    if len(ids) != 1 or not path.exists():
        return
    settings = json.loads(path.read_text("utf-8"))
    known = settings.get("eos_token_id")
    ends = [] if known is None else known if isinstance(known, list) else [known]
    if ids[0] not in ends:
        path.write_text(json.dumps(settings | {"eos_token_id": [*ends, ids[0]]}, indent=2) + "\n", "utf-8")
