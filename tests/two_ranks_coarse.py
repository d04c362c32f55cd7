"""Run by tests/two_ranks_all.py: a split model that computes in bf16 or holds a quantised base, beside one process."""

import importlib.util
from dataclasses import replace
from pathlib import Path
from unittest import mock

import torch
from safetensors.torch import load_file

from confide.distributed.ranks import Ranks
from confide.distributed.sharding import is_split, part, rest, shard, whole
from confide.models import loading as models
from confide.models.quantised import Int8Linear, quantised
from confide.models.quantised_split import make_splittable
from confide.runs import job
from confide.runs.folder import Run
from confide.runs.loop import fine_tune
from tests import small, two_ranks
from tests.models.bases import WIDE
from tests.models.test_loading import config
from tests.test_resume import config as run_config
from tests.two_ranks import DRAWS, apart, model_of, moved, steps
from tests.two_ranks import WIDE as MANY_TOKENS

IN_BF16 = (("gpt2", "full"), ("llama", "full"), ("gemma2", "lora"))
LORA = {"kind": "lora", "rank": 3}
NF4, INT8 = {"quantise": "nf4"}, {"quantise": "int8"}
PACKED = {"by hand": {}}  # name: base
if importlib.util.find_spec("bitsandbytes") is not None:
    PACKED |= {"nf4": NF4, "int8": INT8, "nf4 beside bf16": NF4 | {"precision": "bf16"}}


# computing in bf16 -------------------------------------------------------------------------------------------------
def autocast(task_of):
    return lambda model: replace(task_of(model), autocast=True)


def seen_dtypes(model: torch.nn.Module, into: dict[str, str]) -> None:
    """Note in which type each layer has its weights while it computes."""
    for name, module in model.named_modules():
        if any(p is not None for p in module._parameters.values()):

            def look(module, args, name=name):
                own = next(p for p in module._parameters.values() if p is not None)
                assert not is_split(own)
                into[name] = str(own.dtype).removeprefix("torch.")

            module.register_forward_pre_hook(look)


def in_bf16(family: str, adapter: str, ranks: Ranks) -> dict:
    """Steps of split models whose weights are borrowed in bf16 and in float32, of whole ones, and of one process."""
    start = moved(model_of(family, adapter))
    found, dtypes, losses = {}, {}, {}
    for name in ("bf16", "float32", "ddp", "alone"):
        model = model_of(family, adapter)
        if name in ("bf16", "float32"):
            shard(model, ranks, torch.bfloat16 if name == "bf16" else None)
        if name == "bf16":
            seen_dtypes(model, dtypes)
        _, reports = steps(model, DRAWS[:2], 0.5, MANY_TOKENS, Ranks() if name == "alone" else ranks)
        found[name] = moved(model) - start
        losses[name] = [report.loss for report in reports if report.loss is not None]
    return {
        "held": sorted({str(part(p).dtype) for p in models.trainable(model).values()}),
        "as float32": apart(found["bf16"], found["float32"]),
        "losses": max(abs(a - b) for a, b in zip(losses["bf16"], losses["float32"], strict=True)),
        "fsdp": apart(found["bf16"], found["alone"]),
        "ddp": apart(found["ddp"], found["alone"]),
        "dtypes": dtypes,
    }


def without_autocast(ranks: Ranks) -> float:
    """How far float32 logits of weights that are borrowed in bf16 are from those of weights rounded to it."""
    ids = torch.arange(2, 26).view(3, 8)
    rounded, split = model_of("llama", "full"), model_of("llama", "full")
    shard(split, ranks, torch.bfloat16)
    with torch.no_grad():
        for module in rounded.modules():
            if type(module) is torch.nn.Linear:
                module.weight.copy_(module.weight.bfloat16())
        found, expected = (net(input_ids=ids).logits for net in (split, rounded))
    rest(split)
    assert found.dtype == torch.float32
    return apart(found, expected)


# quantised bases ---------------------------------------------------------------------------------------------------
def by_hand(model: torch.nn.Module) -> None:
    """Round the linear layers under LoRA to 8 bits, as torchao does, without it."""
    for name, layer in list(model.named_modules()):
        if name.endswith("base_layer"):
            whole_weight = layer.weight.detach()
            scale = whole_weight.abs().amax(1, keepdim=True) / 127
            layer.__class__ = Int8Linear
            layer.weight = torch.nn.Parameter(
                (whole_weight / scale).round().to(torch.int8), requires_grad=False
            )
            layer.register_buffer("scale", scale.float())


def bytes_of(values: torch.Tensor) -> torch.Tensor:
    return values.detach().as_subclass(torch.Tensor).clone().view(-1).view(torch.uint8)


def packed(folder: Path, base: dict, ranks: Ranks) -> dict:
    """What two ranks hold of a quantised model, and what they compute with it, beside the whole one."""
    settings = config(folder / "model", "causal-lm", adapter=LORA)
    settings = settings.model_copy(update={"base": settings.base.model_copy(update=base)})
    one, split = models.load_model(settings), models.load_model(settings)
    if not base:
        by_hand(one)
        by_hand(split)
    layers = [name for name, _ in quantised(one)]
    expected = [bytes_of(one.get_submodule(name).weight) for name in layers]
    make_splittable(split, ranks.device)
    shard(split, ranks)
    found = [split.get_submodule(name) for name in layers]
    held = sum(part(p).nbytes for layer in found for p in layer._parameters.values() if p is not None)
    ids = torch.arange(2, 26).view(3, 8)
    gradients = []
    for model in (one.train(), split.train()):
        embedded = (
            model.get_base_model()
            .get_input_embeddings()
            .register_forward_hook(lambda module, args, output: output.requires_grad_())
        )
        model.zero_grad()
        output = model(input_ids=ids)
        output.logits.float().square().sum().backward()
        gradients.append(
            [output.logits.detach()]
            + [whole(p.grad) for n, p in model.named_parameters() if p.grad is not None and "lora_B" in n]
        )
        embedded.remove()
    return {
        "layers": len(layers),
        "bits": sorted({layer.bits for layer in found}),
        "split": all(is_split(layer.weight) for layer in found),
        "held": held / sum(values.nbytes for values in expected),
        "wrong": sum(
            not torch.equal(bytes_of(whole(layer.weight.detach())), values)
            for layer, values in zip(found, expected, strict=True)
        ),
        "apart": max(apart(b, a) for a, b in zip(*gradients, strict=True)),
        "same": torch.equal(gradients[0][0], gradients[1][0]),
    }


def trained(folder: Path, base: dict, ranks: Ranks) -> dict:
    """A run of a few steps in bf16, split over the ranks, beside the same run of one process."""
    # Little noise, and no division by its size as in AdamW: a wrong gradient would show.
    changes = {"model": str(folder / "model"), "adapter": LORA, "base": base, "train__steps": 2}
    changes |= {"privacy__noise_multiplier": 1e-3, "train__optimizer": "sgd", "train__precision": "bf16"}
    changes |= {"train__eval_on_start": False, "train__gradient_checkpointing": True}
    with ranks.first_ahead():
        alone = Run(run_config(folder / "alone", **changes))
        together = Run(run_config(folder / "fsdp", **changes, train__distributed="fsdp"))
    chosen = []

    def chooses(model, ranks, coarse=None):
        chosen.append(str(coarse))
        shard(model, ranks, coarse)

    if ranks.first:
        fine_tune(alone, ranks=Ranks())
    ranks.wait()
    with mock.patch.object(job, "shard", chooses):
        fine_tune(together, ranks=ranks)
    ranks.wait()
    if not ranks.first:
        return {}
    start = {
        name.replace(".default.", "."): values
        for name, values in models.load_model(alone.config).state_dict().items()
    }

    def moved_by(run: Run) -> torch.Tensor:
        (path,) = run.release.glob("*.safetensors")
        return torch.cat([(values - start[key]).flatten() for key, values in sorted(load_file(path).items())])

    ledgers = {run.ledger_path.read_text() for run in (alone, together)}
    return {
        "fsdp": apart(moved_by(together), moved_by(alone)),
        "ledgers": len(ledgers),
        "borrowed in": chosen,
    }


def find(folder: Path, ranks: Ranks) -> dict:
    with ranks.first_ahead():
        if ranks.first:
            small.saved(folder / "model", "llama", **WIDE)
    with mock.patch.object(two_ranks, "task_of", autocast(two_ranks.task_of)):
        bf16: dict = {f"{family} {adapter}": in_bf16(family, adapter, ranks) for family, adapter in IN_BF16}
        found = {"bf16": bf16, "without autocast": without_autocast(ranks)}
    found["packed"] = {name: packed(folder, base, ranks) for name, base in PACKED.items()}
    if "nf4" in PACKED:
        found["trained"] = trained(folder, NF4, ranks)
    return found
