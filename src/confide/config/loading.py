"""The one config: YAML plus `key=value` overrides, checked as a whole before anything runs.

Every key's meaning is its `description`; `python -m confide.config.loading` makes `docs/config.md` from them.
"""

import copy
import difflib
import functools
import json
import math
import os
import stat
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from confide.config import registry, yaml_text
from confide.config.combination_faults import combination_faults
from confide.config.fields import UNSHOWN
from confide.config.schema import Config
from confide.config.sections import schema_for
from confide.utils.errors import Faults, InputError

ENDINGS = (".yaml", ".yml")
_DEEPEST = 8  # sections within one another that an override may name; there are three
_MOST = 20  # faults that are shown
_FIRST = ("train", "privacy", "data")  # sections that are meant most often


def load(path: Path, overrides: Sequence[str] = ()) -> Config:
    """Read and check a config file.

    Raises:
        InputError: lists every fault that was found, one a line, each naming its key.
    """
    if "\0" in str(path):
        raise InputError(f"{str(path)!r}: no path holds the character NUL")
    folder = path if path.is_dir() else None
    if folder is not None:
        path = folder / "config.yaml"  # a run folder stands for its own config
    try:
        text = _text(path)
    except FileNotFoundError:
        if folder is not None:
            raise InputError(
                f"{folder}: this folder holds no config.yaml; if it holds text, `confide init {folder}` writes a "
                "config for it"
            ) from None
        raise InputError(f"{path}: no such config file{_near(path)}") from None
    except UnicodeDecodeError:
        raise InputError(f"{path}: not UTF-8 text; save it as UTF-8") from None
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from None
    try:
        raw = yaml_text.read(text)
    except InputError as error:
        place = " " if str(error).startswith("line ") else ": "
        raise InputError(f"{path}{place}{error}{_perhaps_text(path)}") from None
    if raw is None:
        raise InputError(f"{path}: the file is empty")
    if not isinstance(raw, dict):
        kind = "a list" if isinstance(raw, list) else "one value alone"
        raise InputError(
            f"{path}: a config is keys with values, as in `model: bundled`, and this is {kind}{_perhaps_text(path)}"
        )
    if folder is not None and is_run(folder):
        raw["run"] = str(folder)  # the folder may have been moved since the run
    return check(with_overrides(raw, overrides), str(path))


def _perhaps_text(path: Path) -> str:
    """Return a hint for whoever names the text to train on where a config belongs."""
    if path.suffix in ENDINGS:
        return ""
    return f". If this is text to train on, `confide init {path}` writes a config for it"


def is_run(folder: Path) -> bool:
    """Tell whether a folder is that of a run which has begun, or of a sweep."""
    return (folder / "config.yaml").exists() and (folder / "ledger.jsonl").exists()


def is_config(path: Path) -> bool:
    """Tell whether a file is a config, be it one with faults: YAML that says what text to train on."""
    try:
        raw = yaml_text.read(_text(path))
    except (InputError, OSError, UnicodeDecodeError):
        return False
    return isinstance(raw, dict) and isinstance(data := raw.get("data"), dict) and "train" in data


def with_overrides(raw: Mapping[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """Return a config as it was read, with other values for some keys.

    Raises:
        InputError: an override is not of the form key=value, names a section that does not exist, or comes after one of
            the same key.
    """
    changed = copy.deepcopy(dict(raw))
    met: set[str] = set()
    for override in overrides:
        key = override.partition("=")[0].strip()
        if key in met:
            raise InputError(f"{yaml_text.name(key)} is given twice on the command line: leave one out")
        met.add(key)
        _apply(changed, override)
    return changed


def _text(path: Path) -> str:
    """Read the text of a config file; never wait for a pipe and never read without end."""
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as stream:
        if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
            raise InputError(f"{path}: is not a file (it is a pipe or a device): write the config to a file")
        found = stream.read(4 * yaml_text.LONGEST + 1)
    if len(found) > 4 * yaml_text.LONGEST:
        raise InputError(f"{path}: is far too large for a config: is it the data?")
    return found.decode("utf-8")


def _near(path: Path) -> str:
    """Return the config file that was probably meant, or how to write it for text of the same name."""
    try:
        names = [entry.name for entry in path.parent.iterdir() if entry.is_file()]
    except OSError:
        return f" (nor is there a folder {path.parent})"
    configs = [name for name in names if name.endswith(ENDINGS)]
    alike = [name for name in names if Path(name).stem == path.stem]
    close = [name for name in alike if name in configs]
    if alike and not close and path.suffix in ENDINGS:
        return f"; `confide init {path.with_name(alike[0])} --out {path}` writes one"
    close += difflib.get_close_matches(path.name, configs, 1, 0.6)
    return f", did you mean {path.with_name(close[0])}?" if close else ""


def _apply(raw: dict[str, Any], override: str) -> None:
    key, equals, text = override.partition("=")
    if not equals or not key.strip():
        raise InputError(
            f"{yaml_text.shown(override)}: an override is key=value, for example privacy.epsilon=3"
        )
    value = parsed(text, override)
    *parents, last = key.strip().split(".")
    if len(parents) > _DEEPEST:
        raise InputError(f"{yaml_text.shown(override)}: no key of a config lies so deep")
    place = raw
    for parent in parents:
        place = place.setdefault(parent, {})
        if not isinstance(place, dict):
            raise InputError(
                f"{yaml_text.shown(override)}: {yaml_text.name(parent)} is not a section of the config"
            )
    place[last] = value


_SIGNS = frozenset("*&!@`%|>")  # they mean something else in YAML where text begins with them


def parsed(text: str, where: str) -> Any:
    """Parse a value of the command line: YAML, where 1e-5 is a number.

    Args:
        text: the value.
        where: the whole argument, for the error.
    """
    try:
        return yaml_text.read(text)
    except InputError as error:
        hint = (
            "; text that begins so stands in two pairs of quotes: key='\"...\"'" if text[:1] in _SIGNS else ""
        )
        said = str(error).removeprefix("line 1: ")
        raise InputError(f"{yaml_text.shown(where)}: {said}{hint}") from None


def check(raw: Mapping[str, Any], where: str = "config") -> Config:
    """Validate a mapping; find all faults before raising one error."""
    faults = [f"{yaml_text.name(key)}: holds {text}" for key, text in _unspeakable(raw)]
    if faults:
        raise _report(where, faults)
    faulty: set[str] = set()
    schema = schema_for(raw)
    try:
        config = schema.model_validate(raw)
    except ValidationError as error:
        # Of a union, one member says that the value must not be shown, and the others would show it.
        for detail in sorted(error.errors(), key=lambda each: each["type"] != UNSHOWN):
            key = ".".join(str(part) for part in _path(detail, schema))
            if key in faulty:
                continue
            faulty.add(key)
            faults.append(_sentence(key, detail, schema) if len(faults) < _MOST else key)
        # What is left may still hold impossible combinations; the reader should hear of them now.
        try:
            config = schema.model_validate({"data": {"train": "?"}} | _without(raw, faulty))
        except ValidationError:
            raise _report(where, faults) from None
    faults += [f"{key}: {text}" for key, text in combination_faults(config) if not _touches(faulty, key)]
    if faults:
        raise _report(where, faults)
    return config


def _unspeakable(value: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """Yield (key, description) for text that no path, field or message can hold."""
    if isinstance(value, str):
        if "\0" in value:
            yield key, "the character NUL, which no text or path can"
        elif not value.isascii() and any("\ud800" <= character <= "\udfff" for character in value):
            yield key, "half a character (a surrogate, or bytes that are not UTF-8)"
    elif isinstance(value, Mapping):
        for name, item in value.items():
            yield from _unspeakable(name, f"{key}.{name}" if key else str(name))
            yield from _unspeakable(item, f"{key}.{name}" if key else str(name))
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _unspeakable(item, key)


def _report(where: str, faults: list[str]) -> InputError:
    if len(faults) == 1:
        return InputError(f"{where}: {faults[0]}")
    seen = [f"  {fault}" for fault in faults[:_MOST]]
    if len(faults) > _MOST:
        seen.append(f"  and {len(faults) - _MOST} more")
    return Faults(f"{where}: {len(faults)} faults\n" + "\n".join(seen))


def _path(detail: ErrorDetails, schema: type[Config]) -> list[str]:
    """Return the key of a fault, without the names of the union members that pydantic adds."""
    path: list[str] = []
    model: Any = schema
    for part in detail["loc"]:
        fields = getattr(model, "model_fields", None)
        if fields is None:
            break
        path.append(str(part))
        model = fields[part].annotation if part in fields else None
    return path


def _sentence(key: str, detail: ErrorDetails, schema: type[Config]) -> str:
    section, _, name = key.rpartition(".")
    key = yaml_text.name(key)
    if detail["type"] == "extra_forbidden":
        near = [
            k for k in keys(schema) if k.rpartition(".")[2] == name
        ]  # the right name in the wrong section
        near = sorted(near, key=lambda k: k.partition(".")[0] not in _FIRST)
        near = near or difflib.get_close_matches(key[:99], keys(schema), 1, 0.5)
        return f"{key}: no such key" + (f", did you mean {near[0]}?" if near else _known(section, schema))
    if detail["type"] == UNSHOWN:
        return f"{key}: {detail['msg']}"
    if detail["type"] == "missing" and not isinstance(detail["loc"][-1], int):  # else a list is too short
        return f"{key}: is missing" + (" (what to read)" if key == "data.train" else "")
    text = detail["msg"].removeprefix("Input should be ").replace("Value error, ", "")
    value = detail["input"]
    expected = _expected(key, schema)
    if expected:
        text = expected
    shown = "" if isinstance(value, dict | list | tuple) else f" {yaml_text.shown(value)}"
    hint = ""
    if isinstance(value, dict) and "text" in text:
        hint = ": put text with braces in quotes"
    if isinstance(value, str) and "a list of text" in text:
        hint = f"; of one, [{yaml_text.shown(value)}]"
    elif "number" in text:
        hint = _number_meant(value, is_whole="whole number" in text)
    options = _options(key, schema)
    if key in _REGISTERED:
        text = "one of " + ", ".join(options)
    if options and isinstance(value, str):
        near = difflib.get_close_matches(value[:99], options, 1, 0.4)
        hint = f", did you mean {near[0]}?" if near else ""
    return f"{key}:{shown} is not valid, must be {text}{hint}"


def _number_meant(value: Any, is_whole: bool) -> str:
    """Return a hint for what was meant as a number, and is text or has a decimal point."""
    if is_whole and isinstance(value, float) and value.is_integer():
        return f"; write {value:.0f}"
    if not isinstance(value, str):
        return ""
    text = value.strip()
    share = text.endswith("%")
    try:
        number = float(text.removesuffix("%").replace(",", ".")) / (100 if share else 1)
    except ValueError:
        return ""
    return f"; write {number:.15g}, without quotes" if math.isfinite(number) else ""


def _known(section: str, schema: type[Config]) -> str:
    names = [k.rpartition(".")[2] for k in keys(schema) if k.rpartition(".")[0] == section]
    return f" ({section or 'the config'} has: {', '.join(names)})" if names else ""


def _fields(model: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, field in model.model_fields.items():
        yield prefix + name, field
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from _fields(field.annotation, f"{prefix}{name}.")


@functools.cache
def _all(schema: type[Config]) -> dict[str, Any]:
    return dict(_fields(schema))


def keys(schema: type[Config] = Config) -> list[str]:
    """Return every key of the config, dotted."""
    return list(_all(schema))


def is_whole(key: str) -> bool:
    """Tell whether a key takes whole numbers."""
    return _expected(key).startswith(_KINDS[int])


def is_number(key: str) -> bool:
    """Tell whether a key takes numbers."""
    return _expected(key).startswith((_KINDS[int], _KINDS[float]))


# Keys that take names of a registry, and confide's own names there, which the reference lists.
_REGISTERED: dict[str, Callable[[], list[str]]] = {
    "privacy.mechanism": lambda: list(registry.MECHANISMS),
    "task": lambda: list(registry.TASKS),
    "data.format": lambda: [registry.AUTO, *registry.READERS],
}


def _options(key: str, schema: type[Config]) -> list[str]:
    if key == "data.format":  # packages may bring others
        return [registry.AUTO, *registry.readers.names()]
    if key in _REGISTERED:
        return _REGISTERED[key]()
    field = _all(schema).get(key)
    return [o for o in _literals(field.annotation) if isinstance(o, str)] if field else []


def _literals(annotation: Any) -> list[Any]:
    if typing.get_origin(annotation) is Literal:
        return list(typing.get_args(annotation))
    if typing.get_origin(annotation) in (typing.Union, types.UnionType, Annotated):
        return [o for part in typing.get_args(annotation) for o in _literals(part)]
    return []


def _expected(key: str, schema: type[Config] = Config) -> str:
    """Describe in words what a key takes: "a number above 0", "one of a, b, c"."""
    if key in _REGISTERED:
        return "one of " + ", ".join(_REGISTERED[key]())
    field = _all(schema).get(key)
    return _words(field.annotation, field.metadata) if field else ""


_KINDS = {int: "a whole number", float: "a number", str: "text", bool: "true or false", type(None): "null"}
_LISTS = {types.UnionType: "text or entries"}
_BOUNDS = {"gt": "above", "ge": "at least", "lt": "below", "le": "at most"}


def _words(annotation: Any, metadata: Sequence[Any] = ()) -> str:
    origin = typing.get_origin(annotation)
    if origin is Annotated:
        inner, *extra = typing.get_args(annotation)
        return _words(inner, [*extra, *metadata])
    if origin is Literal:
        return "one of " + ", ".join(str(o) for o in typing.get_args(annotation))
    if origin in (typing.Union, types.UnionType):
        return " or ".join(_words(part) for part in typing.get_args(annotation))
    if origin is list:
        (each,) = typing.get_args(annotation)
        if typing.get_origin(each) is Literal:
            return "a list of " + ", ".join(map(str, typing.get_args(each)))
        return f"a list of {_LISTS.get(type(each), 'numbers') if each is not str else 'text'}"
    if origin is dict:
        return f"names, each with {_words(typing.get_args(annotation)[1])}"
    if origin is tuple:
        _, _, each = _words(typing.get_args(annotation)[0]).partition(_KINDS[float] + " ")
        return "a list of two numbers" + (f", each {each}" if each else "")
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return "a section with keys"
    bounds = []
    for item in metadata:
        for part in getattr(item, "metadata", None) or [item]:
            bounds += [f"{word} {getattr(part, b):g}" for b, word in _BOUNDS.items() if hasattr(part, b)]
    return " ".join(
        filter(None, [_KINDS.get(annotation, str(annotation)), " and ".join(dict.fromkeys(bounds))])
    )


def _without(raw: Mapping[str, Any], faulty: set[str], prefix: str = "") -> dict[str, Any]:
    rest = {}
    for name, value in raw.items():
        key = f"{prefix}{name}"
        if key not in faulty:
            rest[name] = _without(value, faulty, key + ".") if isinstance(value, Mapping) else value
    if not prefix:
        rest["data"] = {"train": "?"} | rest.get("data", {})
    return rest


def _touches(faulty: set[str], key: str) -> bool:
    section = key.partition(".")[0]
    return (
        key in faulty
        or section in faulty
        or (section == "privacy" and any(f.startswith("privacy.") for f in faulty))
    )


def reference() -> str:
    """Write the config reference, as Markdown."""
    lines = [
        "# The config",
        "",
        "Made by `python -m confide.config.loading > docs/config.md`; do not edit by hand.",
        "",
    ]
    lines += ["YAML, plus `key=value` overrides on the command line, for example `privacy.epsilon=3`.", ""]
    lines += ["| key | takes | default | meaning |", "|---|---|---|---|"]
    for key, field in _fields(Config):
        takes = _expected(key).replace("|", "\\|")
        if takes == "a section with keys":
            lines.append(f"| **`{key}`** | | | *{field.description}* |")
            continue
        default = (
            "required"
            if field.is_required()
            else f"`{json.dumps(field.get_default(call_default_factory=True))}`"
        )
        lines.append(f"| `{key}` | {takes} | {default} | {field.description.replace('|', chr(92) + '|')} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(reference(), end="")
