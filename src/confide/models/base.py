"""Hold the frozen weights under an adapter in a type and a number of bits of one's choice.

bitsandbytes holds linear layers in 4 or 8 bits, torchao in 8. All of them are frozen; what trains is LoRA's factors
beside them, in float32. Weights are always quantised on the CPU, so that a run has the same base on every machine.
"""

import copy
import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from confide.config import registry
from confide.models.adapters import in_head, not_called
from confide.models.quantised import bits, is_of_torchao, quantised, take_from_torchao, weight_of
from confide.models.sound import refuse_unsound
from confide.utils.errors import InputError

if TYPE_CHECKING:
    from confide.config.schema import Config

DTYPES = {"float32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def how_to_load(auto: Any, settings: Any, config: "Config") -> dict[str, Any]:
    """Return the arguments of `from_pretrained` that hold the weights as the config's section `base` says.

    Raises:
        InputError: a package is needed and not there, or torchao cannot hold a layer of the model.
    """
    dtype = DTYPES[config.base.precision]
    if config.base.quantise == "none":
        return {"dtype": dtype}
    _need_package(config)
    if config.base.quantiser == "torchao":
        return {"dtype": dtype, "quantization_config": _by_torchao(auto, settings, config)}
    from transformers import BitsAndBytesConfig

    whole = _whole(_shell(auto, settings, config), config)
    if config.base.quantise == "int8":
        # At a threshold, a column is computed in another way once any row of the batch has a large value there: a
        # row's gradient would then depend on the rows beside it.
        how = BitsAndBytesConfig(load_in_8bit=True, llm_int8_threshold=0.0, llm_int8_skip_modules=whole)
    else:
        how = BitsAndBytesConfig(
            load_in_4bit=True,
            bnb_4bit_quant_type="nf4",
            bnb_4bit_use_double_quant=True,
            bnb_4bit_compute_dtype=dtype,
            llm_int8_skip_modules=whole,
        )
    return {"dtype": dtype, "quantization_config": how, "device_map": {"": "cpu"}}


def _need_package(config: "Config") -> None:
    base = config.base
    if importlib.util.find_spec(base.quantiser) is None:
        raise InputError(
            "base.quantiser: torchao is not installed: pip install 'confide[torchao]'"
            if base.quantiser == "torchao"
            else f"base.quantise: {base.quantise} needs bitsandbytes, which is not installed: "
            "pip install 'confide[quantise]'"
        )


def _by_torchao(auto: Any, settings: Any, config: "Config") -> Any:
    """Return how transformers lets torchao round weights to 8 bits, with a scale for each output.

    Raises:
        InputError: a layer of the model is of a kind that torchao leaves whole.
    """
    from torchao.quantization import Int8WeightOnlyConfig
    from transformers import TorchAoConfig

    shell = _shell(auto, settings, config)
    whole = set(_whole(shell, config))
    linear = {name: module for name, module in _linear(shell) if name not in whole}
    if odd := next((name for name, module in linear.items() if not isinstance(module, nn.Linear)), None):
        raise InputError(
            f"base.quantiser: torchao quantises nn.Linear alone, and {odd} of {config.model!r} is a "
            f"{type(linear[odd]).__name__}: use base.quantiser: bitsandbytes"
        )
    # A class of its own may compute something else with its weight.
    whole |= {name for name, module in linear.items() if type(module) is not nn.Linear}
    if whole >= linear.keys():
        raise InputError(
            f"base.quantiser: torchao finds no linear layer in {config.model!r} that it could quantise"
        )
    rounding = Int8WeightOnlyConfig(set_inductor_config=False)  # these settings would be the whole process's
    return TorchAoConfig(rounding, modules_to_not_convert=sorted(whole))


def _shell(auto: Any, settings: Any, config: "Config") -> Any:
    """Return the model without weights."""
    with torch.device("meta"):
        return auto.from_config(copy.deepcopy(settings), trust_remote_code=config.trust_remote_code)


def _linear(shell: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    for name, module in shell.named_modules():
        if isinstance(module, nn.Linear) or type(module).__name__ == "Conv1D":
            yield name, module


def _whole(shell: Any, config: "Config") -> list[str]:
    """Return the names of linear layers that are not quantised: what trains whole, or is not called as a layer."""
    output, classifies = shell.get_output_embeddings(), registry.task_facts(config.task).has_classes
    own = {*config.adapter.modules_to_save, *not_called(shell)}
    return sorted(
        name
        for name, module in _linear(shell)
        if module is output
        or (classifies and in_head(shell, name))
        or any(f".{part}." in f".{name}." for part in own)
    )


def ready_base(model: nn.Module, name: str) -> None:
    """Check quantised layers after loading, and let them compute in one way in training and in evaluation.

    Raises:
        InputError: a weight was infinite or not a number when it was quantised, or torchao holds one in a way that is
            not known here.
    """
    if odd := take_from_torchao(model):
        raise InputError(
            f"base.quantiser: this version of torchao holds {odd} of {name!r} in another way than 8 bits with a scale "
            "for each output: use the version of confide's extra (pip install 'confide[torchao]'), or bitsandbytes"
        )
    for place, layer in quantised(model):
        if bits(layer) == 4:
            # Some processors would repack the weights, at the first evaluation, for a kernel that has no gradient.
            layer.support_avx512bf16_for_cpu = False
        values = {f"{place}.weight": weight_of(layer)}
        refuse_unsound(values, f"model: the weights of {name!r} are damaged,")


def ready_adapter(model: Any) -> None:
    """Hold in float32 what trains, and convert at its borders where the base is held in another type. In place."""
    for parameter in model.parameters():
        if parameter.requires_grad and parameter.dtype != torch.float32:
            parameter.data = parameter.data.float()
    inner = model.get_base_model() if hasattr(model, "get_base_model") else model
    coarse = next((p for p in model.parameters() if not p.requires_grad and _is_coarse(p)), None)
    if coarse is None:
        return
    for name, module in inner.named_modules():
        if hasattr(module, "modules_to_save"):
            module.register_forward_pre_hook(_enter, with_kwargs=True)
            if not (module is inner.get_output_embeddings() or in_head(inner, name)):  # logits stay float32
                module.register_forward_hook(_Leave(coarse.dtype))


def _is_coarse(values: torch.Tensor) -> bool:
    return values.is_floating_point() and values.dtype.itemsize < 4


def _enter(module: nn.Module, args: Any, kwargs: Any) -> Any:
    return tuple(map(_float, args)), {key: _float(value) for key, value in kwargs.items()}


def _float(value: Any) -> Any:
    return value.float() if isinstance(value, torch.Tensor) and value.is_floating_point() else value


class _Leave:
    """Hook that turns a layer's output into the type that the base computes in."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype

    def __call__(self, module: nn.Module, args: Any, output: Any) -> Any:
        return output.to(self.dtype) if isinstance(output, torch.Tensor) else output


def computes_coarsely(model: nn.Module) -> bool:
    """Return True if a model computes in bf16 or float16 by itself, whatever the precision of training."""
    return any(_is_coarse(p) for p in model.parameters())


@contextmanager
def in_float32(model: nn.Module) -> Iterator[None]:
    """Let a model compute in float32 inside the context, from the weights that it has in fewer bits."""
    held = [(values, values.data) for values in (*model.parameters(), *model.buffers()) if _is_coarse(values)]
    layers = [(layer, layer.compute_dtype) for _, layer in quantised(model) if bits(layer) == 4]
    try:
        for values, _ in held:
            values.data = values.data.float()
        for layer, _ in layers:
            layer.compute_dtype = torch.float32
        yield
    finally:
        for values, data in held:
            values.data = data
        for layer, dtype in layers:
            layer.compute_dtype = dtype


def refuse_outliers(model: nn.Module) -> None:
    """Refuse 8-bit layers that look at all rows at once for values above a threshold.

    Raises:
        InputError: names the first such layer, and what to do.
    """
    for name, layer in quantised(model):
        if bits(layer) == 8 and getattr(layer.state, "threshold", 0.0) > 0:
            raise InputError(
                f"model: {name} is an 8-bit layer that computes a column in another way once any row of a batch has a "
                "large value there, so that no row has a gradient of its own: load the model with "
                "BitsAndBytesConfig(load_in_8bit=True, llm_int8_threshold=0.0), or in 4 bits"
            )


def refuse_torchao(model: nn.Module) -> None:
    """Refuse a calling program's model that holds weights in tensors of torchao.

    Raises:
        InputError: names the first such weight, and what to do.
    """
    for name, values in model.named_parameters():
        if is_of_torchao(values):
            raise InputError(
                f"model: {name} is a {type(values).__name__} of torchao, and confide trains beside torchao's weights "
                "only if it loads the model itself (base.quantiser: torchao): do that, or load it by bitsandbytes"
            )
