"""Check a model's files before any library builds a model or a tokenizer from them.

Libraries accept what they find: a file outside of the folder, a shape beyond all memory, 100,000 layers one by
one. Every function here raises InputError with a sentence that names the file. `key` and `name` precede it: the
key of the config and its value, as in `model: 'models/mine'`.
"""

import contextlib
import copy
import functools
import json
import re
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from confide.utils import memory
from confide.utils.errors import InputError

CONFIG = "config.json"
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
TOKENIZER = "tokenizer.json"

_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.h5", "*.msgpack")
_TOKENIZERS = re.compile(
    r"tokenizer|vocab|merges|spiece|sentencepiece|tekken|\.model$|\.tiktoken$", re.IGNORECASE
)
_LARGEST = 1 << 26  # bytes of a config or an index
_MOST_LAYERS = 1000  # each takes milliseconds to build; the deepest known models have some hundred
_PATIENCE = 6.0  # seconds for the one request that shows whether the hub answers


# where it lies ---------------------------------------------------------------------------------------------------
def place(key: str, name: str, location: str, trusts_code: bool) -> str:
    """Return where the libraries find a model or tokenizer: a folder or file that was checked first, or a hub name."""
    if not Path(location).exists():
        try:
            location = on_hub(name)
        except InputError as error:
            raise InputError(f"{key}: {error}") from None
    if Path(location).is_dir():
        check_folder(Path(location), key, name, trusts_code)
    elif Path(location).exists() and Path(location).suffix != ".json":
        raise InputError(f"{key}: {name!r} is a file: give the folder that it lies in")
    return location


def settings_of(key: str, name: str, place: str, trusts_code: bool) -> Any:
    """Return the settings of the model at a `place`, as transformers reads its config.json; nothing is built."""
    from transformers import AutoConfig

    with said_plainly(key, name):
        settings = AutoConfig.from_pretrained(place, trust_remote_code=trusts_code)
    if getattr(settings, "auto_map", None) and not trusts_code:  # of a hub
        raise _own_code(key, name, CONFIG)
    return settings


# what lies in a folder -------------------------------------------------------------------------------------------
def check_folder(folder: Path, key: str, name: str, trusts_code: bool) -> None:
    """Refuse a folder that holds no model, untrusted code, or invalid settings."""
    try:
        files = {path.name for path in folder.iterdir()}
    except OSError as error:
        raise InputError(f"{key}: {name!r} cannot be read: {error.strerror}") from None
    if not files:
        raise InputError(f"{key}: {name!r}: the folder is empty")
    found = {
        file: _settings(folder / file, key)
        for file in (CONFIG, "tokenizer_config.json", "generation_config.json", "special_tokens_map.json")
        if file in files
    }
    if not isinstance(found.get(CONFIG, {}).get("model_type", ""), str):
        raise InputError(f"{key}: {folder / CONFIG} has a model_type that is not text")
    if not trusts_code:
        for file, settings in found.items():
            if settings.get("auto_map"):
                raise _own_code(key, name, file)


def check_tokenizer(folder: Path, key: str, name: str) -> None:
    """Refuse a folder with a damaged tokenizer, or with none: libraries would make one that knows no word."""
    if (folder / TOKENIZER).exists():
        _settings(folder / TOKENIZER, key)
        return
    if not any(_TOKENIZERS.search(path.name) for path in folder.iterdir()):
        raise InputError(
            f"{key}: {name!r} has no tokenizer (no tokenizer.json): copy the one it was trained with into the folder, "
            "or name it, as in `tokenizer: gpt2`"
        )


def check_model(folder: Path, name: str, from_scratch: bool) -> set[str]:
    """Refuse a folder without a config, or with unreadable weights; with `from_scratch` no weights are needed.

    Returns:
        Names of what is stored as whole numbers.
    """
    path = folder / CONFIG
    if not path.exists():
        if (folder / "adapter_config.json").exists():
            raise InputError(
                f"model: {name!r} holds an adapter alone: give the model it was made for, or merge the two"
            )
        raise InputError(f"model: {name!r} has no config.json: it is not the folder of a model")
    settings = _settings(path, "model")
    if "model_type" not in settings:
        raise InputError(f"model: {path} names no model_type")
    if settings.get("quantization_config") and not from_scratch:
        raise InputError(
            f"model: the weights of {name!r} are quantised (quantization_config in its config.json), and training "
            "needs them whole: give the model that it was made from"
        )
    for where, layers in _layers(settings):
        if not 0 <= layers <= _MOST_LAYERS:
            raise InputError(
                f"model: {path} asks for {layers:,} layers ({where}), and no model has "
                f"{'fewer than none' if layers < 0 else f'more than {_MOST_LAYERS:,}'}: is the file damaged?"
            )
    if from_scratch:
        return set()
    return {weight for file in weights(folder, name) for weight in _whole_numbers(file)}


def _settings(path: Path, key: str) -> dict[str, Any]:
    """Read a JSON object of settings."""
    try:
        if not path.is_file():
            raise InputError(f"{key}: {path} is not a file")
        if path.stat().st_size > _LARGEST:
            raise InputError(f"{key}: {path} is too large to be what its name says")
        found = json.loads(path.read_bytes())
    except OSError as error:
        raise InputError(f"{key}: {path} cannot be read: {error.strerror}") from None
    except RecursionError:
        raise InputError(f"{key}: {path} is nested too deep") from None
    except ValueError:
        raise InputError(f"{key}: {path} is not valid JSON: it is damaged or cut short") from None
    if not isinstance(found, dict):
        raise InputError(f"{key}: {path} is not a JSON object: it is damaged")
    return found


def _own_code(key: str, name: str, file: str) -> InputError:
    return InputError(
        f"{key}: {name!r} brings code of its own (auto_map in its {file}), which runs only with trust_remote_code: "
        "true; to use what transformers has of that kind instead, delete auto_map in a copy of the folder"
    )


def _layers(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, int]]:
    """Yield every number of layers in a config, whatever its name, with the dotted name of its key."""
    for key, value in settings.items():
        if isinstance(value, Mapping):
            yield from _layers(value, f"{prefix}{key}.")
        elif type(value) is int and re.fullmatch(
            r"n_layers?|num_layers|num_.*_layers|.*(en|de)coder_layers", key
        ):
            yield prefix + key, value


def weights(folder: Path, name: str) -> list[Path]:
    """Return the files that hold the weights, none of them outside of the folder.

    Raises:
        InputError: there are none, or the index names what is not there.
    """
    index = folder / INDEX
    if (folder / WEIGHTS).exists() or not index.exists():
        if not (folder / WEIGHTS).is_file():
            pickles = any(path for pattern in _PICKLES for path in folder.glob(pattern))
            raise InputError(
                f"model: {name!r} has no model.safetensors"
                + (
                    ", and weights load from safetensors only: its others may hold code; convert them"
                    if pickles
                    else " (for random weights, give the path of its config.json)"
                )
            )
        return [folder / WEIGHTS]
    places = _settings(index, "model").get("weight_map")
    if (
        not isinstance(places, dict)
        or not places
        or not all(isinstance(shard, str) for shard in places.values())
    ):
        raise InputError(f"model: {index} has no weight_map of names to files")
    for shard in sorted(set(places.values())):
        if "\0" in shard or Path(shard).is_absolute() or ".." in Path(shard).parts:
            raise InputError(f"model: the index {index} names {shard!r}, which lies outside of the folder")
        if not (folder / shard).is_file():
            raise InputError(f"model: {folder / shard} is not there, and {INDEX} names it")
    return [folder / shard for shard in sorted(set(places.values()))]


def _whole_numbers(path: Path) -> Iterator[str]:
    """Yield names of whole-number entries in a weights file; refuse a file whose header and length disagree."""
    try:
        with safe_open(path, "pt") as file:
            for weight in file.keys():  # noqa: SIM118 - it is no mapping
                if not file.get_slice(weight).get_dtype().startswith(("F", "BF")):
                    yield weight
    except (SafetensorError, OSError, ValueError, RuntimeError) as error:
        reason = str(error).removeprefix("Error while deserializing header: ").split("`")[0].strip()[:100]
        raise InputError(f"model: {path} is damaged or cut short ({reason})") from None


# how large a model is --------------------------------------------------------------------------------------------
def refuse_huge(auto: Any, settings: Any, name: str, trusts_code: bool) -> None:
    """Refuse a model that the machine's memory cannot hold, before anything of it is built.

    A model that cannot be built without memory passes: the library then reports what is wrong with it.
    """
    room = memory.whole()
    if room is None:
        return
    try:
        with torch.device("meta"):
            model = auto.from_config(copy.deepcopy(settings), trust_remote_code=trusts_code)
    except Exception:  # raised by the libraries, which have no common type
        return
    count = sum({id(part): part.numel() for part in (*model.parameters(), *model.buffers())}.values())
    if 4 * count > room:
        raise InputError(
            f"model: {name!r} has {count:,} parameters, {4 * count / 1e9:,.0f} GB in float32, and this machine has "
            f"{room / 1e9:,.0f} GB of memory: choose a smaller one"
        )


# what the libraries say ------------------------------------------------------------------------------------------
@contextlib.contextmanager
def said_plainly(key: str, name: str, what: str = "a file of it") -> Iterator[None]:
    """Turn loading errors of the libraries into one sentence that names the key. `what` is read, in words."""
    try:
        yield
    except (InputError, MemoryError):
        raise
    except Exception as error:
        raise InputError(f"{key}: {name!r} cannot be loaded: {_reason(error, what)}") from error


def _reason(error: Exception, what: str) -> str:
    text = " ".join(str(error).split())
    if "custom code" in text:
        return "it needs code from its own repository, which runs only with trust_remote_code: true"
    if "safetensors" in text and not isinstance(error, SafetensorError):
        return "it has no model.safetensors, and weights load from safetensors only"
    if field := re.search(r"[Ff]ield '(\w+)'", text):
        return f"{field.group(1)} in its config.json has a value of a wrong kind"
    if kind := re.search(r"has model type `([^`]*)`", text):
        return f"transformers knows no model of type {kind.group(1)!r}; a newer release may"
    if "nstantiate the backend tokenizer" in text or isinstance(error, RecursionError):
        return "its tokenizer is none that transformers can read"
    if isinstance(error, KeyError):
        return f"its files name {text}, which is not known, or lack it"
    if isinstance(error, ZeroDivisionError):
        return "a number in its config.json is 0, and cannot be"
    if isinstance(error, TypeError | AttributeError | IndexError) or "untagged enum" in text:
        return f"{what} is damaged, or has a value of a wrong kind"
    return _short(text) or f"the library fails with {type(error).__name__} and does not say why"


def _short(text: str, longest: int = 200) -> str:
    """Return the first sentence, or as many of its words as there is room for."""
    first = re.split(r"(?<=[a-z)])\. ", text, maxsplit=1)[0].rstrip(".:")
    return first if len(first) <= longest else first[:longest].rsplit(" ", 1)[0] + " ..."


# the hub ---------------------------------------------------------------------------------------------------------
@functools.cache
def on_hub(name: str) -> str:
    """Return where a model that is no folder can be found: its hub name, or the local folder of the hub's files.

    The hub is asked once, for a few seconds at most; its libraries ask 19 times, for 48 seconds.

    Raises:
        InputError: without a key before it; the name is invalid, or the hub cannot be reached and no files are kept.
    """
    from huggingface_hub import HfApi, constants, try_to_load_from_cache
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, RepositoryNotFoundError
    from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]  # public by its __all__ alone

    try:
        validate_repo_id(name)
    except HFValidationError:
        raise InputError(f"{name!r}: no such folder") from None
    if constants.HF_HUB_OFFLINE:
        reached: Exception | None = ConnectionError()
    else:
        reached = _asked(lambda: HfApi().model_info(name, timeout=_PATIENCE))
    if reached is None:
        return name
    if isinstance(reached, RepositoryNotFoundError):
        raise InputError(f"{name!r}: no such folder here, and no such model on the hub")
    if isinstance(reached, HfHubHTTPError):
        return name  # it was reached, and its libraries say what it answers
    kept = try_to_load_from_cache(name, CONFIG)
    if isinstance(kept, str):
        return str(Path(kept).parent)
    raise InputError(
        f"{name!r}: no such folder here, and no hub in reach to look for a model of that name: give the path of a "
        "folder that holds its config.json and model.safetensors"
    )


def _asked(question: Any) -> Exception | None:
    """Return the error of a look-up, if it fails. It may wait for a name server longer than any limit it is given."""
    failed: list[Exception | None] = []

    def ask() -> None:
        try:
            question()
            failed.append(None)
        except Exception as error:  # the libraries below the hub's have no common type
            failed.append(error)

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(_PATIENCE)
    return failed[0] if failed else TimeoutError()
