"""Load a model of which each rank reads its own part alone, straight from the safetensors files.

transformers builds the model as ever, from stand-ins: tensors of the right shape and type that repeat one row, so that
they take almost no memory. Its renaming of keys, tied weights, fresh heads and random draws are thus those of a whole
load. A stand-in's storage tells where transformers has put which key. The stand-ins then go to the meta device, the
model is split, and each rank fills its part from the file.

Whatever cannot be traced so (weights that transformers merges, splits or turns while it loads) is loaded whole.
"""

import copy
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from confide.distributed.ranks import Ranks
from confide.distributed.sharding import first_index, part
from confide.models import files as model_files
from confide.utils.errors import InputError

SMALL = 1 << 20  # bytes; smaller weights are read whole by every rank
_PIECE = 1 << 24  # bytes of a file that are widened at a time
_PLAIN = {"F64", "F32", "F16", "BF16"}
_SIGNED = 64  # values at each end of a weight by which unequal ones are told apart
_FIRST_PATTERN = 0x0400  # above it, all patterns up to the largest are ordinary numbers in bf16 and float16
_LAST_PATTERN = 0x7BFF


@dataclass(frozen=True)
class Stored:
    """A weight that still lies in its file.

    Attributes:
        file: the safetensors file.
        key: the weight's name there.
        name: its parameter's name in transformers' model.
        dtype: the type in which the base is held; the file's may be another.
    """

    file: Path
    key: str
    name: str
    dtype: torch.dtype

    def rows(self, first: int, last: int | None = None) -> Tensor:
        """Return rows of the weight, in the base's type. Where the file has the same type, it is the mapped file."""
        with safe_open(self.file, "pt") as file:
            values: Tensor = file.get_slice(self.key)[first:last]
        return values.to(self.dtype)

    def pieces(self, shape: torch.Size) -> Iterator[Tensor]:
        """Yield the weight from its first row to its last, a few rows at a time."""
        each = max(1, _PIECE // max(1, shape[1:].numel() * 4))
        for first in range(0, shape[0], each):
            yield self.rows(first, first + each)


class Outline:
    """A model of transformers whose large weights are stand-ins.

    Attributes:
        model: as transformers loads it, in evaluation mode.
        report: what transformers says of keys that are missing or do not fit.
    """

    def __init__(self, model: Any, report: dict[str, Any], stand_ins: Mapping[str, "_StandIn"]) -> None:
        self.model = model
        self.report = report
        # By the address of its storage. Each is kept, lest another tensor gets its address.
        self._places = {_address(held.values): held for held in stand_ins.values()}
        self._names = {
            address: name
            for name, values in model.named_parameters()
            if (address := _address(values)) in self._places
        }

    def is_stand_in(self, values: Tensor) -> bool:
        """Return True if a tensor has no values yet."""
        return _address(values) in self._places

    def read(self, weights: Sequence[nn.Parameter]) -> None:
        """Read these weights whole, in place of their stand-ins; tied ones stay tied."""
        for values in weights:
            if self.is_stand_in(values):
                values.data = self._stored(values).rows(0).clone()

    def detach(self, model: nn.Module) -> dict[str, Stored]:
        """Put the weights that have no values yet on the meta device. In place.

        Args:
            model: the outline's, perhaps with an adapter, which may hold copies of weights to train them whole.

        Returns:
            Where the values of these weights lie, by the name of the parameter.
        """
        found: dict[str, Stored] = {}
        empty: dict[int, nn.Parameter] = {}
        for name, values in list(model.named_parameters()):
            source = values
            if ".modules_to_save." in name:
                source = model.get_parameter(_original(name))
            if self.is_stand_in(source):
                found[name] = self._stored(source)
        for name in found:
            values = model.get_parameter(name)
            meta = torch.empty(values.shape, dtype=values.dtype, device="meta")
            empty[id(values)] = nn.Parameter(meta, requires_grad=values.requires_grad)
        for module in model.modules():
            for own, held in module._parameters.items():
                if held is not None and id(held) in empty:
                    module._parameters[own] = empty[id(held)]
        return found

    def _stored(self, values: Tensor) -> Stored:
        address = _address(values)
        held = self._places[address]
        return Stored(held.file, held.key, self._names[address], values.dtype)


def _original(name: str) -> str:
    """Return the name of the frozen weight that peft has copied to train it."""
    before, _, after = name.partition(".modules_to_save.")
    return f"{before}.original_module.{after.partition('.')[2]}"


def outline(auto: Any, settings: Any, place: str, dtype: torch.dtype) -> Outline | None:
    """Load the outline of a model; None if its weights can be loaded only whole.

    Random draws are those of a whole load.

    Args:
        auto: the class of transformers that loads it.
        settings: the model's settings.
        place: its folder.
        dtype: the type in which the base is held.
    """
    folder = Path(place)
    if not folder.is_dir() or (folder / "adapter_config.json").exists():
        return None
    try:
        return _outline(auto, settings, folder, dtype)
    except Exception:  # raised by the libraries; a whole load says what is wrong
        return None


def _outline(auto: Any, settings: Any, folder: Path, dtype: torch.dtype) -> Outline | None:
    from transformers import GenerationConfig

    random = torch.get_rng_state()
    with torch.device("meta"):
        kind = type(auto.from_config(copy.deepcopy(settings)))
    torch.set_rng_state(random)
    small, stand_ins = _weights(folder, dtype)
    model, report = kind.from_pretrained(
        None,
        config=settings,
        state_dict=small | {key: held.values for key, held in stand_ins.items()},
        dtype=dtype,
        ignore_mismatched_sizes=True,
        output_loading_info=True,
    )
    if not _is_traced(model, report, stand_ins):
        return None
    model.config.name_or_path = str(folder)
    if model.can_generate():
        try:
            model.generation_config = GenerationConfig.from_pretrained(folder)
        except OSError:
            model.generation_config = GenerationConfig.from_pretrained(
                folder, config_file_name=model_files.CONFIG, _from_model_config=True
            )
    return Outline(model, report, stand_ins)


def _is_traced(model: Any, report: Mapping[str, Any], stand_ins: Mapping[str, "_StandIn"]) -> bool:
    """Tell whether each large weight of a model is a stand-in, as it was given, or was made afresh."""
    from transformers.core_model_loading import WeightConverter

    applied = getattr(model, "_weight_conversions", None)
    if applied is None or any(isinstance(step, WeightConverter) for step in applied):
        return False
    fresh = {str(name) for name in report["missing_keys"]}
    fresh |= {str(name) for name, *_ in report["mismatched_keys"]}
    known = {_address(held.values): held.values for held in stand_ins.values()}
    for name, values in model.named_parameters():
        source = known.get(_address(values))
        if source is None:  # a small weight, which transformers may have cast, or a fresh one
            if name not in fresh and values.numel() * values.element_size() > SMALL:
                return False
        elif (source.shape, source.stride()) != (values.shape, values.stride()):
            return False
    return not any(_address(values) in known for values in model.buffers())


def _weights(folder: Path, dtype: torch.dtype) -> tuple[dict[str, Tensor], dict[str, "_StandIn"]]:
    """Return the small weights of a folder's files, and the stand-ins of the large ones, by key."""
    small: dict[str, Tensor] = {}
    large: dict[str, tuple[Path, torch.Size]] = {}
    for path in model_files.weights(folder, folder.name):
        with safe_open(path, "pt") as file:
            for key in file.keys():  # noqa: SIM118 - it is no mapping
                held = file.get_slice(key)
                shape = torch.Size(held.get_shape())
                small.pop(key, None)
                large.pop(key, None)
                if held.get_dtype() in _PLAIN and shape.numel() * dtype.itemsize > SMALL:
                    large[key] = path, shape
                else:
                    small[key] = file.get_tensor(key)
    numbers = _numbers({key: path for key, (path, _) in large.items()})
    stand_ins = {
        key: _StandIn(path, key, _made(number, shape, dtype))
        for number, (key, (path, shape)) in zip(numbers, large.items(), strict=True)
    }
    return small, stand_ins


@dataclass(frozen=True)
class _StandIn:
    file: Path
    key: str
    values: Tensor


def _made(number: int, shape: torch.Size, dtype: torch.dtype) -> Tensor:
    """Make a tensor that repeats one row, of a finite value that no other number gives."""
    if dtype.itemsize == 2:
        if number + _FIRST_PATTERN > _LAST_PATTERN:
            raise ValueError("more weights than there are values")
        value = torch.tensor(number + _FIRST_PATTERN, dtype=torch.int16).view(dtype)
    else:
        value = torch.tensor(float(number), dtype=dtype)
    return value.expand(shape[1:]).clone().expand(shape)


def _numbers(large: Mapping[str, Path]) -> Iterator[int]:
    """Yield a number for each weight, the same for weights of the same values.

    transformers compares weights that a config ties and that lie in the file twice.
    """
    alike: dict[Any, list[tuple[int, str, Path]]] = defaultdict(list)
    for number, (key, path) in enumerate(large.items()):
        with safe_open(path, "pt") as file:
            held = file.get_slice(key)
            ends = [held[:1].reshape(-1)[:_SIGNED], held[-1:].reshape(-1)[-_SIGNED:]]
            sign = (tuple(held.get_shape()), *(end.double().numpy().tobytes() for end in ends))
        for other, known, where in alike[sign]:
            if _same(key, path, known, where):
                yield other
                break
        else:
            alike[sign].append((number, key, path))
            yield number


def _same(key: str, path: Path, known: str, where: Path) -> bool:
    with safe_open(path, "pt") as one, safe_open(where, "pt") as other:
        first, second = one.get_tensor(key), other.get_tensor(known)
        return first.dtype == second.dtype and torch.equal(first, second)


def _address(values: Tensor) -> int:
    return values.untyped_storage().data_ptr()


# filling a split model -----------------------------------------------------------------------------------------------
@torch.no_grad()
def fill(model: nn.Module, stored: Mapping[str, Stored], name: str, ranks: Ranks) -> None:
    """Read this rank's part of each weight that still lies in its file, and check that all are sound. In place.

    Every rank must call this, with the same weights, once the model is split.

    Args:
        model: split over the ranks; the weights of `stored` are on the meta device.
        stored: where they lie, by the name of the parameter.
        name: the model's, for an error.

    Raises:
        InputError: a file cannot be read on some rank, or a weight holds values that are infinite or not a number. All
            ranks raise it together.
    """
    model._apply(lambda values: _on(values, ranks.device))
    unreadable, unsound = "", len(stored)
    for number, (own, where) in enumerate(stored.items()):
        parameter = model.get_parameter(own)
        values = part(parameter.detach())
        first = first_index(parameter) // max(1, parameter.shape[1:].numel())
        try:
            if len(values):
                values.copy_(where.rows(first, first + len(values)))
        except (SafetensorError, OSError, RuntimeError, ValueError) as error:
            unreadable = unreadable or f"{where.file.name} cannot be read: {str(error)[:100]}"
            break
        if unsound == len(stored) and not _is_finite(values):
            unsound = number
    if ranks.any(bool(unreadable)):
        raise InputError(f"model: {name!r}: {unreadable or 'a file of it cannot be read by another rank'}")
    unsound = ranks.least(unsound)
    if unsound < len(stored):
        where = list(stored.values())[unsound]
        raise InputError(
            f"model: the weights of {name!r} are damaged, {where.name} holds values that are infinite or not a number"
        )


def _on(values: Tensor, device: torch.device) -> Tensor:
    return torch.empty_like(values, device=device) if values.is_meta else values


def _is_finite(values: Tensor) -> bool:
    return all(bool(torch.isfinite(some).all()) for some in values.reshape(-1).split(_PIECE))
