"""Digest a calling program's own objects: the same digest in another process, and another one if the objects differ.

A run's noise is a function of its key. Two trainings that share a key and differ in what they sum up would reveal
that sum. So everything that decides the sums is bound to the key: of a function, its code and the globals that it
names; of an object, what it holds. This cannot be complete: what is looked up in a module, a file or a class is
not seen.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import types
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import nn

from confide.distributed.ranks import Ranks
from confide.models.loading import trainable
from confide.models.sharded import Stored
from confide.utils.errors import InputError

_DEEPEST = 20
# Of PEFT's settings: where the weights came from, which have a digest of their own, and PEFT's own notes.
_PLACES = ("base_model_name_or_path", "revision", "auto_mapping", "peft_version", "inference_mode")
_PLAIN = (bool, int, float, complex, str, bytes, type(None), type(Ellipsis))


def of_function(name: str, value: Any) -> str:
    """Digest a callable: its code, its defaults, and what it holds in closures, attributes and `partial`.

    Raises:
        InputError: it holds an object that may not be the same in another process.
    """
    digest = hashlib.sha256()
    _tell(name, value, digest.update, 0)
    return digest.hexdigest()[:32]


def of_model(model: nn.Module) -> str:
    """Digest a model apart from its weights: its class, its config, which parameters train, and its adapters' settings.

    The factor of a LoRA, which `lora_alpha` and `use_rslora` make, is neither a weight nor in the model's config.
    """
    config: Any = getattr(model, "config", None)
    facts = [type(model).__qualname__, config.to_json_string() if hasattr(config, "to_json_string") else ""]
    facts += _of_adapters(model)
    return hashlib.sha256("\n".join([*facts, *sorted(trainable(model))]).encode()).hexdigest()[:32]


def _of_adapters(model: nn.Module) -> list[str]:
    """Return what PEFT knows of a model's adapters, and what they are multiplied by; nothing without adapters."""
    found = []
    adapters: Any = getattr(model, "peft_config", None)
    for name, settings in sorted((adapters or {}).items()):
        stated = {key: value for key, value in settings.to_dict().items() if key not in _PLACES}
        plain = {
            key: sorted(map(str, v)) if isinstance(v, set | frozenset) else v for key, v in stated.items()
        }
        found.append(f"{name} {json.dumps(plain, sort_keys=True, default=str)}")
    for name, module in model.named_modules() if adapters else ():
        factors = getattr(module, "scaling", None)
        if isinstance(factors, dict):
            found.append(f"{name} {sorted(factors.items())}")
    return found


def of_tokenizer(tokenizer: Any) -> str:
    """Digest what a tokenizer makes of a text."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    rules = backend.to_str() if backend is not None else repr(sorted(tokenizer.get_vocab().items()))
    facts = [type(tokenizer).__qualname__, rules, repr(sorted(tokenizer.special_tokens_map.items()))]
    return hashlib.sha256("\n".join(facts).encode()).hexdigest()[:32]


def of_weights(
    model: nn.Module, stored: Mapping[str, Stored] | None = None, ranks: Ranks | None = None
) -> bytes:
    """Digest the weights of the base model: its name may come to mean other weights.

    The digest is the same however the model is loaded. If weights still lie in files, the first rank reads them for
    all, a piece at a time; all ranks must then call this.

    Args:
        stored: where the weights lie that the model has on the meta device, by the name of the parameter.
        ranks: the ranks that load this model together.
    """
    if not stored:
        return _of_weights(model, {})
    assert ranks is not None
    return ranks.from_first(lambda: _of_weights(model, stored))


def _of_weights(model: nn.Module, stored: Mapping[str, Stored]) -> bytes:
    places = {id(model.get_parameter(name)): place for name, place in stored.items()}
    digest = hashlib.sha256()
    for name, values in sorted(model.state_dict(keep_vars=True).items()):
        digest.update(f"{name} {tuple(values.shape)} {values.dtype}\n".encode())
        place = places.get(id(values))
        for piece in [values.detach()] if place is None else place.pieces(values.shape):
            plain = piece.to(values.dtype).cpu().contiguous()
            digest.update(plain.view(torch.uint8).numpy().data if values.dim() else b"")
    return digest.digest()


def of_still(model: nn.Module) -> bytes:
    """Digest everything in a model's state that no step moves: its buffers and the parameters that do not train."""
    moving = {
        parameter.data_ptr() for parameter in trainable(model).values()
    }  # tied weights have several names
    digest = hashlib.sha256()
    for name, values in sorted(model.state_dict().items()):
        if not values.numel() or values.data_ptr() not in moving:
            digest.update(name.encode() + _bytes_of(values))
    return digest.digest()


def _bytes_of(values: torch.Tensor) -> bytes:
    plain = values.detach().cpu().contiguous()
    shape = f"{tuple(plain.shape)} {plain.dtype}".encode()
    return shape + plain.reshape(-1).view(torch.uint8).numpy().tobytes()


def _tell(name: str, value: Any, tell: Callable[[bytes], object], depth: int) -> None:
    if depth > _DEEPEST:
        raise InputError(
            f"{name}: it holds objects too deep within one another to be told apart from another's"
        )
    below = functools.partial(_tell, name, tell=tell, depth=depth + 1)
    tell(f"<{type(value).__qualname__}>".encode())
    if isinstance(value, _PLAIN):
        tell(repr(value).encode())
    elif isinstance(value, torch.Tensor):
        tell(_bytes_of(value))
    elif isinstance(value, np.ndarray | np.generic):
        tell(_bytes_of(torch.as_tensor(np.asarray(value))))
    elif isinstance(value, torch.dtype | torch.device | types.ModuleType):
        tell(repr(getattr(value, "__name__", value)).encode())
    elif isinstance(value, functools.partial):
        below((value.func, value.args, value.keywords))
    elif isinstance(value, types.MethodType):
        below(value.__func__)
        below(value.__self__)
    elif isinstance(value, types.FunctionType):
        _tell_function(value, tell, below)
    elif isinstance(value, types.CodeType):
        below((value.co_code, value.co_consts, value.co_names, value.co_varnames))
    elif isinstance(value, list | tuple):
        for part in value:
            below(part)
    elif isinstance(value, dict):
        for key in sorted(value, key=repr):
            below(key)
            below(value[key])
    elif isinstance(value, set | frozenset):
        for part in sorted(value, key=repr):
            below(part)
    elif isinstance(value, type | types.BuiltinFunctionType | types.BuiltinMethodType):
        tell(f"{getattr(value, '__module__', '')}.{value.__qualname__}".encode())
    elif isinstance(value, nn.Module):
        below(type(value).forward)
        below(dict(value.state_dict()))
        below({key: held for key, held in vars(value).items() if not key.startswith("_")})
    elif dataclasses.is_dataclass(value) or hasattr(value, "__dict__"):
        if isinstance(call := vars(type(value)).get("__call__"), types.FunctionType):
            below(call)
        below(vars(value))
    else:
        raise InputError(
            f"{name}: it holds a {type(value).__qualname__}, of which nobody can tell whether a resumed run has the "
            "same: use a function, or functools.partial of one with plain values"
        )


def _tell_function(
    value: types.FunctionType, tell: Callable[[bytes], object], below: Callable[[Any], None]
) -> None:
    package = (value.__module__ or "").partition(".")[0]  # a function made by hand has no module
    tell(f"{package}.{value.__qualname__}".encode())
    if package in ("torch", "transformers", "confide"):
        return  # part of a library, whose version the ledger names
    below((value.__code__, value.__defaults__, value.__kwdefaults__))
    for cell in value.__closure__ or ():
        below(cell.cell_contents)
    # The functions and values that it names are part of its behaviour. Modules are not inspected: their code is
    # a library's, or out of sight.
    for called in sorted(_names_in(value.__code__)):
        held = value.__globals__.get(called)
        if held is not None and held is not value and not isinstance(held, types.ModuleType):
            below(held)


def _names_in(code: types.CodeType) -> set[str]:
    """Return the names of a function's globals, and those of the functions within it."""
    inner = (part for part in code.co_consts if isinstance(part, types.CodeType))
    return set(code.co_names).union(*map(_names_in, inner))
